"""The policy p(. | x_t) over V' = V and U: the backbone, with eta after Stage 2, and the operator rows psi."""

import torch
from jaxtyping import Float
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings, add_lora, decoder_stack
from tyler.modeling.products import wide_product


class Policy(nn.Module):
    """{eta, psi}: everything Stage 2 trains. Before Stage 2 there is no eta, and the policy is the backbone.

    An operator's action id is V + k, k its place in the configuration. u_k is sampled but never embedded: no tokenizer
    or embedding table is resized.
    """

    def __init__(self, backbone: Backbone, num_operators: int, lora: PeftModel | None = None) -> None:
        super().__init__()
        self.lora = lora
        self.psi = nn.Parameter(torch.zeros(num_operators, backbone.dim, device=backbone.device))
        self._backbone = backbone

    def add_lora(self, settings: LoraSettings) -> None:
        """Give the policy its own LoRA eta, starting equal to the backbone."""
        self.lora = add_lora(self._backbone.model, settings)

    @property
    def head(self) -> Float[Tensor, "vocab dim"]:
        return self._backbone.head

    @property
    def decoder(self) -> PreTrainedModel:
        """The decoder stack with a trainable eta (the plain backbone's before Stage 2)."""
        return self.reference_decoder if self.lora is None else decoder_stack(self.lora)

    @property
    def reference_decoder(self) -> PreTrainedModel:
        """The backbone's decoder stack: the policy at the start of Stage 2, where eta adds nothing."""
        return self._backbone.decoder

    def logits(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch actions"]:
        """Logits over V' in float32: cat(lm_head(h), h psi^T). A separate product, not a resized head."""
        return self.with_operators(self.token_logits(hidden), hidden)

    def with_operators(
        self, tokens: Float[Tensor, "*batch vocab"], hidden: Float[Tensor, "*batch dim"]
    ) -> Float[Tensor, "*batch actions"]:
        """Logits over V', from those over V."""
        return torch.cat([tokens, nn.functional.linear(hidden.float(), self.psi)], dim=-1)

    def token_logits(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocab"]:
        """Logits over V in float32: all there is where no operator may be invoked."""
        return wide_product(hidden, self.head).float()
