"""The packages that a program may import: those of this environment that are named, and nothing else of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path


def folders_of(names: Sequence[str]) -> tuple[Path, ...]:
    """What has to be there to import these packages: their folders or files, and the libraries that wheels bring along.

    Raises ValueError for a package that is not installed here.
    """
    return tuple(path for name in names for path in _parts_of(name))


@functools.cache
def _parts_of(name: str) -> tuple[Path, ...]:
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        raise ValueError(f"package {name!r} is not installed here, so programs cannot import it; install it or omit it")
    place = Path(spec.submodule_search_locations[0]) if spec.submodule_search_locations else Path(str(spec.origin))
    return place, *place.parent.glob(f"{name}.libs")
