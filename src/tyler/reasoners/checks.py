"""What the settings of methods are checked for; each error names the setting, what came and what is allowed."""

from __future__ import annotations


def check_above(bound: float, **settings: float) -> None:
    """Raise ValueError for a setting that is not above `bound`."""
    for name, value in settings.items():
        if not value > bound:
            raise ValueError(f"{name}={value}; it must be above {bound}")


def check_at_least(bound: float, **settings: float) -> None:
    """Raise ValueError for a setting below `bound`."""
    for name, value in settings.items():
        if not value >= bound:
            raise ValueError(f"{name}={value}; it must be {bound} or more")


def check_share(**settings: float) -> None:
    """Raise ValueError for a setting that is not above 0 and at most 1."""
    for name, value in settings.items():
        if not 0 < value <= 1:
            raise ValueError(f"{name}={value}; it must be above 0 and at most 1")
