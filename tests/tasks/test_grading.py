import dataclasses
import importlib
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tyler.tasks import TASKS, Outcome, ballots, benchmarks, find_task, grade, grader_version, grading, task_name
from tyler.tasks.answers.boxed import UnreadableAnswerError, UnreadableGoldError
from tyler.tasks.problem import GradeOptions, leaves_thought_open
from tyler.tasks.task import Task, boxed

# ------------------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("gsm8k", "gsm8k"), ("GSM8K", "gsm8k"), ("GSM-8K", "gsm8k"), ("MATH-500", "math500"), ("math_500", "math500"),
        ("GPQA", "gpqa"), ("GPQA-Diamond", "gpqa"), ("gpqa_diamond", "gpqa"), ("TheoremQA", "theoremqa"),
        ("HumanEval", "humaneval"), ("human-eval", "humaneval"), ("OpenR1-Math", "openr1"),
        ("SVAMP", "svamp"), ("MAWPS", "mawps"), ("JSONL", "jsonl"), ("mini", "mini"),
    ],
)  # fmt: skip
def test_a_task_may_be_written_as_people_write_it(written, name):
    assert task_name(written) == name


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("gms8k", "unknown task 'gms8k'; did you mean 'gsm8k'? known tasks are chains, gpqa, gsm8k, humaneval, jsonl"),
        ("", "unknown task ''; known tasks are"),
        ("math", "unknown task 'math'; .*math500"),
        ("os.system", "unknown task"),
    ],
)
def test_an_unknown_task_is_refused_with_the_known_ones(written, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        grade(written, r"\boxed{7}", "7")


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_in_the_table_is_there_under_its_name(name):
    task = find_task(name)
    assert task.name == name and task.title
    for source in filter(None, task.sources.values()):
        assert source.files and (source.hub_id or source.url)


NEW = """
from tyler.tasks.benchmarks.gsm8k import equal, problem
from tyler.tasks.task import Task, boxed

TASK = Task(name="added", title="Added late", sources={}, problem=problem, verdict=boxed(equal))
"""


@pytest.mark.parametrize("name", ["added", "added_here"])
def test_a_benchmark_is_one_module_and_nothing_else(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(NEW.replace('"added"', f'"{name}"'))
    monkeypatch.setattr(benchmarks, "__path__", [*benchmarks.__path__, str(tmp_path)])
    monkeypatch.setattr(grading, "TASKS", grading._benchmarks())
    grading._other_names.cache_clear()
    try:
        assert grade(name.title(), r"\boxed{7}", "7").correct
        assert task_name("ADDED-late") == name
    finally:
        grading._other_names.cache_clear()
        sys.modules.pop(f"tyler.tasks.benchmarks.{name}")


def test_importing_tasks_and_asking_for_the_graders_version_imports_nothing_heavy():
    ours = ("tyler.tasks.mini", "tyler.tasks.benchmarks.gsm8k")
    heavy = {"torch", "transformers", "peft", "numpy", "datasets", "pyarrow", "sympy", *ours}
    code = f"import sys; from tyler.tasks import grader_version; grader_version(); print({heavy} & sys.modules.keys())"
    source = Path(grading.__file__).parents[2]
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=source, check=True)
    assert printed.stdout == "set()\n"


# --------------------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("task", "completion", "gold", "outcome"),
    [
        ("gsm8k", r"\boxed{1,234}", "1234", Outcome.CORRECT), ("gsm8k", r"\boxed{3+4}", "7", Outcome.UNPARSABLE),
        ("gsm8k", r"\boxed{8}", "7", Outcome.WRONG), ("gsm8k", "the answer is 7", "7", Outcome.NO_BOX),
        ("svamp", r"\boxed{\$51.00}", "51", Outcome.CORRECT), ("svamp", r"\boxed{51.5}", "51", Outcome.WRONG),
        ("mawps", r"\boxed{2\frac{1}{3}}", "2 1/3", Outcome.CORRECT),
        ("mawps", r"\boxed{7/3}", "2 1/3", Outcome.CORRECT), ("mawps", r"\boxed{2.33}", "2 1/3", Outcome.WRONG),
        ("jsonl", r"\boxed{Evelyn}", r"\text{Evelyn}", Outcome.CORRECT),
        ("jsonl", r"\boxed{\left( 3, \dfrac{\pi}{2} \right)}", r"(3,\frac{\pi}{2})", Outcome.CORRECT),
        ("jsonl", r"\boxed{0.5}", r"\frac12", Outcome.CORRECT),
        ("jsonl", r"\boxed{0.5}", r"\frac{1}{2}", Outcome.CORRECT), ("jsonl", r"\boxed{x+1}", "1+x", Outcome.CORRECT),
        ("jsonl", r"\boxed{1,234}", "1234", Outcome.CORRECT), ("jsonl", r"\boxed{8}", "7", Outcome.WRONG),
        ("openr1", r"\boxed{2\sqrt{2}}", r"\sqrt{8}", Outcome.CORRECT), ("mini", r"\boxed{7}", "7", Outcome.CORRECT),
        ("mini", r"\boxed{8}", "7", Outcome.WRONG),
    ],
)  # fmt: skip
def test_each_task_grades_by_its_own_equality(task, completion, gold, outcome):
    assert grade(task, completion, gold).outcome is outcome


