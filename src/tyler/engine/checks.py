"""What a setting of decoding may be, said in one sentence where it is something else."""

import math
import sys
from numbers import Integral, Real

ABOVE_ZERO, FINITE = math.ulp(0.0), sys.float_info.max
"""The smallest number that is more than 0, and the largest."""


def check_whole(name: str, value: object, lowest: int, meaning: str) -> None:
    """Raise ValueError unless a setting is a whole number from `lowest` on; `meaning` says what is allowed."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < lowest:
        raise ValueError(f"{name}={value!r}; {meaning}")


def check_real(name: str, value: object, meaning: str, lowest: float, highest: float) -> None:
    """Raise ValueError unless a setting is a number from `lowest` to `highest`; `meaning` says what is allowed."""
    if isinstance(value, bool) or not isinstance(value, Real) or not lowest <= float(value) <= highest:
        raise ValueError(f"{name}={value!r}; {meaning}")


def check_sizes(slots: object, memory: object) -> None:
    """Raise ValueError for a number of rows, or of bytes, that an engine cannot have."""
    check_whole("slots", slots, 1, "at least 1 is needed, a whole number")
    if memory is not None:
        check_whole("memory", memory, 1, "it is a number of bytes, or None for half of what is free")
