"""Whatever happens to a checkpoint of any kind is refused by name: nothing loads silently, nothing breaks inside."""

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import kinds
import tiny
import tyler
from damage import change, nudge, reseal
from tyler import CheckpointError, Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import NOTES

WRONG = (None, True, 0, -1, 1.5, 10**18, "bogus", [], {"x": 1})
"""Nine values, most of them of a wrong type wherever they come."""


@dataclass(frozen=True)
class Kind:
    """A kind of checkpoint: a whole one, its manifest, and how it is loaded."""

    whole: Path
    manifest: str
    backbone: Backbone
    load: Callable[[str], object]

    def files(self, suffix: str) -> list[str]:
        return sorted(str(path.relative_to(self.whole)) for path in self.whole.rglob(f"*{suffix}"))


@pytest.fixture(
    scope="module",
    params=["stage1", "stage2", "sft", pytest.param("mini-tyler", marks=pytest.mark.slow), "memgen", "softcot"],
)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    if kind == "mini-tyler":
        return Kind(
            Path(tyler.__file__).parent / "assets" / "mini-tyler",
            "tyler.json",
            Backbone.load("mini"),
            Tyler.from_pretrained,
        )
    model = kinds.new(kind, tiny.build_backbone("qwen2" if kind == "memgen" else "qwen3"))
    if kind == "memgen":
        model = model.with_new_trigger(kinds.LORA)
    model.save_pretrained(folder)
    manifest = f"{kind}.json" if kind in ("memgen", "softcot") else "tyler.json"
    return Kind(folder, manifest, model.backbone, type(model).from_pretrained)


@pytest.fixture
def place(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage; its backbone is there at once, whatever the copy says of it."""
    monkeypatch.setattr(Backbone, "load", classmethod(lambda *_, **__: kind.backbone))
    return Path(shutil.copytree(kind.whole, tmp_path / "copy"))


def restore(kind: Kind, place: Path, *names: str) -> None:
    for name in names:
        shutil.copy(kind.whole / name, place / name)


def with_elements(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The tensors that can be changed: psi has no row where there are no operators."""
    return [key for key, tensor in tensors.items() if tensor.numel()]


def refusal(kind: Kind, place: Path, what: object) -> str:
    """What is said; any other error, and silence, fail the test."""
    try:
        kind.load(str(place))
    except CheckpointError as error:
        return str(error)
    pytest.fail(f"{what} loaded without a word")


def test_the_whole_checkpoint_loads(kind: Kind, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    kind.load(str(place))
    assert not caplog.text


def test_every_changed_element_is_seen(kind: Kind, place: Path) -> None:
    for name in kind.files(".safetensors"):
        for key in with_elements(load_file(kind.whole / name)):
            change(place / name, lambda tensors, key=key: nudge(tensors[key]))
            assert f"{name} changed since" in refusal(kind, place, (name, key))
            restore(kind, place, name)


def test_tensors_and_files_that_change_places_are_seen(kind: Kind, place: Path) -> None:
    for name in kind.files(".safetensors"):
        whole = load_file(kind.whole / name)
        twins = [(a, b) for a, b in combinations(with_elements(whole), 2) if whole[a].shape == whole[b].shape]
        for first, second in [(a, b) for a, b in twins if not torch.equal(whole[a], whole[b])]:

            def swap(tensors: dict[str, torch.Tensor], first: str = first, second: str = second) -> None:
                tensors[first], tensors[second] = tensors[second], tensors[first]

            change(place / name, swap)
            assert f"{name} changed since" in refusal(kind, place, (name, first, second))
            restore(kind, place, name)
    for name in kind.files("adapter_model.safetensors")[1:]:
        shutil.copy(kind.whole / kind.files("adapter_model.safetensors")[0], place / name)
        assert f"{name} changed since" in refusal(kind, place, name)
        restore(kind, place, name)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_named_even_where_they_were_saved(bad: float, kind: Kind, place: Path) -> None:
    for name in kind.files(".safetensors"):
        for key in with_elements(load_file(kind.whole / name)):
            change(place / name, lambda tensors, key=key: tensors[key].view(-1)[-1:].fill_(bad))
            reseal(place / kind.manifest)
            told = refusal(kind, place, (name, key))
            assert f"{name} holds numbers that are not finite: {key}" in told
            restore(kind, place, name)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64])
def test_tensors_in_another_dtype_are_named(dtype: torch.dtype, kind: Kind, place: Path) -> None:
    for name in kind.files(".safetensors"):
        for key in list(load_file(kind.whole / name))[:2]:
            change(place / name, lambda tensors, key=key: tensors.update({key: tensors[key].to(dtype)}))
            reseal(place / kind.manifest)
            assert f"{key} is in " in (told := refusal(kind, place, (name, key))) and name in told
            restore(kind, place, name)


