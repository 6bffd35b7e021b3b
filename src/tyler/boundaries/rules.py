"""What counts as a boundary, one rule per kind; `docs/boundaries.md` says it with examples and errors."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tyler.modeling.operators import Operator


@dataclass(frozen=True, slots=True)
class Boundary:
    """A position in the answer text y: `position` characters from its start, proposed by the rule `rule`."""

    position: int
    rule: str


@dataclass(frozen=True)
class Rule:
    """What one kind of boundary is; the scanner supplies the positions, a rule only names those it wants.

    `side` decides the token (`placement.token_of`). `headings` (at the head of a line) and `phrases` (anywhere in
    prose) are regexes without capturing groups, with the boundary after the match; `once` lets each of them fire once
    per text. `openings` are kinds of span, out of "formula", "code" and "field", with the boundary before.
    """

    detects: str
    side: Literal["after", "before"]
    at_start: bool = False
    after_blank: bool = False
    after_docstring: bool = False
    headings: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    once: bool = False
    openings: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.side == "before" and (self.headings or self.phrases):
            raise ValueError(
                f"the rule that detects {self.detects!r} has side='before', and a boundary of headings and phrases is "
                "after the match; write side='after'"
            )


_BOLD = r"(?:\*\*|__)?"
_LEAD = rf"(?:\#{{1,6}}[ \t]+)?{_BOLD}"
_MARKED = rf"(?:\#{{1,6}}[ \t]+{_BOLD}|\*\*|__)"
_STEP = r"(?:Step|STEP)[ \t]\d{1,3}"


def _titles(word: str) -> str:
    """A regex for `Solution:`, `**Solution:**`, `**Solution**` and `## Solution`, with another word for Solution."""
    name = f"(?:{word}|{word.upper()})"
    return rf"{_LEAD}{name}{_BOLD}[:.]{_BOLD}|(?:\*\*|__){name}(?:\*\*|__)|\#{{1,6}}[ \t]+{name}(?=[ \t\r]*\n)"


RULES: dict[str, Rule] = {
    "answer_start": Rule(
        detects="the start of the answer, and what follows a cue that a solution starts",
        side="after",
        at_start=True,
        after_docstring=True,
        headings=(_titles("Solution"), _titles("Answer"), _titles("Proof"), "</think>"),
        phrases=(r"\b[Ll]et(?: me| us|['’]s) solve(?=\W)", r"\b[Ll]et(?: me| us|['’]s) think step by step(?=\W)"),
        once=True,
    ),
    "step": Rule(
        detects="what follows a blank line or an enumerated marker such as `Step 3:` or `3.`",
        side="after",
        after_blank=True,
        headings=(
            rf"{_LEAD}{_STEP}(?:{_BOLD}[:.)]{_BOLD}|[ \t][-–—])|{_MARKED}{_STEP}(?![ \t][-–—]){_BOLD}",
            rf"{_LEAD}\d{{1,2}}[.)]{_BOLD}(?=[ \t]+[^ \t\r\n])",
        ),
    ),
    "structure": Rule(
        detects="the opening of a formula, a code block or a field of a JSON object",
        side="before",
        openings=frozenset({"formula", "code", "field"}),
    ),
}
"""The rules by name, in the order in which boundaries at one position are reported. A new rule is one more entry."""


def check_rules(operators: Iterable[Operator]) -> None:
    """Raise ValueError for an operator whose boundary is not the name of a rule."""
    for operator in operators:
        if operator.boundary not in RULES:
            raise ValueError(
                f"operator {operator.name!r} has boundary {operator.boundary!r}; the rules are {', '.join(RULES)}. Use "
                "one of them, or add an entry to RULES in tyler/boundaries/rules.py"
            )