@pytest.mark.parametrize("completion", ["thinking", r"\boxed{1} or \boxed{2", r"<think>\boxed{7}"])
def test_a_missing_box_is_truncated_only_at_the_length_limit(completion):
    assert grade("gsm8k", completion, "7").outcome is Outcome.NO_BOX
    assert grade("gsm8k", completion, "7", truncated=True).outcome is Outcome.TRUNCATED


def test_a_finished_box_counts_even_at_the_length_limit():
    assert grade("gsm8k", r"\boxed{7} and then", "7", truncated=True).correct


def test_the_verdict_carries_the_answer_that_was_read():
    assert grade("gsm8k", r"\boxed{ 1{,}234 }", "7").answer == "1{,}234"
    assert grade("gsm8k", "none", "7").answer is None


# ------------------------------------------------------------------------------------------------ whatever may come


@pytest.fixture
def grade_by(monkeypatch):
    """Grades a boxed 7 against 7 by a verdict or an equality that is put in the place of gsm8k's."""

    def graded(**changes: Any) -> Outcome:
        task = dataclasses.replace(importlib.import_module(TASKS["gsm8k"]).TASK, **changes)
        monkeypatch.setattr(importlib.import_module(TASKS["gsm8k"]), "TASK", task)
        return grade("gsm8k", r"\boxed{7}", "7").outcome

    return graded


def raising(error: BaseException) -> Any:
    def raises(*arguments: object) -> Any:
        raise error

    return raises


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TimeoutError(), Outcome.TIMEOUT),
        (UnreadableAnswerError("?"), Outcome.UNPARSABLE),
        (UnreadableGoldError("?"), Outcome.GOLD_ERROR),
        (RecursionError(), Outcome.UNPARSABLE),
        (OverflowError(), Outcome.UNPARSABLE),
        (ZeroDivisionError(), Outcome.UNPARSABLE),
        (MemoryError(), Outcome.UNPARSABLE),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"), Outcome.UNPARSABLE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_an_equality_cannot_say_is_an_outcome(grade_by, error, outcome):
    assert grade_by(verdict=boxed(raising(error))) is outcome


@pytest.mark.parametrize("error", [UnreadableGoldError("?"), RecursionError()], ids=lambda error: type(error).__name__)
def test_a_verdict_that_fails_as_a_whole_is_an_outcome_too(grade_by, error):
    expected = Outcome.GOLD_ERROR if isinstance(error, UnreadableGoldError) else Outcome.UNPARSABLE
    assert grade_by(verdict=raising(error)) is expected


def test_a_refusal_to_run_code_and_a_programming_error_are_not_hidden(grade_by):
    for error in (PermissionError("code"), AttributeError("a typo")):
        with pytest.raises(type(error)):
            grade_by(verdict=raising(error))


HOSTILE = {
    "escapes": "\\boxed{" + "\\{" * 50_000 + "}",
    "boxes": "\\boxed{" * 15_000,
    "bare boxes": "\\boxed " * 15_000,
    "thoughts": "<think>" * 15_000,
    "spaces": "\\boxed" + " " * 100_000,
    "texts": "\\boxed{" + "\\text{" * 15_000 + "}" * 15_001,
    "digits": "\\boxed{" + "9" * 100_000 + "}",
    "commas": "\\boxed{1" + ",000" * 25_000 + "}",
    "units": "\\boxed{7" + ".a" * 50_000 + "!}",
    "power": "\\boxed{9e999999999}",
    "code": "\\boxed{__import__('os').system('exit 1')}",
    "surrogate": "\\boxed{\ud800}",
    "null": "\\boxed{\0}",
}


