"""Arguments that several commands share. Those of an evaluation are in `tyler.evaluation.options`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction, arg

from tyler.evaluation.options import (
    Dtype,
    OptionalBackbone,
    OptionalBytes,
    OptionalDevice,
    OptionalFile,
    OptionalFolder,
    OptionalNumber,
    RouterName,
    memory_of,
    router_of,
)

if TYPE_CHECKING:
    from tyler.config.schema import Config
    from tyler.evaluation.options import Decoding, Placement
    from tyler.reasoners.registry import Answerer

__all__ = [
    "ConfigName",
    "Dtype",
    "Folder",
    "ModelName",
    "Overrides",
    "RouterName",
    "OptionalBackbone",
    "OptionalBytes",
    "OptionalDevice",
    "OptionalFile",
    "OptionalFolder",
    "OptionalNumber",
    "answerer_of",
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


def answerer_of(model: str, decoding: Decoding, placement: Placement, stop: Sequence[str] = ()) -> Answerer:
    """What answers for a saved model or a backbone, as a command's arguments say. Raises as `registry.load`."""
    from tyler.reasoners import registry

    loaded = registry.load(
        model,
        name=model,
        router=decoding.routed,
        budget=decoding.budget,
        max_new_tokens=decoding.max_new_tokens,
        backbone=placement.backbone,
        device=placement.device,
        dtype=placement.dtype,
        memory=placement.bytes,
        engine=placement.engine_choice,
    )
    return loaded.answerer(stop)


def last_part(model: str) -> str:
    """What a model is called where no name is given: the last part of its folder or Hub id, of "." too."""
    return os.path.basename(os.path.abspath(model))
