r"""Constant expressions: the value of `\frac{\pi}{4}`, `1.2 \times 10^{-3}`, `2\sqrt{3}`, `\binom{8}{3}`.

A recursive descent over LaTeX or plain text, in steps and sizes that are bounded, so that model output is only ever
read: nothing is evaluated as code, and `9^{9^{9}}` has no value, at once. Rational arithmetic is exact.
"""

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from tyler.tasks.answers.boxed import plain
from tyler.tasks.answers.quantities import MIXED, NUMERAL, mixed, numeral

Value = Fraction | float
"""Exact where the expression is rational, else a finite float."""

_MAX_LENGTH = 400
_MAX_DEPTH = 24
_MAX_BITS = 4096
_MAX_FACTORIAL = 170

_FRACTION = re.compile(r"\\frac(?![A-Za-z])")
_ROOT = re.compile(r"\\sqrt(?![A-Za-z])|sqrt(?![A-Za-z])|√")
_BINOMIAL = re.compile(r"\\[dt]?binom(?![A-Za-z])")
_TIMES = re.compile(r"\\(?:cdot|times)(?![A-Za-z])|\*(?!\*)|[×·⋅]")
_OVER = re.compile(r"\\div(?![A-Za-z])|[/÷]")
_POWER = re.compile(r"\^|\*\*")
_DEGREES = re.compile(r" ?(?:\^ ?(?:\{ ?\\circ ?\}|\\circ)|\\degree(?![A-Za-z])|°)")
_WORD = re.compile(r"\\operatorname ?\{([A-Za-z]+)\}|\\?([A-Za-z]+)|π")

_CONSTANTS: Mapping[str, Value] = {"pi": math.pi, "e": math.e}
_NAMED = ("exp", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan")
_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    **{name: getattr(math, name) for name in _NAMED},
    **{f"arc{name}": getattr(math, f"a{name}") for name in ("sin", "cos", "tan")},
    "ln": math.log,
    "log": math.log,  # with the base that is given
    "lg": math.log10,
    "cot": lambda x: 1 / math.tan(x),
    "sec": lambda x: 1 / math.cos(x),
    "csc": lambda x: 1 / math.sin(x),
}
_CLOSING = {"(": ")", "{": "}", "[": "]"}


class _UnreadableError(Exception):
    """The text is not a constant expression, or too large a one."""


def value(text: str, *, log_base: float = math.e) -> Value | None:
    r"""The value of a constant expression, or None where `text` is not one, or is too long, too deep or too large.

    Numbers (with thousands separators, exponents, repeating decimals), mixed numbers, `+ - * / ^ !`, implicit
    products, `\frac`, `\sqrt[n]`, `\binom`, `\pi`, `e`, and functions; `\log` without a base has `log_base`, degrees
    count only inside a function. `1/2\pi` has no value: it reads both ways.
    """
    if len(text) > _MAX_LENGTH:
        return None
    try:
        reader = _Reader(plain(text), log_base)
        result = reader.nested(reader.sum)
        return None if reader.ahead(".") else result
    except (_UnreadableError, ArithmeticError, ValueError):
        return None


