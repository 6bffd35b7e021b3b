"""The decoder stack as the engine runs it: the tensors of a transformers model, without its modules.

While decoding, a pass over one token is a chain of small operations, and what transformers puts around them (modules,
masks for every layer, caches that concatenate, keys repeated for every head) costs several times the arithmetic. Here
a layer is about twenty operations over the same tensors: maps that read the same input are one product, queries and
keys are normalized and rotated together, and a key-value head answers all its query heads at once. Training keeps
transformers' forward, which is also what this one is tested against.
"""

from __future__ import annotations

import functools
import logging
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from jaxtyping import Float, Int
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from tyler.engine.packing import PackedWeight, fits_twice, packed_weight

WIDE = 24
"""Positions from which a bfloat16 product on a CPU without such instructions is faster after widening the weights."""


def fused(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A chain of small operations, as one kernel on a GPU: a launch there takes as long as such an operation.

    Compiled at its first call. On a CPU, where compiling makes decoding slower, and where it fails, the chain stays.
    """
    running: list[Callable[..., Tensor]] = []

    @functools.wraps(function)
    def call(x: Tensor, *others: Any) -> Tensor:
        if not x.is_cuda:
            return function(x, *others)
        if not running:
            running.append(torch.compile(function, dynamic=True))
        try:
            return running[0](x, *others)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler may lack
            logging.getLogger(__name__).warning("%s is not compiled, and slower: %s", function.__name__, error)
            running[0] = function
            return function(x, *others)

    return call


@fused
def rms_norm(x: Float[Tensor, "*positions dim"], gain: Tensor, epsilon: float) -> Float[Tensor, "*positions dim"]:
    """x / sqrt(mean(x^2) + epsilon) * gain, in float32 and rounded once; transformers rounds before the gain too."""
    wide = x.float()
    normal = wide.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_().mul(wide).mul_(gain)
    return normal if x.dtype == normal.dtype else normal.to(x.dtype)


@fused
def apply_rotary(x: Float[Tensor, "rows seq heads head_dim"], cos: Tensor, sin: Tensor) -> Float[Tensor, "..."]:
    """x cos + rotate_half(x) sin, in float32; the sign of `rotate_half` is in sin."""
    found = torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
    return found if x.dtype == found.dtype else found.to(x.dtype)


@fused
def silu_and_mul(gate_up: Float[Tensor, "positions both"]) -> Float[Tensor, "positions inner"]:
    """silu(gate) * up of the two halves."""
    gate, up = gate_up.chunk(2, dim=-1)
    return nn.functional.silu(gate).mul_(up)


class Attention(Protocol):
    """Where a pass writes its keys and values, and what its queries see."""

    @property
    def positions(self) -> Int[Tensor, "rows seq"]: ...

    @property
    def end(self) -> int:
        """No position is this or more."""

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "rows seq heads head_dim"],
        keys: Float[Tensor, "rows seq kv_heads head_dim"],
        values: Float[Tensor, "rows seq kv_heads head_dim"],
    ) -> Float[Tensor, "positions attention"]: ...


@dataclass(frozen=True)
class FusedLinear:
    """x W^T + b for one weight, or for several that lie one after another in memory."""

    weight: Float[Tensor, "outputs inputs"]
    transposed: Float[Tensor, "inputs outputs"]
    bias: Float[Tensor, " outputs"] | None
    widens: bool
    packed: PackedWeight | None = None

    @classmethod
    def of(cls, *modules: nn.Module, twice: bool = False) -> FusedLinear:
        """The product of maps that read the same input. Adapted maps are folded, which makes a copy. `twice` says that
        a packed copy may be held beside the weight."""
        if any(isinstance(module, LoraLinear) for module in modules):
            weight = torch.cat([folded_weight(module) for module in modules])
            parts: Sequence[Tensor] = [weight]
        else:
            parts = own = [cast(nn.Parameter, module.weight) for module in modules]
            weight = adjoin(own)
        plain = [cast(nn.Linear, m.get_base_layer() if isinstance(m, LoraLinear) else m) for m in modules]
        biases = [module.bias for module in plain]
        bias = None if biases[0] is None else torch.cat([cast(Tensor, one).detach() for one in biases])
        packed = packed_weight(weight, parts) if twice else None
        return cls(weight, weight.t(), bias, lacks_instructions(weight), packed)

    def __call__(self, x: Float[Tensor, "positions inputs"]) -> Float[Tensor, "positions outputs"]:
        if self.packed is not None:
            return self.packed.product(x, self.bias)
        if self.widens and len(x) >= WIDE:
            bias = None if self.bias is None else self.bias.float()
            return nn.functional.linear(x.float(), self.weight.float(), bias).to(x.dtype)
        if self.bias is None and x.dtype == torch.float32:
            return torch.mm(x, self.transposed)  # what `linear` comes to, on a shorter way
        return nn.functional.linear(x, self.weight, self.bias)

    def add_to(self, residual: Float[Tensor, "positions outputs"], x: Float[Tensor, "positions inputs"]) -> None:
        """residual += x W^T + b, in one operation where that loses nothing."""
        if self.packed is None and self.bias is None and (residual.dtype == torch.float32 or residual.is_cuda):
            residual.addmm_(x, self.transposed)
        else:
            residual += self(x)


@dataclass(frozen=True)
class Norm:
    """RMSNorm."""

    gain: Float[Tensor, "*heads dim"]
    epsilon: float

    @classmethod
    def of(cls, module: nn.Module) -> Norm:
        return cls(cast(Tensor, module.weight).detach().float(), cast(float, module.variance_epsilon))

    def __call__(self, x: Float[Tensor, "*positions dim"]) -> Float[Tensor, "*positions dim"]:
        return rms_norm(x, self.gain, self.epsilon)


@dataclass(frozen=True)
class Layer:
    """The tensors of one decoder layer."""

    before_attention: Norm
    qkv: FusedLinear
    qk_norm: Norm | None
    rotates: bool
    output: FusedLinear
    before_feed_forward: Norm
    gate_up: FusedLinear
    down: FusedLinear


class FusedDecoder:
    """Embeddings in, hidden states after the final norm out, for the supported families.

    Reads the weights where they are; those of one product are moved next to each other, once, in place. An adapted
    stack is folded as it is at this moment.
    """

    def __init__(self, decoder: PreTrainedModel) -> None:
        config = decoder.config
        if config.hidden_act != "silu":
            raise ValueError(f"activation {config.hidden_act!r}; the supported families use 'silu'")
        self.head_dim = head_dim(config)
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        twice, modules = fits_twice(list(decoder.parameters())), cast(Any, decoder).layers
        self.layers = [layer_of(cast(Any, module), self.heads, self.kv_heads, twice) for module in modules]
        self.final_norm = Norm.of(cast(nn.Module, decoder.norm))
        self.rotation = Rotation(cast(Any, decoder).rotary_emb, self.head_dim, not has_fixed_angles(decoder))

    @torch.no_grad()
    def __call__(self, embeds: Float[Tensor, "rows seq dim"], attention: Attention) -> Float[Tensor, "rows seq dim"]:
        """Read `embeds` at the positions of `attention`."""
        rows, seq, dim = embeds.shape
        x = embeds.reshape(rows * seq, dim).clone()  # the residual stream, updated in place
        turns = self.rotation.at(attention.positions, attention.end)
        for index, layer in enumerate(self.layers):
            self._attend(x, layer, index, turns, attention, rows, seq)
            layer.down.add_to(x, silu_and_mul(layer.gate_up(layer.before_feed_forward(x))))
        return self.final_norm(x).view(rows, seq, dim)

    def _attend(
        self,
        x: Float[Tensor, "positions dim"],
        layer: Layer,
        index: int,
        turns: Turns,
        attention: Attention,
        rows: int,
        seq: int,
    ) -> None:
        """x += Attention(norm(x)). Queries and keys are neighbours, normalized and rotated in one go."""
        qkv = layer.qkv(layer.before_attention(x)).view(rows, seq, -1, self.head_dim)
        qk, values = qkv.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), dim=2)
        if layer.qk_norm is not None:
            qk = layer.qk_norm(qk)
        if layer.rotates:
            qk = turns.applied_to(qk)
        queries, keys = qk.split_with_sizes((self.heads, self.kv_heads), dim=2)
        layer.output.add_to(x, attention.attend(index, queries, keys, values))


def has_fixed_angles(decoder: PreTrainedModel) -> bool:
    """Whether a position's rotary angles never depend on how long the context is."""
    return cast(Any, decoder).rotary_emb.rope_type not in ("dynamic", "longrope")


def head_dim(config: PreTrainedConfig) -> int:
    """The width of one attention head; Qwen2's configs leave it to follow from the others."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def layer_of(module: Any, heads: int, kv_heads: int, twice: bool = False) -> Layer:
    """The tensors of a transformers decoder layer of any supported family; `twice` as in `FusedLinear.of`."""
    attention, feed_forward = module.self_attn, module.mlp
    qk_norm = None
    if "q_norm" in attention._modules:
        gains = [attention.q_norm.weight.detach()] * heads + [attention.k_norm.weight.detach()] * kv_heads
        qk_norm = Norm(torch.stack(gains).float(), attention.q_norm.variance_epsilon)
    return Layer(
        before_attention=Norm.of(module.input_layernorm),
        qkv=FusedLinear.of(attention.q_proj, attention.k_proj, attention.v_proj, twice=twice),
        qk_norm=qk_norm,
        rotates=bool(getattr(attention, "use_rope", True)),
        output=FusedLinear.of(attention.o_proj, twice=twice),
        before_feed_forward=Norm.of(module.post_attention_layernorm),
        gate_up=FusedLinear.of(feed_forward.gate_proj, feed_forward.up_proj, twice=twice),
        down=FusedLinear.of(feed_forward.down_proj, twice=twice),
    )


# ------------------------------------------------------------------------------------------------- rotary positions


@dataclass(frozen=True)
class Turns:
    """cos and sin of every position of a pass, sin with the sign of `rotate_half` in it."""

    cos: Float[Tensor, "rows seq 1 head_dim"]
    sin: Float[Tensor, "rows seq 1 head_dim"]

    def applied_to(self, x: Float[Tensor, "rows seq heads head_dim"]) -> Float[Tensor, "rows seq heads head_dim"]:
        return apply_rotary(x, self.cos, self.sin)


class Rotation:
    """Rotary embeddings by table: row t holds cos and signed sin of position t, from the model's own module."""

    def __init__(self, module: nn.Module, head_dim: int, follows_length: bool) -> None:
        self._module = module
        self.follows_length = follows_length
        self._head_dim = head_dim
        self._table = torch.empty(0)

    def at(self, positions: Int[Tensor, "rows seq"], end: int) -> Turns:
        """Of positions below `end`."""
        if self.follows_length:  # the angles of all positions depend on the longest: no table holds
            return Turns(*self._computed(positions).unbind(2))
        if len(self._table) < end:
            size = max(end, 2 * len(self._table), 256)
            self._table = self._computed(torch.arange(size, device=positions.device)[None])[0]
        return Turns(*self._table[positions].unbind(2))

    def _computed(self, positions: Int[Tensor, "rows seq"]) -> Float[Tensor, "rows seq 2 1 head_dim"]:
        cos, sin = self._module(torch.empty(0, device=positions.device), positions)
        half = self._head_dim // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        return torch.stack([cos, sin], dim=2).unsqueeze(-2)


# ---------------------------------------------------------------------------------------------------------- weights


@torch.no_grad()
def adjoin(weights: Sequence[nn.Parameter]) -> Float[Tensor, "outputs inputs"]:
    """One matrix whose parts are the weights, in their order. Where they lie apart they are moved together, in place:
    every module that holds them keeps the same values, and no memory is spent twice.
    """
    first = weights[0]
    if len(weights) == 1:
        return first.detach()
    if not are_neighbours(weights):
        together = torch.cat([weight.detach() for weight in weights])
        for weight, part in zip(weights, together.split([len(weight) for weight in weights]), strict=True):
            weight.data = part
    outputs = sum(len(weight) for weight in weights)
    return first.detach().as_strided((outputs, first.shape[1]), (first.shape[1], 1))


def are_neighbours(weights: Sequence[nn.Parameter]) -> bool:
    """Whether the weights follow each other without a gap in one storage."""
    storages = {weight.untyped_storage().data_ptr() for weight in weights}
    offsets = [weight.storage_offset() for weight in weights]
    sizes = [weight.numel() for weight in weights]
    follows = all(a + size == b for a, size, b in zip(offsets, sizes, offsets[1:], strict=False))
    return len(storages) == 1 and follows and all(weight.is_contiguous() for weight in weights)


def folded_weight(module: nn.Module) -> Float[Tensor, "outputs inputs"]:
    """The weight of a map, with its LoRA where it has one."""
    if not isinstance(module, LoraLinear):
        return cast(nn.Linear, module).weight.detach()
    theta = cast(nn.Linear, module.get_base_layer()).weight.detach()
    deltas = [module.get_delta_weight(name).float() for name in module.active_adapters]
    return (theta.float() + sum(deltas)).detach().to(theta.dtype)


def lacks_instructions(weight: Tensor) -> bool:
    """Whether products of this weight are emulated: bfloat16 on an x86 CPU that cannot multiply it."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or platform.machine() not in ("x86_64", "AMD64"):
        return False
    return not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
