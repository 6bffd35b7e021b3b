"""Every setting of a run, with the paper's values as defaults (Table of hyper-parameters) on the shipped backbone.

A config is YAML over these sections. Whatever is misspelt or impossible is refused by name, before anything is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from tyler.boundaries.rules import check_rules
from tyler.modeling.operators import PAPER_OPERATORS, Operator, check_operators
from tyler.tasks.decontamination import OnOverlap, Selection
from tyler.tasks.grading import task_name
from tyler.tasks.prompts import Prompt

Count = Annotated[int, Field(ge=1)]
TaskName = Annotated[str, AfterValidator(task_name)]
Weight = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
RewardScale = Literal["group", "batch", "none"]
Linear = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""The linear maps of a decoder layer, by the names that all supported families give them."""


def suggest(word: str, allowed: Sequence[str]) -> str:
    """The end of a refusal: what was probably meant, and what is allowed."""
    close = get_close_matches(word, allowed, n=1)
    return (f"; did you mean {close[0]!r}?" if close else ";") + f" allowed: {', '.join(allowed)}"


class Section(BaseModel):
    """What all sections share: unknown keys are refused, types are not bent, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class BackboneConfig(Section):
    """The backbone theta. `id` is `mini` (ships in the package), `smollm2` (`tyler fetch smollm2` brings it), a local
    folder, a GGUF file or a Hub id."""

    id: str = "mini"
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    thinking: bool = False
    """The thinking mode of the Qwen3 and SmolLM3 chat templates."""
    instruction: str = "Please reason step by step, and put your final answer within \\boxed{}."
    """Added to every problem; empty for none."""


class LoraConfig(Section):
    """The shape of both LoRAs: phi (synthesizer) and eta (policy). Dropout acts in Stage 1 only."""

    rank: Count = 8
    alpha: Count = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    target_modules: Annotated[tuple[Linear, ...], Field(min_length=1)] = ("q_proj", "v_proj")


class DevelopmentConfig(Section):
    """Problems to watch while training, and to choose by; never those that results are reported on."""

    split: str = "dev"
    path: str | None = None
    count: Count | None = 100


class HeldOutConfig(Section):
    """A set that no training problem may come from."""

    task: TaskName
    split: str | None = None
    """null for the split that is reported."""
    path: str | None = None
    """The file, or the folder that holds it; null for the Hub."""


class DataConfig(Section):
    """The training problems: a task by name, or `jsonl` with a `path`. `count` problems are drawn with `seed`."""

    task: TaskName = "mini"
    split: str = "train"
    path: str | None = None
    """The file, or the folder that holds it; null for the Hub."""
    count: Count | None = None
    """null takes all."""
    seed: Seed = 42
    development: DevelopmentConfig | None = None
    """null for none."""
    held_out: tuple[HeldOutConfig, ...] | None = None
    """What training problems are compared with before a run; null for the evaluation's set, empty for none."""
    on_overlap: OnOverlap = "refuse"
    """Whether held-out problems among the training problems stop the run, or are left out of it."""

    @model_validator(mode="after")
    def _jsonl_needs_a_path(self) -> DataConfig:
        if self.task == "jsonl" and self.path is None:
            raise ValueError("task 'jsonl' needs data.path, the file to read")
        return self


class InsertionsConfig(Section):
    """How many latent blocks Stage 1 inserts in one example: uniform in `min`..`max`, at most one per candidate.

    `first` names an operator whose block is always one of them; null draws all of them. The paper inserts exactly one.
    """

    min: Count = 1
    max: Count = 1
    first: str | None = None

    @model_validator(mode="after")
    def _min_is_at_most_max(self) -> InsertionsConfig:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        return self


