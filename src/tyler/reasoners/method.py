"""What a method says of itself, for evaluation and for training, and where the package's own say it. Without torch."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from tyler import reasoners
from tyler.tasks.grading import object_at


@dataclass(frozen=True)
class LengthSetting:
    """A whole-number setting of a method, with which the tokens of an answer grow.

    `lowest` and `highest` bound it; a `highest` of None is twice the tokens that answers are to have. One that
    `only_shortens` answers is tried only where they are too long.
    """

    setting: str
    lowest: int = 0
    highest: int | None = None
    only_shortens: bool = False


MAX_NEW_TOKENS = "max_new_tokens"
"""A length setting that every method has; it makes answers shorter by cutting them off."""


@dataclass(frozen=True)
class Method:
    """How a method answers, as its module says it in METHOD."""

    settings: type
    """A frozen dataclass of what an evaluation can change."""
    reasoner: Callable[[Any, Any], Any]
    """`reasoner(model, settings)` is a dataclass and a `Servable`."""
    length_settings: tuple[LengthSetting, ...] = ()
    """What the length of its answers depends on."""
    checkpoint: Any = None
    """The class that loads its own checkpoints; `manifest` there is the name of a file that each has. None for a method
    of a plain backbone, which is not trained."""


TRACES = ("operators", "stage1.max_length", "stage1.insertions.max")
"""What decides which traces `training.traces.load_traces` keeps."""

Place = str | Callable[..., Any]
"""A function or a class, or where it is: `package.module:NAME` loads nothing until it is needed."""


@dataclass(frozen=True)
class Training:
    """One training, in the package or outside it; its name is a METHOD of `tyler train`."""

    about: str
    """What it is, for the help."""
    run: Place
    """`run(config, output=, resume=)`, with `start=` where it starts from something trained. METRICS of its module says
    what it logs."""
    loop: str
    """The section of the config with its steps and batches."""
    reads: tuple[str, ...] = ()
    """What decides what is learned, besides `backbone` and `data`: sections, or settings (`stage1.max_length`)."""
    settings: Place | None = None
    """The `Section` that a config has for its method, named as `loop` begins; None where `Config` says it itself."""
    start: tuple[str, ...] = ()
    """The trainings that it may continue; by default the first."""
    planned: Place | None = None
    """`planned(shape, config, loop)` is the `training.planned.Step` that `tyler plan` counts, without torch."""
    rehearsed: Place | None = None
    """`rehearsed(backbone, config, trace)` is the trainer and the example of a dry run; of what learns from rewards
    `rehearsed(backbone, config, problems)`, the trainer."""

    @property
    def section(self) -> str:
        """The section of the config that its loop is in."""
        return self.loop.partition(".")[0]

    def load(self) -> Callable[..., Any]:
        """The function `run`; its module loads here."""
        return found_at(self.run)

    def step(self, shape: Any, config: Any) -> Any:
        """The largest micro-batch of a step that a config allows. Raises ValueError where nothing says it."""
        return self._said("planned")(shape, config, self.loop)

    def rehearse(self, *arguments: Any) -> Any:
        """What a dry run takes a step with. Raises ValueError where nothing says it."""
        return self._said("rehearsed")(*arguments)

    def _said(self, what: str) -> Callable[..., Any]:
        if (place := getattr(self, what)) is None:
            raise ValueError(f"the training {self.about!r} has no `{what}`, which plans and dry runs need; give it one")
        return found_at(place)


def found_at(place: Place) -> Callable[..., Any]:
    """The function at a place; its module loads here."""
    return object_at(place) if isinstance(place, str) else place


def packages() -> dict[str, ModuleType]:
    """The packages beside this module by name. Each is a method that is trained and says how in TRAININGS."""
    names = [module.name for module in iter_modules(reasoners.__path__) if module.ispkg]
    return {name: import_module(f"{reasoners.__name__}.{name}") for name in names}
