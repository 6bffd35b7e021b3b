"""How much is held or computed at once. Without torch, so that a plan can count with it before anything is loaded."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_POSITIONS = 1024
MAX_LOGITS = 2**25
"""At most so many positions, and so many logits, are computed at once: 128 MiB in float32."""


UNITS = {"": 1, "b": 1} | {
    f"{letter}{mark}b": base**power
    for mark, base in (("", 1000), ("i", 1024))
    for power, letter in enumerate("kmgt", start=1)
}
"""Bytes of a unit: kB, MB, GB and TB count in thousands, KiB, MiB, GiB and TiB in 1,024s."""


def bytes_of(given: object) -> int:
    """A size in bytes, from a number of them or from text such as "4GB" or "1.5 GiB".

    Raises ValueError for an invalid size, or less than a byte.
    """
    text = f"{given}" if isinstance(given, int | str) and not isinstance(given, bool) else ""
    match = re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    unit = UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or (size := int(Fraction(match[1].replace("_", "")) * unit)) < 1:
        raise ValueError(f"{given!r}; write it as a number of bytes, such as 4GB or 512MiB")
    return size


def positions_at_once(num_actions: int) -> int:
    """How many positions' logits over `num_actions` actions exist at a time by default."""
    return max(1, min(MAX_POSITIONS, MAX_LOGITS // num_actions))
