r"""The one reader of numbers and quantities: what a number is, how it is called, its currency, its scale and its unit.

A number is read exactly, or not at all. Decimals (`-3.50`, `.5`), repeating ones (`0.\overline{3}`), fractions (`1/2`,
`\frac{1}{2}`), mixed numbers (`2 1/2`, `2\frac{1}{2}`), scientific notation (`3.5e4`, `3.5 \times 10^4`), and thousands
as `1,234` or `1 234` (in LaTeX also `1\,234`, `1{,}234`: `boxed.py`). `12,34` and `0,123` are not numbers, nor is a
mixed number whose fraction is not below 1 (`1\frac{3}{2}` reads as 2.5 and as 1.5), nor what is still to be computed
(`3+4`, `2^{10}`: `expressions.py`).

Units have two policies. A problem in words asks for a thing that is counted, so that any word may follow the number but
those that change it (`18 dollars`, `7 boxes`; not `2 dozen`, `5 wrong`): `read_quantity`. An answer in mathematics may
be a product of letters, so that outside of `\text{}` only units that everyone knows are units (`5 cm`, not
`5 apples`): `split_unit`.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import yaml

T = TypeVar("T")

MAX_LENGTH = 256
SPELLINGS = yaml.safe_load(Path(__file__).with_name("spellings.yaml").read_text(encoding="utf-8"))

NUMERAL = re.compile(
    r"(?P<whole>[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[1-9][0-9]{0,2}(?: [0-9]{3})+(?! ?[0-9])|[0-9]+)?"
    r"(?:\.(?P<decimals>[0-9]*)(?:\\(?:overline|bar) ?(?:\{ ?(?P<period>[0-9]{1,9}) ?\}|(?P<digit>[0-9])))?)?"
    r"(?:(?<=[0-9.])[eE](?P<exponent>[+-]?[0-9]{1,3})(?![0-9]))?"
)
MIXED = re.compile(
    r"(?P<whole>[0-9]{1,9}) ?(?:\\frac ?\{ ?(?P<top>[0-9]{1,9}) ?\} ?\{ ?(?P<bottom>[0-9]{1,9}) ?\}"
    r"|(?<= )(?P<over>[0-9]{1,9}) ?/ ?(?P<under>[0-9]{1,9}))"
)
_FRACTION = re.compile(
    r"([0-9]+) ?/ ?([0-9]+)|\\frac ?\{ ?(-?[0-9]*\.?[0-9]+) ?\} ?\{ ?(-?[0-9]*\.?[0-9]+) ?\}", re.ASCII
)
_SCIENTIFIC = re.compile(
    r"(?P<mantissa>[^\\*×·⋅]+?) ?(?:\\(?:cdot|times)(?![A-Za-z])|[*×·⋅]) ?10 ?(?:\^|\*\*) ?"
    r"(?:\{ ?(?P<braced>-? ?[0-9]{1,3}) ?\}|(?P<bare>-?[0-9]))"
)


def number(text: str) -> Fraction | None:
    """The number that an undressed text writes, exactly, or None where it is not a single number."""
    if len(text) > MAX_LENGTH:
        return None
    size = _size(re.sub("^[+-]? ?", "", text))
    return -size if size is not None and text.startswith("-") else size


def _size(text: str) -> Fraction | None:
    """A number without its sign."""
    if match := NUMERAL.fullmatch(text):
        return numeral(match)
    if match := MIXED.fullmatch(text):
        return mixed(match)
    if match := _FRACTION.fullmatch(text):
        top, bottom = (Fraction(part) for part in match.groups() if part is not None)
        return top / bottom if bottom else None
    match = _SCIENTIFIC.fullmatch(text)
    mantissa = NUMERAL.fullmatch(match["mantissa"]) if match else None
    size = numeral(mantissa) if mantissa else None
    if match is None or size is None:
        return None
    return size * Fraction(10) ** int((match["braced"] or match["bare"]).replace(" ", ""))


def numeral(match: re.Match[str]) -> Fraction | None:
    """The value of a match of NUMERAL, or None where it holds no digit."""
    whole, decimals = re.sub("[, ]", "", match["whole"] or ""), match["decimals"] or ""
    period = match["period"] or match["digit"] or ""
    if not whole + decimals + period:
        return None
    value = int(whole + decimals or "0") * Fraction(10) ** -len(decimals)
    if period:
        value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(decimals))
    return value * Fraction(10) ** int(match["exponent"] or 0)


def mixed(match: re.Match[str]) -> Fraction | None:
    """The value of a match of MIXED, or None where its fraction is not below 1."""
    top, bottom = int(match["top"] or match["over"]), int(match["bottom"] or match["under"])
    return int(match["whole"]) + Fraction(top, bottom) if top < bottom else None


_BASES = SPELLINGS["bases"].split()
_BASE_NAME = rf"\(?(?:base )? ?([0-9]+|{'|'.join(_BASES)})\)?"
_BASE = re.compile(rf"\(?([0-9A-Za-z.]+)\)? ?(?:_\{{ ?{_BASE_NAME} ?\}}|(?:in )?(?=\(?base ){_BASE_NAME})")


def same_numeral(answer: str, gold: str) -> bool | None:
    """Numerals in a base: digits and base must agree; the answer may leave the base out."""
    given, expected = _numeral(answer), _numeral(gold)
    if expected is not None:
        digits, base = given or (answer, expected[1])
        return (digits.lstrip("0").upper(), base) == (expected[0].lstrip("0").upper(), expected[1])
    return None if given is None else given == (gold, 10)


def _numeral(text: str) -> tuple[str, int] | None:
    r"""Digits and base of `52_{8}`, `52_{\text{eight}}`, `52 \text{ (base 8)}`."""
    if (match := _BASE.fullmatch(text)) is None:
        return None
    name = next(group for group in match.groups()[1:] if group)
    base = int(name) if name.isdigit() else _BASES.index(name) + 2
    # `AB_{16}` is a numeral, `A_{16}` a variable
    lettered = len(match[1]) > 1 and 10 < base <= 16 and {*match[1]} <= {*"0123456789ABCDEF"[:base]}
    return (match[1], base) if match[1][0].isdigit() or lettered else None


_TIME = re.compile(r"([0-9]{1,2}) ?: ?([0-9]{2})(?: ?([ap])\.? ?m\.?)?", re.IGNORECASE)


def same_parts(answer: str, gold: str) -> bool | None:
    """Times of day and ratios: the same parts, and the same half of the day where both name one."""
    if ":" not in answer + gold:
        return None
    given, expected = _TIME.fullmatch(answer), _TIME.fullmatch(gold)
    if given and expected:
        halves = {half.lower() for half in (given[3], expected[3]) if half}
        return (int(given[1]), given[2]) == (int(expected[1]), expected[2]) and len(halves) < 2
    parts, others = ([number(part.strip()) for part in text.split(":")] for text in (answer, gold))
    return None not in parts and parts == others


# ------------------------------------------------------------------------------------------------------ names and units

NAMES = {spelling: name for name, others in SPELLINGS["units"].items() for spelling in (name, *others.split())}
"""The name of each unit that needs no `\\text{}`, in the singular, by its spellings."""
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Words that are part of a number, and the power of ten they multiply it by."""
CURRENCIES = {r"\dollar": "dollar", "£": "pound", "€": "euro"}

