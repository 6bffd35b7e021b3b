"""Writing that a crash cannot halve."""

import os
from io import FileIO
from pathlib import Path


def atomic_write(path: str | Path, content: bytes | str) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new one and nothing between.

    An OSError names this file, not the one that is written first.
    """
    path = Path(path)
    half_written = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half_written.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        sync(half_written)
        os.replace(half_written, path)
        sync(path.parent)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    finally:
        half_written.unlink(missing_ok=True)


def write_all(file: FileIO, content: bytes) -> None:
    """Write everything: one call may take only a part."""
    while content:
        content = content[file.write(content) :]


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Bring a folder with all that is in it to the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)
