"""The scales of the experiments: which backbones, problems, seeds and chosen settings each has (scales.yaml)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from tyler.config.sections import suggest
from tyler.experiments.cells import Decoding, Questions, Training

Rows = dict[str, tuple[Training, Decoding]]
"""How the model of each row is trained, and how it answers."""


@dataclass(frozen=True)
class Domain:
    """A step of sequential adaptation: its title, what is learned, and on whose problems it is measured.

    `learned` are overrides of the data, `column` is the title of its problems, of which `families` count (none: all).
    """

    title: str
    learned: tuple[str, ...]
    column: str
    questions: Questions
    families: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scale:
    """Everything in which scales differ."""

    name: str
    backbones: Mapping[str, str]
    """Preset by title; `main` has all of them."""
    studied: str
    """The title of the backbone of all experiments but `main` and `continual`."""
    sequential: str
    """The title of the backbone of `continual`."""
    tasks: Mapping[str, Questions]
    """What is asked, by the title of its column."""
    seeds: tuple[int, ...]
    domains: tuple[Domain, ...] = ()
    tuned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What was chosen on development problems, by method of training."""
    decoded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The same of methods of decoding."""
    common: tuple[str, ...] = ()
    """Overrides of every training."""
    timed: int | None = None
    """Problems of each task whose answers are timed one by one; None for all."""
    seen: int = 100
    """Problems whose latents are kept."""
    explained: tuple[str, ...] = ()
    """The tasks whose answers are kept as texts, to say how they fail."""

    def training(self, method: str, *more: str, start: Training | None = None) -> Training:
        """A training of a method with what was chosen for it, and more overrides."""
        return Training(method, (*self.common, *self.tuned.get(method, ()), *more), start)

    @property
    def preset(self) -> str:
        """That of the backbone that most experiments study."""
        return self.backbones[self.studied]


_DECLARED = yaml.safe_load(Path(__file__).with_name("scales.yaml").read_text(encoding="utf-8"))
SCALES = TypeAdapter(dict[str, Scale]).validate_python(_DECLARED)


def scale_named(name: str) -> Scale:
    """The scale of a name. Raises ValueError, with those there are."""
    if name not in SCALES:
        raise ValueError(f"there is no scale {name!r}{suggest(name, list(SCALES))}")
    return SCALES[name]


COT, SFT, GRPO, SOFTCOT, SOFT_THINKING = "CoT", "SFT", "GRPO", "SoftCoT", "Soft-Thinking"
MEMGEN, SWIREASONING, STAGE1, STAGE2 = "MemGen", "SwiReasoning", "Tyler, Stage 1", "Tyler, Stage 2"
TYLER = "Tyler"

COLOURS: Mapping[str, str] = {
    COT: "#666666",
    SFT: "#e69f00",
    GRPO: "#882255",
    SOFTCOT: "#cc79a7",
    SOFT_THINKING: "#999999",
    MEMGEN: "#009e73",
    SWIREASONING: "#000000",
    STAGE1: "#56b4e9",
    STAGE2: "#0072b2",
    TYLER: "#0072b2",
    "global": "#0072b2",
    "state": "#d55e00",
    "procedure": "#009e73",
    "seconds": "#d55e00",
}
"""Of methods and operators: the palette of Okabe and Ito, which people who see few colours tell apart, and greys.

In the place of its yellow, faint on white, stands Tol's wine."""

HARD_CAP = 16
"""Calls of an answer whose latents are not those that the policy learned with: it may call for more without end."""


def methods(scale: Scale) -> Rows:
    """Every method of the main table, in its order."""
    tyler1 = scale.training("stage1")
    soft, switching = (scale.decoded.get(name, ()) for name in ("soft-thinking", "swireasoning"))
    return {
        COT: (Training(), Decoding(router="never")),
        SFT: (scale.training("sft"), Decoding()),
        GRPO: (scale.training("grpo"), Decoding()),
        SOFTCOT: (scale.training("softcot"), Decoding("softcot")),
        SOFT_THINKING: (Training(), Decoding("soft-thinking", soft)),
        MEMGEN: (scale.training("memgen"), Decoding("memgen")),
        SWIREASONING: (Training(), Decoding("swireasoning", switching)),
        STAGE1: (tyler1, Decoding()),
        STAGE2: (scale.training("stage2", start=tyler1), Decoding()),
    }


TIMED = "timed"
"""The group of entries whose answers are timed one by one."""