ARTICLES = frozenset(("a", "an", "the"))
_JOINING = frozenset(("per", "of", "in", *ARTICLES))
_ONLY_JOINED = frozenset(("m", "s", "g", "h", "l", "c", "f", "a"))

_CHANGES = {kind: words.split() for kind, words in SPELLINGS["changes"].items()}
MULTIPLES, PARTS, ORDINALS, DENIALS, _ = map("|".join, _CHANGES.values())
_PREFIXES, _PREFIXED, _OTHERS = (words.split() for words in SPELLINGS["symbols"].values())
SYMBOLS = frozenset(_OTHERS).union(prefix + unit for prefix in ("", *_PREFIXES) for unit in _PREFIXED)
"""Words that may touch their number (`5cm`, `5kWh`), where others would be letters that multiply it."""


def is_known(words: str) -> bool:
    r"""Whether each word is part of a unit that needs no `\text{}` to be told from a product of letters."""
    return all(
        word in _JOINING or (singular(word) in NAMES and word not in _ONLY_JOINED)
        for word in re.findall("[a-z]+", words.lower())
    )


def singular(word: str) -> str:
    """A word of a unit without its plural, lower case."""
    return word if word in NAMES or len(word) < 3 else word.removesuffix("s")


def unit_name(unit: str) -> str:
    """A unit in one spelling: full words in the singular, powers as `square` and `cubic`."""
    unit = re.sub(
        r"([A-Za-z]+)\.? ?\^ ?\{([23])\}", lambda power: ("square " if power[2] == "2" else "cubic ") + power[1], unit
    )
    words = [singular(word.lower()) for word in re.findall("[A-Za-z]+", unit.replace("/", " per "))]
    return " ".join(NAMES.get(word, word) for word in words if word not in ("the", "of"))


