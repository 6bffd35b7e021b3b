"""Latent synthesis: Q_k, Proj_k and Synth, from the context x_t to the latents z_t (Section 3.4)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, Self, cast

import torch
from jaxtyping import Float
from peft import PeftModel
from torch import Tensor, nn

from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import Adapted, LoraSettings, add_lora
from tyler.modeling.operators import Operator


class LatentHead(Protocol):
    """What a reader of latents needs: queries that follow the context, and a map from their hidden states."""

    @property
    def queries(self) -> Tensor: ...

    @property
    def num_latents(self) -> int: ...

    def __call__(self, hidden: Tensor) -> Tensor: ...


class Head(nn.Module):
    """omega_k: the queries Q_k [N_k, dim] and the projection Proj_k of one operator, in float32."""

    def __init__(self, num_latents: int, dim: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(num_latents, dim))
        self.proj = nn.Linear(dim, dim)

    @property
    def num_latents(self) -> int:
        return self.queries.shape[0]

    def forward(self, hidden: Float[Tensor, "*batch latents dim"]) -> Float[Tensor, "*batch latents dim"]:
        """z_t^k = Proj_k(h_t^k), Eq. synth-final. `hidden` are the last hidden states, after the final norm."""
        return self.proj(hidden.to(self.proj.weight.dtype)).to(hidden.dtype)

    def affine(self) -> tuple[Float[Tensor, "dim dim"], Float[Tensor, "latents dim"]]:
        """W and b of z = W h + b."""
        return self.proj.weight, self.proj.bias.expand(self.num_latents, -1)


class ConstantHead(nn.Module):
    """Latents [N, dim] that are the same in every context, whatever the hidden states: a control, and pause tokens."""

    def __init__(self, latents: Float[Tensor, "latents dim"]) -> None:
        super().__init__()
        self.latents = nn.Parameter(latents.detach().clone())

    @property
    def queries(self) -> Float[Tensor, "latents dim"]:
        return torch.zeros_like(self.latents)

    @property
    def num_latents(self) -> int:
        return len(self.latents)

    def forward(self, hidden: Float[Tensor, "*batch latents dim"]) -> Float[Tensor, "*batch latents dim"]:
        return self.latents.to(hidden).expand_as(hidden).clone()  # a kept answer must not be a view of a parameter

    def affine(self) -> tuple[Float[Tensor, "dim dim"], Float[Tensor, "latents dim"]]:
        """W, which is 0, and b of z = W h + b."""
        return self.latents.new_zeros(self.latents.shape[1], self.latents.shape[1]), self.latents


@torch.no_grad()
def start_head(head: Head, backbone: Backbone) -> None:
    """Start a head so that its latents have the scale of token embeddings.

    The final norm gives hidden states of RMS rms(gain), far from the embedding table's; Proj_k starts as the identity
    times the ratio. With tied embeddings a hidden state points at the token it predicts, so the first latents are
    already readable: soft previews of what comes next. Draws the queries from torch's global generator.
    """
    embedding_scale = mean_square(backbone.embedding).sqrt()
    hidden_scale = backbone.final_norm_gain.float().pow(2).mean().sqrt()
    nn.init.normal_(head.queries, std=float(embedding_scale))
    nn.init.eye_(head.proj.weight)
    head.proj.weight.mul_(embedding_scale / hidden_scale)
    nn.init.zeros_(head.proj.bias)


def mean_square(table: Float[Tensor, "rows dim"], rows: int = 16384) -> Float[Tensor, ""]:
    """The mean of the squares in float32, some rows at a time: a float32 copy of a real table is a gigabyte."""
    parts = [part.float().pow(2).mean() * (len(part) / len(table)) for part in table.split(rows)]
    return torch.stack(parts).sum()


def check_heads(operators: Sequence[Operator], backbone: Backbone) -> None:
    """Raise ValueError for an operator whose latents leave no room in a context, or whose name torch cannot hold."""
    for operator in operators:
        if operator.num_latents >= backbone.max_positions:
            raise ValueError(
                f"operator {operator.name!r} has num_latents={operator.num_latents}, and a context of {backbone.id!r} "
                f"has {backbone.max_positions} positions"
            )
        if operator.name in dir(nn.ModuleDict()):
            raise ValueError(f"operator name {operator.name!r} is a word that torch's ModuleDict needs; choose another")


class SynthesisModel(Adapted):
    """What the engine needs of a synthesizer: a decoder that reads the context, with a LoRA, and its heads by name."""

    heads: nn.ModuleDict

    @property
    def input_map(self) -> nn.Linear | None:
        """What it reads of a context goes through this first, where it is mapped (MemGen's weaver)."""
        return None

    def mapping(self) -> Mapping[str, LatentHead]:
        """Every operator with its own head."""
        return {name: cast(LatentHead, head) for name, head in self.heads.items()}


class Synthesizer(SynthesisModel):
    """Phi = {phi, {Q_k, Proj_k}}: everything Stage 1 trains. All operators share the LoRA phi.

    Raises ValueError for operators that cannot be had on this backbone.
    """

    def __init__(self, backbone: Backbone, operators: tuple[Operator, ...], lora: PeftModel) -> None:
        super().__init__(lora)
        check_heads(operators, backbone)
        self.heads = nn.ModuleDict({op.name: Head(op.num_latents, backbone.dim) for op in operators})
        self.heads.to(backbone.device)

    @classmethod
    def start(cls, backbone: Backbone, operators: tuple[Operator, ...], settings: LoraSettings) -> Self:
        synthesizer = cls(backbone, operators, add_lora(backbone.model, settings))
        for head in synthesizer.mapping().values():
            start_head(cast(Head, head), backbone)
        return synthesizer.eval()

    def make_constant(self, names: Collection[str], scale: float = 0.0) -> None:
        """Turn some operators into pause tokens: N_k vectors each, that start from N(0, scale^2)."""
        for name in names:
            queries = self.mapping()[name].queries
            self.heads[name] = ConstantHead(scale * torch.randn(queries.shape)).to(queries.device)


Heads = Mapping[str, LatentHead]
"""Which head answers for which operator. Interventions are other mappings; a name that is absent cannot be invoked."""
