"""TheoremQA: typed answers in both modes, on a table of cases and on every published gold answer."""

import json
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from tyler.tasks.benchmarks.theoremqa import TASK, gold_value, problem
from tyler.tasks.data_files import Row, read_rows
from tyler.tasks.problem import GradeOptions, Outcome, Problem

MODES = ("official", "strict")


def outcome(answer: str, gold: str, mode: str) -> Outcome:
    return TASK.verdict(f"So it is \\boxed{{{answer}}}.", gold, GradeOptions(mode=mode)).outcome


CASES = {
    ("correct", "correct"): [
        (r"\frac{\pi}{4}", "0.78539815"), (r"\pi/4", "0.785"), (r"\sqrt{2}", "1.414"), ("e^{-1}", "0.367879441"),
        (r"\frac{\pi}{4} \approx 0.785", "0.78539815"), (r"0.785 = \frac{\pi}{4}", "0.785"), ("0", "0.0"),
        ("0.0", "0"), ("-0", "0"), ("1e-15", "0.0"), ("1/3", "0.333"), ("0.3333", "0.333"), ("1", "1.0"),
        ("11,760", "11760"), ("11760.0", "11760"), (r"\frac{23520}{2}", "11760"), ("2^{10}", "1024"), ("8!", "40320"),
        (r"5 \pmod{7}", "5"), (r"50\%", "0.5"), (r"54.8\%", "54.8"), (r"0.5\%", "0.005"), (r"25\%", "25"),
        (r"100\%", "1"), (r"9.8 \text{ m/s}^2", "9.8"), ("9.8 m/s^2", "9.8"),
        (r"9.8\,\mathrm{m}\cdot\mathrm{s}^{-2}", "9.8"), (r"1.2 \times 10^{3}\text{ J}", "1200.0"),
        (r"\$1{,}898.27", "1898.27"), ("$1,898.27", "1898.27"), (r"60^\circ", "60.0"), (r"60^{\circ}\text{C}", "60.0"),
        ("22.5 kHz", "22.5"), (r"5\,\Omega", "5"), (r"5\,\mu\text{F}", "5"), (r"3.14\ldots", "3.14"),
        ("3.14...", "3.14"), ("2 million", "2000000"), ("248+2 = 250", "250"), ("2^{10} - 1", "1023"),
        (r"\binom{8}{3} \cdot 2", "112"), (r"5 \times 10^3", "5000"), (r"\log 100", "2.0"), (r"\log 100", "4.605"),
        ("300 K", "300"), (r"\text{Correct}", "true"), (r"\text{Incorrect}", "false"), ("F", "false"),
        (r"\text{False (the correct bound is 3)}", "false"), (r"\sqrt{16}+3", "7"),
        (r"\frac{-3 \pm \sqrt{17}}{4}", "[0.2807764064, -1.7807764064]"), ("x = 3", "3"), (r"x \approx 3.14", "3.14"),
        (r"\lim_{x\to 0} f(x) = 3", "3"), ("f(2) = 3", "3"), ("P(A|B) = 0.4", "0.4"), (r"-6 \times 10^{25}", "-6e+25"),
        (r"4 \times 10^{-5}", "4e-05"), (r"4.1 \times 10^{-5}", "4e-05"), ("True", "true"), ("yes", "true"),
        ("No", "false"), ("Yes, it converges", "true"), ("No, it does not", "false"),
        ("The statement is true", "true"), (r"\text{Answer: True}", "true"), (r"\text{False}", "false"),
        (r"\mathbf{True}", "true"), ("FALSE.", "false"), ("T", "true"), (r"\textbf{\text{True}}", "true"),
        ("Yes (by the MVT)", "true"), ("True: 5 > 3", "true"), ("[0, 5]", "[0, 5]"), ("0, 5", "[0, 5]"),
        ("(0, 5)", "[0, 5]"), (r"\{0, 5\}", "[0, 5]"), ("x = 0, y = 5", "[0, 5]"), (r"0 \text{ and } 5", "[0, 5]"),
        ("[0; 5]", "[0, 5]"), ("3", "[3]"), ("[3]", "[3]"), ("{3}", "[3]"), ("[4, 16, 65,536]", "[4, 16, 65536]"),
        ("[4,16,65536]", "[4, 16, 65536]"), ("[4, 16, 65{,}536]", "[4, 16, 65536]"),
        (r"\left[\frac{1}{3}, \frac{1}{4}\right]", "[0.333, 0.25]"), (r"\pm \frac{2}{3}", "[0.6667, -0.6667]"),
        (r"\frac{2}{3}, -\frac{2}{3}", "[0.6667, -0.6667]"), (r"\begin{pmatrix} 4 \\ 2 \end{pmatrix}", "[4, 2]"),
        (r"\begin{bmatrix}4\\2\end{bmatrix}", "[4, 2]"), ("[4, 2]^T", "[4, 2]"), ("(x,y) = (-1, 4)", "[-1, 4]"),
        (r"x \in \{1, 6\}", "[1, 6]"), (r"\lambda_1 = 1, \lambda_2 = 6", "[1, 6]"),
        (r"[2.0 \text{ kVA}, 1.32 \text{ kVAR}]", "[2.0, 1.32]"), (r"[2.0, 1.32] \text{ kVA}", "[2.0, 1.32]"),
        (r"\langle 4, 2 \rangle", "[4, 2]"), ("[1,234]", "[1, 234]"), (r"\left(4, 2\right)", "[4, 2]"),
        ("$[4, 2]$", "[4, 2]"), (r"\text{[4, 2]}", "[4, 2]"), (r"\left\{ -1, 6 \right\}", "[-1, 6]"), ("(c)", '"(c)"'),
        ("c", '"(c)"'), ("C", '"(c)"'), ("(C)", '"(c)"'), ("(c) None of the above", '"(c)"'), ("c) Vitali", '"(c)"'),
        ("c. Vitali", '"(c)"'), (r"\text{(c)}", '"(c)"'), ("Option (c)", "(c)"), ("c", "c"), ("True", "True"),
        ("yes", "yes"), ("1/3", "1/3"), ("5", "5"), (r"(4,2)^\top", "[4, 2]"), ("[4,2]^{T}", "[4, 2]"),
        (r"\begin{pmatrix}4\\2\end{pmatrix}^T", "[4, 2]"), (r"1.6\times10^{-19}\,\mathrm{C}", "1.6e-19"),
        (r"10^5 \text{ Pa}", "100000"), (r"\{x_1, x_2\} = \{1, 6\}", "[1, 6]"), ("x_1=1; x_2=6", "[1, 6]"),
        (r"\lambda = 1, 6", "[1, 6]"), (r"a = 2 \text{ and } b = 100", "[2, 100]"), ("[0.333, 1/4]", "[0.333, 0.25]"),
        (r"-\frac{\pi}{3}", "-1.047"), (r"-1.047\text{ rad}", "-1.047"), (r"\frac{16}{3}", "5.333"),
        (r"5 \frac{1}{3}", "5.333"), ("e", "2.7182818"), (r"\frac{1}{e}", "0.36787944"),
        (r"\frac{2}{e}", "0.73575888"), (r"2\pi", "6.2831852"), (r"\pi", "3.1415926"), (r"\ln(4)", "1.386"),
        (r"\frac{\ln 3}{\ln 2}", "1.585"), (r"\log_2(3)", "1.585"), (r"0 \text{ J}", "0.0"), ("0.0000", "0.0"),
        ("3628800", "3628800"), ("10!", "3628800"), (r"3.6288 \times 10^6", "3628800"), ("3,628,800", "3628800"),
        ("16^6", "16777216"), (r"5 \text{ ways}", "5"), (r"\text{approximately } 5", "5"),
        (r"v = 9.8\ \mathrm{m/s}", "9.8"), (r"9.8\,\frac{\mathrm{m}}{\mathrm{s}^2}", "9.8"), ("(5)", "5"),
        (r"22.5^\circ", "22.5"), ("e = 0.9", "0.9"), (r"5\%", "0.05"), (r"0.05 = 5\%", "0.05"),
        (r"5\% = 0.05", "0.05"), (r"\frac{1}{3} = 33.3\%", "0.333"), ("x = 1,234", "1234"), ("f(2, 3) = 6", "6"),
    ],
    ("correct", "wrong"): [
        ("0.8", "0.785"), ("1.42", "1.414"), ("0.33", "0.333"), ("1.04", "1.0"), ("0.96", "1.0"), ("104", "100.0"),
        ("11760.3", "11760"), ("4.6", "5"), (r"x = \frac{-3 \pm \sqrt{17}}{4}", "[-1.7807764064, 0.2807764064]"),
        ("[5, 0]", "[0, 5]"), ("[0.33, 0.25]", "[0.333, 0.25]"), ("(4, 2)", "[2, 4]"), (r"\frac{5\pi}{2}", "7.853"),
        ("7.854", "7.853"), ("16777216.4", "16777216"),
    ],
    ("wrong", "wrong"): [
        ("0.75", "0.785"), ("0.4", "0"), ("0.4", "0.0"), ("0.001", "0.0"), ("0", "1e-24"), ("0", "3e-36"),
        ("1.05", "1.0"), ("0.95", "1.0"), ("104.1", "100.0"), ("11761", "11760"), (r"2\pi", "2"), (r"0.5\%", "0.5"),
        (r"1\%", "1"), ("2 million", "2"), (r"\log_{10} 100", "4.605"), (r"\ln 100", "2.0"), ("Incorrect", "true"),
        ("F", "true"), (r"\frac{-3 \pm \sqrt{17}}{2}", "[-1.7807764064, 0.2807764064]"),
        (r"6 \times 10^{25}", "-6e+25"), ("Yes", "false"), ("[0, 5, 6]", "[0, 5]"), ("0", "[0, 5]"), ("05", "[0, 5]"),
        ("[0.3, 0.25]", "[0.333, 0.25]"), ("[0.4, 1]", "[0, 1]"), ("(a)", '"(c)"'), ("-36", "36"),
    ],
    ("unparsable", "unparsable"): [
        ("five", "5"), ("5 or 6", "5"), ("[5]", "5"), ("True", "1"), ("1", "true"), ("1, 2", "1"), ("5x", "5"),
        ("x", "5"), ("2 dozen", "2"), ("248+2", "250"), ("14 - 3", "11"), ("3+0", "3"), (r"10 \cdot 9 \cdot 8", "720"),
        ("10(72)", "720"), (r"\frac{16 \cdot 15}{2}", "120"), (r"248 + 2 \text{ ways}", "250"), ("[1+1, 3]", "[2, 3]"),
        (r"\frac{1}{2}+\frac{1}{4}", "0.75"), ("248.5+1.5", "250.0"), ("248.5+1.5", "250"), (r"1\frac{3}{2}", "2.5"),
        ("5 cm===5 cm", "5"), (r"1 \quad 234", "1234"), (r"2 \quad \frac{1}{2}", "2.5"),
        (r"2+3 \text{ experiments}", "5"), ("T = 5", "true"), ("T, F", "true"), ("not correct", "false"),
        ("2 = 3", "3"), ("normal", "false"), ("not true", "true"), ("untrue", "true"), ("True or False", "true"),
        ("Yes and no", "true"), ("No, it is true", "false"), ("unknown", "true"), ("nothing", "false"),
        ("Truely", "true"), ("Yes, no", "true"), ("0 or 5", "[0, 5]"), ("[[0, 5]]", "[0, 5]"), ("[0, 5)", "[0, 5]"),
        ("[a, b]", "[0, 5]"), ("[]", "[0, 5]"), (r"\frac{1 \pm 3}{2}", "[2, -1]"), (r"[0, 1, \ldots]", "[0, 1]"),
        (r"0 \to 5", "[0, 5]"), ("True", "[1, 1]"), ("", "[1]"), ("(a) or (c)", '"(c)"'),
        ("Vitali Cover Theorem", '"(c)"'), ("abc", '"(c)"'), ("3", '"(c)"'), (r"\frac{1}{2} mv^2", "0.5"),
        ("2x+3", "2"), (r"1.0 \pm 0.1", "1.0"), (r"\text{No solution}", "0"), (r"\infty", "0.0"), ("i", "1"),
        ("7i", "7"), (r"\sqrt{-1}", "1"), ("5 = x", "5"), (r"0.05 \text{ (or 5\%)}", "0.05"), ("x=5, y=6", "5"),
        ("x=5, y=6", "6"), ("x=5,y=6", "6"), (r"x = 5 \text{ or } x = 6", "6"), (r"x=5 \text{ and } y=6", "6"),
    ],
    ("gold_error", "gold_error"): [
        ("5", "five"), ("5", ""), ("5", "NaN"), ("5", '[1, "a"]'), ("5", "[]"), ("5", "{}"), ("5", "null"),
        ("5", "1e999"),
    ],
}  # fmt: skip
"""Answers and gold answers, by their official and their strict verdict."""


