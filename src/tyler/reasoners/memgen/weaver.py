"""What learns: the weaver, and the trigger, which says yes or no from the visible tokens alone.

The weaver: context embeddings X -> Linear -> [X'; s LayerNorm(Q)] -> LoRA'd decoder -> Linear -> latents.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from peft import PeftModel
from torch import Tensor, nn

from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import Adapted
from tyler.modeling.operators import Operator
from tyler.modeling.synthesis import SynthesisModel

PROMPT, INFERENCE = "prompt", "inference"
"""The two kinds of blocks, and the names of their invocations in a trajectory."""


class QueryHead(nn.Module):
    """The queries s LayerNorm(Q) of one kind of blocks, and the output map, which all kinds share."""

    def __init__(self, num_latents: int, dim: int, output: nn.Linear) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.randn(num_latents, dim))
        self.norm = nn.LayerNorm(dim)
        self.scale = nn.Parameter(torch.ones(1))
        self._output = (output,)  # in a tuple: the weaver owns it

    @property
    def num_latents(self) -> int:
        return self.raw.shape[0]

    @property
    def queries(self) -> Float[Tensor, "latents dim"]:
        return self.scale * self.norm(self.raw)

    def forward(self, hidden: Float[Tensor, "*batch latents dim"]) -> Float[Tensor, "*batch latents dim"]:
        """Latents of the last hidden states at the query positions, after the final norm."""
        (output,) = self._output
        return output(hidden.to(output.weight.dtype)).to(hidden.dtype)

    def affine(self) -> tuple[Float[Tensor, "dim dim"], Float[Tensor, "latents dim"]]:
        (output,) = self._output
        return output.weight, output.bias.expand(self.num_latents, -1)


class Weaver(SynthesisModel):
    """Everything that weaver training moves: LoRA, queries with their norms and scales, and both maps, in float32.

    The start is the release's: torch's own for the maps, standard normal queries, scale 1.
    """

    def __init__(self, backbone: Backbone, operators: tuple[Operator, ...], lora: PeftModel) -> None:
        super().__init__(lora)
        self.reasoner_to_weaver = nn.Linear(backbone.dim, backbone.dim)
        self.weaver_to_reasoner = nn.Linear(backbone.dim, backbone.dim)
        self.heads = nn.ModuleDict(
            {op.name: QueryHead(op.num_latents, backbone.dim, self.weaver_to_reasoner) for op in operators}
        )
        for module in (self.reasoner_to_weaver, self.weaver_to_reasoner, self.heads):
            module.to(backbone.device)

    @property
    def input_map(self) -> nn.Linear:
        """What it reads of a context first goes through this."""
        return self.reasoner_to_weaver

    def map_inputs(self, embeds: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Embeddings of the context, tokens and latents alike, in the weaver's space."""
        return self.reasoner_to_weaver(embeds.to(self.reasoner_to_weaver.weight.dtype)).to(embeds.dtype)


NO, YES = 0, 1
"""The trigger's two actions, in the order of its logits."""


class Trigger(Adapted):
    """Linear(d, 2) on the last position of a LoRA'd decoder; both are what trigger training moves."""

    def __init__(self, backbone: Backbone, lora: PeftModel) -> None:
        super().__init__(lora)
        self.output = nn.Linear(backbone.dim, 2).to(backbone.device)

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
