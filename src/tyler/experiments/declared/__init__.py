"""The experiments of the paper, each a module with an `EXPERIMENT`; a study of our own is a file (`study.py`)."""

from importlib import import_module
from pkgutil import iter_modules

from tyler.config.sections import suggest
from tyler.experiments.experiment import Experiment
from tyler.experiments.study import Study, read_study, studies


def names() -> list[str]:
    """Every experiment of the paper; what is worth having first comes first."""
    first = ("main", "ablation")
    return [*first, *sorted({module.name for module in iter_modules(__path__)}.difference(first))]


def find(name: str) -> Experiment | Study:
    """The experiment or study of a name. Raises ValueError, with those there are."""
    if name in studies():
        return read_study(name)
    if name not in names():
        raise ValueError(f"there is no experiment {name!r}{suggest(name, [*names(), *studies(), 'all'])}")
    experiment: Experiment = import_module(f"{__name__}.{name}").EXPERIMENT
    return experiment


def chosen(names_given: tuple[str, ...]) -> list[str]:
    """The names, each once; `all` stands for all of them, without the studies."""
    return names() if "all" in names_given else list(dict.fromkeys(names_given))
