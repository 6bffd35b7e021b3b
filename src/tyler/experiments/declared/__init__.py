"""The experiments of the paper, one module each; a module with an `EXPERIMENT` is found by its name."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from tyler.config.sections import suggest
from tyler.experiments import studies as study_modules

if TYPE_CHECKING:
    from tyler.experiments.experiment import Experiment

FIRST = ("main", "ablation")
"""What is worth having first; the others follow by name."""


def names() -> list[str]:
    """Every experiment of the paper."""
    found = sorted(module.name for module in iter_modules(__path__))
    return [*(name for name in FIRST if name in found), *(name for name in found if name not in FIRST)]


def studies() -> list[str]:
    """The studies of our own; `all` does not run them."""
    return sorted(module.name for module in iter_modules(study_modules.__path__))


def find(name: str) -> Experiment:
    """The experiment of a name. Raises ValueError, with those there are."""
    if name not in (known := [*names(), *studies()]):
        raise ValueError(f"there is no experiment {name!r}{suggest(name, [*known, 'all'])}")
    package = study_modules.__name__ if name in studies() else __name__
    experiment: Experiment = import_module(f"{package}.{name}").EXPERIMENT
    return experiment


def chosen(asked: tuple[str, ...]) -> list[str]:
    """The names, each once; `all` stands for all of them. Raises ValueError for an unknown name."""
    for name in asked:
        if name != "all":
            find(name)
    return names() if "all" in asked else list(dict.fromkeys(asked))
