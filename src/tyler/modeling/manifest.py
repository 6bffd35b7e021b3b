"""What checkpoints of every kind have in common: a JSON file that names the backbone and seals the files beside it.

    format    3; before it the backbone had another fingerprint, and no file was sealed
    backbone  its id, revision, folder, dtype and fingerprints
    digests   sha256 of every file that is loaded, and of this file's other keys

`checkpoint.py`, MemGen and SoftCoT add keys of their own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from pydantic import TypeAdapter, ValidationError

from tyler.modeling.architectures import FETCHABLE, MINI
from tyler.modeling.backbone import Backbone, dtype_name, resolve_device, resolve_dtype
from tyler.modeling.digests import changed_files, digests_of
from tyler.modeling.fingerprint import fingerprint_of, old_fingerprint

FORMAT = 3
DIGESTS, SEALED_SINCE = "digests", 3
PACKAGES = ("torch", "transformers", "peft")

NAMES = (MINI, *FETCHABLE)
"""Ids that are found by name, wherever one is."""

Kind = TypeVar("Kind")

logger = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that is incomplete, changed, foreign or newer than this version of tyler."""


@dataclass(frozen=True)
class BackboneRecord:
    """The backbone that a checkpoint belongs to.

    `folder` is where it was, as an absolute path, if `id` is a folder or a file. `fingerprint` and `rounded` are those
    of `fingerprint.py`, of weights in `dtype`; older formats have neither `rounded` nor `dtype`, and an older hash.
    """

    id: str
    revision: str | None
    fingerprint: str
    rounded: str | None = None
    dtype: str | None = None
    folder: str | None = None

    @classmethod
    def of(cls, backbone: Backbone) -> BackboneRecord:
        """What a checkpoint on this backbone says of it."""
        found, path = backbone.fingerprints, Path(backbone.place or backbone.id)
        folder = str(path.resolve()) if backbone.id not in NAMES and path.exists() else None
        return cls(backbone.id, backbone.revision, found.exact, found.rounded, dtype_name(backbone.dtype), folder)

    def load(
        self, folder: Path, *, instead: str | None, dtype: str | torch.dtype, device: str | torch.device | None
    ) -> Backbone:
        """The backbone of the checkpoint in `folder`, from where it was, or from the id or place given `instead`.

        Raises CheckpointError for other weights, and FileNotFoundError, naming what to give, where there is none.
        """
        wanted = resolve_dtype(dtype, resolve_device(device))
        compared = wanted if self.tells_of(wanted) else torch.float32
        backbone = self._read(folder, instead, compared, device)
        self.check(backbone, folder)
        return backbone if compared == wanted else backbone.rounded_to(wanted)

    def tells_of(self, dtype: torch.dtype) -> bool:
        """Whether weights in `dtype` can be compared with the recorded ones: float16 keeps other bits than bfloat16."""
        return dtype_name(dtype) == self.dtype or "float16" not in (dtype_name(dtype), self.dtype)

    def _read(
        self, folder: Path, instead: str | None, dtype: torch.dtype, device: str | torch.device | None
    ) -> Backbone:
        if instead is not None:
            revision = self.revision if instead == self.id else None
            return Backbone.load(instead, revision=revision, dtype=dtype, device=device)
        try:
            place = self.place(folder)
            return Backbone.load(self.id, revision=self.revision, dtype=dtype, device=device, place=place)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error}\n{folder} was trained on it. If it is elsewhere now, give its place: --backbone PLACE, "
                "or backbone= in Python"
            ) from error

    def place(self, folder: Path) -> str | None:
        """Where a backbone that is a folder or a file is: as noted, as seen from here, or from the run or above it."""
        if self.id in NAMES:
            return None
        seen = [Path(self.folder)] if self.folder else []
        seen += [Path(self.id), *(parent / self.id for parent in folder.resolve().parents)]
        return next((str(path) for path in seen if path.is_file() or (path / "config.json").is_file()), None)

    def check(self, backbone: Backbone, folder: Path) -> None:
        """Raise CheckpointError unless the checkpoint in `folder` belongs to these weights.

        Weights in the recorded dtype must be the same to the bit. In another they must be the same in bfloat16, which
        is all that is left of them in one of the two; float32 weights are rounded to a recorded float16.
        """
        if self.dtype is None:
            same, found = old_fingerprint(backbone.model) == self.fingerprint, old_fingerprint(backbone.model)
        elif self.dtype == dtype_name(backbone.dtype):
            same, found = backbone.fingerprint() == self.fingerprint, backbone.fingerprint()
        elif self.dtype == "float16":
            found = fingerprint_of(backbone.model, torch.float16).exact
            same = found == self.fingerprint
        else:
            same, found = backbone.fingerprints.rounded == self.rounded, backbone.fingerprint()
        if not same:
            fetched = (
                f"; {self.id} from the package index and from the Hub differ: remove the folder of yours, then run "
                f"`tyler fetch {self.id}` with the other --origin"
            )
            raise CheckpointError(
                f"{folder} was trained on backbone {self.id!r} with fingerprint {self.fingerprint}"
                f"{f' in {self.dtype}' if self.dtype else ''}, but {backbone.id!r} has {found} in "
                f"{dtype_name(backbone.dtype)}: load it with the backbone it was trained on (backbone.id of a config, "
                f"--backbone of a command){fetched if self.id in FETCHABLE else ''}"
            )


# --- writing --------------------------------------------------------------------------------------------------------


