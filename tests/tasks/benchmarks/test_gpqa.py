"""GPQA-Diamond on made-up rows: which letter an answer chooses, how options are shuffled, and that nothing is shown."""

from collections import Counter

import pytest

from tyler.tasks.answers.boxed import letter
from tyler.tasks.benchmarks.gpqa import LETTERS, TASK, order, problem
from tyler.tasks.data_files import Row
from tyler.tasks.problem import GradeOptions, Outcome, Verdict


def outcome(answer: str, gold: str) -> Outcome:
    return TASK.verdict(f"So it is \\boxed{{{answer}}}.", gold, GradeOptions()).outcome


def made_up(**changed: object) -> Row:
    fields = {
        "Question": "SECRET question?",
        "Correct Answer": "SECRET right",
        "Incorrect Answer 1": "SECRET one",
        "Incorrect Answer 2": "SECRET two",
        "Incorrect Answer 3": "SECRET three",
        "Explanation": "SECRET because",
        "Subdomain": "Knots",
        "High-level domain": "Sailing",
        "Record ID": "rec0",
    }
    return Row({**fields, **changed}, "gpqa_diamond.csv, line 2", 2, private=True)


@pytest.mark.parametrize(
    "answer",
    [
        "B", "(B)", r"\text{B}", r"\textbf{B}", r"\mathrm{(B)}", "B)", "B.", "B) 10 eV", "B (10 eV)",
        "B (the second one).", r"\text{B} (\SI{10}{eV})", "B: 10 eV", "b", "(b)", "b)", "Option B", "Answer: B",
        "The answer is B", "the correct answer is (B)", r"\text{(B)}", r"\mathbf{B}", "B) -5 eV", "(B) 10 eV",
        r"\text{B) }10\text{ eV}", "B. increases", "**B**", "{B}", "$B$", r"\boldsymbol{B}", "Option (B)",
        "Option B: 10 eV", "B) A = benzene, B = toluene", "B:", "B is correct", "B is the correct answer",
        r"\text{Option B}", "[B]", "Choice B", r"\textbf{(B)}", r"\textbf{B) 10 eV}", r"(B)\ 10", "B)10 eV", "b) 10 eV",
        "(b) 10 eV", "Answer: (B) 10 eV", "answer is B.", r"B.\ 10", r"\text{B. }\frac{1}{2}", "B) 2:1", "B: 2:1",
        "`B`", '"B"', r"B) \frac{1}{2}", r"\mathrm{B}", r"\text{B}.", "The answer is option B", "Final answer: B",
        "B) the reaction of A and C", "(B) (R)-2-butanol", "B) both of them", r"\textbf{B. }10\text{ eV}", "(B):",
        "B).", "(B).", "Choice (B)", "choice b", "**(B)**", r"\mathbf{(B)}", r"\text{The correct answer is B}",
        "Answer B", "answer (b)", "OPTION B", "ANSWER: B", "option: B", "(B) is the answer", "Option B.", "B.)",
        r"\text{Answer: }B", r"\text{Option }B", r"\text{B) benzene}", r"B)\;10\,\text{eV}", r"\text{(B) }\sqrt{2}",
        "B: x = 5", "B) x > 5", r"B.\;\frac12", "The answer is: B", "B) It increases; it then decreases",
        "Answer: B) 10 eV", "Option B) 10 eV", "Final Answer: (B)", "(B) , 10 eV", "B) 25 °C. Then it falls",
        r"{\text{B}}", r"\text{ B }", "B) > 5 eV", "B) +2", "B: < 10", "B. -5", r"\rm{B}", r"\bf B", r"{\bf (B)}",
        r"\displaystyle B", r"\color{red}{B}", "B) = 7",
    ],
)  # fmt: skip
def test_a_single_letter_counts(answer):
    assert letter(answer, LETTERS) == "B"


@pytest.mark.parametrize("name", ["A", "C", "D"])
@pytest.mark.parametrize("form", ["{0}", "({0})", r"\text{{{0}}}", "{0}) 10 eV", "{0}: 10 eV", "Option {0}"])
def test_every_letter_counts_in_every_form(form, name):
    assert letter(form.format(name), LETTERS) == name