_LABEL = re.compile(
    r"^(?:(?:[A-Za-z][A-Za-z ']*?(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9 ]*\}))?|\\(?!frac|sqrt|pi)[a-z]+) ?[:=] ?(?=[^=\s])|"
    r"(?:the )?(?:(?:final|correct) )?answer is )",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"^(?:\\approx(?![A-Za-z])|\\simeq(?![A-Za-z])|[≈=]|(?:about|approximately|roughly) ) ?")
_CURRENCY = re.compile(
    r"^([+-]?) ?(?:(?:US|CA|AU|HK)?\\?[$€£¥₹]|USD|EUR|Rs\.?|\\pounds|\\(?:text|math)dollar) ?(?=[-+]? ?[0-9.\\])"
)
_DOTS = re.compile(r"(?<=[0-9]) ?(?:\\l?dots|\\cdots|\.{2,3}|…)$")


def unlabelled(text: str) -> str:
    r"""`text` without what names its number (`x =`, `Total:`, `\approx`) and without a currency sign before it."""
    return _CURRENCY.sub(r"\1", _ABOUT.sub("", _LABEL.sub("", text))).strip()


# --------------------------------------------------------------------------------- problems in words and physics

_TAIL = re.compile(
    r"(?: ?(?:\\?[%$€£¥]|°))? ?"
    r"(?:[A-Za-zµμΩÅ°'/(). ,·*-]|\\(?:cdot|Omega|mu|AA|ohm)(?![A-Za-z])|\^ ?(?:\{ ?-?[0-9] ?\}|-?[0-9])|[²³])*"
)
_SAYS = re.compile(r" ?(?:[A-Za-zµμΩÅ°%$€£¥]|\\(?!cdot)|/ ?[A-Za-z]|-[A-Za-z])| \([A-Za-z]")
_WORDS = re.compile(r"\\[A-Za-z]+|[A-Za-zµμΩÅ]+")
_PERCENT = re.compile(r" ?(?:\\?%|per ?cent\b|pct\b)", re.IGNORECASE)
_SINGLE = frozenset("mgshlLJNVAWKCFTΩ")
_NO_UNIT = re.compile(
    rf"\b(?:{'|'.join(SCALES)}|lakh|crore|or|to|plus|minus|a half|{DENIALS})\b"
    rf"|(?<!per )(?<!/)(?<!a )\b(?:{MULTIPLES})\b"
    rf"|^\W*(?:scores?|{ORDINALS}|and|{PARTS})\b"
    r"|\b(?:pi|sin|cos|tan|log|ln|exp|sqrt)\b"
    r"|\band\W*$",
    re.IGNORECASE,
)
_SCALED = re.compile(rf"(?<![0-9A-Za-z.,/^}}])(?P<count>[0-9][0-9,]*(?:\.[0-9]*)?) ?(?P<scale>{'|'.join(SCALES)})\b")


