"""What earlier versions wrote still loads and resumes. `tests/files/written_at_0.1.0` was written by flat modules."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tyler.config.files import load_config
from tyler.model import Tyler
from tyler.runs.checkpoints import latest_checkpoint
from tyler.runs.json_lines import read_jsonl
from tyler.training import stage1

SETTINGS = (
    "stage1.steps=4",
    "stage1.batch_size=4",
    "stage1.checkpoint_every=2",
    "stage1.eval_every=null",
    "stage1.insertions.max=1",
    "data.count=8",
    "data.held_out=[]",
    "data.development=null",
    "lora.rank=1",
    "operators=[{name: global, num_latents: 2, boundary: answer_start}]",
)
"""What the run was started with, over the preset."""


@pytest.fixture
def earlier(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a Stage 1 run that was killed after 2 of 4 steps, and of an evaluation; commands run beside them."""
    shutil.copytree(root / "tests" / "files" / "written_at_0.1.0", tmp_path / "earlier")
    monkeypatch.chdir(tmp_path / "earlier")
    return tmp_path / "earlier"


def test_an_earlier_checkpoint_loads(earlier: Path) -> None:
    model = Tyler.from_pretrained(str(earlier / "stage1"))
    (call,) = model.solve("Find x when $5x - 28 = 47$.", max_new_tokens=20).invocations
    assert (model.stage, call.operator, call.num_latents) == ("stage1", "global", 2)


def test_an_earlier_run_resumes_to_what_it_came_to_then(earlier: Path) -> None:
    then = [line["stage1/loss"] for line in read_jsonl(earlier / "stage1" / "metrics.jsonl")]
    stage1.run(load_config("mini", SETTINGS), output=earlier / "stage1", resume=True)
    now = [line["stage1/loss"] for line in read_jsonl(earlier / "stage1" / "metrics.jsonl")]
    newest = latest_checkpoint(earlier / "stage1")
    assert newest is not None and newest.name == "step-4"
    assert now == pytest.approx(then, rel=1e-3)
