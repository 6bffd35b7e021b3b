"""What checkpoints of every kind have in common: a JSON file that names the backbone and the tensor files beside it.

    format    of the layout, 3
    backbone  its id, revision, folder, dtype, merged adapters and fingerprint
    digests   sha256 of every tensor file

`checkpoint.py`, MemGen and SoftCoT add keys of their own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model

from tyler.modeling.architectures import FETCHABLE, MINI
from tyler.modeling.backbone import DTYPES, Backbone, dtype_name
from tyler.modeling.digests import changed_files, digests_of
from tyler.modeling.fingerprint import fingerprint_of
from tyler.modeling.merged_adapters import ADAPTER_FILES, folder_names

FORMAT = 3
DIGESTS = "digests"
PACKAGES = ("torch", "transformers", "peft")

NAMES = (MINI, *FETCHABLE)
"""Ids that are found by name, wherever one is."""


class CheckpointError(ValueError):
    """A checkpoint that is incomplete, changed, foreign or newer than this version of tyler."""


@dataclass(frozen=True)
class BackboneRecord:
    """The backbone that a checkpoint belongs to.

    `folder` is where it was, as an absolute path, if `id` is a folder or a file. `fingerprint` is that of
    `fingerprint.py`, of weights in `dtype`. `merged_adapters` are folders of LoRAs inside the checkpoint, which are
    merged into the weights of `id` in this order; the fingerprint is that of the merged weights.
    """

    id: str
    revision: str | None
    fingerprint: str
    dtype: str
    folder: str | None = None
    merged_adapters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it is one of {', '.join(DTYPES)}")
        for name in self.merged_adapters:
            if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", name, re.ASCII):
                raise ValueError(f"merged_adapters has {name!r}; give the path of a folder inside the checkpoint")

    @property
    def files(self) -> list[str]:
        return [f"{adapter}/{name}" for adapter in self.merged_adapters for name in ADAPTER_FILES]

    @classmethod
    def of(cls, backbone: Backbone, folder: Path) -> Self:
        """What a checkpoint in `folder` says of this backbone, whose merged adapters are written there."""
        names = folder_names(len(backbone.adapters))
        for name, files in zip(names, backbone.adapters, strict=True):
            (folder / name).mkdir(parents=True, exist_ok=True)
            for file, content in files.items():
                (folder / name / file).write_bytes(content)
        path = Path(backbone.path or backbone.id)
        where = str(path.resolve()) if backbone.id not in NAMES and path.exists() else None
        return cls(backbone.id, backbone.revision, backbone.fingerprint(), dtype_name(backbone.dtype), where, names)

    def locate(self, folder: Path) -> str | None:
        """Where a backbone that is a folder or a file is: as noted, as seen from here, or from the run or above it."""
        if self.id in NAMES:
            return None
        seen = [Path(self.folder)] if self.folder else []
        seen += [Path(self.id), *(parent / self.id for parent in folder.resolve().parents)]
        return next((str(path) for path in seen if path.is_file() or (path / "config.json").is_file()), None)

    def check(self, backbone: Backbone, folder: Path) -> None:
        """Raise CheckpointError unless the checkpoint in `folder` belongs to these weights: to the bit, once they are
        rounded to the recorded dtype.
        """
        recorded = DTYPES[self.dtype]
        actual = backbone.fingerprint() if backbone.dtype == recorded else fingerprint_of(backbone.model, recorded)
        if actual != self.fingerprint:
            fetched = (
                f"; {self.id} from the package index and from the Hub differ: remove the folder of yours, then run "
                f"`tyler fetch {self.id}` with the other --origin"
            )
            raise CheckpointError(
                f"{folder} was trained on backbone {self.id!r} with fingerprint {self.fingerprint}"
                f" in {self.dtype}, but {backbone.id!r} has {actual}: load it with the backbone it was trained on "
                f"(backbone.id of a config, --backbone of a command){fetched if self.id in FETCHABLE else ''}"
            )


def write_manifest(path: Path, content: Mapping[str, Any], files: Sequence[str]) -> None:
    """Write `content` with its format, versions and digests; `files` are the names of those beside it, all there."""
    packages = {name: version(name) for name in PACKAGES}
    whole = {"format": FORMAT, **content, "versions": packages, DIGESTS: digests_of(path.parent, tensor_files(files))}
    path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def tensor_files(files: Sequence[str]) -> list[str]:
    """Those of a checkpoint's files whose damage nothing but a digest shows."""
    return [name for name in files if name.endswith(".safetensors")]


def read_manifest(path: Path, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest's own keys, each read as its kind, and its digests.

    Raises CheckpointError naming what is wrong: a file that is no JSON object, another format, other keys or values.
    """
    content = read_object(path)
    format = content.get("format")
    if type(format) is not int or format != FORMAT:
        raise CheckpointError(f"{path} has format {format!r}, and this version of tyler reads format {FORMAT}")
    for record in content.values():
        if isinstance(record, dict):
            record.pop("rounded", None)  # a second hash that checkpoints had until November 2026
    kinds = {**kinds, DIGESTS: dict[str, str]}
    every = {"format": int, "versions": dict[str, Any], **kinds}
    fields: dict[str, Any] = {key: (kind, ...) for key, kind in every.items()}
    just_these = ConfigDict(extra="forbid")  # of dataclasses in it, too
    read = read_as(create_model("Manifest", __config__=just_these, **fields), content, path)
    return {key: getattr(read, key) for key in kinds}


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


def read_as(kind: Any, content: Mapping[str, Any], path: Path) -> Any:
    """The content of a file of JSON as a type.

    Raises CheckpointError naming each key that is missing, unknown or of another type, and what the type refuses.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_url=False):
            key, reason = ".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")
            faults.append(
                f"{key} is missing" if fault["type"] == "missing" else f"{key} = {fault['input']!r:.80}: {reason}"
            )
        raise CheckpointError(f"{path}: {'; '.join(faults)}") from error


def check_files(path: Path, digests: Mapping[str, str], files: Sequence[str]) -> None:
    """Raise CheckpointError naming every tensor file beside a manifest that is not as it was saved."""
    tensors = tensor_files(files)
    if missing := sorted(set(tensors) - digests.keys()):
        raise CheckpointError(f"{path}: {DIGESTS} misses {', '.join(missing)}; copy the checkpoint again")
    if changed := changed_files(path.parent, {name: digests[name] for name in tensors}):
        raise CheckpointError(
            f"{path.parent} is not as it was saved: {', '.join(changed)} changed since; copy the checkpoint again"
        )
