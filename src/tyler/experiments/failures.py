"""How an answer went wrong, by written rules on its steps against those of a right solution.

A step is a formula: what stands between dollar signs, in a code fence, in a line or in a JSON string, with an equals
sign, or with a number and an operator. Its left side is all before the last equals sign; its form is the left side with
every number as #. The first rule that holds decides:

format      no verdict "wrong": no box, cut off, unparsable, out of time
strategy    there is no step, or the first one has another left side, or one without a number and another right side:
            another start or another set-up
state       at the first differing step the left side has the right form: a wrong result, or a wrong value carried on
procedure   at the first differing step the form differs, or a step is missing or too many
other       the steps are right, the answer is not

On `mini` the right solution is the one from which the problem was made, so the rules are exact there. Elsewhere it is
the right answer of the model as it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from tyler.tasks import Outcome

KINDS = ("strategy", "state", "procedure", "format", "other")
SEPARATORS = re.compile(r"\n|\$|```|\\\[|\\\]|\\\(|\\\)|\", \"|\": \"|[{}]?\"[}]?")
MARKER = re.compile(r"^\s*(?:Step \d+:|\d+\.(?=\s))\s*")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OPERATOR = re.compile(r"[-+*/|<>^]")


def steps(text: str) -> list[str]:
    """The formulas of a solution, in their order, without spaces."""
    found = (MARKER.sub("", part) for part in SEPARATORS.split(text))
    return ["".join(part.split()).rstrip(".,") for part in found if is_step(part)]


def is_step(part: str) -> bool:
    """Whether a part of a text is a formula."""
    return "boxed" not in part and ("=" in part or bool(NUMBER.search(part) and OPERATOR.search(part)))


def left(step: str) -> str:
    """All before the last equals sign, or before a truth value."""
    return step.rpartition("=")[0] or re.sub(r"is(True|False)$", "", step)


def form(step: str) -> str:
    """The left side with every number as #."""
    return NUMBER.sub("#", left(step))


def kind(outcome: str, text: str, reference: str) -> str:
    """Which of KINDS a wrong answer is, `outcome` its verdict, `reference` a right solution."""
    if outcome != Outcome.WRONG:
        return "format"
    return difference(steps(text), steps(reference))


def difference(found: Sequence[str], right: Sequence[str]) -> str:
    """What sets two sequences of steps apart first."""
    if not found or not right or left(found[0]) != left(right[0]):
        return "strategy"
    if found[0] != right[0] and not NUMBER.search(left(right[0])):
        return "strategy"
    for ours, theirs in zip_longest(found, right, fillvalue=""):
        if ours != theirs:
            return "state" if ours and theirs and form(ours) == form(theirs) else "procedure"
    return "other"
