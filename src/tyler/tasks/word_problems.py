"""Texts and numbers of word problems as people write them, from tokenised texts and from floats, and their templates:
what is left of a text without its numbers and names.

MAWPS and ASDiv-A hold many problems several times, with other numbers, names or things. Held-out problems mean little
where their twins are trained on, so like problems are in one split.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path

from tyler.tasks.data_files import Row

_NAMES = Path(__file__).with_name("names.txt").read_text("utf-8").split("\n\n")
_PUBLISHED, *NAMES = (frozenset(names.split()) for names in _NAMES)
PERSON_NAMES = _PUBLISHED.union(*NAMES)
"""All names of people, in lower case: those in published problems, and NAMES, first names to put in their place: of
boys and men, and of girls and women, as the new name has to fit the old one's pronouns."""

_PLACES = 6
"""Decimal places that a number is written with; one that needs more is written as a fraction."""
_REPEATING = 10
"""From so many decimals on, a published number is a repeating one that was cut off (0.16666666666666666)."""
_LARGEST_DENOMINATOR = 1000

_CAPITAL = PERSON_NAMES | {"i", "mr", "mrs", "ms"}
_REPLACEMENTS = {
    r"[’`]": "'",
    r"''": "'",
    r" +": " ",
    r"(?i) ('|n')(s|t|re|ve|ll|d|m)\b": r"\1\2",
    r"' s\b": "'s",
    r" '(?=s\b)": "'",
    r"(?<=s) '(?= )": "'",
    r"(?<!\S)' ?([^']+?) ?'(?!\w)": r"'\1'",
    r" +([.,?;:%!)])": r"\1",
    r"([$(]) +": r"\1",
    r"(?<=\w) - (?=[A-Za-z])": "-",
}
_LETTERS = re.compile(r"[a-z]+")
_SENTENCE = re.compile(r"(?:^|(?<=[.?!] ))[a-z]")


def readable(text: str) -> str:
    """A tokenised text (`Tom 's cat cost $ 5 .`) with spaces, quotes and capitals as people write them.

    In a text without any capital, persons' names get theirs.
    """
    if text == text.lower():
        text = _LETTERS.sub(lambda word: word[0].title() if word[0] in _CAPITAL else word[0], text)
    for pattern, replacement in _REPLACEMENTS.items():
        text = re.sub(pattern, replacement, text)
    return _SENTENCE.sub(lambda first: first[0].upper(), text.strip())


def published_number(row: Row, field: str, text: str) -> Fraction:
    """A number as published, exactly; a repeating decimal that was cut off is the fraction that it stands for.

    Raises ValueError by file, line and field where it is not a decimal number.
    """
    if not re.fullmatch(r"-?[0-9]+(?:\.[0-9]+)?", text, re.ASCII):
        raise row.error(field, f"must hold decimal numbers, got{row.shown(text)}")
    number = Fraction(text)
    if len(text.partition(".")[2]) < _REPEATING:
        return number
    return number.limit_denominator(_LARGEST_DENOMINATOR)


def written(number: Fraction) -> str:
    """A number in a sentence: `56`, `3.25`, `1/6`, `2 1/3`."""
    return decimal(number) or _mixed(number, "{0}/{1}", " ")


def in_formula(number: Fraction) -> str:
    r"""A number in LaTeX: `56`, `3.25`, `\frac{1}{6}`, `2\frac{1}{3}`."""
    return decimal(number) or _mixed(number, r"\frac{{{0}}}{{{1}}}", "")


def decimal(number: Fraction) -> str | None:
    """The number without needless zeros, or None where six places do not hold it."""
    scaled = abs(number) * 10**_PLACES
    if scaled.denominator != 1:
        return None
    whole, decimals = divmod(scaled.numerator, 10**_PLACES)
    sign = "-" if number < 0 else ""
    return f"{sign}{whole}.{decimals:0{_PLACES}}".rstrip("0").rstrip(".")


def _mixed(number: Fraction, fraction: str, space: str) -> str:
    whole, top = divmod(abs(number.numerator), number.denominator)
    sign = "-" if number < 0 else ""
    return sign + (f"{whole}{space}" if whole else "") + fraction.format(top, number.denominator)


# --- templates ------------------------------------------------------------------------------------------------------

SIMILARITY = 0.6
"""Templates are alike whose words have at least this Jaccard similarity,"""
CONTAINMENT = 0.9
"""or where at least this share of the words of one are words of the other."""

_NUMBERS = (
    "one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty hundred thousand "
    "dozen twice half"
)
_NUMBER_WORDS = frozenset(_NUMBERS.split())
_PRONOUNS = {"she": "he", "her": "his", "hers": "his", "him": "his", "herself": "himself"}
_WORD = re.compile(r"[0-9][0-9.,/]*|[a-z]+")


def template(text: str) -> str:
    """The words of a problem, lower case, numbers as `#` and names as `@`, nouns in the singular, one gender.

    Two problems with one template differ in nothing but numbers, names, case, punctuation and number words.
    """
    plain = re.sub(r" ?'s\b", " ", re.sub(r" ?n't\b", "nt", text.replace("’", "'").casefold()))
    return " ".join(_masked(word) for word in _WORD.findall(plain))


def _masked(word: str) -> str:
    if word[0].isdigit() or word in _NUMBER_WORDS:
        return "#"
    return "@" if word in PERSON_NAMES else _PRONOUNS.get(word, _singular(word))


def _singular(word: str) -> str:
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "xes", "sses", "oes")):
        return word[:-2]
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word


def alike(templates: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of templates with a Jaccard similarity or a containment of words above the thresholds."""
    bits: dict[str, int] = {}
    masks = []
    for text in templates:
        words = set(text.split())
        masks.append((text, sum(1 << bits.setdefault(word, len(bits)) for word in words), len(words)))
    pairs = []
    for (text, mask, size), (other_text, other_mask, other_size) in combinations(masks, 2):
        shared = (mask & other_mask).bit_count()
        if shared >= SIMILARITY * (size + other_size - shared) or shared >= CONTAINMENT * min(size, other_size):
            pairs.append((text, other_text))
    return pairs
