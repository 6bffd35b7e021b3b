"""How much is held or computed at once. Without torch, so that a plan can count with it before anything is loaded."""

from __future__ import annotations

BLOCK = 64
"""Capacities and KV views are multiples of this many positions: few shapes, and little attention in vain."""

PRODUCTS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Maps of a decoder layer that read the same input: decoding multiplies with each group at once (`tyler.lean`)."""

CHUNK = 1024
LOGITS = 2**25
"""At most so many positions, and so many logits, are computed at once: 128 MiB in float32."""


def round_up(length: int) -> int:
    """The next multiple of BLOCK."""
    return -(-length // BLOCK) * BLOCK


def grown(capacity: int, length: int) -> int:
    """The capacity that makes room for `length`: a quarter more than before, or as much as is needed."""
    return round_up(max(length, capacity + capacity // 4))


def siblings(name: str) -> list[str]:
    """The maps that read the same input as the one of this name, itself included."""
    prefix, own = name[: name.rfind(".") + 1], name.rpartition(".")[2]
    return next(([prefix + one for one in group] for group in PRODUCTS if own in group), [name])


def positions_at_once(num_actions: int) -> int:
    """How many positions' logits over `num_actions` actions exist at a time, where nobody says."""
    return max(1, min(CHUNK, LOGITS // num_actions))
