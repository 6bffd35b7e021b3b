"""How answers are graded: what tasks, and the comparison of answers below them, are told. Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["official", "strict"]
"""How TheoremQA compares: `official`, as its evaluator means to (a float within 4%, an integer rounded, lists sorted),
or `strict` (a float at the decimals the gold is written with, an integer exactly, lists in order)."""


@dataclass(frozen=True)
class GradeOptions:
    """How answers are graded."""

    mode: Mode = "official"
    """How TheoremQA compares numbers: with its official tolerance, or to the digits that are given."""
    deadline: float = 5.0
    """Seconds that grading one answer may take; then the verdict is TIMEOUT."""
    allow_code_execution: bool = False
    """Let humaneval run the programs of the model, in a sandbox."""
    allow_unsafe_code_execution: bool = False
    """Run them without a sandbox where this machine has none."""
    packages: tuple[str, ...] = ("numpy",)
    """Packages of this environment that programs may import, beside Python's own; an empty list for none."""
    math_verify: bool = False
    """Ask math-verify too, where answers are mathematics; --no-math-verify leaves it out. Its verdict is kept beside
    ours and decides nothing."""
