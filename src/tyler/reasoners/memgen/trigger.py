"""The trigger: yes or no, from the visible tokens alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from tyler.backbone import Backbone
from tyler.lora import LoraSettings, add_lora, decoder_stack, fold, folded_view

NO, YES = 0, 1
"""The trigger's two actions, in the order of its logits."""


class Trigger(nn.Module):
    """Linear(d, 2) on the last position of a LoRA'd decoder; both are what trigger training moves."""

    def __init__(self, backbone: Backbone, lora: PeftModel) -> None:
        super().__init__()
        self.lora = lora
        self.output = nn.Linear(backbone.dim, 2).to(backbone.device)
        self._theta = (backbone.model,)  # in a tuple: theta is no part of what this module trains or saves
        self._folded: list[PreTrainedModel] = []

    @classmethod
    def start(cls, backbone: Backbone, settings: LoraSettings) -> Trigger:
        """A new trigger; draws from torch's global generator."""
        return cls(backbone, add_lora(backbone.model, settings)).eval()

    def logits(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch 2"]:
        """Logits of (NO, YES), in float32."""
        return self.output(hidden.to(self.output.weight.dtype)).float()

    @property
    def training_decoder(self) -> PreTrainedModel:
        """The decoder stack with a trainable LoRA."""
        return decoder_stack(self.lora)

    def decoder(self) -> PreTrainedModel:
        """The folded decoder stack, brought up to date with the LoRA."""
        if not self._folded:
            self._folded.append(folded_view(self.lora, self._theta[0]))
        fold(self.lora, self._folded[0])
        return cast(PreTrainedModel, self._folded[0].base_model)

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training moves, in a fixed order."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the LoRA, by name."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("lora.")}


@dataclass(frozen=True)
class Consultation:
    """The trigger was asked after `position` visible tokens; `decision` is NO or YES, `logprob` its log-probability."""

    position: int
    decision: int
    logprob: float


def decide(logits: Float[Tensor, "2"], temperature: float, random: np.random.Generator) -> tuple[int, float]:
    """A decision and its log-probability: the larger logit (NO at a tie) at temperature 0, else one uniform number's.

    The number falls into [0, p(NO)) or behind it. At temperature 0 the log-probability is that at temperature 1.
    """
    logprobs = (logits.double() / (temperature or 1.0)).log_softmax(dim=-1)
    greedy = temperature == 0
    decision = int(torch.argmax(logits)) if greedy else int(random.random() >= float(logprobs[NO].exp()))
    return decision, float(logprobs[decision])
