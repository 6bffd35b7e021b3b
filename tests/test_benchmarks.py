"""The suite: every benchmark is run, and a failure is kept."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import run

PAGE = """import json, sys
path = sys.argv[sys.argv.index("--json") + 1]
machine = {"processor": "abacus", "cores": 2, "threads": 1, "memory_gib": 3, "load_at_the_start": 1,
           "load_at_the_end": 2, "packages": {"torch": "1", "transformers": "2"}}
timings = [{"work": "add", "way": "beads", "seconds": [2.0, 4.0], "ratios": [1.0, 1.0], "amount": 8, "unit": "sums"}]
content = {"benchmark": "good", "machine": machine, "timings": timings, "figures": [], "options": sys.argv[1:]}
open(path, "w").write(json.dumps(content))
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two benchmarks, one of which fails, and the harness, which is not one."""
    (tmp_path / "good.py").write_text(PAGE)
    (tmp_path / "bad.py").write_text("raise ValueError('no beads')")
    (tmp_path / "harness.py").write_text("raise AssertionError('this is not a benchmark')")
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "benchmarks", lambda folder=tmp_path, found=run.benchmarks: found(folder))
    monkeypatch.setattr(run, "run_one", lambda *given, one=run.run_one: one(*given, folder=tmp_path))
    return tmp_path


def test_every_benchmark_runs_quickly_and_a_failure_is_kept(
    suite: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert run.main([]) == 1, "one of them failed"
    bad, good = json.loads((suite / "results" / "cpu.json").read_text())
    assert "no beads" in bad["error"]
    assert good["options"][0] == "--quick"
    page = (suite / "results" / "cpu.md").read_text()
    assert page.strip() == capsys.readouterr().out.strip()
    assert "abacus, 2 cores, 1 threads" in page and "| add  | beads |" in page and "ValueError: no beads" in page
    assert "3 sums/s" in page, "the median of 8 sums in 2 and in 4 seconds"


def test_one_benchmark_alone_and_its_failure_is_not_the_others(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert run.main(["--only", "good", "--output", str(suite / "elsewhere")]) == 0
    assert len(json.loads((suite / "elsewhere" / "cpu.json").read_text())) == 1


def test_a_benchmark_that_takes_too_long_is_stopped(suite: Path) -> None:
    (suite / "slow.py").write_text("import time; time.sleep(60)")
    assert run.run_one("slow", [], 0.5) == {"benchmark": "slow", "error": "took more than 0 s and was stopped"}


@pytest.mark.parametrize("name", run.benchmarks())
def test_every_benchmark_has_the_options_of_the_suite_and_says_how_to_run_it(name: str, root: Path) -> None:
    module = importlib.import_module(name)
    source = (root / "benchmarks" / f"{name}.py").read_text()
    assert f"python benchmarks/{name}.py" in (module.__doc__ or "")
    assert "options(__doc__" in source and ".publish(arguments.json)" in source
    assert f"`{name}.py`" in (root / "docs" / "benchmarks.md").read_text()
