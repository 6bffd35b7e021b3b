"""softmax(q k^T / sqrt(d)) v, by torch's kernels, as rollout, replay and learner compute it.

In half precision on a CPU it is computed in float32 and rounded once. torch's kernel there rounds the probabilities by
blocks of keys, so that one position has another result in a decoding step than in a whole sequence.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "tyler"
"""The name under which transformers finds `transformers_attention`."""

WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""cuDNN's attention plans anew for every length, for longer than many steps take."""


def attend(
    queries: Float[Tensor, "rows heads seq head_dim"],
    keys: Float[Tensor, "rows kv_heads end head_dim"],
    values: Float[Tensor, "rows kv_heads end head_dim"],
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Float[Tensor, "rows heads seq head_dim"]:
    """Attention in the dtype of the queries. Keys and values may be in `cache_dtype` already."""
    exact = cache_dtype(queries.dtype, queries.device)
    states = queries.to(exact), *of_heads(queries, keys.to(exact), values.to(exact), mask)
    with _kernels(queries.device):
        attended = scaled_dot_product_attention(*states, attn_mask=mask, is_causal=is_causal, enable_gqa=enable_gqa)
    return attended.to(queries.dtype)


def of_heads(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys and values, [rows, kv_heads, end, head_dim], with as many heads as a kernel takes: on CUDA none takes groups
    with a mask or in float32, and what torch does instead keeps all scores."""
    groups = queries.shape[1] // keys.shape[1]
    if groups == 1 or not queries.is_cuda or (mask is None and queries.dtype != torch.float32):
        return keys, values
    return keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)


def cache_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What keys and values of a model in `dtype` are kept in: on a CPU float32 at least."""
    return torch.promote_types(dtype, torch.float32) if device.type == "cpu" else dtype


@dataclass(frozen=True)
class PackedRows:
    """Rows of several lengths that lie one behind the other in one: each attends to itself and to its own past."""

    lengths: Sequence[int]
    masks: Sequence[Bool[Tensor, "seq keys"] | None]
    """Which keys each position of a row sees; None where the row has no past and is causal."""
    past: Sequence[Sequence[Tensor]] = field(default=())
    """keys, values, keys, values, ... of each row, [1, kv_heads, seq, head_dim], in the order they were read."""

    @classmethod
    def of(cls, lengths: Sequence[int], before: Sequence[int], device: torch.device) -> Self:
        """Chunks of `lengths` positions that follow `before` positions of each row."""
        masks = [
            torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past) if past and length else None
            for length, past in zip(lengths, before, strict=True)
        ]
        return cls(lengths, masks)

    def after(self, past: Sequence[Sequence[Tensor]]) -> Self:
        """The same rows after these states."""
        return replace(self, past=past)

    def attend(
        self,
        queries: Float[Tensor, "1 heads seq head_dim"],
        keys: Float[Tensor, "1 kv_heads seq head_dim"],
        values: Float[Tensor, "1 kv_heads seq head_dim"],
        scale: float | None,
    ) -> Float[Tensor, "1 seq heads head_dim"]:
        """Attention row by row, in the dtype of the queries."""
        attended = []
        parts = zip(*(states.split(list(self.lengths), dim=2) for states in (queries, keys, values)), strict=True)
        for (query, key, value), past, mask in zip(parts, self.past, self.masks, strict=True):
            if mask is not None:
                key = torch.cat([*(states.to(key) for states in past[0::2]), key], dim=2)
                value = torch.cat([*(states.to(value) for states in past[1::2]), value], dim=2)
            if query.shape[2]:
                key, value = of_heads(query, key, value, mask)
                query = scaled_dot_product_attention(
                    query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
                )
            attended.append(query)
        return torch.cat(attended, dim=2).transpose(1, 2)


def transformers_attention(
    module: torch.nn.Module,
    query: Float[Tensor, "batch heads seq head_dim"],
    key: Float[Tensor, "batch kv_heads seq head_dim"],
    value: Float[Tensor, "batch kv_heads seq head_dim"],
    attention_mask: Bool[Tensor, "batch 1 seq end"] | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed_rows: PackedRows | None = None,
    **_: object,
) -> tuple[Float[Tensor, "batch seq heads head_dim"], None]:
    """transformers' own, in the dtype of `attend`, under autocast too."""
    exact = cache_dtype(query.dtype, query.device)
    states = query.to(exact), key.to(exact), value.to(exact)
    with _kernels(query.device):
        if packed_rows is None:
            attended, _weights = sdpa_attention_forward(
                module, *states, attention_mask, dropout=dropout, scaling=scaling
            )
        else:
            attended = packed_rows.attend(*states, scaling)
    return attended.to(query.dtype), None


def _kernels(device: torch.device) -> AbstractContextManager[None]:
    """Within it torch takes the kernels above, and on a CPU no product is autocast; entering that takes a while."""
    if device.type == "cuda":
        return sdpa_kernel(WITHOUT_CUDNN)
    if device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        return torch.autocast("cpu", enabled=False)
    return nullcontext()


AttentionInterface.register(ATTENTION, transformers_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