ANSWERS = {
    "short spaces of an option": "A)" + " " * 3900 + "\u00e9!",
    "connectives": "A) " + "or a " * 790 + "!",
    "singles": "A) " + "b " * 1900 + "1",
    "final": "the " + "final " * 600 + "answer",
    "short texts": "\\text{" * 600 + "}" * 600,
    "words": "7 " + "ab " * 33_000,
    "long word": "7 " + "a" * 100_000,
    "short letters": "7 " + "a" * 250 + "!",
    "short spaces": "7" + " " * 250 + "!",
    "short slashes": "7" + "/a" * 125 + "!",
    "short labels": "a " * 120 + "= =",
    "short units": "8 " + "m " * 120 + "!",
    "powers": "9^{9^{9}}",
    "factorials": "7" + "!" * 200,
    "roots": r"\sqrt" * 50 + "7",
    "signs": "-" * 251 + "7",
    "equations": "7 = " * 60,
    "items": "[" + "7," * 50_000 + "7]",
    "short items": "[" + "7, " * 160 + "7",
    "short braces": "{" * 240 + "}" * 240,
    "matrix": r"\begin{pmatrix}" * 30,
    "digits of Unicode": "\u0667\uff17",
    "sum": "1+" * 50_000 + "1",
    "groups": "{" * 900 + "7" + "}" * 900,
    "parentheses": "(" * 900 + "x" + ")" * 900,
    "tower": "9^" * 190 + "9",
    "wide powers": "9^{999}" * 50,
    "factorials of factorials": "((9!)!)!",
    "many factorials": "170!" + r" \cdot 170!" * 30,
    "binomial": r"\binom{99999999999}{5555555555}",
    "wide binomial": r"\binom{10000}{5000}",
    "fractions": r"\frac{1}{" * 30 + "x" + "}" * 30,
    "functions": r"\sin" * 90 + "2",
    "inverse functions": r"\sin^" * 70 + "2",
    "power of a sum": "(x+y+z+1)^{1000}",
    "periods": r"0.\overline{" * 30 + "}" * 30,
    "unions": r"(1,2)\cup" * 200 + "(1,2)",
    "signs of lists": r"\pm 1 " * 200,
}
HOSTILE |= {name: f"So \\boxed{{{answer}}}." for name, answer in ANSWERS.items()}
GOLDS = {"gpqa": ["D"], "theoremqa": ["7", "7.0", "[7, 7]", "true", '"(c)"']}


@pytest.mark.parametrize("task", [name for name in TASKS if not find_task(name).runs_code])
@pytest.mark.parametrize("completion", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_answers_are_graded_at_once_and_never_correct(task, completion):
    for gold in GOLDS.get(task, ["7"]):
        start = time.process_time()
        verdict = grade(task, completion, gold, deadline=0.2)
        assert not verdict.correct
        assert time.process_time() - start < 1


# ------------------------------------------------------------------------------------------------------ wrong calls


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "lenient"}, "mode 'lenient' is not one of official, strict"),
        ({"deadline": 0}, "deadline must be a positive number of seconds, got 0"),
        ({"deadline": float("nan")}, "deadline must be a positive"),
    ],
)
def test_an_impossible_setting_is_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        grade("gsm8k", r"\boxed{7}", "7", **settings)


@pytest.mark.parametrize(("task", "gold"), [("gsm8k", 7), ("gsm8k", None), ("theoremqa", None), ("theoremqa", {})])
def test_a_gold_answer_of_the_wrong_type_is_refused(task, gold):
    with pytest.raises(TypeError, match=f"task '{task}': the gold answer must be text, .* got {type(gold).__name__}"):
        grade(task, r"\boxed{7}", gold)


@pytest.mark.parametrize(
    ("gold", "completion"),
    [(True, r"\boxed{yes}"), (7, r"\boxed{7}"), (0.5, r"\boxed{0.5}"), ([1, 2], r"\boxed{[1, 2]}")],
)
def test_theoremqa_takes_typed_gold_answers(gold, completion):
    assert grade("TheoremQA", completion, gold).correct


def test_settings_reach_the_task(monkeypatch):
    seen = []

    def equal(answer: str, gold: str, options: GradeOptions) -> bool:
        seen.append(options)
        return True

    task = importlib.import_module(TASKS["gsm8k"]).TASK
    assert isinstance(task, Task)
    monkeypatch.setattr(
        importlib.import_module(TASKS["gsm8k"]), "TASK", dataclasses.replace(task, verdict=boxed(equal))
    )
    grade("gsm8k", r"\boxed{7}", "7", mode="strict", deadline=2, allow_code_execution=True)
    assert seen == [GradeOptions("strict", 2, allow_code_execution=True)]