def write_manifest(path: Path, content: Mapping[str, Any], files: Sequence[str]) -> None:
    """Write `content` with its format, versions and digests; `files` are the names of those beside it, all there."""
    packages = {name: version(name) for name in PACKAGES}
    whole: dict[str, Any] = {"format": FORMAT, **content, "versions": packages}
    digests = digests_of(path.parent, files)
    whole[DIGESTS] = {**digests, path.name: seal_of({**whole, DIGESTS: digests})}
    path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def forget_folders(path: Path) -> None:
    """Write a manifest again without where its backbones were: they are found by their ids, from where it is read."""
    content = read_object(path)
    for value in content.values():
        if isinstance(value, dict) and {"id", "fingerprint", "folder"} <= value.keys():
            value["folder"] = None
    others = {name: digest for name, digest in content[DIGESTS].items() if name != path.name}
    content[DIGESTS] = {**others, path.name: seal_of({**content, DIGESTS: others})}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def seal_of(content: Mapping[str, Any]) -> str:
    """sha256 of a manifest without its own digest, whatever its layout."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# --- reading --------------------------------------------------------------------------------------------------------


def read_manifest(path: Path, keys: Collection[str], later: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The JSON object in a file with its format, its versions, and these keys of its kind's own.

    `later` are those that came with a later format than the first, and which.
    Raises CheckpointError naming what is wrong: a file that is no such object, another format, or other keys.
    """
    content = read_object(path)
    format = content.get("format")
    if type(format) is not int or not 1 <= format <= FORMAT:
        raise CheckpointError(
            f"{path} has format {format!r}, and this version of tyler reads up to {FORMAT}; upgrade tyler"
        )
    since = {DIGESTS: SEALED_SINCE, **(later or {})}
    check_keys(path, content, {"format", "versions", *keys, *(key for key in since if format >= since[key])})
    return content


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError, naming the file, for anything else."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}; it must be a JSON object")
    return content


def check_keys(where: object, content: Mapping[str, Any], expected: Collection[str]) -> None:
    """Raise CheckpointError unless these are exactly the keys."""
    faults = [f"misses {key!r}" for key in sorted(set(expected) - set(content))]
    faults += [f"has an unknown key {key!r}" for key in sorted(set(content) - set(expected))]
    if faults:
        raise CheckpointError(f"{where} {', '.join(faults)}; its keys are {', '.join(sorted(expected))}")


def read_as(kind: type[Kind], value: Any, where: str) -> Kind:
    """A dataclass from a JSON object with its fields; `where` is the file and the key.

    Raises CheckpointError naming each field that is missing, unknown or of another type, and what the class refuses.
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if isinstance(value, dict) and (unknown := sorted(set(value) - names)):
        raise CheckpointError(f"{where} has unknown keys {unknown}; known are {', '.join(sorted(names))}")
    try:
        return cast(Kind, adapter_of(cast(Any, kind)).validate_json(json.dumps(value), strict=True))
    except ValidationError as error:
        faults = [
            (".".join(map(str, (where, *one["loc"]))), one["input"], one["msg"].removeprefix("Value error, "))
            for one in error.errors(include_url=False)
        ]
        raise CheckpointError("; ".join(f"{key} = {came!r:.80}: {reason}" for key, came, reason in faults)) from error


@functools.cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """What reads a dataclass; made once, for that takes longer than reading."""
    return TypeAdapter(kind)


def read_sections(
    path: Path, kinds: Mapping[str, type], later: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A manifest whose own keys are dataclasses of these kinds: those that it has, by key, and what was read.

    `later` are the keys that came with a later format than the first, and which. Raises CheckpointError as
    `read_manifest`, `read_as` and `check_seal` do.
    """
    content = read_manifest(path, kinds.keys() - later.keys(), later)
    sections: dict[str, Any] = {
        key: read_as(kind, content[key], f"{path}: {key}") for key, kind in kinds.items() if key in content
    }
    check_seal(path, content)
    return sections, content


def check_seal(path: Path, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless a manifest is as it was saved; log a notice for an older one, which cannot say.

    To be called once every field is known to be right by itself, for that is the better refusal.
    """
    if content["format"] < SEALED_SINCE:
        logger.warning(
            "%s is of format %s: it has no digests of its files, and its fingerprint saw only a part of the backbone's "
            "weights; load it and save it again to have both",
            path.parent,
            content["format"],
        )
        return
    digests = content[DIGESTS]
    if not isinstance(digests, dict) or not all(isinstance(one, str) for one in digests.values()):
        raise CheckpointError(f"{path}: {DIGESTS} = {digests!r:.80}; it must be an object of file names and sha256")
    others = {name: digest for name, digest in digests.items() if name != path.name}
    if digests.get(path.name) != seal_of({**content, DIGESTS: others}):
        raise CheckpointError(
            f"{path} is not as it was saved; copy the checkpoint again. For a backbone that is elsewhere now, give its "
            "place with backbone= or --backbone instead"
        )


def check_files(path: Path, content: Mapping[str, Any], files: Sequence[str]) -> None:
    """Raise CheckpointError naming every file beside a manifest that is not as it was saved."""
    if content["format"] < SEALED_SINCE:
        return
    check_keys(f"{path}: {DIGESTS}", content[DIGESTS], {*files, path.name})
    if changed := changed_files(path.parent, {name: content[DIGESTS][name] for name in files}):
        raise CheckpointError(
            f"{path.parent} is not as it was saved: {', '.join(changed)} changed since; copy the checkpoint again"
        )
