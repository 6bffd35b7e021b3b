r"""Numbers, numbers with a unit, numerals in a base, times and ratios, as a tidied answer writes them."""

from __future__ import annotations

import re
from fractions import Fraction

from tyler.tasks.answers.boxed import exact_number

_MAX_QUANTITY = 300

_DECIMAL = r"-?[0-9]*\.?[0-9]+"
_FRACTION = re.compile(rf"(-?) ?\\frac\{{({_DECIMAL})\}}\{{({_DECIMAL})\}}")
_MIXED = re.compile(r"(-?) ?([0-9]+) ?(?:\\frac\{([0-9]+)\}\{([0-9]+)\}|(?<= )([0-9]+) ?/ ?([0-9]+))")
_SCIENTIFIC = re.compile(r"(?:([^\\]+?) ?\\cdot ?|(-?) ?)10\^\{(-?[0-9]{1,3})\}")
_REPEATING = re.compile(r"(-?)([0-9]*)\.([0-9]*)\\(?:overline|bar) ?(?:\{ ?([0-9]+) ?\}|([0-9]))")


def number(text: str) -> Fraction | None:
    """The number that `text` writes, exactly, or None where it is not a single number."""
    if not text or not text.isascii() or len(text) > _MAX_QUANTITY:
        return None
    text = text.replace("- ", "-")
    if found := _FRACTION.fullmatch(text):
        bottom = Fraction(found[3])
        return (-1 if found[1] else 1) * Fraction(found[2]) / bottom if bottom else None
    if found := _MIXED.fullmatch(text):
        whole, top, parts = int(found[2]), int(found[3] or found[5]), int(found[4] or found[6])
        return (-1 if found[1] else 1) * (whole + Fraction(top, parts)) if parts else None
    if found := _SCIENTIFIC.fullmatch(text):
        mantissa = exact_number(found[1] or f"{found[2]}1")
        return mantissa * Fraction(10) ** int(found[3]) if mantissa is not None else None
    if found := _REPEATING.fullmatch(text):
        start, period = found[2] + found[3], found[4] or found[5]
        value = Fraction(int(start + period) - int(start or 0), (10 ** len(period) - 1) * 10 ** len(found[3]))
        return -value if found[1] else value
    return exact_number(text)