class OptimizationConfig(Section):
    """What all loops share: length, batch, AdamW and its schedule.

    `batch_size` counts examples per optimizer step, or prompts where a group of answers is sampled for each.
    `micro_batch_size` examples or answers are held in memory at once (null: all), or as many as `micro_batch_tokens`
    allows, which changes memory and speed, not the step.
    """

    epochs: Rate | None
    steps: Count | None = None
    """Optimizer steps; where given, it replaces `epochs`, which may then be null."""
    batch_size: Count = 8
    micro_batch_size: Count | None = None
    micro_batch_tokens: Count | Literal["auto"] | None = None
    """Padded positions held at once, instead of `micro_batch_size`: rows of similar length, under a tenth of padding.

    auto is what a processor reads fastest, and on a GPU what its memory has room for; null cuts by rows.
    """
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third more time."""
    optimizer: Literal["adamw"] = "adamw"
    learning_rate: Rate = 1e-5
    scheduler: Literal["cosine", "constant"] = "cosine"
    warmup_ratio: Share = 0.1
    weight_decay: Weight = 0.0
    max_grad_norm: Rate = 1.0
    eval_every: Count | None = None
    """Steps between evaluations on the development split, by which the best checkpoint is chosen; null for none."""
    checkpoint_every: Count | None = 100
    """Steps between checkpoints; null for the last one only. A killed run resumes from its newest checkpoint."""
    seed: Seed = 42

    @model_validator(mode="after")
    def _its_length_is_given(self) -> OptimizationConfig:
        if self.epochs is None and self.steps is None:
            raise ValueError("epochs and steps are both null, and one of them says how long it takes; set one")
        return self

    @model_validator(mode="after")
    def _micro_batches_are_cut_in_one_way(self) -> OptimizationConfig:
        if self.micro_batch_size is not None and self.micro_batch_tokens is not None:
            raise ValueError(
                f"micro_batch_size={self.micro_batch_size} and micro_batch_tokens={self.micro_batch_tokens} both cut "
                "the batch; set one of them to null"
            )
        return self

    def num_steps(self, num_examples: int) -> int:
        """Optimizer steps over `num_examples` examples: `epochs` times as many as an epoch needs, rounded up.

        Every batch is full (`training.loop.batch_at`): the last one of an epoch goes on into the next, so that a run
        reads every example `epochs` times and the first few of the next epoch's order once more.
        """
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None, "one of the two is given"
        return math.ceil(self.epochs * math.ceil(num_examples / self.batch_size))


class Stage1Config(OptimizationConfig):
    """Stage 1: the operators learn, the backbone is frozen (Section 3.4)."""

    epochs: Rate | None = 2.0
    latents: Literal["computed", "constant"] = "computed"
    """`constant` is a control, pause tokens: each operator inserts one learned vector, repeated, in every context."""
    autocast: bool = False
    """Products in bfloat16 where the backbone is in float32."""
    insertions: InsertionsConfig = InsertionsConfig()
    max_length: Count = 4096
    """Tokens and latents per example; longer examples are left out and counted."""
    shard_layers: bool = False
    """Every process keeps a part of each layer (FSDP2), for a backbone that does not fit on one device."""

    @model_validator(mode="after")
    def _shards_are_read_in_step(self) -> Stage1Config:
        if self.shard_layers and self.insertions.max > 1:
            raise ValueError(
                f"shard_layers needs insertions.max=1, got {self.insertions.max}: processes read their layers in step, "
                "and each block is one more reading"
            )
        if self.shard_layers and self.micro_batch_tokens is not None:
            raise ValueError(
                f"shard_layers needs micro_batch_tokens=null, got {self.micro_batch_tokens}: processes read their "
                "layers in step, and their examples differ in length; set micro_batch_size"
            )
        return self


class SftConfig(OptimizationConfig):
    """Fine-tuning without operators, on the traces of Stage 1 in the same order."""

    epochs: Rate | None = 2.0
    autocast: bool = False
    """Products in bfloat16 where the backbone is in float32."""


class MemGenLoraConfig(LoraConfig):
    """The shape of MemGen's LoRAs, of weaver and trigger. Dropout acts in supervised training only."""

    rank: Count = 16
    alpha: Count = 32


class MemGenWeaverConfig(OptimizationConfig):
    """Supervised training of the weaver, on the traces of Stage 1 in the same order."""

    epochs: Rate | None = 2.0


class MemGenGrpoConfig(OptimizationConfig):
    """GRPO of the weaver: G rollouts a problem, advantages over std + epsilon, no KL term (beta is 0)."""

    epochs: Rate | None = 1.0
    group_size: Annotated[int, Field(ge=2)] = 8
    clip_range: Annotated[float, Field(gt=0, lt=1)] = 0.2
    temperature: Rate = 1.0
    """Of what is sampled and learned: the weaver's visible tokens, the trigger's decisions."""
    updates_per_rollout: Count = 1
    advantage_epsilon: Rate = 1e-4
    max_new_tokens: Count = 2048


class MemGenTriggerConfig(MemGenGrpoConfig):
    """GRPO of the trigger: the weaver is frozen, the loss is at consulted positions only."""

    token_temperature: Weight = 0.0
    """Of the visible tokens, which are not learned; 0 is greedy, as in the release."""


