"""The methods that an evaluation can name and the trainings of `tyler train`, by name. Without torch."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from tyler.reasoners.method import TRACES, Method, Training, packages
from tyler.runs.metrics import Metrics
from tyler.tasks.grading import object_at

PACKAGED = {name: f"{name}.model" for name, package in packages().items() if find_spec(f"{package.__name__}.model")}
"""Of methods with a package of their own: one without a `model.py` trains a Tyler."""
PLAIN = {"cot": "cot", "soft-thinking": "soft_thinking", "swireasoning": "swireasoning"}
METHODS = dict(sorted((PLAIN | PACKAGED).items()))
"""The module of this package that defines each method's METHOD; it loads when the method is named."""

OWN = "tyler"
"""The model itself, as its last stage left it: Tyler after a stage, SFT, GRPO, or the plain backbone."""


def find_method(name: str) -> Method:
    """What a method says of itself. Raises ValueError for an unknown name."""
    if name not in METHODS:
        raise ValueError(f"unknown --method {name!r}; choose from {', '.join((OWN, *METHODS))}")
    method: Method = import_module(f"tyler.reasoners.{METHODS[name]}").METHOD
    return method


POLICY = ("lora", "stage2", "grpo", "rewards", "decoding")
"""What decides what Stage 2 learns."""

TRAININGS = {
    "stage1": Training(
        "Stage 1 of Tyler: the operators, on solution traces, with the backbone frozen",
        "tyler.training.stage1:run", "stage1", ("operators", "lora", "stage1"),
        planned="tyler.training.planned:stage1", rehearsed="tyler.training.stage1:rehearsed",
    ),
    "stage2": Training(
        "Stage 2 of Tyler: when to invoke which operator, by GRPO, with the operators frozen",
        "tyler.training.stage2:run", "stage2", POLICY, start=("stage1",),
        planned="tyler.training.planned:stage2",
    ),
    "sft": Training(
        "fine-tuning on the traces of Stage 1",
        "tyler.reasoners.sft:run", "sft", ("lora", "sft", *TRACES),
        planned="tyler.training.planned:sft", rehearsed="tyler.reasoners.sft:rehearsed",
    ),
    "grpo": Training(
        "Stage 2 on the plain backbone",
        "tyler.reasoners.grpo:run", "stage2", POLICY,
        planned="tyler.training.planned:grpo", rehearsed="tyler.reasoners.grpo:rehearsed",
    ),
    **{name: training for package in packages().values() for name, training in package.TRAININGS.items()},
}  # fmt: skip
"""The stages of Tyler, their counterparts without operators, and what the packages of the methods say."""


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
        raise ValueError(f"{name!r} is not a tyler.reasoners.method.Training, but a {type(training).__name__}")
    return training


def every_metrics() -> dict[str, Metrics]:
    """What each kind of training logs, by the prefix of its keys. Loads all of them, and torch."""
    found = [import_module(training.load().__module__).METRICS for training in TRAININGS.values()]
    return {metrics.prefix: metrics for metrics in found}
