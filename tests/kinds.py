"""A small new model of every kind that a checkpoint can hold."""

from typing import Any

import tiny
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.reasoners.memgen.model import MemGen
from tyler.reasoners.softcot.model import SoftCot, Wording
from tyler.tasks.prompts import Prompt

LORA = LoraSettings(rank=2)


def new(kind: str, backbone: Backbone) -> Any:
    """A model of a stage, or "memgen" or "softcot", which is its own assistant."""
    prompt = Prompt(instruction="")
    if kind == "softcot":
        return SoftCot.start(backbone, backbone, prompt, Wording("{n} for: {problem}", "Hints:", thoughts=3))
    if kind == "memgen":
        return MemGen.start(backbone, lora=LORA, prompt=prompt)
    operators = tiny.OPERATORS if kind in ("stage1", "stage2") else ()
    model = Tyler.start(backbone, operators, LORA, prompt=prompt).at_stage(kind)
    if kind in ("stage2", "sft", "grpo"):
        model.policy.add_lora(LORA)
    return model
