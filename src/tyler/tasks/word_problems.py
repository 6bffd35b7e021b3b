"""Texts and numbers of word problems as people write them, from tokenised texts and from floats."""

from __future__ import annotations

import re
from fractions import Fraction

from tyler.tasks.data_files import Row

_NAMES = """
    aaron abe adam adolfo aiyanna alan albert alec alex alexa alexander alicia alissa allan allen allie allyson alvin
    alyssa amanda amy anderson andre andrew andy angela anita ann anna anne annette annie anthony antonia arthur
    ashley audrey barbara becky beka bella belle ben benjamin benny bert beryl beth betty beverly bianca billie billy
    blake bob bobby bonnie brad brandon brandy brenda brennan brett brian bridget bruce bruno bryan bryon buddy cade
    caitlin carey carl carla carlos carol carolyn carrie carson carter catherine ceasar chad charlene charles charlie
    charlotte cheryl chloe chris christian christina christine christopher cindy clarence cody conner connie
    corey craig cunningham dale dalton dan dana daniel danny darius darnel dave david dean debby deborah debra denise
    dennis derek derrick diana diane dina donald donna dora doris dorothy doug douglas dylan ed edgar edward elisa
    elise elizabeth ella ellen ellison emily eric erica erik erin ernest ethan eugene evan eve evelyn ezra faye finn
    flannery frances frank frankie franklin frannie fred garrett gary gavin george gerald geraldine gino gloria gordon
    grace greg griffin guzman gwen haley hancock hannah harold harry harvey hayley hazel heather heine helen henry
    hilt holly howard iesha irene irwin isabel isabella isha jack jackie jackson jacqueline jacques jake jakes james
    jane janet janice janine jasmine jason jasper jazmin jean jeff jeffrey jen jenn jennifer jenny jeremy jerry jesse
    jessica jessie jill joan joe john johnny joline jonah jonathan jones jordan jorge jose joseph josh joshua jovana
    joyce juan judy julia julian julie justin kaleb kaleen karen karin kate katerina katherine kathleen kathryn kathy
    katie keith kelly kendall kendra kenji kenneth kenny kevin kim kimberly kirsten kristi kurt kyle kylie kyoko lana
    larry laura laurie lawrence lee lena lenny lewis lex lexi lexie lillian lily linda lindsey lino lisa liz lizette
    lizzie logan lori lou louis louise lucy luis lukas luke madison maggi maggie mandy marcia marcie marco marcus
    margaret maria marian marie mariela marilyn marin mark marlee marta martha martin marvin mary mason matt matthew
    maura max meg megan melanie melissa michael michelle mika mikayla mike mikey miki mildred millie minerva misha
    mitch molly mona montoya morgan nancy nathan neale ned nell nicholas nick nicole nina norma oliver olivia olsen
    omar oscar paco paige pamela pat patricia patrick paul paula penny peter philip phillip phyllis priya rachel ralph
    ramon randall randy rebecca richard rick riley rob robert robin robyn roden roger ron ronald rosa roy ruby rupert
    russell ruth ryan sally sam sammy sandra sandy santiago sara sarah scarlett scott sean seth shannon sharon shawn
    shelby sheridan shiela shirley simon smith snyder sofia spencer stanley stephanie steve steven sue sumata susan
    susie suzie tammy tanner ted terrell terry teresa tess tessa theresa thomas tiffany tim timothy tina todd
    tom tommy tony tori trevor tripp trisha tyler vanessa victor vince vincent vinnie virginia wagner wagners wally
    wanda warren wayne welch wendy william willie willy winnie wong yardley zach zachary zoe
"""

PERSON_NAMES = frozenset(_NAMES.split())


_PLACES = 6
"""Decimal places that a number is written with; one that needs more is written as a fraction."""
_REPEATING = 10
"""From so many decimals on, a published number is a repeating one that was cut off (0.16666666666666666)."""
_LARGEST_DENOMINATOR = 1000

_CAPITAL = PERSON_NAMES | {"i", "mr", "mrs", "ms"}
_PATTERNS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"[’`]", "'"),
        (r"''", "'"),
        (r" +", " "),
        (r"(?i) ('|n')(s|t|re|ve|ll|d|m)\b", r"\1\2"),
        (r"' s\b", "'s"),
        (r" '(?=s\b)", "'"),
        (r"(?<=s) '(?= )", "'"),
        (r"(?<!\S)' ?([^']+?) ?'(?!\w)", r"'\1'"),
        (r" +([.,?;:%!)])", r"\1"),
        (r"([$(]) +", r"\1"),
        (r"(?<=\w) - (?=[A-Za-z])", "-"),
    )
)
_LETTERS = re.compile(r"[a-z]+")
_SENTENCE = re.compile(r"(?:^|(?<=[.?!] ))[a-z]")


def readable(text: str) -> str:
    """A tokenised text (`Tom 's cat cost $ 5 .`) with spaces, quotes and capitals as people write them.

    In a text without any capital, persons' names get theirs.
    """
    if text == text.lower():
        text = _LETTERS.sub(lambda word: word[0].title() if word[0] in _CAPITAL else word[0], text)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
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
    whole, places = divmod(scaled.numerator, 10**_PLACES)
    sign = "-" if number < 0 else ""
    return f"{sign}{whole}.{places:0{_PLACES}}".rstrip("0").rstrip(".")


def _mixed(number: Fraction, fraction: str, space: str) -> str:
    whole, top = divmod(abs(number.numerator), number.denominator)
    sign = "-" if number < 0 else ""
    return sign + (f"{whole}{space}" if whole else "") + fraction.format(top, number.denominator)
