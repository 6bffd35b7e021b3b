r"""Quantities: what an answer's number is called, and the unit that follows it, apart from the number itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from tyler.tasks.answers.boxed import plain

T = TypeVar("T")

MAX_LENGTH = 256

_DRESS = re.compile(
    r"\\(?:boldsymbol|bm|underline|emph|textsf|textsl|mathsf|texttt|textnormal|mathit|operatorname)\s*\{([^{}]*)\}"
)
_SWITCH = re.compile(
    r"\\(?:rm|bf|it|sf|tt|displaystyle|textstyle|large|Large|huge)(?![A-Za-z]) ?|\\(?:text)?color ?\{[^{}]*\}"
)
_STARS = re.compile(r"(\*\*|__)(?P<bold>[^*]+)\1")
_UNIT_FRACTION = re.compile(r" ?\\frac ?\{ ?([A-Za-z]+) ?\} ?\{ ?([A-Za-z]+(?: ?\^ ?(?:[0-9]|\{ ?[0-9] ?\}))?) ?\}")
_WHOLE = re.compile(r"\((?P<parens>[^()]*)\)|\{(?P<braces>[^{}]*)\}")


def bare(text: str) -> str:
    r"""`text` without dress: math delimiters, nested `\text{}`, bold, an outer parenthesis, closing punctuation."""
    text = re.sub(r"\^ ?(?:\{ ?\\circ ?\}|\\circ)|\\degree(?![A-Za-z])", "°", text)
    for _ in range(4):
        before, text = text, plain(_DRESS.sub(r" \1 ", _SWITCH.sub("", text)))
        if bold := _STARS.fullmatch(text):
            text = bold["bold"]
        if text == before:
            break
    text = _UNIT_FRACTION.sub(r" \1/\2", text).strip().rstrip(" .,;")
    if whole := _WHOLE.fullmatch(text):
        text = whole["parens"] if whole["parens"] is not None else whole["braces"]
    return text.strip()


_LABEL = re.compile(
    r"(?:[A-Za-z][A-Za-z ']*?(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9 ]*\}))?|\\(?!frac|sqrt|pi)[a-z]+) ?[:=] ?(?=[^=\s])|"
    r"(?:the )?(?:(?:final|correct) )?answer is ",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"(?:\\approx(?![A-Za-z])|\\simeq(?![A-Za-z])|[≈=]|(?:about|approximately|roughly) ) ?")
_CURRENCY = re.compile(
    r"(?P<sign>[+-]?) ?(?:(?:US|CA|AU|HK)?\\?[$€£¥₹]|USD|EUR|Rs\.?|\\pounds|\\(?:text|math)dollar) ?(?=[-+]? ?[0-9.\\])"
)
_DOTS = re.compile(r"(?<=[0-9]) ?(?:\\l?dots|\\cdots|\.{2,3}|…)$")


def unlabelled(text: str) -> str:
    r"""`text` without what names its number (`x =`, `Total:`, `\approx`) and without a currency sign before it."""
    if label := _LABEL.match(text):
        text = text[label.end() :]
    if about := _ABOUT.match(text):
        text = text[about.end() :]
    if currency := _CURRENCY.match(text):
        text = currency["sign"] + text[currency.end() :]
    return text.strip()


_UNIT = re.compile(
    r"(?: ?(?:\\?[%$€£¥]|°))? ?"
    r"(?:[A-Za-zµμΩÅ°'/(). ,·*-]|\\(?:cdot|Omega|mu|AA|ohm)(?![A-Za-z])|\^ ?(?:\{ ?-?[0-9] ?\}|-?[0-9])|[²³])*"
)
_SAYS = re.compile(r" ?(?:[A-Za-zµμΩÅ°%$€£¥]|\\(?!cdot)|/ ?[A-Za-z]|-[A-Za-z])| \([A-Za-z]")
_WORDS = re.compile(r"\\[A-Za-z]+|[A-Za-zµμΩÅ]+")
_PERCENT = re.compile(r" ?(?:\\?%|per ?cent\b|pct\b)", re.IGNORECASE)

_SYMBOL = re.compile(
    r"[kKmcμµnpMGTdh]?(?:m|g|s|Hz|J|N|V|A|W|K|Pa|eV|bar|[lL]|F|T|H|C|mol|Ω|cal|dB|rad|Wb|Wh|VA|VAR|VAr|var)"
    r"|[kMGT]i?[Bb](?:ps)?|of|in|on|at|US|qt|pt|ha|ct|pc|px|°?[CF]|h|hr|hrs|min|mins|sec|secs|ft|sq|cu|in|lb|lbs|oz|mi|mph|mpg|kmh|kph"
    r"|rpm|rps|yd|yds|atm|psi|amu|u|deg|ppm"
    r"|am|pm|bits?|bytes?|nats?|dBm?|USD|EUR|dollars?|cents?|degrees?|years?|days?|hours?|minutes?"
)
_SINGLE = frozenset("mgshlLJNVAWKCFTΩ")
_NO_UNIT = re.compile(
    r"\b(?:hundred|thousand|million|billion|trillion|lakh|crore|or|to|plus|minus|a half)\b"
    r"|(?<!per )(?<!/)(?<!a )\b(?:dozens?|tens|hundreds|thousands|millions|billions)\b"
    r"|^\W*(?:scores?|st|nd|rd|th)\b"
    r"|\b(?:pi|sin|cos|tan|log|ln|exp|sqrt)\b"
    r"|\b(?:not|never|none|wrong|incorrect|false|unknown|maybe|perhaps|probably)\b"
    r"|^\W*(?:and|halves|thirds|fourths|fifths|sixths|eighths|tenths|hundredths|thousandths|squared|cubed|factorial)\b"
    r"|\band\W*$",
    re.IGNORECASE,
)
_SCALED = re.compile(
    r"(?<![0-9A-Za-z.,/^}])(?P<count>[0-9][0-9,]*(?:\.[0-9]*)?) ?(?P<scale>hundred|thousand|million|billion|trillion)\b"
)
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def read_quantity(text: str, read: Callable[[str], T | None]) -> tuple[T, bool] | None:
    r"""The number at the head of `text`, as `read` reads it, whose tail is nothing or a unit; and whether that is `%`.

    A number with its scale is a number: `2 million` is 2000000. A tail is no unit where it would otherwise scale,
    change, deny or doubt the number (`2 dozen`, `18th`, `2 \pi`, `3 or 4`, `5 wrong`), and where it may be a variable:
    a lone letter that is no symbol of a unit, or letters that touch the number and are none (`5x`, `2ab`).
    """
    text = _SCALED.sub(lambda found: f"{found['count']}e{_SCALES[found['scale']]}", _DOTS.sub("", text))
    for cut in range(len(text), 0, -1):
        head, tail = text[:cut], text[cut:]
        if (tail and not _is_unit(tail)) or head[-1].isspace() or (head[-1].isalpha() and tail[:1].isalpha()):
            continue
        number = read(_DOTS.sub("", head))
        if number is not None:
            return number, _PERCENT.match(tail) is not None
    return None


def _is_unit(tail: str) -> bool:
    if not _UNIT.fullmatch(tail) or not _SAYS.match(tail) or _NO_UNIT.search(tail):
        return False
    words = _WORDS.findall(tail)
    if words and (tail[0].isalpha() or len(words[0]) == 2) and not _SYMBOL.fullmatch(words[0]):
        return False
    return all(len(word) > 1 or word in _SINGLE or (word == "a" and at > 0) for at, word in enumerate(words))
