"""How much is held or computed at once. Without torch, so that a plan can count with it before anything is loaded."""

from __future__ import annotations

BLOCK = 64
"""Capacities and KV views are multiples of this many positions: few shapes, and little attention in vain."""

CHUNK = 1024
LOGITS = 2**25
"""At most so many positions, and so many logits, are computed at once: 128 MiB in float32."""


def round_up(length: int) -> int:
    """The next multiple of BLOCK."""
    return -(-length // BLOCK) * BLOCK


def positions_at_once(num_actions: int) -> int:
    """How many positions' logits over `num_actions` actions exist at a time, where nobody says."""
    return max(1, min(CHUNK, LOGITS // num_actions))