class _Reader:
    """Reads one expression. Every method starts at `at`, and leaves it behind what it has read."""

    def __init__(self, text: str, log_base: float) -> None:
        self.text, self.log_base = text, log_base
        self.at = self.depth = self.in_function = 0

    def ahead(self, pattern: re.Pattern[str] | str) -> re.Match[str] | None:
        """The match of a pattern after spaces, if there is a nonempty one."""
        while self.text.startswith(" ", self.at):
            self.at += 1
        match = re.compile(pattern).match(self.text, self.at)
        return match if match and match[0] else None

    def take(self, pattern: re.Pattern[str] | str) -> re.Match[str] | None:
        """The same, and it is read."""
        if match := self.ahead(pattern):
            self.at = match.end()
        return match

    def nested(self, read: Callable[[], Value | None]) -> Value:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _UnreadableError
        result = read()
        self.depth -= 1
        return _readable(result)

    def signed(self, read: Callable[[], Value | None]) -> Value:
        sign = self.take("[+-]")
        result = _readable(read())
        return -result if sign and sign[0] == "-" else result

    def sum(self) -> Value:
        result = self.signed(self.product)
        while self.ahead("[+-]"):
            result = _checked(result + self.signed(self.product))
        return result

    def product(self) -> Value:
        result = self.run()
        while True:
            if self.take(_TIMES):
                result = _checked(result * self.signed(self.run))
            elif self.take(_OVER):
                result = _checked(result / self.signed(self.factor))
                if self.factor() is not None:
                    raise _UnreadableError
            else:
                return result

    def run(self) -> Value:
        """Factors side by side: their product. Two numbers side by side are nothing."""
        result = _readable(self.factor())
        while True:
            if self.ahead("[0-9]") and self.text[: self.at].rstrip()[-1:].isdigit():
                raise _UnreadableError
            if (factor := self.factor()) is None:
                return result
            result = _checked(result * factor)

    def factor(self) -> Value | None:
        """An atom with its factorials, degrees and power, or None where none starts here."""
        if (result := self.atom()) is None:
            return None
        while self.take("!"):
            result = _factorial(result)
        if self.in_function and self.take(_DEGREES):
            result = math.radians(result)
        if _DEGREES.match(self.text, self.at):
            raise _UnreadableError
        return _power(result, self.exponent()) if self.take(_POWER) else result

    def exponent(self) -> Value:
        group = self.group(r"\{")
        return self.signed(lambda: self.nested(self.factor)) if group is None else group

    def group(self, opening: str) -> Value | None:
        """What stands in brackets, or None where none open here."""
        if (opened := self.take(opening)) is None:
            return None
        result = self.nested(self.sum)
        if (end := self.take(".")) is None or end[0] != _CLOSING[opened[0]]:
            raise _UnreadableError
        return result

    def atom(self) -> Value | None:
        if match := self.take(MIXED):
            return _readable(mixed(match))
        if match := self.take(NUMERAL):
            return _readable(numeral(match))
        if (group := self.group("[({]")) is not None:
            return group
        if self.take(_FRACTION):
            return _checked(self.argument() / self.argument())
        if self.take(_BINOMIAL):
            return _binomial(self.argument(), self.argument())
        if self.take(_ROOT):
            degree = self.group(r"\[")
            match = self.take(NUMERAL)
            return _root(self.nested(self.atom) if match is None else _readable(numeral(match)), degree)
        return self.named()

    def argument(self) -> Value:
        r"""What a command takes: a group, one digit (`\frac12`) or one command."""
        if (group := self.group(r"\{")) is not None:
            return group
        if digit := self.take("[0-9]"):
            return Fraction(int(digit[0]))
        if not self.ahead(r"\\"):
            raise _UnreadableError
        return self.nested(self.atom)

    def named(self) -> Value | None:
        if self.ahead(_TIMES) or self.ahead(_OVER) or not (word := self.take(_WORD)):
            return None
        name = word[1] or word[2] or "pi"
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name not in _FUNCTIONS or self.text[self.at : self.at + 1].isdigit():
            raise _UnreadableError
        return self.nested(lambda: self.function(name))

    def function(self, name: str) -> Value:
        base = self.argument() if name == "log" and self.take("_") else self.log_base
        power = self.exponent() if self.take(_POWER) else None
        if power == -1:
            name, power = f"arc{name}", None
        if name not in _FUNCTIONS:
            raise _UnreadableError
        self.in_function += 1
        inside = float(self.applied())
        self.in_function -= 1
        result = _logarithm(inside, float(base)) if name == "log" else _FUNCTIONS[name](inside)
        return _checked(result if power is None else _power(result, power))

    def applied(self) -> Value:
        """What a function is applied to: a parenthesis, or the factors that follow up to the next function."""
        if (group := self.group("[({]")) is not None:
            return group
        result = self.signed(self.factor)
        while not ((word := self.ahead(_WORD)) and (word[1] or word[2]) in _FUNCTIONS):
            if (factor := self.factor()) is None:
                break
            result = _checked(result * factor)
        return result


def _readable(result: Value | None) -> Value:
    if result is None:
        raise _UnreadableError
    return result


def _checked(result: Value) -> Value:
    """`result`, if it is of a size to go on with."""
    if isinstance(result, Fraction):
        if max(result.numerator.bit_length(), result.denominator.bit_length()) > _MAX_BITS:
            raise _UnreadableError
    elif not math.isfinite(result):
        raise _UnreadableError
    return result


def _integer(number: Value) -> int:
    if isinstance(number, Fraction) and number.denominator == 1 and number >= 0:
        return number.numerator
    raise _UnreadableError


def _factorial(number: Value) -> Fraction:
    if (n := _integer(number)) > _MAX_FACTORIAL:
        raise _UnreadableError
    return Fraction(math.factorial(n))


def _binomial(top: Value, bottom: Value) -> Fraction:
    n, k = _integer(top), _integer(bottom)
    if n > 10_000 or min(k, n - k) > 500:
        raise _UnreadableError
    return Fraction(math.comb(n, k))


def _power(base: Value, exponent: Value) -> Value:
    """The real power, exact for whole exponents of rationals. Not readable where complex, too large or lost to zero."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if base in (0, 1, -1) or bits * abs(exponent.numerator) <= _MAX_BITS:
            return Fraction(base ** (exponent.numerator % 2 + 2 if base in (1, -1) else exponent.numerator))
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent == Fraction(1, 2):
        return _root(base, None)
    # e itself is rounded, and a power would multiply what it lacks
    result = math.exp(exponent) if base == math.e else math.pow(float(base), float(exponent))
    if result == 0 and base != 0:
        raise _UnreadableError
    return _checked(result)


def _root(number: Value, degree: Value | None) -> Value:
    n = 2 if degree is None else _integer(degree)
    if not 2 <= n <= 64:
        raise _UnreadableError
    if isinstance(number, Fraction) and number >= 0:
        whole = Fraction(round(number.numerator ** (1 / n)), round(number.denominator ** (1 / n)))
        if whole**n == number:
            return whole
    if number < 0 and n % 2 == 0:
        raise _UnreadableError
    return math.copysign(math.pow(abs(float(number)), 1 / n), number)


def _logarithm(number: float, base: float) -> float:
    return math.log2(number) if base == 2 else math.log10(number) if base == 10 else math.log(number, base)
