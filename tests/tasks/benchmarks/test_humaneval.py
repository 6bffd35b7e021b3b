import json
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tyler.tasks.answers.program import NoProgramError, read_program
from tyler.tasks.benchmarks.humaneval import INSTRUCTION, TASK, problem, verdict
from tyler.tasks.data_files import Row, read_rows
from tyler.tasks.problem import GradeOptions, Outcome, Problem, after_thought
from tyler.tasks.sandbox.sandbox import probe

needs_sandbox = pytest.mark.skipif(bool(probe()), reason=probe())
ALLOWED = GradeOptions(allow_code_execution=True, deadline=20)

PROMPT = '''from typing import List


def helper(x: int) -> int:
    return 2 * x


def total(xs: List[int]) -> int:
    """Twice the sum.
    >>> total([1])
    2
    """
'''
GOLD = json.dumps(
    {"prompt": PROMPT, "entry_point": "total", "test": "def check(candidate):\n    assert candidate([1, 2]) == 6\n"}
)
RIGHT = "def total(xs: List[int]) -> int:\n    return helper(sum(xs))"
WRONG = "def total(xs):\n    return sum(xs)"
BODY = "    return helper(sum(xs))"


def fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}\n```"


def program_of(completion: str) -> str:
    code, helpers = read_program(after_thought(completion), PROMPT, "total")
    return f"{helpers}\n\n{code}" if helpers else code


# ----------------------------------------------------------------------------------------------------------- extraction


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        (fenced(RIGHT), RIGHT),
        (f"We double.\n\n{fenced(RIGHT)}\n\nThat is all.", RIGHT),
        (f"{fenced(WRONG)}\n\nBetter:\n\n{fenced(RIGHT)}", RIGHT),
        (f"{fenced(RIGHT)}\n\nCall it:\n\n{fenced('print(total([1]))')}", RIGHT),
        (f"{fenced(RIGHT)}\n\nIn Python 2:\n\n{fenced(WRONG, 'text')}", RIGHT),
        (f"{fenced(WRONG, '')}\n\n{fenced(RIGHT, '')}", RIGHT),
        (f"{fenced(RIGHT, '')}\n\n{fenced(WRONG, '')}", RIGHT),
        (f"<think>\n{fenced(WRONG)}\n</think>\n{fenced(RIGHT)}", RIGHT),
        (f"Maybe {fenced(WRONG)}\n</think>\n{fenced(RIGHT)}", RIGHT),
        (f"1. So:\n   ```python\n   {RIGHT.replace(chr(10), chr(10) + '   ')}\n   ```", RIGHT),
        (fenced(RIGHT, "py"), RIGHT),
        (fenced(f'{RIGHT}\n    """\n    ```\n    a block in the docstring\n    ```\n    """'),
         f'{RIGHT}\n    """\n    ```\n    a block in the docstring\n    ```\n    """'),
        (fenced("n = 0\nfor x in xs:\n    n += x\nreturn n"),
         PROMPT + "    n = 0\n    for x in xs:\n        n += x\n    return n\n"),
        (RIGHT, RIGHT),
        (f"Here it is:\n{RIGHT}\n\nIt doubles the sum.", RIGHT),
        (f"import math\n\n{RIGHT}\nprint it", f"import math\n\n{RIGHT}"),
        (BODY, PROMPT + BODY + "\n"),
        (BODY.strip(), PROMPT + BODY + "\n"),
        (f"{BODY}\n\n\ndef other():\n    pass", f"{PROMPT}{BODY}\n\n\n"),
        ("n = 0\n    for x in xs:\n        n += x\n    return 2 * n",
         PROMPT + "    n = 0\n    for x in xs:\n        n += x\n    return 2 * n\n"),
        (fenced(BODY), PROMPT + BODY + "\n"),
        (fenced(BODY.strip()), PROMPT + BODY + "\n"),
        (fenced("for x in xs:\n    print(x)\nreturn 0"), PROMPT + "    for x in xs:\n        print(x)\n    return 0\n"),
    ],
)  # fmt: skip
def test_the_program_of_a_completion(completion: str, code: str) -> None:
    assert program_of(completion).rstrip() == code.rstrip()


@needs_sandbox
@pytest.mark.parametrize(
    "completion",
    [
        "",
        "   \n",
        "I would add them up and double the result.",
        r"The answer is $\boxed{6}$.",
        f"<think>{fenced(RIGHT)}",
        f"```python\n{RIGHT}",
        f"{fenced(RIGHT)}\n\nBetter:\n```python\ndef total(xs):\n    ret",
    ],
)
def test_without_code_or_with_an_unfinished_block_there_is_no_answer(completion: str) -> None:
    with pytest.raises(NoProgramError):
        program_of(completion)
    result = verdict(completion, GOLD, ALLOWED)
    assert result.outcome is Outcome.NO_BOX
    assert result.reason in ("the answer holds no code", "its last code block is never closed")


