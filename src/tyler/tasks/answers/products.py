r"""Products: of letters, whose order says nothing, and those that a question asks to be worked out.

What is still to be computed does not count for its value: a derivative, an integral, a sum, a limit, and
a product of sums where the gold answer is its expansion. It would be the question, copied.
"""

from __future__ import annotations

import re

_LETTERS = re.compile(r"(?P<sign>-?) ?(?P<letters>[A-Za-z](?:(?: | ?\\cdot )?[A-Za-z])+)")
_BETWEEN = re.compile(r" ?\\cdot | ")
_LONGEST = 3
"""Letters that touch: more of them may be a word."""
_SHORT_WORDS = """
    no on of or if it is as so to do go he me we be by my an am at in up us ii iii iv vi vii and the not yes two six one
    ten all any odd for now won own was saw can few new top pot red day god dog cat act eat tea tan ant ate net may
"""
_WORDS = frozenset(_SHORT_WORDS.split())


def same_letters(answer: str, gold: str) -> bool | None:
    """Products of letters in any order (`xy`, `y x`); None where either side is another text, or may be a word."""
    given, expected = _letters(answer), _letters(gold)
    if given is None or expected is None:
        return None
    return given == expected


def _letters(text: str) -> tuple[str, list[str]] | None:
    """The sign and the letters of a product, in alphabetic order."""
    found = _LETTERS.fullmatch(text)
    if found is None:
        return None
    letters = _BETWEEN.sub("", found["letters"])
    multiplied = len(_BETWEEN.findall(found["letters"])) == len(letters) - 1
    if not multiplied and (len(letters) > _LONGEST or letters.lower() in _WORDS or letters != found["letters"]):
        return None
    return found["sign"], sorted(letters)


_DERIVATIVE = re.compile(
    r"\\frac ?\{ ?(?:d|\\partial)(?: ?\^ ?\{? ?[0-9a-z] ?\}?)?[^{}]*(?:\{[^{}]*\}[^{}]*)*\} ?"
    r"\{ ?(?:d|\\partial) ?[A-Za-z]"
    r"|(?<![A-Za-z\\])d(?: ?\^ ?\{? ?[0-9] ?\}?)?(?: ?[A-Za-z])? ?/ ?\(?d ?[a-z](?![a-z])"
)
_OPERATION = re.compile(r"\\(?:i*int|oint|sum|prod|lim|limsup|liminf)(?![A-Za-z])")
_SUM = r"\((?=[^()]*[^()\s^_{] ?[+-])[^()]*\)"
_PRODUCT = re.compile(rf"{_SUM} ?(?:\\cdot ?)?{_SUM}|{_SUM} ?\^ ?\{{? ?[2-9]")


def is_unevaluated(text: str) -> bool:
    """Whether `text` holds a derivative, an integral, a sum, a product sign or a limit."""
    return _OPERATION.search(text) is not None or _DERIVATIVE.search(text) is not None


def must_be_computed(answer: str, gold: str) -> bool:
    """Whether an answer is left as what the gold one is the value of."""
    if is_unevaluated(answer):
        return True
    return _PRODUCT.search(answer) is not None and re.search(r"[()]", gold) is None and _is_expanded(gold)


def _is_expanded(gold: str) -> bool:
    """Whether a gold answer is a sum of terms without a quotient or a root: what a product was multiplied out to."""
    return re.search(r"[^\s^_{(] ?[+-]", gold) is not None and re.search(r"\\(?!cdot|pi)[a-z]|/", gold) is None
