"""`tyler info`, `tyler doctor MODEL` and `tyler bench`: what they say of the shipped models."""

import json
import re
from pathlib import Path

import pytest

from tyler.cli import main
from tyler.cli.info import facts_of
from tyler.engine.native.cache import bytes_of_position
from tyler.modeling.backbone import Backbone


def test_a_shipped_model_is_described_by_its_own_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["info", "mini-tyler", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["model"], facts["method"], facts["stage"]) == ("mini-tyler", "Tyler", "stage2")
    assert facts["operators"] == ["global ×8 at answer_start", "state ×4 at step", "procedure ×4 at structure"]
    backbone = Backbone.load("mini")
    assert facts["parameters"] == f"{sum(tensor.numel() for tensor in backbone.model.parameters()):,}"
    assert facts["backbone_fingerprint"] == f"{backbone.fingerprint()}, float32"


def test_a_plain_backbone_is_one_and_a_missing_model_is_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["info", "mini"]) == 0
    shown = capsys.readouterr().out
    assert "none: a plain backbone" in shown and "qwen3, 4 layers of width 160" in shown
    assert main.main(["info", "runs/nowhere/x"]) == 2
    assert "runs/nowhere/x" in capsys.readouterr().err


def test_a_preset_is_not_taken_for_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["info", "qwen3-4b"]) == 2
    assert "qwen3-4b is a preset of settings, not a model; `tyler config qwen3-4b`" in capsys.readouterr().err


def test_a_checkpoint_is_described_without_its_backbone(tmp_path: Path) -> None:
    manifest = {"backbone": {"id": "gone", "fingerprint": "f", "dtype": "float32"}, "stage": "stage1"}
    (tmp_path / "tyler.json").write_text(json.dumps(manifest))
    facts = facts_of(str(tmp_path))
    assert facts["stage"] == "stage1"
    assert facts["backbone"].startswith("gone, not found here: the shape of backbone 'gone' is not known here")


def test_the_doctor_says_what_a_model_needs_where_its_answers_end_and_what_is_free(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main.main(["doctor", "mini-tyler", "--device", "cpu"]) == 0
    shown, position = capsys.readouterr().out, bytes_of_position(Backbone.load("mini", device="cpu"))
    for words in (
        "tyler doctor mini-tyler",
        "in float32 on cpu",
        f"{position / 2**10:.1f} KiB a position",
        "enough for",
    ):
        assert words in shown
    assert re.search(r"end tokens +│ <\|end\|>", shown) and re.search(r"turn end +│ <\|end\|>", shown)
    assert re.search(r"chat template +│ [0-9a-f]{16}", shown) and re.search(r"tokenizer +│ [0-9a-f]{16}, \d+", shown)
    assert main.main(["doctor", "runs/nowhere"]) == main.USAGE_ERROR


def test_bench_has_a_line_for_every_number_of_slots(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["bench", "mini-tyler", "--count", "2", "--slots", "1", "2", "--max-new-tokens", "8"]) == 0
    title, heads, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("mini-tyler, float32, 2 problems of mini, ")
    columns = [dict(zip(heads.split(), map(float, line.split()), strict=True)) for line in lines]
    assert [line["slots"] for line in columns] == [1, 2]
    for line in columns:
        shortest, longest = line["seconds"] - 0.0005, line["seconds"] + 0.0005  # both figures are rounded
        assert 2 / longest - 0.05 <= line["answers/s"] <= 2 / shortest + 0.05
        assert line["tokens/s"] + line["latents/s"] > 0


def test_bench_refuses_counts_that_measure_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["bench", "mini", "--count", "0"]) == 2
    assert main.main(["bench", "mini", "--slots", "0"]) == 2
    assert capsys.readouterr().err.count("each must be at least 1") == 2
