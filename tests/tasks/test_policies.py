"""The graders agree with each other, or differ by a policy that docs/tasks.md writes down.

`python tests/tasks/test_policies.py` writes the table of the page anew.
"""

import random
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from tyler.tasks import Outcome, grade

TASKS = ("gsm8k", "math500", "theoremqa")
"""One task of each kind: `svamp` and `mawps` grade as the first, `openr1` and `jsonl` as the second."""
BEGIN, END = "<!-- cases: begin -->", "<!-- cases: end -->"
SIGNS = {Outcome.CORRECT: "yes", Outcome.WRONG: "no", Outcome.UNPARSABLE: "unread"}

# On which all agree: answers that are the gold one, and answers that are not.
EQUAL = [
    ("18", "18"), ("+18", "18"), ("18.", "18"), ("018", "18"), ("18.0", "18"), ("1,234", "1234"), ("1{,}234", "1234"),
    (r"1\,234", "1234"), ("1 234", "1234"), (r"\$18", "18"), ("18 dollars", "18"), (r"18\text{ dollars}", "18"),
    (r"5\text{ cm}", "5"), ("5 cm", "5"), ("5cm", "5"), ("2 million", "2000000"), ("10%", "10"), (r"45^\circ", "45"),
    (r"\frac{5}{2}", "2.5"), (r"\frac52", "2.5"), ("5/2", "2.5"), ("2 1/2", "2.5"), (r"2\frac{1}{2}", "2.5"),
    ("2.5e3", "2500"), (r"2.5 \times 10^3", "2500"), ("248+2 = 250", "250"), ("x = 18", "18"), (r"\approx 18", "18"),
    (r"\text{The answer is }18", "18"), (r"\textbf{18}", "18"), ("**18**", "18"),
]  # fmt: skip
UNEQUAL = [
    ("12,34", "1234"), (r"1 \quad 234", "1234"), ("1\n234", "1234"), (r"18\text{ dozen}", "18"),
    (r"18\text{th}", "18"), ("18k", "18"), ("5x", "5"), (r"1\frac{3}{2}", "2.5"), ("2\n1/2", "2.5"),
    ("248.5+1.5", "250"), (r"10 \cdot 25", "250"), ("248+3 = 250", "250"), ("x = 17 = 18", "18"), ("17 or 18", "18"),
    (r"18\text{ wrong}", "18"), ("eighteen", "18"), ("-18", "18"), ("5 cm===5 cm", "5"), (r"\int_0^6 x\,dx", "18"),
]  # fmt: skip
AGREED = EQUAL + UNEQUAL

POLICIES = [
    ("7 boxes", "7", "word problems count things; elsewhere letters may be a product"),
    (r"\sqrt{16}", "4", "word problems have plain numbers; elsewhere a closed form is a value"),
    ("2^{10}", "1024", "as above"),
    ("5!", "120", "as above"),
    (r"\log 100", "2.0", "physics and information theory differ in the base, so TheoremQA takes both"),
    (r"\log 100", "4.605", "as above; MATH has base 10"),
    ("2^{10} - 1", "1023", "golds of TheoremQA are decimals of closed forms; those of MATH are simplified"),
    (r"50\%", "0.5", "TheoremQA asks for fractions and for percents; the others ask for the number before the sign"),
    ("0.79", "0.785", "the official tolerance of TheoremQA is 4%"),
    ("17.6", "18", "TheoremQA rounds to its whole golds"),
    ("(-47,226)", "-47226", "in parentheses a comma makes a pair where pairs are answers"),
    ("5=x", "5", "an equation turned round is one only where equations are answers"),
    (r"\frac{a}{b}=5", "5", "what is asked for may be a formula where formulas are answers"),
]


def outcomes(answer: str, gold: str) -> list[Outcome]:
    return [grade(task, f"So \\boxed{{{answer}}}.", gold).outcome for task in TASKS]


@pytest.mark.parametrize(("answer", "gold"), AGREED)
def test_the_graders_agree(answer: str, gold: str) -> None:
    right = (answer, gold) in EQUAL
    assert {outcome is Outcome.CORRECT for outcome in outcomes(answer, gold)} == {right}, outcomes(answer, gold)


