"""Arguments that several commands share. Those of an evaluation are in `tyler.evaluation.options`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

PRESETS = "mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b"
ANY_MODEL = (
    "A saved model, Tyler's or a baseline's (mini-tyler ships), a run, or a plain backbone: mini, smollm2 (see tyler "
    "fetch), a folder or a Hub id."
)
CHANGE = "Change one setting. `--decoding.slots 64` is short for `--set decoding.slots=64`."

ConfigName = Annotated[Positional[str], arg(metavar="CONFIG", help=f"A YAML file, or a preset: {PRESETS}.")]
ModelName = Annotated[Positional[str], arg(metavar="MODEL")]
"""A model that a command describes itself."""
AnyModel = Annotated[Positional[str], arg(metavar="MODEL", help=ANY_MODEL)]
Overrides = Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="KEY=VALUE", help=CHANGE)]
Folder = Annotated[Path, arg(metavar="DIR")]
