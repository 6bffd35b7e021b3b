"""Arguments that several commands share. Those of an evaluation are in `tyler.evaluation.options`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction, arg

from tyler.evaluation.options import (
    Dtype,
    RouterName,
    SomeBackbone,
    SomeBytes,
    SomeDevice,
    SomeFile,
    SomeFolder,
    SomeNumber,
    memory_of,
    router_of,
)

if TYPE_CHECKING:
    from tyler.config.schema import Config

__all__ = [
    "ConfigName",
    "Dtype",
    "Folder",
    "ModelName",
    "Overrides",
    "RouterName",
    "SomeBackbone",
    "SomeBytes",
    "SomeDevice",
    "SomeFile",
    "SomeFolder",
    "SomeNumber",
    "last_part",
    "load_settings",
    "memory_of",
    "router_of",
]

ConfigName = Annotated[Positional[str], arg(metavar="CONFIG")]
ModelName = Annotated[Positional[str], arg(metavar="MODEL")]
Overrides = Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="KEY=VALUE")]
Folder = Annotated[Path, arg(metavar="DIR")]


def load_settings(config: str, overrides: Sequence[str]) -> Config:
    """The config of a command with its dotted settings. Raises ValueError for what is not allowed, by name."""
    from tyler.config.files import load_config

    return load_config(config, overrides)


def last_part(model: str) -> str:
    """What a model is called where no name is given: the last part of its folder or Hub id, of "." too."""
    return os.path.basename(os.path.abspath(model))
