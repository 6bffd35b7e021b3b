"""Arguments that several commands share, and the groups of `tyler eval`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

if TYPE_CHECKING:
    from tyler.config.schema import Config
    from tyler.engine.routing import Router

ConfigName = Annotated[Positional[str], arg(metavar="CONFIG")]
ModelName = Annotated[Positional[str], arg(metavar="MODEL")]
Overrides = Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="KEY=VALUE")]
Folder = Annotated[Path, arg(metavar="DIR")]
SomeFolder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]
SomeFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
SomeNumber = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
SomeBytes = Annotated[str | None, arg(metavar="BYTES", help_behavior_hint="")]
SomeBackbone = Annotated[str | None, arg(metavar="MODEL", help_behavior_hint="")]
RouterName = Annotated[str | None, arg(metavar="ROUTER", help_behavior_hint="")]


@dataclass(frozen=True)
class Questions:
    """What is asked."""

    task: Annotated[tuple[str, ...], arg(metavar="TASK [TASK ...]")] = ("mini",)
    """One or more of: mini, gsm8k, math500, gpqa, theoremqa, humaneval, svamp, mawps, jsonl."""
    split: Annotated[str | None, arg(metavar="SPLIT", help_behavior_hint="")] = None
    """Which split; by default the one that is reported."""
    data_dir: SomeFolder = None
    """A file, or the folder with the tasks' official files; by default they come from the Hub."""
    count: SomeNumber = None
    """How many problems of each task, drawn from the split; by default all."""


@dataclass(frozen=True)
class Answering:
    """How the model answers."""

    method: Annotated[str | None, arg(metavar="METHOD", help_behavior_hint="")] = None
    """tyler, cot, soft-thinking, swireasoning, softcot or memgen; by default what the model was trained for."""
    method_set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE")] = ()
    """Change one setting of the method: `--method-set min_p=0.01`."""
    router: RouterName = None
    """learned, never, boundaries or boundaries:0.25 (a share); by default what its last stage trained for."""
    budget: SomeNumber = None
    """At most this many invocations per problem; 0 is the model without operators; by default no limit."""
    max_new_tokens: int = 2048
    """At most this many actions per answer."""
    slots: int = 32
    """Answers decoded at once; changes speed and memory, not the answers."""
    memory: SomeBytes = None
    """At most so much context and caches, as 4GB or 512MiB: answers wait for room; by default no bound."""
    backbone: SomeBackbone = None
    """Where the backbone of a checkpoint is, if it is not where it was: a folder, a GGUF file or a Hub id."""


@dataclass(frozen=True)
class Grading:
    """How answers are graded."""

    mode: Literal["official", "strict"] = "official"
    """How TheoremQA compares numbers: with its official tolerance, or to the digits that are given."""
    deadline: float = 5.0
    """Seconds that grading one answer may take."""
    allow_code_execution: bool = False
    """Let humaneval run the programs of the model, in a sandbox."""
    allow_unsafe_code_execution: bool = False
    """Run them without a sandbox where this machine has none."""
    math_verify: bool = True
    """Do not ask math-verify too. Its verdict on mathematics is kept beside ours and decides nothing."""


@dataclass(frozen=True)
class Matching:
    """At what cost the model answers."""

    match: SomeFolder = None
    """The directory of another evaluation: look for the setting of the method at which an answer has as many tokens,
    visible and latent, as there."""
    match_split: Annotated[str, arg(metavar="SPLIT")] = "dev"
    """The split on whose problems, up to 100, the setting is looked for."""
    match_data: SomeFolder = None
    """The file of that split, or the folder that holds it; by default as the data that is evaluated."""


def load_settings(config: str, overrides: Sequence[str]) -> Config:
    """The config of a command with its dotted settings. Raises ValueError for what is not allowed, by name."""
    from tyler.config.files import load_config

    return load_config(config, overrides)


def memory_of(text: str | None) -> int | None:
    """The bytes that `--memory` names; None where it names none. Raises ValueError for what is no size."""
    from tyler.engine.sizes import bytes_of

    try:
        return None if text is None else bytes_of(text)
    except ValueError as error:
        raise ValueError(f"--memory {error}") from None


def router_of(text: str | None) -> Router | None:
    """The router that `--router` names; None where it names none."""
    from tyler.engine.routing import router_named

    try:
        return None if text is None else router_named(text)
    except ValueError as error:
        raise ValueError(f"--{error}") from error
