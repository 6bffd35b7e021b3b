"""Curves: for people a picture, for the terminal a line of blocks."""

from __future__ import annotations

from pathlib import Path

from tyler.cli.curves import BLOCKS, blocks, operators_of, plot_stage2, series, sketch

METRICS = [
    {"step": 0, "calibration/elsewhere": 0.01},
    *(
        {
            "step": step,
            "stage2/reward": 0.1 * step,
            "stage2/success": 0.5,
            "stage2/invocations": 5.0 - step,
            "stage2/invocations_global": 1.0,
            "stage2/invocations_state": 4.0 - step,
            "greedy/accuracy": 0.3 if step == 2 else None,
        }
        for step in range(1, 5)
    ),
]


def test_a_series_is_where_the_metric_was_logged() -> None:
    assert series(METRICS, "stage2/reward") == ([1, 2, 3, 4], [0.1, 0.2, 0.1 * 3, 0.4])
    assert series(METRICS, "greedy/accuracy") == ([2], [0.3])
    assert series(METRICS, "stage2/nothing") == ([], [])


def test_operators_are_those_of_the_log() -> None:
    assert operators_of(METRICS) == ["global", "state"]


def test_blocks_go_from_the_lowest_value_to_the_highest() -> None:
    assert blocks([0, 1, 2, 3, 4, 5, 6, 7], 8) == BLOCKS
    assert blocks([7, 0], 8) == BLOCKS[-1] + BLOCKS[0]
    assert blocks([3.0, 3.0, 3.0], 8) == BLOCKS[0] * 3


def test_more_values_than_columns_are_averaged() -> None:
    assert blocks([0, 0, 0, 7, 7, 7], 2) == BLOCKS[0] + BLOCKS[-1]
    assert blocks([0, 2, 1, 1, 2, 0, 9, 9], 4) == BLOCKS[0] * 3 + BLOCKS[-1]
    for count in range(1, 150):
        assert len(blocks(list(range(count)), 48)) == min(48, count)


def test_the_sketch_has_a_line_for_every_curve_with_its_ends() -> None:
    lines = sketch(METRICS).splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "reward", "success", "invocations", "invocations global", "invocations state",
    ]  # fmt: skip
    assert lines[0].endswith("0.10 → 0.40") and lines[2].endswith("4.00 → 1.00")
    assert sketch([]) == ""


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    plot_stage2(METRICS, 5, tmp_path / "curves.png")
    content = (tmp_path / "curves.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 10_000
