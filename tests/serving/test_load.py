"""The load of `benchmarks/serving_load.py` for some seconds: a server process, many clients of whom some go."""

from pathlib import Path

import serving_load
from tyler.model import Tyler

LIMITS = ("--slots", "16", "--max-queue", "128", "--max-new-tokens", "64")


def test_a_server_under_load_is_right_and_keeps_its_size(tmp_path: Path) -> None:
    pool = serving_load.questions(Tyler.from_pretrained("mini-tyler", dtype="float32"), 8, longest=24)
    with serving_load.server("mini-tyler", tmp_path / "audit.jsonl", *LIMITS) as running:
        figures = {one.work: one.value for one in serving_load.endured(running, pool, 200)}
    assert figures["other answers or errors"] == 0
    assert figures["finished, as alone"] > 60 and figures["went away"] > 0
    assert figures["growth of resident memory"] < 64
