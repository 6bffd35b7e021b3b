"""The backbone's pretraining resumes where it was killed, and ends in the same weights."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from tyler.runs.checkpoints import latest_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def script(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "scripts" / "pretrain_mini.py"))


def test_a_killed_pretraining_resumes_and_ends_in_the_same_weights(
    script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"steps": 5, "batch": 4, "save_every": 2}
    script["main"](tmp_path / "whole", tmp_path / "run", **small)

    step, work = script["Pretraining"].step, script["Pretraining"]

    def killed(self: Any, number: int) -> float:
        if number == 3:
            raise KeyboardInterrupt
        return float(step(self, number))

    monkeypatch.setattr(work, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        script["main"](tmp_path / "resumed", tmp_path / "cut", **small)
    newest = latest_checkpoint(tmp_path / "cut")
    assert newest is not None and newest.name == "step-2" and not (tmp_path / "resumed").exists()
    monkeypatch.setattr(work, "step", step)
    script["main"](tmp_path / "resumed", tmp_path / "cut", **small)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_block_stands_before_what_it_foretells_and_has_no_label(script: dict[str, Any]) -> None:
    tokenizer = script["read_tokenizer"](script["ASSETS"])
    (text,) = script["tokenize"](tokenizer, 1)
    rng = script["random"].Random(1)
    rows = [script["Blocks"](tokenizer).row(text, rng, with_blocks=True) for _ in range(20)]
    assert any(item.foreign for row in rows for item in row)
    for row in rows:
        assert [item.mixed[0] for item in row if not item.foreign] == [*text.prompt, *text.completion]
        assert {item.label for item in row if item.foreign} <= {script["IGNORED"]}
    labels, mixed, weights, noise, foreign = script["collate"](rows)
    assert labels.shape == noise.shape == foreign.shape == mixed.shape[:2] == weights.shape[:2]
    assert labels.shape[1] % 8 == 0 and bool((weights[~foreign].sum(-1) <= 1).all())
