r"""HumanEval (Chen et al., 2021), https://github.com/openai/human-eval: 164 functions to complete, each with its test.

A line as published (`HumanEval.jsonl.gz`):

    {"task_id": "HumanEval/23", "prompt": "\n\ndef strlen(string: str) -> int:\n    \"\"\" Return length of given
    string\n    >>> strlen('')\n    0\n    >>> strlen('abc')\n    3\n    \"\"\"\n", "entry_point": "strlen",
    "canonical_solution": "    return len(string)\n", "test": "\n\nMETADATA = {\n    'author': 'jt',\n    'dataset':
    'test'\n}\n\n\ndef check(candidate):\n    assert candidate('') == 0\n    assert candidate('x') == 1\n    assert
    candidate('asdasnakj') == 9\n"}

The answer is code, so nothing is boxed: the completion's function is run against the test, in `tyler.tasks.sandbox`,
and only where `allow_code_execution` says so. Verdicts: `correct` passes the test; `wrong` fails it, raises, or takes
too many processes or too much memory; `unparsable` does not compile; `no_box` holds no code, or a block that is never
closed; `timeout` is past the deadline.
"""

import json
import re
from functools import partial

from tyler.tasks.answers.program import NoProgramError, read_program
from tyler.tasks.data_files import Row
from tyler.tasks.problem import GradeOptions, Outcome, Problem, Verdict, after_thought
from tyler.tasks.sandbox.sandbox import Ending, Limits, execute, require
from tyler.tasks.task import Source, Task

INSTRUCTION = (
    "Complete this Python function. Reason step by step where it helps, and end with the whole function, with its "
    "imports, in one ```python code block."
)
"""Takes the place of the instruction to box the answer, which cannot apply to code."""

_ENDINGS = {
    Ending.PASSED: Outcome.CORRECT,
    Ending.FAILED: Outcome.WRONG,
    Ending.STOPPED: Outcome.WRONG,
    Ending.UNREADABLE: Outcome.UNPARSABLE,
    Ending.TIMEOUT: Outcome.TIMEOUT,
}


def problem(row: Row, split: str) -> Problem:
    """A row as a problem: its gold answer is JSON of what the test needs, its solution the whole function in a fence.

    Raises ValueError for a field that is missing or empty, and for a prompt that does not define the function.
    """
    kept = {}
    for field in ("prompt", "entry_point", "test", "canonical_solution"):
        row.text(field)
        kept[field] = row.get(field, str, "a string")
    name = kept["entry_point"].strip()
    if not re.search(rf"^(?:async )?def {re.escape(name)}\b", kept["prompt"], re.MULTILINE):
        raise row.error("prompt", f"does not define the function {name!r} of field 'entry_point'")
    gold = json.dumps({"prompt": kept["prompt"], "entry_point": name, "test": kept["test"]})
    code = (kept["prompt"] + kept["canonical_solution"]).strip()
    return Problem(
        id=row.text("task_id"),
        task="humaneval",
        prompt=kept["prompt"].strip(),
        answer=gold,
        solution=f"```python\n{code}\n```",
        instruction=INSTRUCTION,
    )


def verdict(completion: str, gold: str, options: GradeOptions) -> Verdict:
    """Run a completion's function against the test of `gold`.

    Raises PermissionError unless code may run, and SandboxError where there is no sandbox to run it in: both also for a
    completion without code, so that an evaluation can ask before it loads anything.
    """
    if not options.allow_code_execution:
        raise PermissionError(
            "grading humaneval runs programs that the model wrote. To allow it, give allow_code_execution=True "
            "(--allow-code-execution); they run in a bubblewrap sandbox without network, files or privileges "
            "(see docs/sandbox.md)"
        )
    require(unsafe=options.allow_unsafe_code_execution)
    try:
        parts = json.loads(gold)
        prompt, entry_point, test = parts["prompt"], parts["entry_point"], parts["test"]
    except (ValueError, KeyError, TypeError):
        return Verdict(Outcome.GOLD_ERROR)
    try:
        code, helpers = read_program(after_thought(completion), prompt, entry_point)
    except NoProgramError as error:
        return Verdict(Outcome.NO_BOX, reason=str(error))
    order = partial(
        execute, entry_point=entry_point, test=test, prelude=prompt, limits=Limits(seconds=options.deadline),
        packages=options.packages, unsafe=options.allow_unsafe_code_execution,
    )  # fmt: skip
    whole = f"{helpers}\n\n{code}" if helpers else code
    report = order(whole)
    if helpers and (report.ending is Ending.UNREADABLE or "ModuleNotFoundError" in report.why):
        whole, report = code, order(code)  # an earlier block was a sketch
    return Verdict(_ENDINGS[report.ending], whole, reason=report.why)


TASK = Task(
    name="humaneval",
    title="HumanEval",
    sources={
        "test": Source(
            files=("HumanEval.jsonl.gz", "HumanEval.jsonl", "humaneval_test.jsonl"),
            hub_id="openai/openai_humaneval",
            num_rows=164,
        )
    },
    problem=problem,
    verdict=verdict,
    runs_code=True,
)
