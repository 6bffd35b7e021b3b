"""Reading answers: the boxed answer of a completion, and the exact number that an answer may be.

Every task extracts its answers here, in training and in evaluation, so that the two cannot drift apart. Model output is
only ever matched against patterns, in time linear in its length, and never evaluated.
"""

from __future__ import annotations

import re
from fractions import Fraction

from tyler.tasks.thoughts import after_thought

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"(?:\\[^()\[\]]|[^\s$\\])+")

_MAX_NUMBER_LENGTH = 256


class UnreadableAnswerError(ValueError):
    """The completion's answer is not of the task's kind; grades as `unparsable`."""


class UnreadableGoldError(ValueError):
    """The gold answer is not of the task's kind: an error of the data set; grades as `gold_error`."""


def boxed_answer(completion: str) -> str | None:
    r"""The content of the last `\boxed` or `\fbox`, stripped, or None where there is none or it is never closed.

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


_MATH = re.compile(r"\$(?P<dollar>[^$]*)\$|\\\((?P<inline>.*)\\\)", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212"), "-")
_SPACE = re.compile(r"(?:\\[,;: ]|\\q?quad(?![A-Za-z])|[~\s\u00a0\u2009\u202f])+")


def plain(text: str) -> str:
    r"""`text` without LaTeX dress: math delimiters, `\text{}`, `\left`, display fractions, the many spaces of LaTeX."""
    text = text.strip().translate(_DASHES).replace(r"\!", "").replace("{,}", ",")
    if math := _MATH.fullmatch(text):
        text = math["inline"] if math["dollar"] is None else math["dollar"]
    text = _TEXT.sub(r" \1 ", text)
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])", "", text)
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text)
    return _SPACE.sub(" ", text).strip()


_NUMBER = re.compile(
    r"(?P<sign>[+-]?) ?"
    r"(?:(?P<whole>[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|[0-9]+)?(?:\.(?P<decimals>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,3}))?"
    r"|(?P<numerator>[0-9]+) ?/ ?(?P<denominator>[0-9]+)"
    r"|\\frac ?\{ ?(?P<top>[0-9]+) ?\} ?\{ ?(?P<bottom>[0-9]+) ?\})"
)


def exact_number(text: str) -> Fraction | None:
    r"""The number that `text` writes, exactly, or None when it is not a single number.

    Reads decimals (`-3.50`, `.5`, `3.5e4`), one fraction (`1/2`, `\frac{1}{2}`), and thousands as `1,234`, `1\,234`,
    `1{,}234` or `1 234`. `12,34` and `0,123` are not numbers, nor is an expression (`3+4`) or anything over 256
    characters.
    """
    if len(text) > _MAX_NUMBER_LENGTH:
        return None
    found = _NUMBER.fullmatch(plain(text))
    if found is None:
        return None
    sign = -1 if found["sign"] == "-" else 1
    top, bottom = found["numerator"] or found["top"], found["denominator"] or found["bottom"]
    if top and bottom:
        return sign * Fraction(int(top), int(bottom)) if int(bottom) else None
    whole, decimals = re.sub("[, ]", "", found["whole"] or ""), found["decimals"] or ""
    if not whole + decimals:
        return None
    return sign * int(whole + decimals) * Fraction(10) ** (int(found["exponent"] or 0) - len(decimals))
