"""A file of verdicts can be named by the grader that gave them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

from tyler.tasks import grader_version


def test_the_version_names_the_revision_the_mode_and_the_libraries() -> None:
    found = grader_version("strict")
    assert found["mode"] == "strict" and grader_version()["mode"] == "official"
    assert found["revision"].isdigit()
    assert {name: found[name] for name in ("sympy", "latex2sympy2_extended", "math-verify")} == {
        name: version(name) for name in ("sympy", "latex2sympy2_extended", "math-verify")
    }


def test_the_version_loads_none_of_the_libraries() -> None:
    code = "import sys; from tyler.tasks import grader_version; grader_version(); print('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