def test_tensors_that_are_missing_or_unknown_or_misshapen_are_named(kind: Kind, place: Path) -> None:
    for name in kind.files(".safetensors"):
        key, tensor = min(load_file(kind.whole / name).items())
        for what, edit in (
            (f"missing {key}", lambda tensors, key=key: tensors.pop(key)),
            ("extra stranger", lambda tensors: tensors.update(stranger=torch.zeros(1))),
            (
                f"misshapen {key}: [3, 3], expected {list(tensor.shape)}",
                lambda tensors, key=key: tensors.update({key: torch.zeros(3, 3)}),
            ),
        ):
            change(place / name, edit)
            reseal(place / kind.manifest)
            assert what in (told := refusal(kind, place, (name, what))) and name in told
            restore(kind, place, name, kind.manifest)


def test_a_file_that_is_missing_and_another_backbone_are_named(kind: Kind, place: Path) -> None:
    own = [kind.manifest] if kind.manifest != "tyler.json" else []  # without it a folder is a plain backbone
    for name in (*kind.files(".safetensors"), *kind.files("adapter_config.json"), *own):
        (place / name).unlink()
        with pytest.raises((CheckpointError, FileNotFoundError), match=re.escape(Path(name).name)):
            kind.load(str(place))
        restore(kind, place, name)
    content = json.loads((kind.whole / kind.manifest).read_text())
    content["backbone"]["fingerprint"] = "0"
    (place / kind.manifest).write_text(json.dumps(content))
    reseal(place / kind.manifest)
    assert "fingerprint 0" in refusal(kind, place, "another backbone")


def test_a_file_that_was_cut_in_half_is_named(kind: Kind, place: Path) -> None:
    for name in (*kind.files(".safetensors"), *kind.files(".json")):
        content = (kind.whole / name).read_bytes()
        (place / name).write_bytes(content[: len(content) // 2])
        assert str(place / name) in refusal(kind, place, name)
        restore(kind, place, name)


# ------------------------------------------------------------------------------------------------ JSON


def edits(content: Any) -> Iterator[tuple[str, Any]]:
    """The content with one key at a time replaced by each of nine wrong values, and with what was replaced by what."""
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys:
        for value in WRONG:
            if json.dumps(value) != json.dumps(content[key]):
                edited = copy.copy(content)
                edited[key] = value
                yield f"{key} = {value!r}", edited
        for what, below in edits(content[key]):
            edited = copy.copy(content)
            edited[key] = below
            yield f"{key}.{what}", edited


def test_a_wrong_value_is_refused_by_the_checkpoints_name(kind: Kind, place: Path) -> None:
    """What is not refused by its type or range is at least no error from the inside."""
    loaded = 0
    for name in kind.files(".json"):
        content = json.loads((kind.whole / name).read_text())
        same = {key: content.pop(key) for key in ("digests", "versions", *NOTES) if key in content}
        for what, edited in edits(content):
            (place / name).write_text(json.dumps({**edited, **same}))
            reseal(place / kind.manifest)
            try:
                kind.load(str(place))
            except CheckpointError as error:
                assert str(place) in str(error), (name, what)
            else:
                loaded += 1
        restore(kind, place, name, kind.manifest)
    assert loaded


def test_a_key_that_is_missing_or_unknown_is_named(kind: Kind, place: Path) -> None:
    content = json.loads((kind.whole / kind.manifest).read_text())
    for key in content:
        (place / kind.manifest).write_text(json.dumps({name: value for name, value in content.items() if name != key}))
        assert f"{key} is missing" in (told := refusal(kind, place, key)) or f"{key} None" in told
    (place / kind.manifest).write_text(json.dumps({**content, "more": 1}))
    assert "more = 1: Extra inputs are not permitted" in refusal(kind, place, "more")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"3",
        b"\xff\xfe{",
        '{"a": "caf\xe9"}'.encode("latin-1"),
        b"[" * 100_000,
        b'{"format": ' + b"9" * 5000,
    ],
    ids=["empty", "list", "number", "UTF-16", "Latin-1", "nested", "digits"],
)
def test_what_is_no_json_object_names_the_file(content: bytes, kind: Kind, place: Path) -> None:
    for name in kind.files(".json"):
        (place / name).write_bytes(content)
        assert str(place / name) in refusal(kind, place, name)
        restore(kind, place, name)
