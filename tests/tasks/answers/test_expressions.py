"""Constant expressions: a table, expressions that SymPy writes and evaluates, and hostile text."""

import math
from fractions import Fraction

import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tyler.tasks.answers.expressions import value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\frac{\pi}{4}", math.pi / 4), (r"2\pi", 2 * math.pi), (r"\sqrt{2}", 2**0.5), (r"e^{-2}", math.exp(-2)),
        (r"\ln 2", math.log(2)), (r"1.2 \times 10^{-3}", 0.0012), ("1.2e-3", 0.0012), ("e-1", math.e - 1),
        (r"5 \frac{1}{2}", 5.5), (r"5\frac12", 5.5), ("5 1/2", 5.5), (r"-5\frac{1}{2}", -5.5), ("1,234", 1234),
        (r"1\,234", 1234), ("1{,}234.5", 1234.5), ("3!", 6), (r"\binom{8}{3}", 56), (r"\sin\frac{\pi}{6}", 0.5),
        (r"\sin 30^\circ", 0.5), (r"\log_2 8", 3), (r"\log_{10}(100)", 2), (r"\sqrt[3]{8}", 2), ("√2", 2**0.5),
        (r"\frac12", 0.5), ("2^10", 1024), ("10^-3", 0.001), ("-2^2", -4), ("2*3+4", 10), (r"0.\overline{3}", 1 / 3),
        (r"\frac{1+\sqrt5}{2}", (1 + 5**0.5) / 2), (r"\arctan(1)", math.pi / 4), (r"\tan^{-1}(1)", math.pi / 4),
        ("sqrt(2)/2", 2**0.5 / 2), ("exp(-2)", math.exp(-2)), (r"\cos^2(0)", 1), (r"3\cdot 4", 12), ("2(3+4)", 14),
        (r"\left(\frac{1}{2}\right)^3", 0.125), ("pi/2", math.pi / 2), ("12", 12), ("10^{400}", 10**400),
        ("1/2/2", 0.25), (r"\ln(e)", 1), ("2e^{-1}", 2 / math.e), (r"e^{-1/2}", math.exp(-0.5)),
        (r"-\frac{3}{4}", -0.75), (r"\frac{-3}{4}", -0.75),
    ],
)  # fmt: skip
def test_an_expression_has_its_value(text, expected):
    result = value(text)
    assert result is not None
    assert result == expected or math.isclose(result, expected, rel_tol=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "12,34", "2 3", "1/2\\pi", "9^{9^{9}}", "200!", "((3!)!)!", "1/0", r"\sqrt{-1}", "x", "3x", "", ".", "-", "٤",
        "2516_8", "12:00", r"90^\circ", "(" * 200 + "1" + ")" * 200, "__import__", "5 cm", "2^{2^{2^{2^2}}}",
        "2^" * 150 + "2", "-" * 300 + "1", r"\infty", "log10(100)", r"e^{-10000}",
        "171!", "e^{1000}", "e^{-1000}", "10^{2000}",
    ],
)  # fmt: skip
def test_what_is_no_constant_expression_or_too_large_has_no_value(text):
    assert value(text) is None


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("0.1 + 0.2", Fraction(3, 10)),
        (r"\frac{1}{3} - 0.\overline{3}", Fraction(0)),
        ("170!", Fraction(math.factorial(170))),
        (r"\sqrt{\frac{4}{9}}", Fraction(2, 3)),
        (r"\sqrt[3]{27}", Fraction(3)),
        ("2^{-3}", Fraction(1, 8)),
        ("(-1)^{1001}", Fraction(-1)),
        (r"1.2 \times 10^{-30}", Fraction(12, 10**31)),
    ],
)
def test_rational_arithmetic_is_exact(text, exact):
    result = value(text)
    assert isinstance(result, Fraction)
    assert result == exact


def test_what_the_rounded_e_lacks_is_not_multiplied():
    assert value("e^{20}") == math.exp(20) != math.e**20


LEAVES = st.one_of(
    st.integers(1, 40).map(sympy.Integer),
    st.fractions(Fraction(1, 9), 9, max_denominator=12).map(lambda f: sympy.Rational(f.numerator, f.denominator)),
    st.sampled_from([sympy.pi, sympy.E, sympy.sqrt(2), sympy.sqrt(7)]),
)


def combined(children: st.SearchStrategy[sympy.Expr]) -> st.SearchStrategy[sympy.Expr]:
    unary = st.sampled_from([sympy.sqrt, sympy.exp, sympy.log, sympy.sin, sympy.cos, sympy.atan, lambda x: -x])
    binary = st.sampled_from([lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y])
    powers = st.tuples(children, st.integers(-4, 4)).map(lambda pair: pair[0] ** pair[1] if pair[0] != 0 else pair[0])
    return st.one_of(
        st.tuples(unary, children).map(lambda pair: pair[0](pair[1])),
        st.tuples(binary, children, children).map(lambda three: three[0](three[1], three[2])),
        powers,
    )


@settings(max_examples=200, deadline=None)
@given(st.recursive(LEAVES, combined, max_leaves=5))
def test_what_sympy_writes_has_the_value_that_sympy_gives(expression):
    assume(not expression.has(sympy.zoo, sympy.nan, sympy.oo) and expression.is_real)
    expected, text = expression.evalf(30), sympy.latex(expression)
    assume(expected.is_Float or expected.is_Integer)
    assume(len(text) < 300 and 1e-9 < abs(expected) < 1e100)
    waves = [wave.args[0].evalf() for wave in expression.atoms(sympy.sin, sympy.cos)]
    assume(all(abs(argument) < 1e6 for argument in waves))  # of 2**60 a double does not know the wave
    result = value(text)
    assert result is not None, text
    assert math.isclose(result, float(expected), rel_tol=1e-6), text


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from("0123456789.,+-*/^!(){}[] \\e_piesqrtfaclnogb\0\u0667π√°"), max_size=60))
def test_any_text_has_a_finite_value_or_none(text):
    result = value(text)
    assert result is None or isinstance(result, Fraction) or math.isfinite(result)
