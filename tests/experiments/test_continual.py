"""Sequential adaptation: each step goes on from the one before, and forgetting is the paper's F_t."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import fabricated
from tyler.config.files import load_config
from tyler.evaluation.store import read_records
from tyler.experiments import averages
from tyler.experiments.cells import Cell, Decoding, Questions, Sources, Training
from tyler.experiments.declared.continual import BASE, entries, findings, forgetting, trainings
from tyler.experiments.experiment import Measured
from tyler.experiments.grid import Grid
from tyler.experiments.scales import SCALES
from tyler.experiments.training import trained
from tyler.model import Tyler
from tyler.reasoners.memgen import sft as memgen
from tyler.reasoners.memgen.model import MemGen
from tyler.runs.checkpoints import latest_checkpoint
from tyler.training import stage1

TINY = SCALES["tiny"]


def test_forgetting_of_the_papers_accuracies_is_the_papers_forgetting() -> None:
    steps = {step: rows for step, rows in averages.contents()["continual"]["rows"].items() if step != "0 base"}
    for row in ("SFT", "GRPO", "MemGen", "Tyler"):
        after = []
        for rows in steps.values():
            *shares, _, printed = rows[row]
            after.append(shares)
            assert forgetting(after) == pytest.approx(printed, abs=0.0101), row


def test_forgetting_by_hand() -> None:
    assert forgetting([[50.0, 0.0]]) == 0
    assert forgetting([[50.0, 90.0], [30.0, 60.0]]) == (20 + 30) / 2
    assert forgetting([[50.0, 0.0, 0.0], [60.0, 40.0, 0.0], [10.0, 40.0, 5.0]]) == pytest.approx(50 / 3)


def test_a_step_is_told_once_all_its_domains_have_records_and_the_means_are_of_its_own_problems() -> None:
    every, sources, shared = entries(TINY), Sources({}), dict[Cell, Any]()
    measured = []
    for entry in every:
        for cell in entry.cells:
            shared.setdefault(cell, fabricated.record(cell, sources))
        measured.append(Measured(entry, {cell.seed: (cell.row, shared[cell]) for cell in entry.cells}))
    whole = findings(measured)["retention"]
    steps = list(dict.fromkeys(entry.group for entry in every if entry.group != BASE))
    assert [one["step"] for one in whole if one["row"] == "SFT"] == steps
    missing = every[-1]  # the last domain of the last method after the last step
    cut = [one for one in measured if one.entry is not missing]
    assert findings(cut)["retention"] == [
        one for one in whole if (one["row"], one["step"]) != (missing.row, missing.group)
    ]
    (base,) = [entry for entry in every[:1] if entry.group == BASE]  # the first domain's, of which columns begin
    held = [replace(one, records={}) if one.entry is base else one for one in measured]
    assert findings(held)["retention"] == [one for one in whole if one["row"] != base.row]
    (one,) = [
        one for one in measured if (one.entry.row, one.entry.column, one.entry.group) == ("SFT", "science", steps[0])
    ]
    (record,) = one.found
    own = [place for place, family in enumerate(record["families"]) if family in one.entry.families]
    assert 0 < len(own) < len(record["families"])
    assert one.counted()["visible"] == pytest.approx(
        sum(record["visible"][place] for place in own) / len(own), abs=1e-3
    )


def test_every_method_goes_on_from_the_domain_before() -> None:
    chains = trainings(TINY)
    assert {row: len(chain) for row, chain in chains.items()} == dict.fromkeys(("SFT", "GRPO", "MemGen", "Tyler"), 4)
    for row, chain in chains.items():
        for before, after in pairwise(chain):
            earlier = before.start if row == "Tyler" else before  # Phi goes on, the policy is learned anew
            assert earlier in after.stages
    splits = ["train-programs", "train-science", "train-mathematics", "train-theorems"]
    assert [one.config("mini", 42).data.split for one in chains["Tyler"]] == splits


def test_a_step_answers_the_problems_of_all_domains_once() -> None:
    found = entries(TINY)
    assert len(found) == (1 + 4 * 4) * 4
    assert len({cell for entry in found for cell in entry.cells}) == 1 + 4 * 4  # on mini they are parts of one split
    assert {entry.families for entry in found if entry.column == "mathematics"} == {("arithmetic", "algebra")}
    assert [entry.group for entry in found[:4]] == [BASE] * 4


def short(*more: str) -> list[str]:
    return [*TINY.common, *more]


def test_operators_go_on_learning_from_those_of_another_stage1(tmp_path: Path) -> None:
    first = stage1.run(load_config("mini", short()), output=tmp_path / "first")
    config = load_config("mini", short("data.split=train-science", "stage1.learning_rate=1e-12"))
    second = stage1.run(config, start=tmp_path / "first", output=tmp_path / "second")
    assert second.stage == "stage1"
    for name, tensor in first.synthesizer.state_dict().items():
        torch.testing.assert_close(second.synthesizer.state_dict()[name], tensor, atol=1e-9, rtol=0)
    config = load_config("mini", short("data.split=train-science"))
    third = stage1.run(config, start=tmp_path / "first", output=tmp_path / "third")
    moved = (third.synthesizer.mapping()["global"].queries - first.synthesizer.mapping()["global"].queries).abs().max()
    assert moved > 1e-4


def test_stage1_refuses_to_go_on_from_what_is_no_stage1(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a stage2 model; Stage 1 goes on from a Stage 1 model"):
        stage1.run(load_config("mini", short()), start="mini-tyler", output=tmp_path / "run")
    config = load_config("mini", short("stage1.latents=constant"))
    with pytest.raises(ValueError, match="start from new operators; leave start out"):
        stage1.run(config, start="mini-tyler", output=tmp_path / "run")


def test_a_weaver_goes_on_learning_from_that_of_another_memgen(tmp_path: Path) -> None:
    first = memgen.run(load_config("mini", short()), output=tmp_path / "first")
    config = load_config("mini", short("data.split=train-science", "memgen.weaver.learning_rate=1e-12"))
    second = memgen.run(config, start=tmp_path / "first", output=tmp_path / "second")
    for name, tensor in first.weaver.state_dict().items():
        torch.testing.assert_close(second.weaver.state_dict()[name], tensor, atol=1e-9, rtol=0)
    assert MemGen.from_pretrained(str(latest_checkpoint(tmp_path / "second"))).trigger is None


def test_sft_goes_on_from_the_merged_model_of_the_last_step(tmp_path: Path) -> None:
    chain = trainings(TINY)["SFT"]
    sources = Sources({})
    place, _ = trained(chain[2], "mini", 42, sources, tmp_path / "models")
    model = Tyler.from_pretrained(place)
    before, _ = trained(chain[1], "mini", 42, sources, tmp_path / "models")
    merged = Path(model.backbone.place or model.backbone.id)
    assert merged.parent == tmp_path / "models" and merged != Path(before)
    cell = Cell("SFT", "mini", chain[2], Decoding(), Questions("mini", "eval", 2, 16), 42)
    Grid(tmp_path / "models", tmp_path / "records", sources).measure(cell, tmp_path / "cell", {})
    assert len(read_records(tmp_path / "cell")) == 2


def test_traces_of_ones_own_are_read_by_the_name_of_their_split() -> None:
    assert Sources({"jsonl": "data"}).path("jsonl", "code") == "data/code.jsonl"
    assert Sources({"gsm8k": "data"}).path("gsm8k", "train") == "data"
    assert Sources({}).path("jsonl", "code") is None


def test_a_training_that_starts_from_nothing_has_no_start() -> None:
    assert trainings(TINY)["SFT"][0].start is None and isinstance(trainings(TINY)["SFT"][1].start, Training)
