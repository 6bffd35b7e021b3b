"""The largest micro-batch of every training: what it reads with gradients, and what learns from it."""

from __future__ import annotations

from tyler.config.loops import OptimizationConfig, TracesConfig
from tyler.config.schema import Config
from tyler.config.sections import LoraConfig
from tyler.planning.memory import PROMPT, Read, Shape, Step, adapter_size, answer_length, count_parameters
from tyler.reasoners.memgen.settings import MemGenGrpoConfig
from tyler.reasoners.table import TRAININGS
from tyler.training.micro_batches import MicroBatches


def weaver_size(shape: Shape, config: Config) -> int:
    """Parameters of MemGen's weaver: its LoRA, both maps, and two kinds of queries with norm and scale."""
    memgen, d = config.memgen, shape.dim
    heads = (memgen.prompt_latents + memgen.inference_latents) * d + 2 * (2 * d + 1)
    return adapter_size(shape, memgen.lora) + 2 * (d**2 + d) + heads


def copies_of(loop: OptimizationConfig) -> int:
    """Bytes of a weight's second copy: in bfloat16, with autocast."""
    return 2 if isinstance(loop, TracesConfig) and loop.autocast else 0


def undropped(lora: LoraConfig) -> LoraConfig:
    """A LoRA as it learns from rewards."""
    return lora.model_copy(update={"dropout": 0.0})


def rows_of(config: Config, section: str, length: int) -> int:
    """Rows of one length in a micro-batch of a loop."""
    return MicroBatches.planned(config.loops[section]).rows_at_once(length, config.rows(section))


def planned_step(shape: Shape, config: Config, method: str) -> Step:
    """The largest micro-batch of a method's step that a config allows: traces and answers as long as they may be, an
    insertion at the end, where it costs most. Raises KeyError for an unknown method."""
    return STEPS[method](shape, config, section_of(method))


def section_of(method: str) -> str:
    """The section with the steps and batches of a training."""
    return TRAININGS[method].loop


def _stage1(shape: Shape, config: Config, section: str) -> Step:
    """The synthesizer reads a trace up to its last insertion, and the queries; the frozen policy what follows the first
    latents, behind the rest."""
    loop, counts = config.stage1, count_parameters(shape, config.lora, config.operators)
    length, latents = loop.max_length, max(operator.num_latents for operator in config.operators)
    rows = rows_of(config, section, length)
    reads = (
        (Read(rows, length, length, chunks=loop.insertions.max), config.lora),
        (Read(rows, latents, length), None),
    )
    return Step(
        reads,
        rows * length,
        counts.stage1,
        loop.gradient_checkpointing,
        prefix=rows * length,
        weight_copies=copies_of(loop),
    )


def _stage2(shape: Shape, config: Config, section: str) -> Step:
    """After its rollout: one read of finished answers, in which LoRA drops nothing."""
    loop, counts = config.stage2, count_parameters(shape, config.lora, config.operators)
    context = answer_length(config)
    read = Read(rows_of(config, section, context), context, context, masked=False)
    decisions = read.rows * loop.max_new_tokens
    lora, recompute = undropped(config.lora), loop.gradient_checkpointing
    return Step(((read, lora),), decisions, counts.stage2, recompute, counts.stage1, folded=True)


def _grpo(shape: Shape, config: Config, section: str) -> Step:
    return _stage2(shape, config.model_copy(update={"operators": ()}), section)


def _on_traces(shape: Shape, config: Config, section: str, lora: LoraConfig | None, trained: int) -> Step:
    """One read of whole traces."""
    length, loop = config.stage1.max_length, config.loops[section]
    read = Read(rows_of(config, section, length), length, length, masked=False)
    recompute = loop.gradient_checkpointing
    return Step(((read, lora),), read.positions, trained, recompute, weight_copies=copies_of(loop))


def _sft(shape: Shape, config: Config, section: str) -> Step:
    return _on_traces(shape, config, section, config.lora, adapter_size(shape, config.lora))


def _softcot(shape: Shape, config: Config, section: str) -> Step:
    """The Linear learns; an assistant that is another model is not counted."""
    return _on_traces(shape, config, section, None, shape.dim**2 + shape.dim)


def _weaver(shape: Shape, config: Config, section: str) -> Step:
    """A block after the prompt and K more: the weaver reads everything with gradients, and so does the backbone behind
    the prompt."""
    memgen, loop = config.memgen, config.loops[section]
    latents = memgen.prompt_latents + memgen.max_insertions * memgen.inference_latents
    length, lora = config.stage1.max_length, undropped(memgen.lora)
    if isinstance(loop, MemGenGrpoConfig):
        length = PROMPT + loop.max_new_tokens + latents
    else:
        lora = memgen.lora
    rows = rows_of(config, section, length)
    synthesis = Read(rows, length, length, chunks=1 + memgen.max_insertions)
    suffix = Read(rows, max(1, length - PROMPT), length)
    return Step(
        ((synthesis, lora), (suffix, None)),
        suffix.positions,
        weaver_size(shape, config),
        loop.gradient_checkpointing,
        prefix=rows * PROMPT,
        weight_copies=copies_of(loop),
    )


def _trigger(shape: Shape, config: Config, section: str) -> Step:
    """Its own view of the visible tokens, and two logits."""
    loop, lora = config.memgen.trigger, undropped(config.memgen.lora)
    length = PROMPT + loop.max_new_tokens
    read = Read(rows_of(config, section, length), length, length, masked=False)
    learned = adapter_size(shape, lora) + 2 * shape.dim + 2
    return Step(((read, lora),), 0, learned, loop.gradient_checkpointing, weaver_size(shape, config))


STEPS = {
    "stage1": _stage1,
    "stage2": _stage2,
    "sft": _sft,
    "grpo": _grpo,
    "softcot": _softcot,
    "memgen": _weaver,
    "memgen-weaver-grpo": _weaver,
    "memgen-trigger": _trigger,
}
"""Every training, by its name on the command line."""
DECODING = ("rollout", "calibration", "stage2", "grpo", "memgen-weaver-grpo", "memgen-trigger")
"""What is decoded before, or in: a CPU has packed weights then."""
