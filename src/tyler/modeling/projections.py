"""Which maps of a decoder layer read the same input. Without torch."""

from __future__ import annotations

PRODUCTS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Maps of a decoder layer that read the same input: decoding multiplies with each group at once."""


def siblings(name: str) -> list[str]:
    """The maps that read the same input as the one of this name, itself included."""
    prefix, own = name[: name.rfind(".") + 1], name.rpartition(".")[2]
    return next(([prefix + one for one in group] for group in PRODUCTS if own in group), [name])
