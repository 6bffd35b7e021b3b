"""The decoder stack as the engine runs it: the tensors of a transformers model, without its modules.

While decoding, a pass over one token is a chain of small operations, and what transformers puts around them (modules,
masks for every layer, caches that concatenate, keys repeated for every head) costs several times the arithmetic. Here
a layer is about twenty operations over the same tensors: maps that read the same input are one product, queries and
keys are normalized and rotated together, and a key-value head answers all its query heads at once. Training keeps
transformers' forward, which is also what this one is tested against; in half precision both round at the same points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from transformers import PreTrainedModel

from tyler.engine.native.attention import PackedAttention
from tyler.engine.native.packing import fits_twice, packed_weight
from tyler.modeling.architectures import head_dim
from tyler.modeling.lora import HALF, folded_weight, low_rank
from tyler.modeling.products import adapted_product, rounded_product

Turns = tuple[Float[Tensor, "positions 1 head_dim"], Float[Tensor, "positions 1 head_dim"]]
"""cos and sin of every position of a pass, sin with the sign of `rotate_half` in it."""


def apply_rotary(x: Float[Tensor, "positions heads head_dim"], cos: Tensor, sin: Tensor) -> Float[Tensor, "..."]:
    """x cos + rotate_half(x) sin; the sign of `rotate_half` is in sin."""
    return (x * cos).add_(x.roll(x.shape[-1] // 2, -1).mul_(sin))


def silu_and_mul(gate_up: Float[Tensor, "positions both"]) -> Float[Tensor, "positions inner"]:
    """silu(gate) * up of the two halves."""
    gate, up = gate_up.chunk(2, dim=-1)
    return nn.functional.silu(gate).mul_(up)


class FusedLinear:
    """x W^T + b for one map, or for several that read the same input, whose weights lie one after another in memory.

    An adapted map in float32 has a folded copy of its weight; in half precision its adapter's product is added. `twice`
    says that a packed copy may be kept beside the weight.
    """

    @torch.no_grad()
    def __init__(self, *modules: nn.Module, twice: bool = False) -> None:
        theta = [frozen(module) for module in modules]
        parts = [cast(nn.Parameter, module.weight) for module in theta]
        self.adapter: tuple[Tensor, Tensor] | None = None
        adapted = any(isinstance(module, LoraLinear) for module in modules)
        if adapted and theta[0].weight.dtype not in HALF:
            dtype = theta[0].weight.dtype
            pairs = zip(modules, parts, strict=True)
            present = [folded_weight(one, dtype) if isinstance(one, LoraLinear) else plain for one, plain in pairs]
            parts = [nn.Parameter(torch.cat(present), requires_grad=False)]
        elif adapted:
            self.adapter = stacked_low_rank(modules)
        self.weight = adjoin(parts)
        self.transposed = self.weight.t()
        biases = [module.bias.detach() for module in theta if module.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.packed = packed_weight(self.weight, parts) if twice else None

    def __call__(self, x: Float[Tensor, "positions inputs"]) -> Float[Tensor, "positions outputs"]:
        if self.adapter is not None:
            return adapted_product(x, self.weight, self.bias, x, *self.adapter)
        if self.packed is not None:
            return self.packed.product(x, self.bias)
        if self.bias is None and x.dtype == torch.float32:
            return torch.mm(x, self.transposed)  # what `linear` comes to, on a shorter way
        return rounded_product(x, self.weight, self.bias)

    def add_to(self, residual: Float[Tensor, "positions outputs"], x: Float[Tensor, "positions inputs"]) -> None:
        """residual += x W^T + b, in one operation where that loses nothing."""
        plain = self.packed is None and self.bias is None and self.adapter is None
        if plain and (residual.dtype == torch.float32 or residual.is_cuda):
            residual.addmm_(x, self.transposed)
        else:
            residual += self(x)


@dataclass(frozen=True)
class Norm:
    """RMSNorm, x / sqrt(mean(x^2) + epsilon) * gain: in float32, and rounded before the gain as transformers does."""

    gain: Float[Tensor, "*heads dim"]
    epsilon: float

    @classmethod
    def of(cls, module: nn.Module) -> Norm:
        return cls(cast(Tensor, module.weight).detach(), cast(float, module.variance_epsilon))

    def __call__(self, x: Float[Tensor, "*positions dim"]) -> Float[Tensor, "*positions dim"]:
        wide = x.float()
        normal = wide.square().mean(-1, keepdim=True).add_(self.epsilon).rsqrt_().mul(wide)
        return (normal if x.dtype == normal.dtype else normal.to(x.dtype)).mul_(self.gain)


class Layer:
    """The tensors of a transformers decoder layer of any supported family; `twice` as in `FusedLinear`."""

    def __init__(self, module: Any, heads: int, kv_heads: int, twice: bool) -> None:
        attention, feed_forward = module.self_attn, module.mlp
        self.before_attention = Norm.of(module.input_layernorm)
        self.qkv = FusedLinear(attention.q_proj, attention.k_proj, attention.v_proj, twice=twice)
        self.qk_norm: Norm | None = None
        if "q_norm" in attention._modules:
            gains = [attention.q_norm.weight.detach()] * heads + [attention.k_norm.weight.detach()] * kv_heads
            self.qk_norm = Norm(torch.stack(gains), attention.q_norm.variance_epsilon)
        self.rotates = bool(getattr(attention, "use_rope", True))
        self.output = FusedLinear(attention.o_proj, twice=twice)
        self.before_feed_forward = Norm.of(module.post_attention_layernorm)
        self.gate_up = FusedLinear(feed_forward.gate_proj, feed_forward.up_proj, twice=twice)
        self.down = FusedLinear(feed_forward.down_proj, twice=twice)


class FusedDecoder:
    """Embeddings in, hidden states after the final norm out, for the supported families.

    Reads the weights where they are; those of one product are moved next to each other, once, in place. The adapters of
    an adapted stack are taken as they are at this moment.
    """

    def __init__(self, decoder: PreTrainedModel) -> None:
        config = decoder.config
        if config.hidden_act != "silu":
            raise ValueError(f"activation {config.hidden_act!r}; the supported families use 'silu'")
        self.head_dim = head_dim(config)
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        twice, modules = fits_twice(list(decoder.parameters())), cast(Any, decoder).layers
        self.layers = [Layer(module, self.heads, self.kv_heads, twice) for module in modules]
        self.final_norm = Norm.of(cast(nn.Module, decoder.norm))
        self._rotary, self._table = cast(Any, decoder).rotary_emb, torch.empty(0)

    @torch.no_grad()
    def __call__(self, x: Float[Tensor, "positions dim"], attention: PackedAttention) -> Float[Tensor, "positions dim"]:
        """Read the embeddings `x`, which are overwritten, at the positions of `attention`."""
        turns = self._turns(attention.positions, attention.end, x.dtype)
        for index, layer in enumerate(self.layers):
            self._attend(x, layer, index, turns, attention)
            layer.down.add_to(x, silu_and_mul(layer.gate_up(layer.before_feed_forward(x))))
        return self.final_norm(x)

    def _attend(
        self, x: Float[Tensor, "positions dim"], layer: Layer, index: int, turns: Turns, attention: PackedAttention
    ) -> None:
        """x += Attention(norm(x)). Queries and keys are neighbours, normalized and rotated in one go."""
        qkv = layer.qkv(layer.before_attention(x)).view(len(x), -1, self.head_dim)
        qk, values = qkv.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if layer.qk_norm is not None:
            qk = layer.qk_norm(qk)
        if layer.rotates:
            qk = apply_rotary(qk, *turns)
        queries, keys = qk.split_with_sizes((self.heads, self.kv_heads), dim=1)
        layer.output.add_to(x, attention.attend(index, queries, keys, values))

    def _turns(self, positions: Int[Tensor, " positions"], end: int, dtype: torch.dtype) -> Turns:
        """Of positions below `end`, rounded to `dtype` as in transformers: row t of a table has those of position t."""
        if len(self._table) < end:
            every = torch.arange(max(end, 2 * len(self._table), 256), device=positions.device)[None]
            cos, sin = self._rotary(torch.empty(0, dtype=dtype, device=positions.device), every)
            half = self.head_dim // 2
            sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
            self._table = torch.stack([cos[0], sin[0]], dim=1).unsqueeze(-2)
        cos, sin = self._table[positions].unbind(1)
        return cos, sin


@torch.no_grad()
def adjoin(weights: Sequence[nn.Parameter]) -> Float[Tensor, "outputs inputs"]:
    """One matrix whose parts are the weights, in their order. Where they lie apart they are moved together, in place:
    every module that holds them keeps the same values, and no memory is spent twice.
    """
    first, outputs = weights[0], sum(map(len, weights))
    if not are_neighbours(weights):
        together = torch.cat([weight.detach() for weight in weights])
        for weight, part in zip(weights, together.split(list(map(len, weights))), strict=True):
            weight.data = part
    return first.detach().as_strided((outputs, first.shape[1]), (first.shape[1], 1))


def are_neighbours(weights: Sequence[nn.Parameter]) -> bool:
    """Whether the weights follow each other without a gap in one storage."""
    one_storage = len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    follow = all(a.data_ptr() + a.nbytes == b.data_ptr() for a, b in pairwise(weights))
    return one_storage and follow and all(weight.is_contiguous() for weight in weights)


def frozen(module: nn.Module) -> nn.Linear:
    """The map without its LoRA, where it has one."""
    return cast(nn.Linear, module.get_base_layer() if isinstance(module, LoraLinear) else module)


def stacked_low_rank(
    modules: Sequence[nn.Module],
) -> tuple[Float[Tensor, "ranks inputs"], Float[Tensor, "outputs ranks"]]:
    """The adapters of maps that read the same input as one: their A below each other, their B along a diagonal."""
    none = torch.empty(0, frozen(modules[0]).in_features, device=frozen(modules[0]).weight.device)
    pairs = [
        low_rank(one) if isinstance(one, LoraLinear) else (none, none.new_empty(frozen(one).out_features, 0))
        for one in modules
    ]
    return torch.cat([down for down, _ in pairs]), torch.block_diag(*[up for _, up in pairs])
