"""The experiments of the paper, one module each; a module with an `EXPERIMENT` is found by its name."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from tyler.config.sections import suggest

if TYPE_CHECKING:
    from tyler.experiments.experiment import Experiment

FIRST = ("main", "ablation")
"""What is worth having first; the others follow by name."""


def names() -> list[str]:
    """Every experiment."""
    found = sorted(module.name for module in iter_modules(__path__))
    return [*(name for name in FIRST if name in found), *(name for name in found if name not in FIRST)]


def find(name: str) -> Experiment:
    """The experiment of a name. Raises ValueError, with those there are."""
    if name not in names():
        raise ValueError(f"there is no experiment {name!r}{suggest(name, [*names(), 'all'])}")
    experiment: Experiment = import_module(f"{__name__}.{name}").EXPERIMENT
    return experiment


def chosen(asked: tuple[str, ...]) -> list[str]:
    """The names that are meant, each once; `all` is all of them. Raises ValueError for one that is none."""
    for name in asked:
        if name != "all":
            find(name)
    return names() if "all" in asked else list(dict.fromkeys(asked))
