"""What can be turned to make a method's answers longer or shorter."""

from __future__ import annotations

from dataclasses import dataclass

MAX_NEW_TOKENS = "max_new_tokens"
"""A knob that every method has; it makes answers shorter by cutting them off."""


@dataclass(frozen=True)
class Knob:
    """A whole-number setting of a method, with which the tokens of an answer grow.

    `lowest` and `highest` bound it; a `highest` of None is twice the tokens that answers are to have. One that `caps`
    shortens answers and lengthens none.
    """

    setting: str
    lowest: int = 0
    highest: int | None = None
    caps: bool = False
