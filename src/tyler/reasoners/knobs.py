"""What can be turned to make a method's answers longer or shorter."""

from __future__ import annotations

from dataclasses import dataclass

MAX_NEW_TOKENS = "max_new_tokens"
"""A knob that every method has; it makes answers shorter by cutting them off."""


@dataclass(frozen=True)
class Knob:
    """A whole-number setting of a method, with which the tokens of an answer grow.

    `lowest` and `highest` bound it; a `highest` of None is twice the tokens that answers are to have. One that `caps`
    shortens answers and lengthens none.
    """

    setting: str
    lowest: int = 0
    highest: int | None = None
    caps: bool = False


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