@pytest.mark.parametrize(
    "answer",
    [
        "A or B", "A/B", "A, B", "A and B", "AB", "", "10 eV", "E", "Au", "A proton", "a proton", "C. elegans",
        "D. melanogaster", "C-C", "C=O", "B-field", "A: B", "A. B", "B) or C)", "(A) or (B)", "(A)(B)", "(A), (B)",
        "(A,B)", r"\mathbb{C}", "D-glucose", "B^+", "CO_2", "B) 10 eV and C) 12 eV", "B) 10 eV, C) 12 eV", "Not B",
        "not (B)", "B is wrong", "Options A and B", "Option B or C", "(B) + (C)", "(B)^2", "(D)-glucose", "В", "Ｂ",
        "B = 10", "B or C)", "None", "all of the above", "A B", "B or 10", "D.C.", "A.C.", "D.N.A", "C (graphite)",
        "B (or C)", "B (not A)", "B (A and C)", "B (s)", "B, C", "A; B", "A|B", "A & B", r"\{A, B\}",
        r"\text{A}\text{B}", "B because", "Bromine", "I", "e", "1", "A vs B", "B > A", "B) is incorrect",
        "(B) is wrong", "neither A nor B", "A-D", "A to D", "ABCD", "A, B, C, and D", "a or b", "a/b", "either A or B",
        "B. or C.", "B: or C", r"A\B", "A1", "A_1", "A'", "A?", "D2O", "C3", "Answer: A or B", "the answer is A or B",
        "The answer is a proton", "Answer: A proton", "answer", "option", "Option", "C:\\", "A.B", "(A)/(B)",
        "c. elegans", "A) and B)", "A: 5, B: 6", "B) (C) 10", "both A and B", "A and/or B", "A (or B)", "(A or B)",
        "A, not B", "B not A", r"A \rightarrow B", "A→B", "A=B", "Beta", "B molecule", "d orbital", "C atom", "B 10 eV",
        "B cells", "B-DNA", "C18", "D_{2h}", "C_{2v}", "A*", "A+", "B-", "A:T", "C:G", "A: T", "B. subtilis",
        "A) 10 eV or B", "A) 10 eV or B) 12 eV", "(A) 10 eV / (B) 12 eV", "A. 10 eV; B. 12 eV", "B (x)", "x", "I think",
        "Both", "A & B & C", r"\text{A or B}", r"A \text{ or } B", "A.B", "A B", "AorB", "neither", "B)C)", "(B)(C)",
        "B) (C)", "B. C. D.", "A, B or C", "A) B) C) D)", r"\vec{B}", r"\mathcal{B}", r"\mathbb{C}", "B_0", "B(t)",
        "B'", "a, b", "C. albicans", "E) 10", "F", "(E)", "G", "Option E", "Answer: E", "b or c", "bc",
    ],
)  # fmt: skip
def test_several_letters_option_text_and_formulas_do_not_count(answer):
    assert letter(answer, LETTERS) is None


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("B", "B", Outcome.CORRECT), ("(b)", "B", Outcome.CORRECT), ("B) 10 eV", "B", Outcome.CORRECT),
        ("B", "C", Outcome.WRONG), ("(D)", "A", Outcome.WRONG), ("A) B", "B", Outcome.UNPARSABLE),
        ("E", "A", Outcome.UNPARSABLE), ("", "A", Outcome.UNPARSABLE), ("10 eV", "A", Outcome.UNPARSABLE),
        ("A", "E", Outcome.GOLD_ERROR), ("A", "AB", Outcome.GOLD_ERROR), ("A", "", Outcome.GOLD_ERROR),
        ("A", "a", Outcome.GOLD_ERROR),
    ],
)  # fmt: skip
def test_verdicts(answer, gold, expected):
    assert outcome(answer, gold) is expected


def test_of_an_answer_the_letter_is_kept_and_no_text_of_an_option():
    assert TASK.verdict(r"\boxed{A) SECRET right}", "A", GradeOptions()) == Verdict(Outcome.CORRECT, "A")
    assert TASK.verdict(r"\boxed{SECRET right}", "A", GradeOptions()) == Verdict(
        Outcome.UNPARSABLE, None, reason="the answer is not a single letter of A, B, C, D"
    )


def test_a_row_becomes_a_prompt_with_options_and_the_letter_of_the_correct_one():
    result = problem(made_up(), "test")
    lines = result.prompt.splitlines()
    assert lines[:2] == ["SECRET question?", ""]
    assert [line[:3] for line in lines[2:6]] == ["A) ", "B) ", "C) ", "D) "]
    assert sorted(line[3:] for line in lines[2:6]) == ["SECRET one", "SECRET right", "SECRET three", "SECRET two"]
    assert f"{result.answer}) SECRET right" in lines
    assert (result.id, result.family, result.task) == ("rec0", "Sailing", "gpqa")
    assert "because" not in result.prompt
    assert TASK.private


def test_the_order_comes_from_the_record_id_alone():
    assert problem(made_up(), "test") == problem(made_up(), "train")
    assert problem(made_up(**{"Question": "Another?"}), "test").answer == problem(made_up(), "test").answer
    # Written down, because an order that changed between versions would change every result.
    assert [order(name) for name in ("rec0", "rec1", "recX")] == [(2, 3, 1, 0), (2, 0, 1, 3), (0, 2, 3, 1)]


def test_the_gold_letter_is_balanced():
    count = 4000
    golds = Counter(problem(made_up(**{"Record ID": f"rec{at}"}), "test").answer for at in range(count))
    assert set(golds) == set(LETTERS)
    assert all(abs(golds[name] / count - 0.25) < 0.03 for name in LETTERS)
    assert len({order(f"rec{at}") for at in range(count)}) == 24


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"Incorrect Answer 2": "SECRET right"}, "Incorrect Answer 2"),
        ({"Incorrect Answer 3": " SECRET one "}, "Incorrect Answer 3"),
        ({"Correct Answer": "  "}, "Correct Answer"),
        ({"Question": None}, "Question"),
        ({"Record ID": 7}, "Record ID"),
        ({"Incorrect Answer 1": ["SECRET"]}, "Incorrect Answer 1"),
    ],
)
def test_a_broken_row_is_refused_without_its_content(changed, field):
    with pytest.raises(ValueError, match=f"line 2: field '{field}'") as refused:
        problem(made_up(**changed), "test")
    assert "SECRET" not in str(refused.value)
