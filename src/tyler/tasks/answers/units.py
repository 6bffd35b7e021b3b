"""The one table of units, currencies and scales, and of words that do not count because they change a number."""

from __future__ import annotations

import re

_TABLE = """
meter metre m / centimeter centimetre cm / millimeter millimetre mm / kilometer kilometre km / inch inche in /
foot feet ft / yard yd / mile mi / mile_per_hour mph / kilometer_per_hour kph kmh / square sq / cubic cu /
gram g / kilogram kg / milligram mg / pound lb / ounce oz / ton / liter litre l / milliliter millilitre ml /
gallon / quart / pint / cup / second sec s / minute min / hour hr h / day / week / month / year /
dollar usd / cent / euro / penny pennie / nickel / dime / quarter / degree / radian rad / percent / unit /
celsius c / fahrenheit f / volt / watt / joule / newton
"""
NAMES = {
    spelling: words[0].replace("_", " ")
    for words in (entry.split() for entry in _TABLE.split("/"))
    for spelling in words
}
"""The name of each unit that needs no `\\text{}`, in the singular, by its spellings."""
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Words that are part of a number, and the power of ten they multiply it by."""
CURRENCIES = {r"\dollar": "dollar", "£": "pound", "€": "euro"}

ARTICLES = frozenset(("a", "an", "the"))
_JOINING = frozenset(("per", "of", "in", *ARTICLES))
_ONLY_JOINED = frozenset(("m", "s", "g", "h", "l", "c", "f", "a"))

MULTIPLES = "dozens?|tens|hundreds|thousands|millions|billions"
PARTS = (
    "halves|thirds|fourths|fifths|sixths|sevenths|eighths|ninths|tenths|hundredths|thousandths|squared|cubed|factorial"
)
ORDINALS = "st|nd|rd|th"
DENIALS = "not|never|none|wrong|incorrect|false|unknown|maybe|perhaps|probably"

_SYMBOL = re.compile(
    r"[kKmcμµnpMGTdh]?(?:m|g|s|Hz|J|N|V|A|W|K|Pa|eV|bar|[lL]|F|T|H|C|mol|Ω|cal|dB|rad|Wb|Wh|VA|VAR|VAr|var)"
    r"|[kMGT]i?[Bb](?:ps)?|of|in|on|at|US|qt|pt|ha|ct|pc|px|°?[CF]|h|hr|hrs|min|mins|sec|secs|ft|sq|cu|lb|lbs|oz|mi"
    r"|mph|mpg|kmh|kph|rpm|rps|yd|yds|atm|psi|amu|u|deg|ppm"
    r"|am|pm|bits?|bytes?|nats?|dBm?|USD|EUR|dollars?|cents?|degrees?|years?|days?|hours?|minutes?"
)


def is_symbol(word: str) -> bool:
    """Whether a word may touch its number (`5cm`, `5kWh`), where another would be letters that multiply it."""
    return _SYMBOL.fullmatch(word) is not None


def is_known(words: str) -> bool:
    r"""Whether each word is part of a unit that needs no `\text{}` to be told from a product of letters."""
    return all(map(_is_known_word, re.findall("[a-z]+", words.lower())))


def _is_known_word(word: str) -> bool:
    return word in _JOINING or (singular(word) in NAMES and word not in _ONLY_JOINED)


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


def is_small(word: str) -> bool:
    """Whether a word of one or two letters is part of a unit."""
    return word in _JOINING or (len(word) > 1 and word in NAMES)
