"""What is declared of more training on SmolLM2, before it is run."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tyler.experiments.studies import smollm2
from tyler.experiments.studies import smollm2_growth as growth


def test_what_more_training_does_is_declared_whole() -> None:
    """Each step count has Stage 1 with its own latents and with means, pause tokens and SFT, the first two thrice."""
    cells = growth.cells()
    assert len({(cell.row, cell.questions, cell.seed, cell.measure) for cell in cells}) == len(cells)
    asked = [(cell.row, cell.seed) for cell in cells if cell.questions == smollm2.TEST]
    for steps, kind in product(growth.STEPS, ("Stage 1, {}", "Stage 1, {}, means", "Pause tokens, {}", "SFT, {}")):
        seeds = growth.SEEDS if steps in growth.REPEATED else growth.SEEDS[:1]
        row = kind.format(f"{steps} steps")
        assert [seed for name, seed in asked if name == row] == list(seeds)
    assert {row for pair in growth.PAIRS for row in pair} <= set(growth.ROWS) == {cell.row for cell in cells}


@pytest.mark.parametrize("row", growth.ROWS)
def test_the_settings_of_a_declared_row_are_valid_and_learn_problems_without_end(row: str) -> None:
    cell = next(cell for cell in growth.cells() if cell.row == row)
    for stage in cell.training.stages:
        if stage.method != "merge":
            config = stage.config(cell.preset, cell.seed)
            watched = config.development_set
            assert (config.data.task, config.data.count) == ("mawpsvaried", 40_000)
            assert watched is not None and (watched.task, watched.split) == ("mawps", "dev")
    steps = [int(number.replace(",", "")) for number in re.findall("([0-9]+) steps", row)]
    for count in steps:
        config = cell.training.config(cell.preset, cell.seed)
        assert getattr(config, cell.training.method).steps == count