def read_quantity(text: str, read: Callable[[str], T | None]) -> tuple[T, bool] | None:
    r"""The number at the head of `text`, as `read` reads it, whose tail is nothing or a unit; and whether that is `%`.

    A number with its scale is a number: `2 million` is 2000000. A tail does not count as a unit where it would scale,
    change, deny or doubt the number (`2 dozen`, `18th`, `2 \pi`, `3 or 4`, `5 wrong`), and where it may be a variable:
    a lone letter that is not a unit's symbol, or letters that touch the number and are not (`5x`, `2ab`).
    """
    text = _SCALED.sub(lambda match: f"{match['count']}e{SCALES[match['scale']]}", _DOTS.sub("", text))
    for cut in range(len(text), 0, -1):
        head, tail = text[:cut], text[cut:]
        if (tail and not _is_tail(tail)) or head[-1].isspace() or (head[-1].isalpha() and tail[:1].isalpha()):
            continue
        quantity = read(_DOTS.sub("", head))
        if quantity is not None:
            return quantity, _PERCENT.match(tail) is not None
    return None


def _is_tail(tail: str) -> bool:
    if not _TAIL.fullmatch(tail) or not _SAYS.match(tail) or _NO_UNIT.search(tail):
        return False
    words = _WORDS.findall(tail)
    if words and (tail[0].isalpha() or len(words[0]) == 2) and words[0] not in SYMBOLS:
        return False
    return all(len(word) > 1 or word in _SINGLE or (word == "a" and at > 0) for at, word in enumerate(words))


# ------------------------------------------------------------------------------------------------------- mathematics

_MAX_QUANTITY = 300
_MARKS = {**CURRENCIES, "\\percent": "percent", r"\degree": "degree"}
_WORD = r"(?:[A-Za-z]++\.?(?: ?\^ ?\{[23]\})?)"
_UNIT = re.compile(
    rf"(?P<value>(?:.*[0-9)}}\]!]|.*\\pi|.*\\infty|.*(?<![A-Za-z\\])[A-Za-z])) ?"
    rf"(?P<unit>\\(?:degree|percent|dollar)(?: [CF])?|[£€]|(?<=[0-9)}}\]! ])[/]?{_WORD}(?:[ /-]+{_WORD})*)"
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_VETOED = frozenset(word for words in _CHANGES.values() for word in words)


def split_unit(text: str) -> tuple[str, str]:
    r"""Value and unit of a tidied `5 cm^{2}`, `\$18`, `45^\circ`, `2 million`; the unit in one spelling, or empty."""
    for mark, unit in CURRENCIES.items():
        if rest := re.fullmatch(rf"(-? ?){re.escape(mark)} ?(.+)", text):
            value, more = split_unit(rest[1] + rest[2])
            return value, unit if more in ("", unit) else f"{unit} {more}"
    match = _UNIT.fullmatch(text) if len(text) <= _MAX_QUANTITY else None
    if match is None:
        return text, ""
    value, unit = match["value"].strip(), match["unit"].strip()
    if unit == r"\degree" and _TRIGONOMETRY.search(value):
        return text, ""
    for mark, name in _MARKS.items():
        if unit.startswith(mark):
            return value, name
    words = re.findall("[A-Za-z]+", unit)
    if words[0].lower() in SCALES and (count := number(value)) is not None:
        return split_unit(f"{count * 10 ** SCALES[words[0].lower()]} {unit[len(words[0]) :].strip()}".strip())
    product = text[match.start("unit") - 1] != " " and not is_known(unit)
    if product or words[0] in ARTICLES or not all(map(_is_unit_word, words)):
        return text, ""
    return value, unit_name(unit)


def _is_unit_word(word: str) -> bool:
    small = word.lower()
    of_a_unit = len(word) >= 3 or small in _JOINING or (len(word) == 2 and small in NAMES)
    return of_a_unit and small not in _VETOED and small not in SCALES
