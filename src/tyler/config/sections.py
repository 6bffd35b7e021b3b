"""The sections of a config that every run has, and what all sections share."""

import inspect
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tyler.config.engine_choice import EngineName
from tyler.config.sizes import bytes_of
from tyler.tasks.decontamination import OnOverlap
from tyler.tasks.grading import task_name

MAX_BATCH = 2**16
"""More examples than any step learns from: a larger number is a slip, and would take minutes to be found out."""

Count = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH)]
TaskName = Annotated[str, AfterValidator(task_name)]
Weight = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Linear = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""The linear maps of a decoder layer, by the names that all supported families give them."""


def suggest(word: str, allowed: Sequence[str]) -> str:
    """The end of a refusal: what was probably meant, and what is allowed."""
    close = get_close_matches(word, allowed, n=1)
    return (f"; did you mean {close[0]!r}?" if close else ";") + f" allowed: {', '.join(allowed) or 'none'}"


class Section(BaseModel):
    """What all sections share: unknown keys are refused, types are not bent, and nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class MethodConfig(Section):
    """The settings of a method that is trained, which its `Training` names (`reasoners/method.py`)."""

    @property
    def most_latents(self) -> int:
        """The most latents that the method adds to a text."""
        return 0


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a type is made of: itself, or those in a tuple or a union."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in sections_in(part)]


class BackboneConfig(Section):
    """The backbone theta. `id` is `mini` (ships in the package), `smollm2` (`tyler fetch smollm2` brings it), a local
    folder, a GGUF file or a Hub id."""

    id: str = "mini"
    """Where the model is."""
    revision: str | None = None
    """The branch, tag or commit of a Hub id; null for its main branch."""
    adapters: tuple[str, ...] = ()
    """Folders of LoRAs, such as `policy/` of an SFT checkpoint, that are merged into its weights, in order;
    `smollm2-tyler` means the skill in the model that ships."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights; auto is bfloat16 on a GPU that has it, else float32."""
    thinking: bool = False
    """The thinking mode of the Qwen3 and SmolLM3 chat templates."""
    instruction: str = "Please reason step by step, and put your final answer within \\boxed{}."
    """Added to every problem; empty for none."""
    system: str = ""
    """What the system says before every problem; empty for nothing."""


class LoraConfig(Section):
    """The shape of both LoRAs: phi (synthesizer) and eta (policy). Dropout acts where traces are learned, in Stage
    1 and SFT; learning from rewards is without."""

    rank: Count = 8
    """r: the inner width of an adapter."""
    alpha: Count = 16
    """An adapter is scaled by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the adapter's inputs that are dropped while learning."""
    target_modules: Annotated[tuple[Linear, ...], Field(min_length=1)] = ("q_proj", "v_proj")
    """The linear maps of every layer that get an adapter."""


class DevelopmentConfig(Section):
    """Problems to watch while training, and to choose by; never those that results are reported on."""

    task: TaskName | None = None
    """null for the training task."""
    split: str = "dev"
    """A split of the task; where it has none of this name and no path is given, training problems are set
    aside instead."""
    path: str | None = None
    """The file, or the folder that holds it; null for the folder of the data, else the Hub."""
    count: Count | None = 100
    """How many problems are drawn; null takes all. Of training problems at most a tenth is set aside."""


class HeldOutConfig(Section):
    """A set that no training problem may come from."""

    task: TaskName
    """The task whose problems are held out."""
    split: str | None = None
    """null for the split that is reported."""
    path: str | None = None
    """The file, or the folder that holds it; null for the folder of the data or the evaluation, else the Hub."""
    optional: bool = False
    """Whether a run that cannot read it goes ahead and says so."""


class MoreDataConfig(Section):
    """A set that is learned beside `data`'s own: its share of the mixture is its `weight`, or else its problems'."""

    task: TaskName
    """The task whose problems are learned too."""
    split: str | None = None
    """Its split; null for train, and for a file of your own its name (ids are `more-1`, of `more.jsonl`)."""
    path: str | None = None
    """The file, or the folder that holds it; null for the folder of the data, else the Hub."""
    revision: str | None = None
    """The branch, tag or commit of the Hub's copy; null for its newest."""
    count: Count | None = None
    """How many problems are drawn; null takes all."""
    weight: Rate | None = None
    """Its share of the examples, against the weights of the other sets; a set too small for it is repeated."""


