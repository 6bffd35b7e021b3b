"""GSM8K: which quantities are the same number, on a table of cases and on every published gold answer."""

import gzip
import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from tyler.tasks.benchmarks.gsm8k import TASK, problem, quantity
from tyler.tasks.data_files import read_rows
from tyler.tasks.problem import GradeOptions, Outcome


def outcome(answer: str, gold: str) -> Outcome:
    return TASK.verdict(f"So it is \\boxed{{{answer}}}.", gold, GradeOptions()).outcome


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("$18", 18), (r"\$18", 18), ("18$", 18), (r"\$1,234.50", Fraction(2469, 2)), ("-$5", -5), ("$-5", -5),
        ("$72$", 72), ("10%", 10), (r"10\%", 10), (r"$10\%$", 10), ("18 dollars", 18),
        (r"18\text{ dollars per day}", 18), (r"\$18 \text{ per day}", 18), ("5 miles/hour", 5), ("5/hour", 5),
        (r"12\text{ cm}^2", 12), ("12 cm^{2}", 12), (r"45^\circ", 45), ("7 boxes", 7), ("5 eggs", 5),
        (r"1\,234 \text{ clips}", 1234), ("72.", 72), ("72 clips.", 72), ("1/2 cup", Fraction(1, 2)), ("7 (apples)", 7),
        ("x = 5", 5), (r"\approx 18", 18), (r"\text{Total} = 18", 18), (r"Total: \$18", 18),
        (r"\frac{1}{2}", Fraction(1, 2)), (r"5 \frac{1}{2}", Fraction(11, 2)), (r"5\frac12", Fraction(11, 2)),
        ("5 1/2", Fraction(11, 2)), (r"-2\frac{1}{4}", Fraction(-9, 4)), ("18.00", 18), ("1{,}234", 1234),
        ("1 234", 1234), (r"\text{18 dollars}", 18), (r"\textbf{18}", 18), (r"\mathbf{18}", 18),
        ("18 cats and dogs", 18), ("8 quarters", 8), ("3 times", 3), (r"1.5 \times 10^3", 1500), ("18 km/h", 18),
        ("5cm", 5), ("18 USD", 18), ("US$18", 18), ("£18", 18), ("€1,000", 1000), ("(18)", 18), ("{18}", 18),
        ("**18**", 18), (r"\underline{18}", 18), (r"\text{\$18}", 18), (r"\$\,18", 18), (r"\$ 18", 18),
        (r"18\text{ m}^3", 18), (r"\frac{18}{1}", 18), ("18 percent", 18), (r"\text{The answer is } 18", 18),
        ("5 dollars a day", 5), (r"x = \$5", 5), ("-18", -18), (r"18~\text{km}", 18), (r"\left(18\right)", 18),
        ("+18", 18), (r"18 \, \mathrm{kg}", 18), (r"\textbf{\text{18}}", 18), ("18 students' books", 18),
        ("18 third graders", 18), ("18 hours", 18), ("18 L", 18), ("18 ft.", 18), ("18 ounces (oz)", 18),
        ("18 pages/day", 18), ("18 (eighteen)", 18), (r"18\%\text{ of the class}", 18), ("18-day", 18), ("5 ml", 5),
        ("5 GB", 5), ("5 of them", 5), ("18 / day", 18), ("0018", 18), (r"18 \text{ cm}^{2}", 18),
        (r"18\text{ m/s}", 18), (r"\$18/\text{hour}", 18), (r"18\,\%", 18), (r"\text{18\%}", 18), ("18 m²", 18),
        (r"\text{\$}18", 18), (r"18\text{ }", 18), (r"\mathrm{18\ dollars}", 18), ("18 in", 18), ("18", 18),
        ("5.00 dollars", 5), ("1,000 ml", 1000), (r"\,18", 18), (r"\text{Profit} = \$18", 18), ("n = 18", 18),
        (r"\text{Number of eggs} = 18 \text{ eggs}", 18), ("approximately 18", 18), ("Rs. 18", 18), ("18 kWh", 18),
        ("18 lbs.", 18), (r"18\tfrac12", Fraction(37, 2)), ("2 million", 2_000_000), ("1.45 million", 1_450_000),
        (r"1.45\text{ million dollars}", 1_450_000), ("18 thousand dollars", 18_000), ("1,200 thousand", 1_200_000),
        ("18 hundred", 1800), ("18 dollars per dozen", 18), ("18 eggs a dozen", 18), (r"9 \times 2 = 18", 18),
        ("9 * 2 = 18", 18), (r"\$9 \times 2 = \$18", 18), (r"x = 9 \cdot 2 = 18\text{ eggs}", 18), ("3+15 = 18", 18),
        ("18,", 18), ("\u201318", -18), ("\u201218", -18), (r"18 \quad", 18), (r"\color{red}{18}", 18),
        (r"\textcolor{blue}{18}", 18), (r"\textdollar 18", 18), (r"{\bf 18}", 18), (r"\displaystyle 18", 18),
        ("1,234,567.5", Fraction(2469135, 2)), (r"1,\!234", 1234), (r"\(12\)", 12), (r"\dfrac{4}{2}", 2), ("7.50", 7.5),
    ],
)  # fmt: skip
def test_a_quantity_is_its_exact_number(text, number):
    assert quantity(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "", "clips", "3 or 4", "7 or more", "3 to", "5 and 7", "5-7", "5-", "2 millions", "12,34", "3+4", "5$7",
        "18 hours and 30 minutes", "3:30", r"3 \times 6", r"2 \pi", "2 pi", "5x", "2xy", "5 x", "18!", "7 and a half",
        "1/2 million", "3.4.5", "1,23", "x", r"\frac{1}{0}",
        "999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999",
        "1e9999", "٤", "18 = 18 + 0", "3 = x + 2", "> 18", r"\ge 18", "18+", "2516_8", "10^2", "0,5", "1.234,50",
        "18 x 2", "2 halves", "5 squared", "[18]", "18 19", "18; 19", "18, 19", "two", "18k", "$18K", "i", "5i", "5e",
        "2e", r"\sqrt{4}", "2 e", "x=", "=", "$", "%", "18_{10}", "1'234", "--5", "+-5", "18 -", "18 dozen", "18 tens",
        "18 hundreds", "18 score", "18th", r"18\text{th}", "18k dollars", "18 K", "$18M", "18 wrong", "18 incorrect",
        "18 unknown", "18 not counting the last", "18 dozen eggs", "5 = 18", "9 * 3 = 18", "x = 5, y = 18",
        "x = 5 y = 18", "18 or 5 = 18", "Not 18", "at least 18", "18/", "1/2/3", "1 / 2 / 3", "(5, 6)", "18°18'",
        "1/2 1/2", "18 or so", "18¢", r"\$50k", "2^3 m", "5 - m", "5(m)", "5 * m", r"5 \cdot m", "18, dollars and 5",
        "3 ab", "2 xy", "5 m + n", "18²", "18^2", r"\frac{1}{2} mv^2", "18 out of 20", "1:2", "Monday: 5, Tuesday: 6",
        "eighteen (18)", "18/x", r"18 \times", "18 + 2 apples", "18 apples + 2", r"18 \text{ or } 19", r"18 \pm 1",
        "18!", "|18|", "18 mod 5", "18_5", r"5 \frac{3}{2}", "5 3/2", r"1 \quad 234", "1\n234", "1\t234",
        r"2 \quad \frac{1}{2}", "2\n1/2", "5 cm===5 cm", "-", "e5", "1234,567", "0,123", "1,234 567", "1 2", "2004!",
    ],
)  # fmt: skip
def test_what_is_not_one_number_is_no_quantity(text):
    assert quantity(text) is None


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("18", "18", Outcome.CORRECT), ("18.00", "18", Outcome.CORRECT), (r"\$18", "18", Outcome.CORRECT),
        ("1234", "1,234", Outcome.CORRECT), ("18.000000000000000000001", "18", Outcome.WRONG),
        ("0.18", "18", Outcome.WRONG), (r"0.18\%", "18", Outcome.WRONG), ("-18", "18", Outcome.WRONG),
        ("181", "18", Outcome.WRONG), ("1.8 \\text{ dollars}", "18", Outcome.WRONG),
        ("18 18", "18", Outcome.UNPARSABLE), ("3 + 15", "18", Outcome.UNPARSABLE),
        ("eighteen", "18", Outcome.UNPARSABLE), ("18", "eighteen", Outcome.GOLD_ERROR), ("", "18", Outcome.UNPARSABLE),
    ],
)  # fmt: skip
def test_answers_compare_exactly(answer, gold, expected):
    assert outcome(answer, gold) is expected