# -------------------------------------------------------------------------------------------------------- open thoughts

OPEN = r"Let me try \boxed{5}, no wait"


def test_an_open_thought_that_never_ends_has_no_answer() -> None:
    assert grade("gsm8k", OPEN, "5", thought_open=True, truncated=True).outcome is Outcome.TRUNCATED
    assert grade("gsm8k", OPEN, "5", thought_open=True).outcome is Outcome.NO_BOX
    assert grade("gsm8k", OPEN, "5").outcome is Outcome.CORRECT, "where the prompt opened no thought"


def test_the_answer_follows_the_end_of_an_open_thought() -> None:
    for text in (rf"{OPEN}</think> so \boxed{{6}}", rf"<think>{OPEN}</think> so \boxed{{6}}"):
        assert grade("gsm8k", text, "6", thought_open=True).correct
    assert grade("gsm8k", rf"{OPEN}</think> so \boxed{{6}}", "5", thought_open=True).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<｜Assistant｜><think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("What does <think> mean?<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_whether_a_thought_is_open_follows_from_the_end_of_the_prompt(prompt: str, is_open: bool) -> None:
    assert leaves_thought_open(prompt) is is_open


@pytest.mark.parametrize(
    ("task", "answers", "together"),
    [
        ("gsm8k", ["18", r"\$18", r"18\text{ dollars}", "17", "17"], [[0, 1, 2], [3, 4]]),
        ("svamp", ["2.5", r"\frac{5}{2}", r"2\frac{1}{2}", "2 1/2", "clips", "clips"], [[0, 1, 2, 3], [4, 5]]),
        ("mawps", ["3", "4", "3.0"], [[0, 2], [1]]),
        ("chains", ["3", "4", "3.0"], [[0, 2], [1]]),
        ("math500", [r"2\sqrt3", r"\sqrt{12}", "3", "x=3"], [[0, 1], [2, 3]]),
        ("math500", [r"\text{(B)}", "B", "C"], [[0, 1], [2]]),
        ("math500", ["(1, 2", "(1, 2", "3"], [[0, 1], [2]]),
        ("openr1", ["(x+1)^2", "(1+x)^2", "x^2"], [[0, 1], [2]]),
        ("jsonl", ["0.5", r"\frac12", "half"], [[0, 1], [2]]),
        ("gpqa", [r"\text{(B)}", "B", "A"], [[0, 1], [2]]),
        ("theoremqa", ["True", "yes", "no"], [[0, 1], [2]]),
        ("theoremqa", ["0.5", r"50\%", r"\frac12", "0.51"], [[0, 1, 2], [3]]),
        ("theoremqa", ["[1, 2]", "1, 2", "(2, 1)", "1"], [[0, 1], [2], [3]]),
        ("theoremqa", ["(c)", "C", "(a)"], [[0, 1], [2]]),
        ("mini", ["7", "07", "8"], [[0, 1], [2]]),
        ("humaneval", ["def f(): pass", "def f(): pass", "def f(): return 1"], [[0, 1], [2]]),
    ],
)
def test_answers_are_grouped_as_the_task_compares_them(
    task: str, answers: list[str], together: list[list[int]]
) -> None:
    assert ballots(task, answers) == together


def test_every_task_has_ballots_and_none_raises_on_what_no_one_can_read() -> None:
    odd = ["", "{", "\0", "9" * 5000, r"\frac{", "\ud800", "x", "9^{9^{9}}"]
    for task in TASKS:
        assert sorted(index for ballot in ballots(task, odd) for index in ballot) == list(range(len(odd)))


def test_the_version_names_the_revision_the_mode_and_the_libraries() -> None:
    names = grader_version(GradeOptions("strict"), ["math500"])
    assert names["mode"] == "strict" and grader_version()["mode"] == "official"
    assert names["revision"].isdigit()
    assert {name: names[name] for name in ("sympy", "latex2sympy2_extended")} == {
        name: version(name) for name in ("sympy", "latex2sympy2_extended")
    }


def test_the_version_names_what_a_program_may_use_where_one_runs() -> None:
    plain, programs = grader_version(), grader_version(GradeOptions(deadline=20), ["gsm8k", "humaneval"])
    assert programs == plain | {"python": "{}.{}".format(*sys.version_info), "packages": "numpy", "deadline": "20 s"}
    assert grader_version(GradeOptions(deadline=20), ["gsm8k"]) == plain, "names of other verdicts stay as they were"
    assert grader_version(GradeOptions(packages=()), ["humaneval"])["packages"] == "none"
