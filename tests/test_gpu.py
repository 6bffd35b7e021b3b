"""What is tried on a GPU: the steps of a part are done once, survive being cut off, and are rehearsed on a CPU."""

import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpu import real, right, speed, steps
from gpu.steps import Check, Finding, Setup, Step
from harness import Figure

BROUGHT = (
    "torch", "transformers", "accelerate", "peft", "huggingface-hub", "jinja2", "numpy", "psutil", "pyyaml", "rich",
    "safetensors",
)  # fmt: skip
"""What a machine with torch, transformers, accelerate and peft has."""
UNUSED = ("datasets", "matplotlib", "pyarrow")
"""What no part imports: there is no network, and nothing is drawn. The rehearsal's environment lacks them."""


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """A rehearsal's, with time for everything."""
    return Setup("cpu", True, tmp_path / "carried", tmp_path / "work", tmp_path / "out", time.monotonic() + 1e6)


class Part:
    """A part of three steps under a module's name; `then` is what the second does."""

    def __init__(self, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
        setup.work.mkdir()
        self.setup, self.done = setup, []
        self.then: Any = None
        module = ModuleType("gpu.sample")
        module.steps = lambda setup: [Step(name, self.work(name), seconds=20) for name in "abc"]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "gpu.sample", module)

    def work(self, name: str) -> Any:
        def work(setup: Setup) -> Iterator[Finding]:
            self.done.append(name)
            if name == "b" and self.then is not None:
                raise self.then
            yield Figure(name, "", 1.0, "")

        return work

    def run(self, *only: str, setup: Setup | None = None) -> int:
        self.done.clear()
        return steps.run("sample", setup or self.setup, only)

    def published(self) -> dict[str, str]:
        content = json.loads((self.setup.output / "sample-rehearsal.json").read_text())
        return {name: step["outcome"] for name, step in content["steps"].items()}


@pytest.fixture
def part(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> Part:
    return Part(setup, monkeypatch)


def test_steps_are_done_once_and_each_is_published(part: Part) -> None:
    assert part.run() == 0 and part.done == ["a", "b", "c"]
    assert part.published() == {"a": "done", "b": "done", "c": "done"}
    assert part.run() == 0 and part.done == []
    assert part.run("b") == 0 and part.done == ["b"], "asked for by name it is done again"


def test_what_was_cut_off_goes_on_with_the_step_that_was_not_done(part: Part) -> None:
    part.then = KeyboardInterrupt()
    assert part.run() == 1 and part.done == ["a", "b"]
    assert part.published() == {"a": "done", "b": "interrupted"}
    part.then = None
    assert part.run() == 0 and part.done == ["b", "c"]


def test_a_failure_is_a_result_and_the_next_step_follows(part: Part) -> None:
    part.then = ValueError("no room")
    assert part.run() == 1 and part.done == ["a", "b", "c"]
    assert part.published() == {"a": "done", "b": "failed", "c": "done"}
    assert "ValueError: no room" in (part.setup.output / "sample-rehearsal.md").read_text()
    part.then = steps.Unfinished([Figure("steps", "", 7, "")])
    assert part.run() == 1 and part.done == ["b"]
    assert part.published()["b"] == "unfinished"
    assert "| steps  |" in (part.setup.output / "sample-rehearsal.md").read_text()


def test_a_step_for_which_no_time_is_left_is_not_begun(part: Part) -> None:
    assert part.run(setup=replace(part.setup, deadline=time.monotonic() + 10)) == 1 and part.done == []
    assert part.run() == 0 and part.done == ["a", "b", "c"]


def test_results_of_another_machine_are_not_gone_on_with(part: Part) -> None:
    part.run()
    path = part.setup.work / "sample-rehearsal.json"
    content = json.loads(path.read_text())
    content["machine"]["packages"]["torch"] = "1.0"
    path.write_text(json.dumps(content))
    assert part.run() == 0 and part.done == ["a", "b", "c"]


def test_a_part_without_its_gpu_says_so_and_an_unknown_step_is_refused(part: Part, capsys: Any) -> None:
    if not torch.cuda.is_available():
        assert part.run(setup=replace(part.setup, device="cuda", rehearse=False)) == 2
        assert "--rehearse" in capsys.readouterr().err
    assert part.run("d") == 2
    assert "there are: a, b, c" in capsys.readouterr().err


@pytest.mark.parametrize("value, holds", [(0.1, True), (0.2, False), (float("nan"), False)])
def test_a_difference_has_a_bound(value: float, holds: bool, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Check("a gradient", value, 0.1).holds is holds
    results = steps.Results("sample", setup)
    setup.work.mkdir()
    steps.attempt(Step("a", lambda _: [Check("a gradient", value, 0.1)]), setup, results)
    assert results.is_done("a") is holds


def test_a_training_that_runs_out_of_time_is_saved_and_goes_on(setup: Setup) -> None:
    setup.work.mkdir()
    for step in (real.fetched, real.prepared):
        list(step(setup))
    row, training = next(
        (row, candidate) for row, candidate in real.trainings(250).items() if candidate.method == "sft"
    )
    with pytest.raises(steps.Unfinished) as stopped:
        list(real.train(row, training, 250, replace(setup, deadline=time.monotonic())))
    assert [finding.value for finding in stopped.value.findings if finding.work == "steps"] == [1], (
        "asked before the first of two"
    )
    assert not list(setup.output.glob("*.tar"))
    outcomes = list(real.train(row, training, 250, setup))
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Figure) and outcome.work == "steps"] == [2]
    assert (setup.output / "models-250-steps.tar").exists()