RENDERINGS = (
    "{0}", r"\${0}", "${0}$", r"{0} \text{{ dollars}}", "{0}.00", "{0}.", r"{0}\%", r"\text{{{0}}}", r"\textbf{{{0}}}",
    "x = {0}", "{0} apples",
)  # fmt: skip


@pytest.fixture(scope="module")
def golds(data_dir: Path) -> list[str]:
    rows = read_rows(data_dir / "gsm8k_test.jsonl")
    return [problem(row, "test").answer for row in rows]


def test_every_published_gold_is_correct_in_every_rendering(golds):
    for gold in golds:
        plain = gold.replace(",", "")
        forms = {gold, plain, gold.replace(",", "{,}"), gold.replace(",", r"\,"), f"{int(plain):,}"}
        for form in forms:
            for rendering in RENDERINGS:
                answer = rendering.format(form)
                assert outcome(answer, gold) is Outcome.CORRECT, (answer, gold)


def test_the_next_gold_is_wrong_except_where_it_is_the_same_number(golds):
    pairs = list(pairwise(golds))
    for gold, other in pairs:
        same = gold.replace(",", "") == other.replace(",", "")
        assert outcome(other, gold) is (Outcome.CORRECT if same else Outcome.WRONG)
    assert len(pairs) == 1318


LABELLED = Path(__file__).with_name("gsm8k_labelled.json.gz")
"""Final answer, gold answer and label of the 5,276 solutions of four models that Cobbe et al. (2021) published with
GSM8K (`example_model_solutions.jsonl`, MIT licence); texts are left out."""


def test_the_labels_of_published_solutions_are_the_graders() -> None:
    rows = json.loads(gzip.decompress(LABELLED.read_bytes()))
    assert (len(rows), sum(label for _, _, label in rows)) == (5276, 2001)
    verdicts = {pair: outcome(*pair) is Outcome.CORRECT for pair in {(answer, gold) for answer, gold, _ in rows}}
    assert [row for row in rows if verdicts[row[0], row[1]] != bool(row[2])] == []