class MemGenConfig(Section):
    """The baseline MemGen: latents after the prompt, and after delimiters where the trigger agrees."""

    prompt_latents: Count = 8
    inference_latents: Count = 8
    max_insertions: Annotated[int, Field(ge=0)] = 5
    """K: at most this many blocks after delimiters; the block after the prompt is not counted."""
    trigger_at_prompt: bool = False
    """Whether an active trigger decides on the prompt block too, as in the release; else that is always there."""
    lora: MemGenLoraConfig = MemGenLoraConfig()
    weaver: MemGenWeaverConfig = MemGenWeaverConfig()
    weaver_grpo: MemGenGrpoConfig = MemGenGrpoConfig()
    trigger: MemGenTriggerConfig = MemGenTriggerConfig()


class SoftCotConfig(OptimizationConfig):
    """SoftCoT: a Linear learns to carry an assistant's soft thoughts to the backbone, on the traces of Stage 1."""

    epochs: Rate | None = 10.0
    batch_size: Count = 4
    learning_rate: Rate = 2e-5
    assistant: str | None = None
    """The frozen model that thinks; null for the backbone itself."""
    num_thoughts: Count = 32
    """N in training."""
    eval_thoughts: Count = 4
    """N at evaluation."""
    request: str = (
        "Another model has to solve the problem below. Answer with {n} tokens that help it most.\n\nProblem: {problem}"
    )
    """What the assistant is asked."""
    learn_header: bool = True
    """Whether the header of the assistant's turn is learned too, as in the release; decoding has it in the prompt."""
    hint: str = (
        "An assistant left the following tokens as help. Use them where they are right, and do not rely on them."
    )
    """What the backbone reads in front of the thoughts; empty for nothing."""

    @field_validator("request")
    @classmethod
    def _request_has_the_problem(cls, request: str) -> str:
        if "{problem}" not in request:
            raise ValueError("the text has no {problem}, the place of the problem")
        return request


class CalibrationConfig(Section):
    """The start of psi: operators reach probability `rate` at candidate boundaries and next to none elsewhere.

    Deviation: the paper leaves psi's start open, and a random one never samples an operator.
    """

    num_problems: Count = 64
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.3
    steps: Count = 200
    """At most this many of L-BFGS."""
    weight_decay: Weight = 1e-6


class Stage2Config(OptimizationConfig):
    """Stage 2: the policy learns when to invoke what, the operators are frozen (Section 3.5).

    `learning_rate` is eta's; `psi_learning_rate` is psi's (null: the same). `max_new_tokens` counts actions.
    """

    epochs: Rate | None = 1.0
    psi_learning_rate: Rate | None = None
    max_new_tokens: Count = 2048
    calibration: CalibrationConfig = CalibrationConfig()


class GrpoConfig(Section):
    """The group-relative objective: G, epsilon, beta, B_O, lambda and alpha of the paper, in that order."""

    group_size: Annotated[int, Field(ge=2)] = 8
    clip_range: Annotated[float, Field(gt=0, lt=1)] = 0.2
    kl_weight: Weight = 0.03
    budget: Annotated[int, Field(ge=0)] = 5
    budget_weight: Weight = 0.1
    anchor_weight: Weight = 0.1
    temperature: Rate = 1.0
    """Of the rollouts, and of the log-probabilities that replay them."""
    updates_per_rollout: Count = 1
    advantage_epsilon: Rate = 1e-4
    scale_rewards: RewardScale = "group"
    """By whose standard deviation advantages are divided: the group's, as in the paper, the batch's, or none."""


class DecodingConfig(Section):
    """How answers are generated. `temperature` 0 is greedy, as in the paper."""

    max_new_tokens: Count = 2048
    temperature: Weight = 0.0
    budget: Annotated[int, Field(ge=0)] | None = None
    """A hard cap on invocations; null for none, 0 for no operators."""
    slots: Count = 16
    """Trajectories decoded at once."""
    coalesce: Annotated[int, Field(ge=0)] | None = None
    """Steps an operator call may wait for others to share its pass; null chooses by `slots`."""


class EvaluationConfig(Section):
    """What a run is evaluated on; `count` null takes the whole split."""

    task: TaskName = "mini"
    split: str = "eval"
    path: str | None = None
    """The file, or the folder that holds it; null for the Hub."""
    count: Count | None = None