def test_what_a_gpu_trains_is_what_the_study_declares(setup: Setup, data_dir: Path) -> None:
    (setup.carried / "data").parent.mkdir()
    (setup.carried / "data").symlink_to(data_dir)
    rows = real.trainings(1_000)
    assert list(rows) == ["Stage 1, 1000 steps", "Pause tokens, 1000 steps", "SFT, 1000 steps"]
    for training in rows.values():
        config = real.config_of(training, replace(setup, rehearse=False, device="cuda"))
        loop = getattr(config, training.method)
        assert (config.data.task, config.data.count, loop.steps, loop.batch_size) == ("mawpsvaried", 40_000, 1_000, 4)
        assert loop.autocast and config.backbone.dtype == "float32"


def test_every_package_that_tyler_needs_is_there_or_carried(root: Path) -> None:
    script = (root / "benchmarks" / "gpu" / "pack.sh").read_text()
    carried = set(re.search(r"^packages=\(([^)]*)\)", script, re.MULTILINE)[1].split())  # type: ignore[index]
    needed = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {canonicalize_name(Requirement(line).name) for line in needed}
    assert names <= {*carried, *BROUGHT, *UNUSED}
    pinned = set(re.findall(r"^([\w.-]+)==", (root / "constraints.txt").read_text().replace("_", "-"), re.MULTILINE))
    assert carried <= {canonicalize_name(name) for name in pinned}, "so that every folder has the same versions"


def test_a_rehearsal_tries_every_kind_of_step(setup: Setup) -> None:
    whole = replace(setup, rehearse=False, device="cuda")
    for part, kinds in (
        (right, ("float32", "bfloat16", "mini")),
        (speed, ("copy", "SFT", "Stage 1", "decoding", "a call")),
    ):
        names, rehearsed = ([step.name for step in part.steps(option)] for option in (whole, setup))
        assert all(any(kind in name for name in rehearsed) for kind in kinds)
        assert len(names) >= len(rehearsed)
    assert [step.name for step in real.steps(setup)] == [step.name for step in real.steps(whole)][
        : len(real.steps(setup))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["right", "real", "speed"])
def test_the_rehearsal_passes_whole(part: str, root: Path, tmp_path: Path) -> None:
    """A minute or two of work for each; what is carried is not there, so that `mini` stands in for SmolLM2."""
    command = [root / "benchmarks" / "gpu" / "run.sh", part, "--rehearse", "--work", tmp_path, "--carried", tmp_path]
    environment = {"PATH": str(Path(sys.executable).parent) + ":/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / f"{part}-rehearsal.json").read_text())
    assert {step["outcome"] for step in content["steps"].values()} == {"done"}
