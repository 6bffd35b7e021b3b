"""Which grader gave a verdict: what a file of verdicts is named by, so that verdicts of two graders are never mixed."""

from __future__ import annotations

from importlib.metadata import version

from tyler.tasks.grade_options import Mode

REVISION = 2
"""Of the graders in this package: raised with every change that may change a verdict."""
_LIBRARIES = ("sympy", "latex2sympy2_extended", "math-verify")


def grader_version(mode: Mode = "official") -> dict[str, str]:
    """Everything that decides a verdict besides the answer and the gold one; loads none of the libraries it names."""
    return {"revision": str(REVISION), "mode": mode, **{name: version(name) for name in _LIBRARIES}}