@pytest.mark.parametrize(("answer", "gold", "reason"), POLICIES)
def test_where_the_graders_differ_a_policy_says_why(answer: str, gold: str, reason: str) -> None:
    assert reason
    assert len({outcome is Outcome.CORRECT for outcome in outcomes(answer, gold)}) == 2, outcomes(answer, gold)


# ------------------------------------------------------------------------------------------------------ generated pairs

DRESSES = (
    "{0}", "${0}$", r"\({0}\)", r"\text{{{0}}}", r"\mathbf{{{0}}}", r"\left({0}\right)", "**{0}**", "{0}.",
    r"\approx {0}", "x = {0}", r"\text{{The answer is }}{0}", r"\$ {0}", r"{0}\text{{ meters}}", "{0} km", r"{0}\%",
    r"{0}\text{{ hours}}",
)  # fmt: skip


def spellings(number: Fraction) -> list[str]:
    """A number as people write it."""
    sign, size = "-" if number < 0 else "", abs(number)
    whole, rest = divmod(size.numerator, size.denominator)
    if not rest:
        return [f"{sign}{whole}", f"{sign}{whole:,}", f"{sign}{whole}.0", f"{sign}{whole:,}".replace(",", r"\,")]
    decimal = f"{float(size):.6f}".rstrip("0")
    results = [rf"{sign}\frac{{{size.numerator}}}{{{size.denominator}}}", f"{sign}{size.numerator}/{size.denominator}"]
    results += [rf"{sign}{whole}\frac{{{rest}}}{{{size.denominator}}}"] if whole else []
    return results + ([sign + decimal] if Fraction(decimal) == size else [])


def pairs(count: int) -> list[tuple[str, str, Fraction, Fraction]]:
    """Answers in any spelling and dress, gold answers as numbers are published, and both as numbers."""
    draw = random.Random(38)
    results = []
    while len(results) < count:
        gold = Fraction(
            draw.choice([draw.randint(1, 60), draw.randint(1000, 99999), Fraction(draw.randint(1, 399), 8)])
        )
        gold *= draw.choice([1, 1, 1, -1])
        given = gold if draw.random() < 0.6 else gold + draw.choice([gold, -2 * gold, 100 * abs(gold)])
        answer = draw.choice(DRESSES).format(draw.choice(spellings(given)))
        if "(" in answer and "," in answer:
            continue  # a pair, by the policy above
        results.append((answer, str(float(gold)) if gold.denominator > 1 else str(gold.numerator), given, gold))
    return results


def test_the_graders_agree_on_500_generated_pairs() -> None:
    """Equal under all or none, but for the policy of percentages: TheoremQA takes a hundredth of one too."""
    wrong = []
    for answer, gold, number, expected in pairs(500):
        same = number == expected
        correct = [outcome is Outcome.CORRECT for outcome in outcomes(answer, gold)]
        hundredth = r"\%" in answer and abs(number / 100 - expected) <= max(abs(expected) * Fraction(4, 100), 1)
        if correct[:2] != [same] * 2 or correct[2] not in {same, same or hundredth}:
            wrong.append((answer, gold, same, correct))
    assert wrong == []


# ------------------------------------------------------------------------------------------------------------- the page


def table(agreed: Sequence[tuple[str, str]] = ()) -> str:
    """The cases that the kinds of tasks grade differently, with the reason; before them some on which they agree."""
    rows = ["| answer | gold | `gsm8k` | `math500` | `theoremqa` | why they differ |", "|---|---|---|---|---|---|"]
    for answer, gold, reason in [*((*case, "") for case in agreed), *POLICIES]:
        shown = answer.replace("\n", "⏎").replace("|", r"\|")
        verdicts = " | ".join(SIGNS[outcome] for outcome in outcomes(answer, gold))
        rows.append(f"| `{shown}` | `{gold}` | {verdicts} | {reason} |")
    return "\n".join(rows)


def page(root: Path) -> Path:
    return root / "docs" / "tasks.md"


def test_the_page_has_the_cases_as_they_are_graded(root: Path) -> None:
    assert len(AGREED) + len(POLICIES) >= 60
    written = page(root).read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert written == table(), "run python tests/tasks/test_policies.py"


if __name__ == "__main__":
    path = page(Path(__file__).parents[2])
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