@pytest.mark.parametrize(
    ("answer", "gold", "official", "strict"),
    [(*case, *verdicts) for verdicts, cases in CASES.items() for case in cases],
)
def test_an_answer_compares_by_the_type_of_its_gold(answer, gold, official, strict):
    assert [outcome(answer, gold, mode) for mode in MODES] == [official, strict]


# -------------------------------------------------------------------------------------------------------------- rows


def row(answer: object, kind: str, **changed: object) -> Row:
    return Row({"Question": "What?", "Answer": answer, "Answer_type": kind, "Picture": None, **changed}, "f, line 3", 3)


@pytest.mark.parametrize(
    ("published", "hub", "kind", "gold"),
    [
        (True, "True", "bool", "true"), (False, "False", "bool", "false"), (11760, "11760", "integer", "11760"),
        (1.0, "1.0", "float", "1.0"), (1, "1", "float", "1.0"), (4e-05, "4e-05", "float", "4e-05"),
        (-6e25, "-6e+25", "float", "-6e+25"), ([0, 5], "[0, 5]", "list of integer", "[0, 5]"),
        ([0.333, 0.25], "[0.333, 0.25]", "list of float", "[0.333, 0.25]"),
        ([1, 0.25], "[1, 0.25]", "list of float", "[1.0, 0.25]"), ("(c)", "(c)", "option", '"(c)"'),
    ],
)  # fmt: skip
def test_the_published_row_and_the_hubs_have_the_same_gold(published, hub, kind, gold):
    first, second = (problem(row(answer, kind), "test") for answer in (published, hub))
    assert first == second
    assert first is not None and first.answer == gold
    assert gold_value(gold) == json.loads(gold)
    assert type(gold_value(gold)) is type(json.loads(gold))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("yes and no", "bool"), (1, "bool"), ("1.5", "integer"), (True, "integer"), ("x", "float"),
        (float("nan"), "float"), (10**400, "float"), (7, "list of integer"), ([], "list of integer"),
        ([1.5], "list of integer"), (["1"], "list of float"), ("None", "option"), (7, "option"), (7, "number"),
        (None, "integer"),
    ],
)  # fmt: skip
def test_a_row_whose_answer_is_not_of_its_type_is_refused(answer, kind):
    with pytest.raises(ValueError, match=r"f, line 3: field 'Answer(_type)?'"):
        problem(row(answer, kind), "test")


