"""The experiments of the paper and the studies of our own, each a module with an `EXPERIMENT`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from tyler.config.sections import suggest
from tyler.experiments import studies as study_modules

if TYPE_CHECKING:
    from tyler.experiments.experiment import Experiment


def names() -> list[str]:
    """Every experiment of the paper; what is worth having first comes first."""
    first = ("main", "ablation")
    return [*first, *sorted({module.name for module in iter_modules(__path__)}.difference(first))]


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


def chosen(names_given: tuple[str, ...]) -> list[str]:
    """The names, each once; `all` stands for all of them."""
    return names() if "all" in names_given else list(dict.fromkeys(names_given))
