"""The suite: every benchmark is run, a failure is kept, and the GPU script works from end to end on a tiny shape."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

import gpu
import run
from tyler.modeling.random_init import architecture

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
    """A folder with two benchmarks, one of which fails, and the harness, which is none."""
    (tmp_path / "good.py").write_text(PAGE)
    (tmp_path / "bad.py").write_text("raise ValueError('no beads')")
    (tmp_path / "harness.py").write_text("raise AssertionError('this is no benchmark')")
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


def test_the_gpu_script_works_from_end_to_end_on_a_tiny_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    monkeypatch.setattr("sys.argv", ["gpu", "--shape", "tiny", "--device", "cpu", "--rounds", "1", "--json", str(path)])
    gpu.main()
    content = json.loads(path.read_text())
    works = {timing["work"] for timing in content["timings"]}
    assert {"tiny, plain, batch 2", "tiny, one call", "tiny, first token", "tiny, 2 slots"} <= works
    figures = {figure["work"]: figure["value"] for figure in content["figures"]}
    assert 0 < figures["tiny: share of synthesis"] < 1 and figures["tiny: the plan's answer"] > 0
    assert 0 < figures["tiny: of copy bandwidth"] < 1
    shown = capsys.readouterr().out
    assert "generate, dynamic cache" in shown and "tokens/s over batch 1" in shown


def test_the_gpu_script_decodes_the_tokens_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    engines, asked = gpu.engines_of(gpu.build("tiny", "cpu")), gpu.requests
    assert gpu.decode(engines, gpu.LITTLE, rows=2, new_tokens=6, calls=2).synthesis > 0
    monkeypatch.setattr(gpu, "requests", lambda amounts, rows, tokens, calls: asked(amounts, rows, tokens - 1, calls))
    with pytest.raises(AssertionError):
        gpu.decode(engines, gpu.LITTLE, rows=1, new_tokens=6, calls=2)


def test_what_does_not_fit_is_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    def too_much() -> None:
        raise torch.OutOfMemoryError("no room")

    engines = gpu.engines_of(gpu.build("tiny", "cpu"))
    first = engines(1)
    assert gpu.fits("a small one", lambda: None, engines) and engines(1) is first
    assert not gpu.fits("a large shape", too_much, engines)
    assert engines(1) is not first, "what it held is free"
    assert capsys.readouterr().err == "a large shape: left out, it does not fit this device\n"


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--device", "cuda", "--shape", "tiny"]])
def test_the_gpu_script_refuses_what_it_cannot_measure(arguments: list[str], monkeypatch, capsys) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    monkeypatch.setattr("sys.argv", ["gpu", *arguments])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "--shape tiny" in capsys.readouterr().err


def test_the_shapes_of_the_gpu_script_are_the_papers_backbones() -> None:
    assert [architecture(id).model_type for id in gpu.SHAPES.values()] == ["qwen2", "smollm3", "qwen3"]


@pytest.mark.gpu
def test_a_copy_is_faster_than_a_cpus(tmp_path: Path) -> None:
    assert gpu.copy_bandwidth("cuda") > 100e9