_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_CURRENCIES = {r"\dollar": "dollar", "£": "pound", "€": "euro", "\\percent": "percent", r"\degree": "degree"}
_UNIT_NAMES = {
    "cm": "centimeter", "mm": "millimeter", "km": "kilometer", "in": "inch", "inche": "inch", "ft": "foot",
    "feet": "foot", "yd": "yard", "mi": "mile", "kg": "kilogram", "mg": "milligram", "lb": "pound", "oz": "ounce",
    "ml": "milliliter", "hr": "hour", "min": "minute", "sec": "second", "mph": "mile per hour", "sq": "square",
    "metre": "meter", "centimetre": "centimeter", "dollar": "dollar", "usd": "dollar", "cent": "cent", "m": "meter",
    "degree": "degree", "percent": "percent", "c": "celsius", "f": "fahrenheit",
}  # fmt: skip
_KNOWN_UNIT = re.compile(
    r"(?:per|of|the|an?|in|inch(?:es)?|foot|feet|sq|square|cu|cubic|penny|pennies|"
    r"(?:"
    r"yard|mile|meter|kilometer|centimeter|millimeter|liter|milliliter|gram|kilogram|milligram|ton|pound|ounce|"
    r"gallon|quart|pint|cup|second|minute|hour|day|week|month|year|dollar|cent|euro|degree|radian|percent|unit|"
    r"mile|kilometre|metre|centimetre|celsius|fahrenheit|mph|kph|km|cm|mm|kg|mg|lb|oz|ml|hr|min|sec|ft|yd|mi|"
    r"sq|usd|kmh|nickel|dime|quarter|rad|volt|watt|joule|newton"
    r")s?)"
)
_SMALL_WORDS = {"per", "of", "the", "a", "an", "in", "cu", "sq"}
_ARTICLES = {"a", "an", "the"}
_UNIT_WORD = r"(?:[A-Za-z]++\.?(?: ?\^ ?\{[23]\})?)"
_UNIT = re.compile(
    rf"(?P<value>(?:.*[0-9)}}\]!]|.*\\pi|.*\\infty|.*(?<![A-Za-z\\])[A-Za-z])) ?"
    rf"(?P<unit>\\(?:degree|percent|dollar)(?: [CF])?|[£€]|(?<=[0-9)}}\]! ])[/]?{_UNIT_WORD}(?:[ /-]+{_UNIT_WORD})*)"
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_VETOED = re.compile(
    r"and|or|not|to|is|are|no|over|times|plus|minus|if|for|more|than|less|most|least|fewer|wrong|incorrect|"
    r"false|unknown|none|never|nothing|maybe|perhaps|probably|possibly|approximately|approx|about|nearly|"
    r"almost|roughly|st|nd|rd|th|tens|hundreds|thousands|millions|billions|dozen|dozens|score|scores|half|"
    r"halves|third|thirds|fourth|fourths|fifth|fifths|sixth|sixths|seventh|sevenths|eighth|eighths|ninth|ninths|tenth|"
    r"tenths|hundredth|hundredths|thousandth|thousandths|squared|cubed|factorial|base|mod|negative|positive|point"
)
"""Words that change a number, deny it or doubt it: none of them is part of a unit."""


def is_known_unit(words: str) -> bool:
    r"""Whether each word is part of a unit that needs no `\text{}` to be told from a product of letters."""
    return all(map(_KNOWN_UNIT.fullmatch, re.findall("[a-z]+", words.lower())))


def quantity(text: str) -> tuple[str, str]:
    r"""Value and unit of `5 cm^{2}`, `\$18`, `45^\circ`, `2 million`; the unit is in one spelling, or empty."""
    for mark, unit in _CURRENCIES.items():
        if (rest := re.fullmatch(rf"(-? ?){re.escape(mark)} ?(.+)", text)) and mark not in (r"\degree", r"\percent"):
            value, more = quantity(rest[1] + rest[2])
            return value, unit if more in ("", unit) else f"{unit} {more}"
    found = _UNIT.fullmatch(text) if len(text) <= _MAX_QUANTITY else None
    if found is None:
        return text, ""
    value, unit = found["value"].strip(), found["unit"].strip()
    if unit == r"\degree" and _TRIGONOMETRY.search(value):
        return text, ""
    for mark, name in _CURRENCIES.items():
        if unit.startswith(mark):
            return value, name
    words = re.findall("[A-Za-z]+", unit)
    if words[0].lower() in _SCALES and (count := number(value)) is not None:
        return quantity(f"{count * 10 ** _SCALES[words[0].lower()]} {unit[len(words[0]) :].strip()}".strip())
    product = text[found.start("unit") - 1] != " " and not is_known_unit(unit)
    if product or words[0] in _ARTICLES or not all(_is_unit(word) for word in words):
        return text, ""
    return value, _unit_name(unit)


def _is_unit(word: str) -> bool:
    small = word.lower()
    return (
        not _VETOED.fullmatch(small)
        and small not in _SCALES
        and (len(word) >= 3 or small in _SMALL_WORDS or (len(word) > 1 and small in _UNIT_NAMES))
    )


def _unit_name(unit: str) -> str:
    """A unit in one spelling: full words in the singular, powers as `square` and `cubic`."""
    unit = re.sub(
        r"([A-Za-z]+)\.? ?\^ ?\{([23])\}", lambda power: ("square " if power[2] == "2" else "cubic ") + power[1], unit
    )
    words = [word.lower() for word in re.findall("[A-Za-z]+", unit.replace("/", " per "))]
    stems = [word if word in _UNIT_NAMES or len(word) < 3 else word.removesuffix("s") for word in words]
    return " ".join(_UNIT_NAMES.get(stem, stem) for stem in stems if stem not in ("the", "of"))


_BASES = [
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen",
]  # fmt: skip
_BASE_NAME = rf"\(?(?:base )? ?([0-9]+|{'|'.join(_BASES)})\)?"
_BASE = re.compile(rf"\(?([0-9A-Za-z.]+)\)? ?(?:_\{{ ?{_BASE_NAME} ?\}}|(?:in )?(?=\(?base ){_BASE_NAME})")


def same_numeral(answer: str, gold: str) -> bool | None:
    """Numerals in a base: digits and base must agree; the answer may leave the base out."""
    given, expected = _numeral(answer), _numeral(gold)
    if expected is not None:
        digits, base = given or (answer, expected[1])
        return (digits.lstrip("0").upper(), base) == (expected[0].lstrip("0").upper(), expected[1])
    if given is not None:
        return given == (gold, 10)
    return None


def _numeral(text: str) -> tuple[str, int] | None:
    r"""Digits and base of `52_{8}`, `52_{\text{eight}}`, `52 \text{ (base 8)}`."""
    found = _BASE.fullmatch(text)
    if found is None or not re.match(r"\(?[0-9]", text):
        return None
    base = next(group for group in found.groups()[1:] if group)
    return found[1], int(base) if base.isdigit() else _BASES.index(base) + 2


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