# ------------------------------------------------------------------------------------------------------------- verdicts

TWICE = "def twice(x):\n    return 2 * x"
USES = "def total(xs):\n    return twice(sum(xs))"
METHOD = "class Solution:\n    def total(self, xs):\n        return 2 * sum(xs)"
DRESSED = {
    "a helper in an earlier fence": f"{fenced(TWICE)}\n\nNow:\n\n{fenced(USES)}",
    "an import in an earlier fence": f"{fenced('import math')}\n{fenced('def total(xs): return 2 * math.fsum(xs)')}",
    "a constant in an earlier fence": f"{fenced('FACTOR = 2')}\n{fenced('def total(xs): return FACTOR * sum(xs)')}",
    "a helper beside a draft": f"{fenced(TWICE + chr(10) * 2 + WRONG)}\nBetter:\n{fenced(USES)}",
    "a helper before a bare body": f"{fenced(TWICE)}\n{fenced('    return twice(sum(xs))')}",
    "a broken sketch before": f"{fenced('def twice(x)')}\n{fenced(RIGHT)}",
    "a sketch that needs what is not there": f"{fenced('import nowhere')}\n{fenced(RIGHT)}",
    "a class": fenced(METHOD),
    "a class and its method by name": fenced(f"{METHOD}\n\ntotal = Solution().total"),
    "a lambda": fenced("total = lambda xs: 2 * sum(xs)"),
    "an alias": fenced("def doubled(xs):\n    return 2 * sum(xs)\n\ntotal = doubled"),
    "an annotated alias": fenced("from typing import Callable\ntotal: Callable = lambda xs: 2 * sum(xs)"),
    "tildes": f"~~~python\n{RIGHT}\n~~~",
    "two blocks of tildes": f"~~~python\n{WRONG}\n~~~\nBetter:\n~~~python\n{RIGHT}\n~~~",
    "two unfenced definitions": f"First:\n\n{WRONG}\n\nThat is wrong. Better:\n\n{RIGHT}\n\nDone.",
    "a helper in unfenced text": f"{TWICE}\n\nwith which\n\n{USES}",
    "an indented definition": fenced("    " + RIGHT.replace("\n", "\n    ")),
    "text at column 0 in a docstring": f'    """Doubles.\ntext at column 0\n    """\n{BODY}',
    "a comment at column 0": f"    n = 1\n# now double\n{BODY}",
    "text at column 0 in an unfenced docstring": f'def total(xs):\n    """\ntext at column 0\n    """\n{BODY}',
    "a body after a sentence": f"The body is:\n\n{BODY}",
    "a loop that lost its first indentation": "for x in xs:\n        pass\n    return 2 * sum(xs)",
    "a call over lines": "n = sum(\n        xs\n    )\n    return 2 * n",
    "numpy": fenced("import numpy as np\n\ndef total(xs):\n    return int(2 * np.sum(xs))"),
}


@needs_sandbox
@pytest.mark.parametrize(
    "completion",
    [
        fenced(RIGHT),
        BODY,
        *DRESSED.values(),
        fenced("from __future__ import annotations\n" + RIGHT),
        fenced(RIGHT + "\n\nif __name__ == '__main__':\n    print(total(eval(input())))"),
    ],
)
def test_a_right_program_is_correct_in_whatever_dress(completion: str) -> None:
    result = verdict(completion, GOLD, ALLOWED)
    assert (result.outcome, result.reason) == (Outcome.CORRECT, "")


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "outcome", "reason"),
    [
        (WRONG, Outcome.WRONG, "AssertionError"),
        ("def total(xs):\n    return None", Outcome.WRONG, "AssertionError"),
        ("def total(xs):\n    raise KeyError(xs)", Outcome.WRONG, "KeyError: [1, 2]"),
        ("def totals(xs):\n    return 6", Outcome.WRONG, ""),
        ("def helper(x): return 6\n" + WRONG, Outcome.WRONG, "AssertionError"),
        ("import os\nos._exit(0)\n" + RIGHT, Outcome.WRONG, ""),
        ("import nowhere\n" + RIGHT, Outcome.WRONG, "ModuleNotFoundError: No module named 'nowhere'"),
        ("def total(xs) return 6", Outcome.UNPARSABLE, "SyntaxError"),
        ("def total(xs):\n    return (6", Outcome.UNPARSABLE, "SyntaxError"),
        ("def total(xs):\nreturn 6", Outcome.UNPARSABLE, ""),
    ],
)
def test_a_verdict_says_why_a_program_failed(code: str, outcome: Outcome, reason: str) -> None:
    result = verdict(fenced(code), GOLD, ALLOWED)
    assert result.outcome is outcome and reason in result.reason