class CheckpointsConfig(Section):
    """What stays in a run's `checkpoints`: the newest, and beside them the best on the development problems."""

    keep: Count = 2


class TrackingConfig(Section):
    """Where metrics are shown besides metrics.jsonl, which is always written."""

    tool: Literal["none", "tensorboard", "trackio", "wandb"] = "none"
    project: str = "tyler"
    name: str | None = None
    """What the run is called there; null for the name of its directory."""


class DevicesConfig(Section):
    """How the processes of a run work together, where a launcher started several (docs/devices.md)."""

    timeout: Rate = 30.0
    """Minutes that a process waits for the others before it gives up."""


class Config(Section):
    """All settings of one run."""

    backbone: BackboneConfig = BackboneConfig()
    operators: Annotated[tuple[Operator, ...], Field(min_length=1)] = PAPER_OPERATORS
    """In the order of their action ids."""
    lora: LoraConfig = LoraConfig()
    data: DataConfig = DataConfig()
    stage1: Stage1Config = Stage1Config()
    stage2: Stage2Config = Stage2Config()
    grpo: GrpoConfig = GrpoConfig()
    sft: SftConfig = SftConfig()
    memgen: MemGenConfig = MemGenConfig()
    softcot: SoftCotConfig = SoftCotConfig()
    decoding: DecodingConfig = DecodingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    tracking: TrackingConfig = TrackingConfig()
    devices: DevicesConfig = DevicesConfig()

    @field_validator("operators")
    @classmethod
    def _operator_names_differ(cls, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
        check_rules(operators)
        return check_operators(operators)

    @model_validator(mode="after")
    def _first_insertion_is_an_operator(self) -> Config:
        first, names = self.stage1.insertions.first, [operator.name for operator in self.operators]
        if first is not None and first not in names:
            raise ValueError(f"stage1.insertions.first = {first!r} is not an operator{suggest(first, names)}")
        return self

    @model_validator(mode="after")
    def _micro_batches_fit(self) -> Config:
        for section, loop in self.loops.items():
            rows, given = self.rows(section), loop.micro_batch_size
            if given is not None and given > rows:
                group = rows // loop.batch_size
                step = f"{rows} answers ({loop.batch_size} prompts, {group} each)" if group > 1 else f"{rows} examples"
                raise ValueError(
                    f"{section}.micro_batch_size = {given}: a step has {step}; set at most {rows}, or null for all"
                )
        return self

    @property
    def loops(self) -> dict[str, OptimizationConfig]:
        """The settings of every training loop, by section."""
        memgen = self.memgen
        return {
            "stage1": self.stage1,
            "stage2": self.stage2,
            "sft": self.sft,
            "softcot": self.softcot,
            "memgen.weaver": memgen.weaver,
            "memgen.weaver_grpo": memgen.weaver_grpo,
            "memgen.trigger": memgen.trigger,
        }

    def rows(self, section: str) -> int:
        """How many examples a step of a loop learns from, or answers to its prompts: what micro-batches are made of."""
        loop = self.loops[section]
        if isinstance(loop, Stage2Config):
            return loop.batch_size * self.grpo.group_size
        return loop.batch_size * (loop.group_size if isinstance(loop, MemGenGrpoConfig) else 1)

    @property
    def prompt(self) -> Prompt:
        """How problems are put to the backbone."""
        return Prompt(self.backbone.instruction, self.backbone.thinking)

    @property
    def training_set(self) -> Selection:
        data = self.data
        return Selection(data.task, data.split, data.path, data.count, data.seed)

    @property
    def development_set(self) -> Selection | None:
        """Problems to watch training with; None where no loop watches."""
        data, development = self.data, self.data.development
        if development is None or all(loop.eval_every is None for loop in self.loops.values()):
            return None
        return Selection(data.task, development.split, development.path, development.count, data.seed)

    @property
    def held_out_sets(self) -> list[Selection]:
        """What no training problem may be in: the sets named in `data.held_out`, and the development problems.

        Where no set is named, the whole split of the evaluation, as far as it can be read. Development problems too are
        compared as far as they can be read, because a stage may need none.
        """
        evaluation, development = self.evaluation, self.development_set
        if self.data.held_out is None:
            sets = [Selection(evaluation.task, evaluation.split, evaluation.path, optional=True)]
        else:
            sets = [Selection(held.task, held.split, held.path) for held in self.data.held_out]
        return [*sets, replace(development, optional=True)] if development else sets
