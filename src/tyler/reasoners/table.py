"""The methods that an evaluation can name and the trainings of `tyler train`: one table of each. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from tyler.runs.metrics import Metrics
from tyler.tasks.grading import object_at

# ---------------------------------------------------------------------------------------------------------- methods


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
class CheckpointFormat:
    """The checkpoints of a method that has its own: the file that each has, and the class that loads it."""

    manifest: str
    model: Any


@dataclass(frozen=True)
class Method:
    """One method, as its module says it in METHOD."""

    settings: type
    """A frozen dataclass of what an evaluation can change."""
    reasoner: Callable[[Any, Any], Any]
    """`reasoner(model, settings)` is a dataclass and a `Servable`."""
    length_settings: tuple[LengthSetting, ...] = ()
    """What the length of its answers depends on."""
    checkpoint: CheckpointFormat | None = None
    """None for a method of a plain backbone, which is not trained."""


METHODS = {
    "cot": "cot",
    "memgen": "memgen.model",
    "soft-thinking": "soft_thinking",
    "softcot": "softcot.model",
    "swireasoning": "swireasoning",
}
"""The module of this package that defines each method's METHOD; it loads when the method is named."""

OWN = "tyler"
"""The model itself, as its last stage left it: Tyler after a stage, SFT, GRPO, or the plain backbone."""


def find_method(name: str) -> Method:
    """What a method says of itself. Raises ValueError for an unknown name."""
    if name not in METHODS:
        raise ValueError(f"unknown --method {name!r}; choose from {', '.join((OWN, *METHODS))}")
    method: Method = import_module(f"tyler.reasoners.{METHODS[name]}").METHOD
    return method


# -------------------------------------------------------------------------------------------------------- trainings


@dataclass(frozen=True)
class Training:
    """One training; its name is a METHOD of `tyler train`."""

    about: str
    """What it is, for the help."""
    run: str | Callable[..., Any]
    """`run(config, output=, resume=)`, with `start=` where it starts from something trained; one of ours by its place
    in this package, as `module:function`. METRICS of its module says what it logs."""
    loop: str
    """The section of the config with its steps and batches."""
    reads: tuple[str, ...] = ()
    """What decides what is learned, besides `backbone` and `data`: sections, or settings (`stage1.max_length`)."""
    start: str | None = None
    """The training that it continues."""
    config: type | None = None
    """Of a training outside the package: its `Config`, which has a section more."""
    planned: str = ""
    """Where `planned(shape, config, loop)` is: the `training.planned.Step` that `tyler plan` counts; loads no torch."""
    rehearsed: str = ""
    """Where `rehearsed(backbone, config, trace)` is: the trainer and the example of a dry run; of what learns from
    rewards `rehearsed(backbone, config, problems)`, the trainer."""

    def load(self) -> Callable[..., Any]:
        """The function `run`; its module loads here."""
        return object_at(f"tyler.{self.run}") if isinstance(self.run, str) else self.run

    def step(self, shape: Any, config: Any) -> Any:
        """The largest micro-batch of a step that a config allows."""
        return object_at(f"tyler.{self.planned}")(shape, config, self.loop)

    def rehearse(self, *arguments: Any) -> Any:
        """What a dry run takes a step with."""
        return object_at(f"tyler.{self.rehearsed}")(*arguments)


TRACES = ("operators", "stage1.max_length", "stage1.insertions.max")
"""What decides which traces `training.traces.load_traces` keeps."""
MEMGEN = ("memgen", "rewards")
POLICY = ("lora", "stage2", "grpo", "rewards", "decoding")

TRAININGS = {
    "stage1": Training(
        "Stage 1 of Tyler: the operators, on solution traces, with the backbone frozen",
        "training.stage1:run", "stage1", ("operators", "lora", "stage1"),
        planned="training.planned:stage1", rehearsed="training.stage1:rehearsed",
    ),
    "stage2": Training(
        "Stage 2 of Tyler: when to invoke which operator, by GRPO, with the operators frozen",
        "training.stage2:run", "stage2", POLICY, start="stage1",
        planned="training.planned:stage2",
    ),
    "sft": Training(
        "fine-tuning on the traces of Stage 1",
        "reasoners.sft:run", "sft", ("lora", "sft", *TRACES),
        planned="training.planned:sft", rehearsed="reasoners.sft:rehearsed",
    ),
    "grpo": Training(
        "Stage 2 on the plain backbone",
        "reasoners.grpo:run", "stage2", POLICY,
        planned="training.planned:grpo", rehearsed="reasoners.grpo:rehearsed",
    ),
    "softcot": Training(
        "soft thoughts of an assistant in the prompt",
        "reasoners.softcot.sft:run", "softcot", ("softcot", "stage1.max_length"),
        planned="reasoners.softcot.planned:softcot", rehearsed="reasoners.softcot.sft:rehearsed",
    ),
    "memgen": Training(
        "MemGen's weaver on the traces of Stage 1",
        "reasoners.memgen.sft:run", "memgen.weaver", ("memgen", *TRACES),
        planned="reasoners.memgen.planned:weaver", rehearsed="reasoners.memgen.sft:rehearsed",
    ),
    "memgen-weaver-grpo": Training(
        "GRPO of a trained weaver",
        "reasoners.memgen.grpo:run_weaver", "memgen.weaver_grpo", MEMGEN, start="memgen",
        planned="reasoners.memgen.planned:weaver", rehearsed="reasoners.memgen.grpo:rehearsed_weaver",
    ),
    "memgen-trigger": Training(
        "GRPO of the trigger of a trained weaver",
        "reasoners.memgen.grpo:run_trigger", "memgen.trigger", MEMGEN, start="memgen",
        planned="reasoners.memgen.planned:trigger", rehearsed="reasoners.memgen.grpo:rehearsed_trigger",
    ),
}  # fmt: skip


@cache
def find_training(name: str) -> Training:
    """The training of a name, or at `FILE.py:NAME` or `package.module:NAME`.

    Raises ValueError for any other name, with what kept it from being loaded.
    """
    if name in TRAININGS:
        return TRAININGS[name]
    try:
        training = object_at(name)
    except Exception as error:
        raise ValueError(f"there is no training {name!r}: {type(error).__name__}: {error}") from error
    if not isinstance(training, Training):
        raise ValueError(f"{name!r} is not a tyler.reasoners.table.Training, but a {type(training).__name__}")
    return training


def every_metrics() -> dict[str, Metrics]:
    """What each kind of training logs, by the prefix of its keys. Loads all of them, and torch."""
    modules = {training.load().__module__: None for training in TRAININGS.values()}
    found = [import_module(module).METRICS for module in modules]
    return {metrics.prefix: metrics for metrics in found}