class DataConfig(Section):
    """The training problems: a task by name, or `jsonl` with a `path`. `count` problems are drawn with `seed`."""

    task: TaskName = "mini"
    """The task whose problems are learned."""
    split: str = "train"
    """Its split."""
    path: str | None = None
    """The file, or the folder that holds it; null for the Hub."""
    revision: str | None = None
    """The branch, tag or commit of the Hub's copy; null for its newest."""
    count: Count | None = None
    """How many problems are drawn; null takes all."""
    weight: Rate | None = None
    """The share of these problems in a mixture, against the weights in `also`; null for as many as there are."""
    seed: Seed = 42
    """Of the draw of `count` problems, and of a mixture's."""
    also: tuple[MoreDataConfig, ...] = ()
    """Further sets to mix in, each with its `count` or `weight`; all problems are shuffled together."""
    development: DevelopmentConfig | None = None
    """Problems to watch training with, and to choose the best checkpoint by; null for none."""
    held_out: tuple[HeldOutConfig, ...] | None = None
    """What training problems are compared with before a run, besides the evaluation's set; empty for neither. A
    development set is always kept apart."""
    on_overlap: OnOverlap = "refuse"
    """Whether held-out problems among the training problems stop the run, or are left out of it."""

    @model_validator(mode="after")
    def _jsonl_needs_a_path(self) -> Self:
        if self.task == "jsonl" and self.path is None:
            raise ValueError("task 'jsonl' needs data.path, the file to read")
        return self

    @model_validator(mode="after")
    def _all_sets_are_weighted_or_none(self) -> Self:
        weights = [self.weight, *(extra.weight for extra in self.also)]
        if len(set(map(type, weights))) > 1 or (self.weight is not None and not self.also):
            raise ValueError(
                "a weight compares the sets of a mixture: give one to data and to each set in also, or none"
            )
        return self

    @property
    def examples(self) -> int | None:
        """How many problems of all sets; None where one of them is taken whole."""
        counts = [self.count, *(extra.count for extra in self.also)]
        return None if None in counts else sum(count for count in counts if count is not None)


class DecodingConfig(Section):
    """How answers are generated: rollouts and development problems by `slots` and `memory`, an evaluation that is
    made from a config by all of it. Rollouts have their own temperature and length (`grpo`, `stage2`).
    """

    max_new_tokens: Count = 2048
    """Actions an answer may have: visible tokens and invocations."""
    temperature: Weight = 0.0
    """Of the choice of an action; 0 is greedy, as in the paper."""
    budget: NonNegative | None = None
    """A hard cap on invocations; null for none, 0 for no operators."""
    slots: Count = 16
    """Trajectories decoded at once."""
    memory: Annotated[int, BeforeValidator(bytes_of)] | None = None
    """The most bytes of context and caches, as 4GB or 512MiB: answers wait for room; null for half of what is free."""
    engine: EngineName = "native"
    """Which engine decodes: native, or vllm for GPUs and many answers at once."""
    engine_args: dict[str, int | float | bool | str] = Field(default_factory=dict)
    """Arguments of vLLM's own, as tensor_parallel_size: 2."""


class EvaluationConfig(Section):
    """What a run is evaluated on; `count` null takes the whole split."""

    task: TaskName = "mini"
    """The task that is evaluated."""
    split: str = "eval"
    """Its split."""
    path: str | None = None
    """The file, or the folder that holds it; null for the Hub."""
    revision: str | None = None
    """The branch, tag or commit of the Hub's copy; null for its newest."""
    count: Count | None = None
    """How many problems are drawn; null takes the whole split."""


class CheckpointsConfig(Section):
    """What stays in a run's `checkpoints`: the newest, and beside them the best on the development problems."""

    keep: Count = 2
    """How many of the newest checkpoints stay."""
    lock: bool = True
    """Whether the run's directory is locked while it is written; false (`--no-lock`) where its file system has no
    locks, and then nothing keeps a second process from writing it."""
    trajectories: Share = 1.0
    """The share of a step's rollouts that trajectories.jsonl.gz keeps, spread evenly; 0 for no file."""


class TrackingConfig(Section):
    """Where metrics are shown besides metrics.jsonl, which is always written."""

    tool: Literal["none", "tensorboard", "trackio", "wandb", "mlflow"] = "none"
    """The tracker; its package must be installed."""
    project: str = "tyler"
    """The project that the run is listed under there."""
    name: str | None = None
    """What the run is called there; null for the name of its directory."""


class DevicesConfig(Section):
    """What a training computes on, and how its processes work together, where a launcher started several
    (docs/devices.md)."""

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?|mps)$")] | None = None
    """cpu, cuda, cuda:1 or mps; null for a CUDA device where there is one, else the CPU."""
    timeout: Rate = 30.0
    """Minutes that a process waits for the others before it gives up."""
