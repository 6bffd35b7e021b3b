"""What steps of MemGen's trainings read and train. Without torch, for plans."""

from tyler.config.schema import Config
from tyler.reasoners.memgen.settings import MemGenConfig, MemGenGrpoConfig
from tyler.training.planned import PROMPT, Read, Shape, Step, adapter_size, copies_of, rows_of, undropped


def weaver_size(shape: Shape, config: Config) -> int:
    """Parameters of MemGen's weaver: its LoRA, both maps, and two kinds of queries with norm and scale."""
    memgen, d = config.of(MemGenConfig), shape.dim
    heads = (memgen.prompt_latents + memgen.inference_latents) * d + 2 * (2 * d + 1)
    return adapter_size(shape, memgen.lora) + 2 * (d**2 + d) + heads


def weaver(shape: Shape, config: Config, section: str) -> Step:
    """A block after the prompt and K more: the weaver reads everything with gradients, and so does the backbone behind
    the prompt."""
    memgen, loop = config.of(MemGenConfig), config.loops[section]
    length, lora = config.stage1.max_length, undropped(memgen.lora)
    if isinstance(loop, MemGenGrpoConfig):
        length = PROMPT + loop.max_new_tokens + memgen.most_latents
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


def trigger(shape: Shape, config: Config, section: str) -> Step:
    """Its own view of the visible tokens, and two logits."""
    memgen = config.of(MemGenConfig)
    loop, lora = memgen.trigger, undropped(memgen.lora)
    length = PROMPT + loop.max_new_tokens
    read = Read(rows_of(config, section, length), length, length, masked=False)
    learned = adapter_size(shape, lora) + 2 * shape.dim + 2
    return Step(((read, lora),), 0, learned, loop.gradient_checkpointing, weaver_size(shape, config))
