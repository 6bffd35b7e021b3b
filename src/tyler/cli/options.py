"""Arguments that several commands share. Those of an evaluation are in `tyler.evaluation.options`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction, arg

if TYPE_CHECKING:
    from tyler.config.schema import Config
    from tyler.reasoners.method import Training

PRESETS = "mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b"
ANY_MODEL = (
    "A saved model, Tyler's or a baseline's (mini-tyler ships), a run, or a plain backbone: mini, smollm2 (see tyler "
    "fetch), a folder, a GGUF file or a Hub id."
)
CHANGE = "Change one setting. `--decoding.slots 64` is short for `--set decoding.slots=64`."

ConfigName = Annotated[Positional[str], arg(metavar="CONFIG", help=f"A YAML file, or a preset: {PRESETS}.")]
ModelName = Annotated[Positional[str], arg(metavar="MODEL")]
"""A model that a command describes itself."""
AnyModel = Annotated[Positional[str], arg(metavar="MODEL", help=ANY_MODEL)]
Overrides = Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="KEY=VALUE", help=CHANGE)]
Folder = Annotated[Path, arg(metavar="DIR")]


def load_settings(config: str, overrides: Sequence[str], training: Training | None = None) -> Config:
    """The config of a command with its dotted settings; a `training` outside the package has a section of its own.

    Raises ValueError for what is not allowed, by name.
    """
    from tyler.config.files import load_config
    from tyler.config.schema import Config, with_sections

    return load_config(config, overrides, with_sections(Config, [training] if training else []))
