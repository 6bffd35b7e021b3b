"""sha256 of files, by which a checkpoint tells whether it is as it was saved. Free of torch."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path


def digest_of(path: Path) -> str:
    """sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The digest of each of these files in a folder, by name."""
    return {name: digest_of(folder / name) for name in names}


def changed_files(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """The names of the files that are missing or not as they were when the digests were taken."""
    return [
        name for name, digest in digests.items() if not (folder / name).is_file() or digest_of(folder / name) != digest
    ]
