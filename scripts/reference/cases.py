"""The page of graded cases: what every kind of task makes of answers, from the tests of its graders."""

import runpy
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests" / "tasks" / "test_policies.py"
BEGINNING = """# Graded cases

In brief:

- One task of each kind: `svamp` and `mawps` grade as `gsm8k`, `openr1` and `jsonl` as `math500`.
- "unread" is an answer that is not of the task's kind; it counts as wrong.
- Where the verdicts differ, the last column says why.
"""


def page() -> str:
    """All cases, those on which the graders agree first."""
    tests = runpy.run_path(str(TESTS))
    return f"{BEGINNING}\n{tests['table'](tests['AGREED'])}\n"
