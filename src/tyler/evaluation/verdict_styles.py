"""How verdicts are shown: one word, one sign and one pattern each beside its colour, for those who tell no colours."""

from __future__ import annotations

from dataclasses import dataclass

from tyler.engine.presentation import VERDICTS
from tyler.tasks import Outcome

WORDS = {
    Outcome.CORRECT: ("correct", "✓"),
    Outcome.WRONG: ("wrong", "✗"),
    Outcome.NO_BOX: ("no box", "□"),
    Outcome.TRUNCATED: ("cut off", "…"),
    Outcome.UNPARSABLE: ("unparsable", "?"),
    Outcome.TIMEOUT: ("timeout", "◷"),
    Outcome.GOLD_ERROR: ("gold unreadable", "!"),
    Outcome.TOO_LONG: ("too long", "↔"),
}
"""The word and the sign of each, the same in tables, legends and badges."""

_LIGHT = "rgba(255,255,255,.5)"
PATTERNS = {
    Outcome.CORRECT: "none",
    Outcome.WRONG: f"repeating-linear-gradient(45deg,{_LIGHT} 0 2px,transparent 2px 8px)",
    Outcome.NO_BOX: f"radial-gradient({_LIGHT} 25%,transparent 27%) 0 0/7px 7px",
    Outcome.TRUNCATED: f"repeating-linear-gradient(90deg,{_LIGHT} 0 2px,transparent 2px 7px)",
    Outcome.UNPARSABLE: f"repeating-linear-gradient(0deg,{_LIGHT} 0 2px,transparent 2px 6px)",
    Outcome.TIMEOUT: f"repeating-linear-gradient(135deg,{_LIGHT} 0 2px,transparent 2px 6px)",
    Outcome.GOLD_ERROR: f"repeating-linear-gradient(135deg,{_LIGHT} 0 4px,transparent 4px 9px)",
    Outcome.TOO_LONG: f"repeating-linear-gradient(90deg,{_LIGHT} 0 4px,transparent 4px 12px)",
}


@dataclass(frozen=True)
class Style:
    """How one verdict is shown; `pattern` is a CSS background over the colour."""

    key: str
    word: str
    sign: str
    colour: str
    pattern: str


def style_of(outcome: Outcome) -> Style:
    """The style of an outcome."""
    word, sign = WORDS[outcome]
    return Style(str(outcome), word, sign, VERDICTS[str(outcome)], PATTERNS[outcome])
