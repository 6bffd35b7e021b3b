"""The process behind `tyler.tasks.answers.symbolic`: says whether two LaTeX expressions have the same value.

Run as a script, on its own and never imported by the package. It loads math-verify's LaTeX reader once, then a forked
child answers until a question takes too long, too much memory or breaks it, and another is forked. A question is one
JSON line `[relation, answer, gold, seconds]` on standard input; a reply is one byte on standard output: `1` the same,
`0` not the same or not to be shown so, `t` out of time or memory. The first byte is `r`, when all is loaded.

Only the reader (latex2sympy2_extended) is used: it matches a grammar and evaluates no text, whereas math-verify's
comparison rounds (1/2004! = 1/2006!) and reads equations, sets and tuples loosely. Values are compared here, at
rational points: two are the same where their difference shows no certain digit, however small it is.
"""

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, TextIO

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, NormalizationConfig, latex2sympy

_AS_WRITTEN = NormalizationConfig(
    basic_latex=False, units=False, malformed_operators=False, nits=False, boxed="none", equations=False
)
_PLAIN = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
_DECIMAL = re.compile(r"([0-9]*)\.([0-9]+)")
_CONSTANTS = {sympy.Symbol("i"): sympy.I, sympy.Symbol("e"): sympy.E}

_POINTS = 6
_GUARD = 15
_MEMORY = 2 << 30


class _NoValueError(ValueError):
    """An expression has no number as its value where one is needed."""


@lru_cache(maxsize=256)
def read(latex: str) -> sympy.Expr:
    """The expression that `latex` writes; decimals are exact. Raises an Exception where the grammar does not fit."""
    exact = _DECIMAL.sub(lambda number: f"(\\frac{{{number[1]}{number[2]}}}{{1{'0' * len(number[2])}}})", latex)
    expression = latex2sympy(exact, convert_degrees=False, normalization_config=_AS_WRITTEN, conversion_config=_PLAIN)
    return expression.xreplace(_CONSTANTS).doit()


def same(relation: str, answer: str, gold: str) -> bool:
    """Whether both have one value everywhere (`equal`), or a constant ratio (`proportional`), or a positive
    one (`positive`)."""
    given, expected = read(answer), read(gold)
    if relation == "equal":
        return given == expected or _equal(given, expected, len(answer) + len(gold))
    ratio = _constant_ratio(given, expected)
    return ratio is not None and (relation == "proportional" or ratio > 0)


def _equal(given: sympy.Expr, expected: sympy.Expr, length: int) -> bool:
    """Whether no point shows a difference: not a single digit of it is certain, at a precision beyond what was written.

    Half of the points are positive, half of mixed signs. The latter count only where no root or logarithm is of a
    negative number, so that sqrt(x^2 y) is x sqrt(y), as it is meant for lengths, but sqrt(x^2) is not x.
    """
    if given.is_Rational and expected.is_Rational:
        return False
    difference, compared = given - expected, False
    try:
        for positive, point in _points(given, expected):
            value = _value(difference, point, most=_GUARD * 10 + 2 * length)
            if not value.is_finite or not (positive or all(_in_domain(side, point) for side in (given, expected))):
                continue
            if value != 0:
                return False
            compared = True
    except _NoValueError:
        return bool(sympy.simplify(difference) == 0)
    return compared


def _constant_ratio(given: sympy.Expr, expected: sympy.Expr) -> sympy.Expr | None:
    """The real number that `given` is of `expected` at every point, or None."""
    try:
        values = [(_value(given, point), _value(expected, point)) for _, point in _points(given, expected)]
    except _NoValueError:
        return None
    ratios = [value / other for value, other in values if value.is_finite and other.is_finite and value != 0 != other]
    if len(ratios) < 3:
        return None
    first = ratios[0]
    constant = all(abs(ratio - first) < abs(first) * sympy.Float(10) ** (-_GUARD) for ratio in ratios)
    return first if constant and first.is_real else None


def _points(given: sympy.Expr, expected: sympy.Expr) -> Iterator[tuple[bool, dict[sympy.Symbol, sympy.Rational]]]:
    """Points for all symbols, and whether the point is positive; a single one where there are no symbols."""
    symbols = sorted(given.free_symbols | expected.free_symbols, key=str)
    for index in range(_POINTS if symbols else 1):
        positive = index % 2 == 0
        point = {
            symbol: sympy.Rational(sympy.prime(5 + 3 * number + index), 7 + index)
            * (1 if positive or (number + index // 2) % 2 else -1)
            for number, symbol in enumerate(symbols)
        }
        yield positive, point


def _in_domain(expression: sympy.Expr, point: dict[sympy.Symbol, sympy.Rational]) -> bool:
    """Whether every root and logarithm at this point is of a number that is not negative."""
    roots = [power.base for power in expression.atoms(sympy.Pow) if not power.exp.is_integer]
    inner = [_value(part, point) for part in [*roots, *(log.args[0] for log in expression.atoms(sympy.log))]]
    return all(value.is_real and value >= 0 for value in inner)


def _value(expression: sympy.Expr, point: dict[sympy.Symbol, sympy.Rational], most: int = 200) -> Any:
    """The value at a point, to 2 * _GUARD digits, worked out with `most` digits at most."""
    value = expression.evalf(2 * _GUARD, subs=point, maxn=most)
    if value in (sympy.nan, sympy.zoo):
        return value
    if not value.is_number or value.has(sympy.Function):
        raise _NoValueError("not a number")
    real, imaginary = (_settled(part) for part in value.as_real_imag())
    return real + sympy.I * imaginary


def _settled(part: sympy.Expr) -> sympy.Expr:
    """Zero for a number of which few digits are certain, for all the precision: what is left of a cancellation."""
    return sympy.S.Zero if isinstance(part, sympy.Float) and part._prec < 3 * _GUARD else part


def serve() -> None:
    """Answer the questions of standard input until it closes."""
    questions, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)  # what a library prints must not become a reply
    with suppress(ValueError, OSError):  # macOS does not let it be set
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    os.write(replies, b"r")
    while child := os.fork():
        if os.waitpid(child, 0)[1] == 0:  # standard input closed
            return
        os.write(replies, b"t")
    try:
        _answer(os.fdopen(questions, encoding="utf-8"), replies)
    except MemoryError:
        os._exit(1)
    os._exit(0)


def _answer(questions: TextIO, replies: int) -> None:
    """Reply to each question; the alarm of one that takes too long ends the process, whatever it does."""
    for line in questions:
        relation, answer, gold, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            reply = b"1" if same(relation, answer, gold) else b"0"
        except MemoryError:
            raise
        except Exception:  # the reader and sympy raise of every kind on what they cannot do
            reply = b"0"
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(replies, reply)


if __name__ == "__main__":
    sys.setrecursionlimit(3000)
    latex2sympy("x^{2}+\\frac{1}{2}\\sqrt{3}", normalization_config=_AS_WRITTEN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve()