@needs_sandbox
def test_programs_import_the_packages_that_are_named_and_no_others() -> None:
    uses = fenced("import numpy\n" + RIGHT)
    assert verdict(uses, GOLD, replace(ALLOWED, packages=())).outcome is Outcome.WRONG
    assert verdict(fenced("import psutil\n" + RIGHT), GOLD, ALLOWED).outcome is Outcome.WRONG
    assert verdict(fenced("import psutil\n" + RIGHT), GOLD, replace(ALLOWED, packages=("psutil",))).correct
    with pytest.raises(ValueError, match="package 'nowhere' is not installed here"):
        verdict(uses, GOLD, replace(ALLOWED, packages=("nowhere",)))


@needs_sandbox
def test_past_the_deadline_the_verdict_is_timeout() -> None:
    slow = fenced("def total(xs):\n    while True: pass")
    result = verdict(slow, GOLD, GradeOptions(allow_code_execution=True, deadline=1))
    assert result.outcome is Outcome.TIMEOUT
    assert result.answer == "def total(xs):\n    while True: pass"


@needs_sandbox
@pytest.mark.parametrize("gold", ["", "6", "[]", '{"prompt": ""}'])
def test_a_gold_answer_that_is_no_test_is_a_gold_error(gold: str) -> None:
    assert verdict(fenced(RIGHT), gold, ALLOWED).outcome is Outcome.GOLD_ERROR


@pytest.mark.parametrize("unsafe", [False, True])
def test_nothing_runs_unless_allowed(unsafe: bool) -> None:
    with pytest.raises(PermissionError, match=r"programs that the model wrote.*allow_code_execution=True"):
        verdict(fenced(RIGHT), GOLD, GradeOptions(allow_unsafe_code_execution=unsafe))


# ----------------------------------------------------------------------------------------------------------------- rows


ROW = {
    "task_id": "HumanEval/x",
    "prompt": PROMPT,
    "entry_point": "total",
    "canonical_solution": BODY + "\n",
    "test": "def check(candidate):\n    pass\n",
}


def test_a_row_becomes_a_problem() -> None:
    result = problem(Row(ROW, "here", 1), "test")
    assert result == Problem(
        id="HumanEval/x",
        task="humaneval",
        prompt=PROMPT.strip(),
        answer=json.dumps({"prompt": PROMPT, "entry_point": "total", "test": ROW["test"]}),
        solution=fenced(PROMPT + BODY),
        instruction=INSTRUCTION,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": ""}, "here: field 'test' is empty"),
        ({"prompt": 3}, "here: field 'prompt' must be a string"),
        ({"entry_point": "sum"}, "here: field 'prompt' does not define the function 'sum'"),
    ],
)
def test_a_broken_row_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        problem(Row(ROW | change, "here", 1), "test")


@pytest.fixture(scope="module")
def problems(data_dir: Path) -> list[Problem]:
    return [problem(row, "test") for row in read_rows(data_dir / TASK.sources["test"].files[0])]


def outcomes(completions: list[str], golds: list[Problem]) -> list[Outcome]:
    with ThreadPoolExecutor(2) as threads:
        verdicts = threads.map(
            lambda pair: verdict(pair[0], pair[1].answer, ALLOWED), zip(completions, golds, strict=True)
        )
        return [each.outcome for each in verdicts]


@needs_sandbox
def test_all_canonical_solutions_are_correct(problems: list[Problem]) -> None:
    assert len({each.id for each in problems}) == TASK.sources["test"].num_rows == 164
    results = outcomes([str(each.solution) for each in problems], problems)
    assert [each.id for each, outcome in zip(problems, results, strict=True) if outcome is not Outcome.CORRECT] == []


@needs_sandbox
def test_canonical_bodies_are_correct_however_their_indentation_was_lost(problems: list[Problem]) -> None:
    """Each problem in one dress, and each dress on 32 or 33 problems."""
    dresses = (str, str.strip, textwrap.dedent, lambda body: fenced(body.strip()), lambda body: f"So:\n\n{body}")
    bodies = [dresses[index % len(dresses)](canonical_body(each)) for index, each in enumerate(problems)]
    results = outcomes(bodies, problems)
    assert [each.id for each, outcome in zip(problems, results, strict=True) if outcome is not Outcome.CORRECT] == []


def canonical_body(given: Problem) -> str:
    return str(given.solution).removeprefix("```python\n").removesuffix("\n```")[len(given.prompt) + 1 :]
