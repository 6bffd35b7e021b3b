"""The boxed answer of a completion.

Every task extracts its answers here, in training and in evaluation, so that the two cannot drift apart. Model output is
only ever matched against patterns, in time linear in its length, and never evaluated.
"""

from __future__ import annotations

import re

from tyler.tasks.problem import after_thought

_MATH = re.compile(r"\$(?P<dollar>[^$]*)\$|\\\((?P<inline>.*)\\\)", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212"), "-")
_SPACE = re.compile(r"(?:\\[,;: ]|\\q?quad(?![A-Za-z])|[~\s\u00a0\u2009\u202f])+")
_WIDE = re.compile(r"quad|[\n\r\t\v\f\u2001\u2003]")
_NUMBER = re.compile(r"[0-9.]|\\[dtc]?frac(?![A-Za-z])")


def plain(text: str) -> str:
    r"""`text` without LaTeX dress: math delimiters, `\text{}`, `\left`, display fractions, the many spaces of LaTeX."""
    text = text.strip().translate(_DASHES).replace(r"\!", "").replace("{,}", ",")
    if math := _MATH.fullmatch(text):
        text = math["inline"] if math["dollar"] is None else math["dollar"]
    text = _TEXT.sub(r" \1 ", text)
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])", "", text)
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text)
    return spaced(text).strip()


def spaced(text: str) -> str:
    """`text` with one ordinary space for every run of spaces, and `; ` for a wide one between two numbers."""
    return _SPACE.sub(_one_space, text)


def parted(text: str) -> str:
    """`text` with `; ` for a wide space between two numbers, and all other spaces as they are."""
    return _SPACE.sub(lambda run: "; " if _one_space(run) == "; " else run[0], text)


def _one_space(run: re.Match[str]) -> str:
    before = run.string[run.start() - 1 : run.start()]
    parts = before and before in "0123456789}" and _WIDE.search(run[0]) and _NUMBER.match(run.string, run.end())
    return "; " if parts else " "


_FONT = re.compile(
    r"\\(?:boldsymbol|bm|underline|emph|textsf|textsl|mathsf|texttt|textnormal|mathit|operatorname)\s*\{([^{}]*)\}"
)
_SWITCH = re.compile(
    r"\\(?:rm|bf|it|sf|tt|displaystyle|textstyle|large|Large|huge)(?![A-Za-z]) ?|\\(?:text)?color ?\{[^{}]*\}"
)
_STARS = re.compile(r"(\*\*|__)(?P<bold>[^*]+)\1")
_UNIT_FRACTION = re.compile(r" ?\\frac ?\{ ?([A-Za-z]+) ?\} ?\{ ?([A-Za-z]+(?: ?\^ ?(?:[0-9]|\{ ?[0-9] ?\}))?) ?\}")
_WHOLE = re.compile(r"\((?P<parens>[^()]*)\)|\{(?P<braces>[^{}]*)\}")


def bare(text: str) -> str:
    r"""`text` without dress: as `plain`, nested `\text{}`, bold, an outer parenthesis, closing punctuation."""
    text = re.sub(r"\^ ?(?:\{ ?\\circ ?\}|\\circ)|\\degree(?![A-Za-z])", "°", text)
    for _ in range(4):
        before, text = text, plain(_FONT.sub(r" \1 ", _SWITCH.sub("", text)))
        if bold := _STARS.fullmatch(text):
            text = bold["bold"]
        if text == before:
            break
    text = _UNIT_FRACTION.sub(r" \1/\2", text).strip().rstrip(" .,;")
    if whole := _WHOLE.fullmatch(text):
        text = whole["parens"] if whole["parens"] is not None else whole["braces"]
    return text.strip()


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
