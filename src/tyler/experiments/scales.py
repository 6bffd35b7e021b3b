"""The scales of the experiments: which backbones, problems, seeds and chosen settings each has.

mini      the shipped backbone on generated problems, on a CPU
smollm2   SmolLM2-135M-Instruct on word problems, on a CPU; its cells are those of `studies/smollm2.yaml`
paper     the paper's three backbones and four benchmarks, on GPUs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


def mini_domains(questions: Questions, count: int, *shorter: str) -> tuple[Domain, ...]:
    """The order of the paper: code, science, mathematics, theorems; with overrides of every training on them."""
    families = {"science": ("science",), "mathematics": ("arithmetic", "algebra"), "theorems": ("theorems",)}
    return tuple(
        Domain(
            title,
            (f"data.split=train-{name}", f"data.count={count}", *shorter),
            name,
            questions,
            families.get(name, (name,)),
        )
        for title, name in (("code", "programs"), *((name, name) for name in families))
    )


MINI_EVAL, MINI_HARDER = Questions("mini", "eval", None, 160), Questions("mini", "harder", None, 192)
MINI = Scale(
    name="mini",
    backbones={"mini": "mini"},
    studied="mini",
    sequential="mini",
    tasks={"eval": MINI_EVAL, "harder": MINI_HARDER},
    seeds=(42, 43, 44),
    tuned={
        "grpo": ("stage2.learning_rate=5e-3",),
        "softcot": ("softcot.learning_rate=1e-3",),
        "memgen": ("memgen.weaver.learning_rate=1e-2",),
    },
    decoded={"soft-thinking": ("max_topk=3",), "swireasoning": ("window=8",)},
    timed=100,
    explained=("eval", "harder"),
    domains=mini_domains(
        *(MINI_EVAL, 1000),
        *("sft.steps=100", "stage1.steps=100", "memgen.weaver.steps=100", "stage2.steps=25"),
    ),
)

SMOLLM2 = Scale(
    name="smollm2",
    backbones={"SmolLM2-135M": "smollm2-135m"},
    studied="SmolLM2-135M",
    sequential="SmolLM2-135M",
    tasks={"MAWPS": Questions("mawps", "test", 500, 160), "SVAMP": Questions("svamp", "test", 500, 160)},
    seeds=(42,),
    timed=50,
    explained=("MAWPS", "SVAMP"),
)

GSM8K = Questions("gsm8k", "test", None, 2048)
GPQA = Questions("gpqa", "test", None, 2048)
THEOREMQA = Questions("theoremqa", "test", None, 2048)


def _own_traces(title: str, column: str, questions: Questions) -> Domain:
    """A domain whose training traces no benchmark publishes: they are in TITLE.jsonl, in the folder of the data."""
    learned = ("data.task=jsonl", f"data.split={title}", "data.path=given", "data.count=null")
    return Domain(title, learned, column, questions)


PAPER = Scale(
    name="paper",
    backbones={"SmolLM3-3B": "smollm3-3b", "Qwen3-4B": "qwen3-4b", "Qwen2.5-1.5B": "qwen2.5-1.5b"},
    studied="Qwen3-4B",
    sequential="Qwen2.5-1.5B",
    tasks={
        "GSM8K": GSM8K,
        "MATH-500": Questions("math500", "test", None, 2048),
        "GPQA-Diamond": GPQA,
        "TheoremQA": THEOREMQA,
    },
    seeds=(42,),
    timed=100,
    explained=("MATH-500",),
    domains=(
        _own_traces("code", "HumanEval", Questions("humaneval", "test", None, 2048)),
        _own_traces("science", "GPQA-Diamond", GPQA),
        Domain("mathematics", ("data.task=gsm8k", "data.split=train", "data.count=null"), "GSM8K", GSM8K),
        _own_traces("theorems", "TheoremQA", THEOREMQA),
    ),
)

SCALES: dict[str, Scale] = {scale.name: scale for scale in (MINI, SMOLLM2, PAPER)}


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