def test_rows_with_a_picture_alone_are_left_out():
    for picture in ("images/one.png", {"bytes": b"PNG", "path": None}, b"PNG", {"bytes": None, "path": "one"}):
        assert problem(row(7, "integer", Picture=picture), "test") is None
    for nothing in (None, "", "None", {"bytes": None, "path": None}):
        assert problem(row(7, "integer", Picture=nothing), "test").id == "test-3"


def test_the_prompt_names_every_form_and_does_not_give_the_type_away():
    first, second = problem(row(7, "integer"), "test"), problem(row(True, "bool"), "test")
    assert first is not None and second is not None
    assert first.prompt == second.prompt
    assert first.prompt.startswith("What?\n\n")


# ------------------------------------------------------------------------------------------------- published answers


@pytest.fixture(scope="module")
def problems(data_dir: Path) -> list[Problem]:
    rows = read_rows(data_dir / "theoremqa_test.json")
    return [result for row in rows if (result := problem(row, "test")) is not None]


def number_forms(number: int | float) -> list[str]:
    exact, scientific = Fraction(repr(number)), f"{Decimal(repr(number)):e}"
    forms = [
        json.dumps(number),
        f"${number}$",
        rf"\text{{{number}}}",
        rf"x = {number}",
        rf"\approx {number}",
        f"{number}.",
    ]
    forms += [rf"{number} \text{{ m/s}}^2", rf"\frac{{{exact.numerator}}}{{{exact.denominator}}}"]
    mantissa, _, exponent = scientific.partition("e")
    forms += [scientific, rf"{mantissa} \times 10^{{{int(exponent)}}}"]
    if exact.denominator == 1 and abs(number) < 1e15:
        grouped = f"{int(number):,}"
        forms += [grouped, grouped.replace(",", "{,}"), grouped.replace(",", r"\,"), f"{int(number)}.00"]
    return forms


