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

from __future__ import annotations

import json
import re
import textwrap

from tyler.tasks.data_files import Row
from tyler.tasks.problem import Outcome, Problem, Verdict
from tyler.tasks.sandbox.sandbox import Ending, Limits, execute, require
from tyler.tasks.task import GradeOptions, Source, Task
from tyler.tasks.thoughts import after_thought

INSTRUCTION = (
    "Complete this Python function. Reason step by step where it helps, and end with the whole function, with its "
    "imports, in one ```python code block."
)
"""Takes the place of the instruction to box the answer, which cannot apply to code."""

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<marks>```+)[ \t]*(?P<language>[\w+.-]*)[^\n`]*$", re.MULTILINE)
_CODE_LINE = re.compile(r"(?:\s|$|[@#)\]}]|(?:import|from|(?:async )?def|class|if __name__)\b|\w+(?: *: *\S+)? *= *\S)")
_BODY_LINE = re.compile(r"(?:return|yield|raise|assert)\b|(?:for|if|while|with|try)\b.*:\s*$|pass$|\w+ *[+*-]?= *\S")

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
    if not _definition(name).search(kept["prompt"]):
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
    code = extract(completion, prompt, entry_point)
    if code is None:
        return Verdict(Outcome.NO_BOX)
    report = execute(
        code, entry_point=entry_point, test=test, prelude=prompt, limits=Limits(seconds=options.deadline),
        unsafe=options.allow_unsafe_code_execution,
    )  # fmt: skip
    return Verdict(_ENDINGS[report.ending], code)


def extract(completion: str, prompt: str, entry_point: str) -> str | None:
    """The program of a completion, or None where it holds no code. Text is only matched, never compiled.

    It is the last ```python block that defines the function, else the longest block that does, else the last block as
    the function's body. Without any block it is the completion as the function's body, as base models write it, else
    what follows from the first line of code. A block that is never closed is no answer, whatever came before it.
    """
    text = after_thought(completion)
    defines = _definition(entry_point)
    blocks = _blocks(text)
    if blocks is None:
        return None
    if not blocks:
        return _unfenced(text, prompt, defines)
    defining = [(language, code) for language, code in blocks if defines.search(code)]
    in_python = [code for language, code in defining if language.lower() in ("python", "python3", "py")]
    if in_python:
        return in_python[-1]
    if defining:
        return max((code for _, code in defining), key=len)
    return _continued(prompt, blocks[-1][1])


def _definition(name: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:async )?def {re.escape(name)}\b", re.MULTILINE)


def _blocks(text: str) -> list[tuple[str, str]] | None:
    """Language and dedented content of each fenced block, or None where the last one is never closed."""
    blocks = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence["language"] and len(fence["marks"]) >= len(opened["marks"]) and not _is_inside(fence, opened):
            content = text[opened.end() : fence.start()].strip("\n")
            blocks.append((opened["language"], _dedent(content, opened["indent"])))
            opened = None
    return blocks if opened is None else None


def _is_inside(fence: re.Match[str], opened: re.Match[str]) -> bool:
    """Whether a fence is indented like code in the block, such as one in a docstring, and closes nothing."""
    return len(fence["indent"].expandtabs(4)) >= len(opened["indent"].expandtabs(4)) + 4


def _dedent(content: str, indent: str) -> str:
    """`content` without the indentation of its fence; a body's own indentation stays."""
    return re.sub(rf"^{indent}", "", content, flags=re.MULTILINE) if indent else content


def _unfenced(text: str, prompt: str, defines: re.Pattern[str]) -> str | None:
    if defines.search(text):
        lines = text.splitlines()
        starts = (i for i, line in enumerate(lines) if re.match(r"(?:import|from|async|def|class|@)\b|@", line))
        return "\n".join(_while(_CODE_LINE, lines[next(starts) :]))
    first = next((line for line in text.splitlines() if line.strip()), "")
    if first[:1].isspace() or _BODY_LINE.match(first):
        return _continued(prompt, text)
    return None


def _continued(prompt: str, body: str) -> str:
    """The prompt's function with a body, which ends at the first line that is not indented."""
    lines = [line for line in body.splitlines() if line.strip()] or ["pass"]
    first, second = lines[0], lines[1] if len(lines) > 1 else ""
    if first[0].isspace():
        indented = body
    elif second[:1].isspace() and not first.rstrip().endswith(":"):
        indented = "    " + body.lstrip()  # only its start was stripped
    else:
        indented = textwrap.indent(body, "    ")
    kept = _while(re.compile(r"\s|$"), indented.strip("\n").splitlines())
    return prompt.rstrip() + "\n" + "\n".join(kept) + "\n"


def _while(pattern: re.Pattern[str], lines: list[str]) -> list[str]:
    """The leading lines that match."""
    end = next((i for i, line in enumerate(lines) if not pattern.match(line)), len(lines))
    return lines[:end]


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
