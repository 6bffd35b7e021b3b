"""The study on a real language model: SmolLM2-135M-Instruct on word problems it has not seen, and on harder ones.

Every method of the paper at equal examples, Tyler's stages also on a backbone that has the skill (merged SFT), and the
controls that tell whether latents carry anything: zeros, means, shuffled latents, noise, random routers, and pause
tokens in their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tyler.analysis.cells import Cell, Decoding, Questions, Training
from tyler.analysis.scales import SMOLLM2

PRESET = SMOLLM2.preset
SEEDS = (42, 43, 44)
TEST, HARDER = SMOLLM2.tasks["MAWPS"], SMOLLM2.tasks["SVAMP"]
DEVELOPMENT = Questions("mawps", "dev", None, 160)
"""What choices are made on."""

BACKBONE, SFT, GRPO = Training(), Training("sft"), Training("grpo")
STAGE1 = Training("stage1")
STAGE2 = Training("stage2", start=STAGE1)
PAUSE = Training("stage1", ("stage1.latents=constant",))
MERGED = Training("merge", start=SFT)
ON_SFT = Training("stage1", start=MERGED)
STAGE2_ON_SFT = Training("stage2", start=ON_SFT)
SOFTCOT, MEMGEN = Training("softcot"), Training("memgen")

GLOBAL_ALONE = Decoding(only=("global",))
CONTROLS = ("zeros", "means", "shuffled", "noise")

MAIN: dict[str, tuple[Training, Decoding]] = {
    "CoT": (BACKBONE, Decoding(router="never")),
    "SFT": (SFT, Decoding()),
    "Stage 1, all boundaries": (STAGE1, Decoding()),
    "Stage 1, global alone": (STAGE1, GLOBAL_ALONE),
    "GRPO": (GRPO, Decoding()),
    "Stage 2": (STAGE2, Decoding()),
}
"""What has three seeds."""

MORE: dict[str, tuple[Training, Decoding]] = {
    "Stage 1, never": (STAGE1, Decoding(router="never")),
    **{f"Stage 1, {name}": (STAGE1, Decoding(intervention=name)) for name in CONTROLS},
    "Pause tokens, all boundaries": (PAUSE, Decoding()),
    "Pause tokens, global alone": (PAUSE, GLOBAL_ALONE),
    **{f"Stage 1, random {rate:.0%}": (STAGE1, Decoding(router=f"boundaries:{rate}")) for rate in (0.25, 0.5, 0.75)},
    "SFT, merged": (MERGED, Decoding(router="never")),
    "On SFT: Stage 1, all boundaries": (ON_SFT, Decoding()),
    "On SFT: Stage 1, global alone": (ON_SFT, GLOBAL_ALONE),
    "On SFT: Stage 1, zeros": (ON_SFT, Decoding(intervention="zeros")),
    "On SFT: Stage 2": (STAGE2_ON_SFT, Decoding()),
    **{f"Stage 2, {name}": (STAGE2, Decoding(intervention=name, budget=16)) for name in CONTROLS},
    "Soft-Thinking": (BACKBONE, Decoding("soft-thinking")),
    "SwiReasoning": (BACKBONE, Decoding("swireasoning")),
    "SoftCoT": (SOFTCOT, Decoding("softcot")),
    "MemGen": (MEMGEN, Decoding("memgen")),
}
"""What has at least one seed, on the first task alone."""

ROWS = (*MAIN, *MORE)
"""In the order of tables."""


def cells(seeds: Sequence[int] = SEEDS, asked: Sequence[Questions] = (TEST, HARDER)) -> list[Cell]:
    """All cells in the order in which they are worth running: one seed of everything, then the other seeds of MAIN.

    Controls and what else has one seed are asked the first task alone: the harder one tells little where few are right.
    """
    first = [*_cells(MAIN, seeds[:1], asked), *_cells(MORE, seeds[:1], asked[:1])]
    return [*first, *_cells(MAIN, seeds[1:], asked)]


def _cells(
    rows: dict[str, tuple[Training, Decoding]], seeds: Sequence[int], asked: Sequence[Questions]
) -> Iterator[Cell]:
    for seed in seeds:
        for row, (training, decoding) in rows.items():
            for questions in asked:
                yield Cell(row, PRESET, training, decoding, questions, seed)
