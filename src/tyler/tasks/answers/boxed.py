"""The boxed answer of a completion.

Every task extracts its answers here, in training and in evaluation, so that the two cannot drift apart. Model output is
only ever matched against patterns, in time linear in its length, and never evaluated.
"""

from __future__ import annotations

import re

from tyler.tasks.thoughts import after_thought

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"(?:\\[^()\[\]]|[^\s$\\])+")


class UnreadableAnswerError(ValueError):
    """The completion's answer is not of the task's kind; grades as `unparsable`."""


class UnreadableGoldError(ValueError):
    """The gold answer is not of the task's kind: an error of the data set; grades as `gold_error`."""


def boxed_answer(completion: str) -> str | None:
    r"""The content of the last `\boxed` or `\fbox`, stripped, or None if it is missing or never closed.

    The thought is dropped first (`after_thought`). Braces balance, and escaped
    ones (`\{`) do not count. Without braces (`\boxed 7`) the box ends at the next space or `$`, or at the sentence's
    punctuation. Nothing outside the box is looked at, and an earlier box never stands in for the last one.
    """
    span = boxed_span(completion)
    return None if span is None else completion[slice(*span)]


def boxed_span(completion: str) -> tuple[int, int] | None:
    """Where the boxed answer stands in a completion: its first character, and the one after its last."""
    text = after_thought(completion)
    inside = [box.end() for box in _BOX.finditer(text)]
    if not inside:
        return None
    if text.startswith("{", inside[-1]):
        content = _braced(text, inside[-1])
    else:
        bare = _BARE.match(text, inside[-1])
        content = bare.group().rstrip(".,;:") or None if bare else None
    if content is None:
        return None
    start = len(completion) - len(text) + text.index(content, inside[-1])  # a thought is left out at the front
    return start, start + len(content)


def _braced(text: str, start: int) -> str | None:
    """The content of the brace group that opens at `start`, or None when it never closes."""
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return _stripped(text[start + 1 : brace.start()])
    return None


def _stripped(text: str) -> str:
    r"""`text` without spaces around it; the `\ ` of LaTeX is one too."""
    text = text.strip()
    while (len(text) - len(text.rstrip("\\"))) % 2:
        text = text[:-1].rstrip()
    return text
