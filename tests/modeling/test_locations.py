"""What is said of a path where no model is, without asking the Hub."""

from pathlib import Path

import pytest

from tyler import Tyler
from tyler.modeling import backbone, hub
from tyler.modeling.backbone import Backbone
from tyler.modeling.locations import WHAT_TO_GIVE, near


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run, a run without a checkpoint, and a folder of models; the Hub is not asked."""
    for folder in ("runs/mini-stage2/checkpoints/step-3", "runs/begun/checkpoints", "Qwen/Qwen3-4B"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "Qwen" / "Qwen3-4B" / "config.json").touch()
    monkeypatch.chdir(tmp_path)

    def ask(*_: object, **__: object) -> None:
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr(backbone.AutoConfig, "from_pretrained", ask)
    monkeypatch.setattr(hub, "hf_hub_download", ask)
    return tmp_path


def refusal(location: str) -> str:
    with pytest.raises(FileNotFoundError) as refused:
        Backbone.load(location)
    return str(refused.value)


@pytest.mark.parametrize(
    "location", ["runs/mini-stgae2", "rusn/mini-stage2", "./runs/mini_stage2", "runs/mini-stage-2/"]
)
def test_a_mistyped_run_is_answered_with_the_one_that_was_meant(location: str) -> None:
    assert f"There is no folder {location!r}; did you mean runs/mini-stage2?" in refusal(location)


def test_a_path_is_no_hub_id(folder: Path) -> None:
    assert "There is no folder '/no/such'. Give 'mini', a Hub id or a folder" in refusal("/no/such")
    typed = str(folder / "Qwen" / "Qwen3-4b")
    assert f"did you mean {folder / 'Qwen' / 'Qwen3-4B'}?" in refusal(typed)
    assert "There is no folder 'runs/nowhere'. Give 'mini'" in refusal("runs/nowhere")
    with pytest.raises(FileNotFoundError, match="There is no folder 'runs/nowhere'"):
        Tyler.from_pretrained("runs/nowhere")


def test_a_folder_of_runs_is_not_on_the_hub_whatever_it_is_called(folder: Path) -> None:
    (folder / "kept" / "first" / "checkpoints").mkdir(parents=True)
    assert "There is no folder 'kept/nowhere'. Give 'mini'" in refusal("kept/nowhere")


def test_a_preset_is_not_a_model(folder: Path) -> None:
    assert "qwen3-4b is a preset of settings, not a model; `tyler config qwen3-4b` shows its" in refusal("qwen3-4b")


def test_a_file_is_no_model(folder: Path) -> None:
    (folder / "notes.txt").write_text("x")
    assert "notes.txt is a file, and no GGUF file. Give 'mini'" in refusal(str(folder / "notes.txt"))


@pytest.mark.parametrize(("typed", "meant"), [("mnii", "mini"), ("minityler", "mini-tyler"), ("smolml2", "smollm2")])
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(typed: str, meant: str) -> None:
    assert f"there is no model {typed!r}; did you mean {meant!r}?" in refusal(typed)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("runs/mini-stage2/checkpoints", "give the run, runs/mini-stage2, or one of them"),
        ("runs/mini-stage2", "its newest checkpoint, step-3, is damaged (it has no manifest): restore it"),
        ("runs/begun", "a run that has no whole checkpoint yet"),
        ("runs", "in it are runs/begun, runs/mini-stage2"),
        ("Qwen", "in it are Qwen/Qwen3-4B"),
    ],
)
def test_a_folder_that_is_no_model_says_what_it_is(location: str, message: str) -> None:
    assert f"{location} holds no model: it has no config.json" in refusal(location)
    assert message in refusal(location)


def test_a_checkpoint_of_any_method_is_known_by_its_manifest(folder: Path) -> None:
    for name, text in {"new.json": '{"format": 3, "backbone": {}}', "tokens.json": '{"version": 1}'}.items():
        (folder / "saved" / name).mkdir(parents=True)
        (folder / "saved" / name / name).write_text(text)
    assert refusal("saved").endswith("; in it are saved/new.json. " + WHAT_TO_GIVE)


@pytest.mark.parametrize("id", ["Qwen/Qwen3-8B", "HuggingFaceTB/SmolLM2-135M-Instruct", "gpt2"])
def test_what_may_be_on_the_hub_is_asked_there(id: str) -> None:
    with pytest.raises(AssertionError, match="the Hub was asked"):
        Backbone.load(id)


def test_a_model_that_the_hub_does_not_have_may_be_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("not there") from backbone.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(backbone.AutoConfig, "from_pretrained", refuse)
    assert "Or was the folder Qwen/Qwen3-4B meant?" in refusal("Qwen/Qwen3-4Bb")
    assert "Or was" not in refusal("someone/else")


def test_nothing_is_near_a_path_whose_parts_are_like_no_others() -> None:
    assert near(Path("elsewhere/mini-stage2")) is None
    assert near(Path("runs/quite-other")) is None
