"""Random models to measure: the size of real ones, mini's tokenizer, answers that never end. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedConfig

from tyler import GLOBAL, PROCEDURE, STATE, Tyler
from tyler.modeling.architectures import MINI, located
from tyler.modeling.backbone import Backbone, resolve_dtype
from tyler.modeling.lora import LoraSettings
from tyler.modeling.random_init import architecture, materialize, read_tokenizer, skeleton
from tyler.tasks.prompts import Prompt


class Endless(Backbone):
    """A backbone whose answers no token ends: every benchmark decodes as many tokens as it asks for."""

    @classmethod
    def of(cls, backbone: Backbone) -> Endless:
        return cls(**{field.name: getattr(backbone, field.name) for field in fields(backbone) if field.init})

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset()


def shaped(id: str, dtype: str = "auto", device: str = "cpu") -> Backbone:
    """The architecture of a known id, or of a folder, with random weights."""
    where = torch.device(device)
    return filled(id, architecture(id), resolve_dtype(dtype, where), where)


def filled(id: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> Backbone:
    """The architecture with weights drawn in place."""
    config.eos_token_id = None
    model = skeleton(config, dtype)
    materialize(model, device)
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0)
    return Endless(id, model, read_tokenizer(Path(located(MINI))))


def untrained(backbone: Backbone) -> Tyler:
    """The paper's operators, untrained and without dropout; who calls them is the benchmark's choice of router."""
    return Tyler.start(backbone, (GLOBAL, STATE, PROCEDURE), LoraSettings(dropout=0.0), Prompt(""))
