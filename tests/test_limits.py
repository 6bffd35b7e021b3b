"""The repository stays small enough to be cloned, sent to another machine and uploaded; it holds nothing generated."""

import gzip
import io
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

MOST_FILES = 700
MOST_ARCHIVED = 16 * 10**6
MOST_BESIDE_WEIGHTS = 8 * 10**6
"""Bytes of a tar archive."""
MOST_IN_SDIST = 8 * 10**6
"""Bytes, gzipped: the weights that ship are most of it, and a wheel that is built from it has them too."""
GENERATED = (".png", ".tex", ".csv")


@pytest.fixture(scope="module")
def tracked(root: Path) -> list[str]:
    """Every file of the repository that is still there."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("this is not a checkout")
    return [name for name in listed if (root / name).exists()]


def archived(root: Path, names: list[str]) -> bytes:
    """The files as one archive, uncompressed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in names:
            archive.add(root / name, name, recursive=False)
    return out.getvalue()


def test_the_repository_is_small(root: Path, tracked: list[str]) -> None:
    assert len(tracked) <= MOST_FILES
    assert len(archived(root, tracked)) <= MOST_ARCHIVED
    assert len(archived(root, [name for name in tracked if not name.endswith(".safetensors")])) <= MOST_BESIDE_WEIGHTS


def test_the_source_distribution_is_small(root: Path, tracked: list[str]) -> None:
    sdist = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    named = tuple(f"{part.strip('/')}/" for part in sdist["include"])
    inside = [name for name in tracked if f"{name}/".startswith(named)]
    assert "src/tyler/model.py" in inside and "README.md" in inside
    assert len(gzip.compress(archived(root, inside))) <= MOST_IN_SDIST


def test_nothing_is_kept_that_a_command_makes(root: Path, tracked: list[str]) -> None:
    """`tyler reproduce --render` and `make docs` make tables and pictures."""
    assert not [name for name in tracked if name.endswith(GENERATED)]
    pages = {path.name for path in (root / "docs" / "results").rglob("*.md")}
    assert pages == {"README.md"}
