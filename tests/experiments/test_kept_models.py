"""Models that are kept beside their records answer the same cells without training."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tyler.experiments import records, training
from tyler.experiments.cells import Cell, Decoding, Questions, Sources, Training, name_of
from tyler.experiments.grid import Grid
from tyler.experiments.training import keep, needed, trained
from tyler.model import Tyler
from tyler.modeling.checkpoint import trained_tensors
from tyler.runs.atomic_files import atomic_write

STAGE1 = Training("stage1", ("stage1.steps=2", "stage1.batch_size=4", "data.count=8", "data.held_out=[]"))
SFT = Training("sft", ("sft.steps=1", "sft.batch_size=2", "data.count=4", "data.held_out=[]"))
ON_MERGED = Training("stage1", STAGE1.overrides, start=Training("merge", start=SFT))
SOURCES = Sources({})
CELL = Cell("Stage 1", "mini", STAGE1, Decoding(), Questions("mini", "dev", 4, 40), 42)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models with a finished Stage 1."""
    folder = tmp_path_factory.mktemp("models")
    trained(STAGE1, "mini", 42, SOURCES, folder)
    return folder


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be trained."""
    monkeypatch.setattr(training, "_make", lambda *_: pytest.fail("something was trained"))


@pytest.mark.usefixtures("untrained")
def test_a_kept_model_answers_its_cell_without_training(models: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    note = keep(STAGE1, "mini", 42, SOURCES, models, kept)
    location, seconds = trained(STAGE1, "mini", 42, SOURCES, tmp_path / "empty", kept)
    assert Path(location).parent == kept and seconds == trained(STAGE1, "mini", 42, SOURCES, models)[1] > 0
    Grid(tmp_path / "empty", tmp_path / "records", SOURCES, kept=kept).run([CELL])
    (record,) = records.read(tmp_path / "records").values()
    assert record["weights"] == json.loads(note.read_text())["weights"] == Tyler.from_pretrained(location).fingerprint()
    assert record["training_seconds"] == round(seconds, 1)


def test_what_is_trained_is_kept_at_once_and_its_cells_are_answered_by_what_is_kept(tmp_path: Path) -> None:
    kept, works = tmp_path / "kept", tmp_path / "works"
    grid = Grid(works, tmp_path / "records", SOURCES, kept=kept)
    grid.run([replace(CELL, training=SFT), replace(CELL, training=ON_MERGED)])
    found = {name_of(one["identity"]["training"]): one for one in records.read(tmp_path / "records").values()}
    notes = {note.name.removesuffix(".done.json"): json.loads(note.read_text()) for note in kept.glob("*.done.json")}
    assert {told["method"] for told in notes.values()} == {"sft", "stage1"} and notes.keys() == found.keys()
    for name, told in notes.items():
        assert found[name]["weights"] == told["weights"] and found[name]["training_seconds"] == round(
            told["seconds"], 1
        )


@pytest.mark.parametrize("method", ["softcot", "memgen"])
def test_another_methods_model_is_kept_as_it_is(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = "memgen.weaver" if method == "memgen" else method
    more = (f"{loop}.steps=1", f"{loop}.batch_size=2", "data.count=4", "data.held_out=[]")
    cell = replace(CELL, training=Training(method, more), decoding=Decoding(method))
    kept = tmp_path / "kept"
    Grid(tmp_path / "works", tmp_path / "first", SOURCES, kept=kept).run([cell])
    monkeypatch.setattr(training, "_make", lambda *_: pytest.fail("something was trained"))
    Grid(tmp_path / "empty", tmp_path / "second", SOURCES, kept=kept).run([cell])
    (first,), (second,) = (records.read(tmp_path / name).values() for name in ("first", "second"))
    assert first["weights"] == second["weights"] and first["training_seconds"] == second["training_seconds"] > 0
    assert all(first[key] == second[key] for key in ("outcomes", "visible", "latents"))
    assert str(tmp_path) not in "".join(file.read_text() for file in kept.rglob("*.json"))
    assert not list(kept.rglob("state.safetensors")) and not list(kept.rglob("README.md"))


def test_a_kept_model_on_a_merged_one_loads_where_that_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for machine in ("first", "second"):
        (tmp_path / machine).mkdir()
    kept, works = Path("kept"), Path("works")
    monkeypatch.chdir(tmp_path / "first")
    location, seconds = trained(ON_MERGED, "mini", 42, SOURCES, works, kept)
    asked = "Find x when $5x - 28 = 47$."
    answer = Tyler.from_pretrained(location).solve(asked, max_new_tokens=12)
    assert str(tmp_path) not in "".join(file.read_text() for file in kept.rglob("*.json"))
    shutil.move(kept, tmp_path / "second" / "kept")
    shutil.rmtree(works)
    monkeypatch.chdir(tmp_path / "second")
    monkeypatch.setattr(training.stage1, "run", lambda *_, **__: pytest.fail("Stage 1 was trained again"))
    again, same = trained(ON_MERGED, "mini", 42, SOURCES, works, kept)
    assert (again, same) == (location, seconds)
    assert Tyler.from_pretrained(again).solve(asked, max_new_tokens=12) == answer


def test_a_kept_model_is_the_trained_one_rounded_once(models: Path, tmp_path: Path) -> None:
    keep(STAGE1, "mini", 42, SOURCES, models, tmp_path)
    whole = Tyler.from_pretrained(trained(STAGE1, "mini", 42, SOURCES, models)[0])
    half = Tyler.from_pretrained(trained(STAGE1, "mini", 42, SOURCES, tmp_path / "empty", tmp_path)[0])
    tensors, rounded = (trained_tensors(model.synthesizer, model.policy) for model in (whole, half))
    assert tensors and tensors.keys() == rounded.keys()
    assert all(torch.equal(tensor.half().float(), rounded[name]) for name, tensor in tensors.items())
    assert not list(tmp_path.rglob("README.md"))


@pytest.mark.usefixtures("untrained")
def test_a_published_model_is_named_and_not_copied(models: Path, tmp_path: Path) -> None:
    kept, place = tmp_path / "kept", str(tmp_path / "published")
    Tyler.from_pretrained(trained(STAGE1, "mini", 42, SOURCES, models)[0]).save_pretrained(place, half=True)
    note = keep(STAGE1, "mini", 42, SOURCES, models, kept, location=place)
    assert list(kept.iterdir()) == [note]
    assert trained(STAGE1, "mini", 42, SOURCES, tmp_path / "empty", kept)[0] == place
    with pytest.raises(ValueError, match=r"the model at mini-tyler has the weights \w+, and what would be kept"):
        keep(STAGE1, "mini", 42, SOURCES, models, tmp_path / "other", location="mini-tyler")
    assert not list((tmp_path / "other").iterdir())


def test_what_is_kept_stays_as_it_is_and_what_a_kill_left_is_made_anew(models: Path, tmp_path: Path) -> None:
    name = name_of(STAGE1.identity("mini", 42, SOURCES))
    for left in (name, f".{name}.partial"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "half a file").touch()
    note = keep(STAGE1, "mini", 42, SOURCES, models, tmp_path)
    assert not list(tmp_path.rglob("half a file")) and not list(tmp_path.glob(".*"))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert keep(STAGE1, "mini", 42, SOURCES, models, tmp_path) == note
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == written


def test_a_merged_model_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a merged model is not kept: .* keep the model that is merged"):
        keep(Training("merge", start=SFT), "mini", 42, SOURCES, tmp_path, tmp_path)


def test_several_processes_train_nothing_that_one_would_not(models: Path, tmp_path: Path) -> None:
    stage2 = Training("stage2", STAGE1.overrides, start=STAGE1)
    on_merged = Training("stage2", STAGE1.overrides, start=ON_MERGED)
    merged, nothing = ON_MERGED.start, tmp_path / "nothing"
    assert merged is not None

    def needs(training: Training, kept: Path) -> list[Training]:
        return needed(training, "mini", 42, SOURCES, kept)

    assert needs(stage2, nothing) == [STAGE1, stage2] and needs(on_merged, nothing) == [
        SFT,
        merged,
        ON_MERGED,
        on_merged,
    ]
    for one in (stage2, on_merged):
        atomic_write(tmp_path / f"{name_of(one.identity('mini', 42, SOURCES))}.done.json", "{}")
    assert needs(stage2, tmp_path) == [] and needs(on_merged, tmp_path) == [SFT, merged]
    keep(STAGE1, "mini", 42, SOURCES, models, tmp_path / "first")
    assert needs(stage2, tmp_path / "first") == [stage2]


def test_a_merge_that_was_finished_and_not_noted_is_taken_as_it_is(tmp_path: Path) -> None:
    merge = Training("merge", start=SFT)
    folder, _ = trained(merge, "mini", 42, SOURCES, tmp_path)
    note = Path(f"{folder}.done.json")
    note.unlink()
    before = {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")}
    assert trained(merge, "mini", 42, SOURCES, tmp_path)[0] == folder and note.exists()
    assert {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")} == before


def test_what_is_not_finished_is_not_kept_and_nothing_is_written(models: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not finished; only a finished model is kept"):
        keep(STAGE1, "mini", 43, SOURCES, models, tmp_path)
    assert not list(tmp_path.iterdir())
