"""Benchmarks share the harness's options, and each has a line on its page."""

import importlib
import re
from pathlib import Path

import pytest

HELPERS = ("harness", "models")
HERE = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("*.py") if path.stem not in HELPERS))
def test_every_benchmark_has_the_common_options_and_says_how_to_run_it(name: str, root: Path) -> None:
    module = importlib.import_module(name)
    source = (HERE / f"{name}.py").read_text()
    assert f"python benchmarks/{name}.py" in (module.__doc__ or "")
    assert "options(__doc__" in source and re.search(r"\.publish\((arguments|given)\.json\)", source)
    assert f"`{name}.py`" in (root / "docs" / "benchmarks.md").read_text()
