"""The trigger: yes or no, from the visible tokens alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from peft import PeftModel
from torch import Tensor, nn

from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import Adapted, LoraSettings, add_lora

NO, YES = 0, 1
"""The trigger's two actions, in the order of its logits."""


class Trigger(Adapted):
    """Linear(d, 2) on the last position of a LoRA'd decoder; both are what trigger training moves."""

    def __init__(self, backbone: Backbone, lora: PeftModel) -> None:
        super().__init__(lora)
        self.output = nn.Linear(backbone.dim, 2).to(backbone.device)

    @classmethod
    def start(cls, backbone: Backbone, settings: LoraSettings) -> Trigger:
        """A new trigger; draws from torch's global generator."""
        return cls(backbone, add_lora(backbone.model, settings)).eval()

    def logits(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch 2"]:
        """Logits of (NO, YES), in float32."""
        return self.output(hidden.to(self.output.weight.dtype)).float()


@dataclass(frozen=True)
class Consultation:
    """The trigger was asked after `position` visible tokens; `decision` is NO or YES, `logprob` its log-probability."""

    position: int
    decision: int
    logprob: float


def decide(logits: Float[Tensor, "2"], temperature: float, random: np.random.Generator) -> tuple[int, float]:
    """A decision and its log-probability: the larger logit (NO at a tie) at temperature 0, else one uniform number's.

    The number falls into [0, p(NO)) or after it. At temperature 0 the log-probability is that at temperature 1.
    """
    logprobs = (logits.cpu().double() / (temperature or 1.0)).log_softmax(dim=-1)
    greedy = temperature == 0
    decision = int(torch.argmax(logits)) if greedy else int(random.random() >= float(logprobs[NO].exp()))
    return decision, float(logprobs[decision])