def list_forms(numbers: list[int] | list[float]) -> list[str]:
    items = [json.dumps(number) for number in numbers]
    brackets = ("[]", "()", (r"\{", r"\}"), (r"\left[", r"\right]"), (r"\left(", r"\right)"), (r"\left\{", r"\right\}"))
    forms = [left + comma.join(items) + right for left, right in brackets for comma in (",", ", ")]
    fractions = [rf"\frac{{{Fraction(item).numerator}}}{{{Fraction(item).denominator}}}" for item in items]
    forms += [", ".join(items), f"x = [{', '.join(items)}]", r" \text{ and } ".join(items), f"[{', '.join(fractions)}]"]
    forms += [rf"\begin{{pmatrix}} {mark.join(items)} \end{{pmatrix}}" for mark in (" & ", r" \\ ")]
    return forms


def forms(gold: bool | int | float | str | list[int] | list[float]) -> list[str]:
    """How models write a gold answer."""
    if isinstance(gold, bool):
        word = "Yes" if gold else "No"
        return [str(gold), json.dumps(gold), rf"\text{{{gold}}}", rf"\textbf{{{word}}}", word.lower(), f"{gold}."]
    if isinstance(gold, str):
        return [gold, json.dumps(gold), gold[1], gold.upper(), rf"\text{{{gold}}}", f"{gold[1]})", f"{gold} of these"]
    return list_forms(gold) if isinstance(gold, list) else number_forms(gold)


def test_every_published_gold_is_correct_in_both_modes_and_every_form(problems):
    assert len(problems) == len({result.id for result in problems}) == 747
    for result in problems:
        for answer in [result.answer, *forms(gold_value(result.answer))]:
            for mode in MODES:
                assert outcome(answer, result.answer, mode) is Outcome.CORRECT, (answer, result.answer, mode)


@pytest.mark.parametrize("mode", MODES)
def test_the_next_gold_is_not_correct_except_where_it_is_the_same(problems, mode):
    golds = [result.answer for result in problems]
    correct = [(gold, other) for gold, other in pairwise(golds) if outcome(other, gold, mode) == "correct"]
    assert all(json.loads(gold) == json.loads(other) for gold, other in correct)
    assert len(correct) == 18


def test_what_is_correct_strictly_is_correct_officially(problems):
    golds = [result.answer for result in problems]
    for shift in (3, 11):
        for gold, other in zip(golds, golds[shift:], strict=False):
            if outcome(other, gold, "strict") is Outcome.CORRECT:
                assert outcome(other, gold, "official") is Outcome.CORRECT
