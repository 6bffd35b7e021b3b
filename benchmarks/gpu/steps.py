"""What the parts share: a part is a list of steps, each of which is done once, published, and never done again.

The results of a part are one JSON file in the working folder, written after every step and copied to where results are
published. A part that was cut off goes on with the first step that is not done; so does one that ran out of time.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

import torch

from harness import Figure, Timing, machine, note, tables
from tyler.runs import signals
from tyler.runs.atomic_files import atomic_write
from tyler.runs.json_lines import read_jsonl


@dataclass(frozen=True)
class Setup:
    """Where a part runs, and until when. A rehearsal does little of everything, on a CPU."""

    device: str
    rehearse: bool
    carried: Path
    work: Path
    output: Path
    deadline: float
    """By `time.monotonic`."""

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()


@dataclass(frozen=True)
class Check:
    """A difference that is right up to a bound."""

    of: str
    value: float
    most: float

    @property
    def holds(self) -> bool:
        """Whether it is within its bound; what is not a number is not."""
        return self.value <= self.most


Finding = Timing | Figure | Check


@dataclass(frozen=True)
class Step:
    """Something to try or to measure, and the seconds that must be left for it to be begun."""

    name: str
    work: Callable[[Setup], Iterable[Finding]]
    seconds: float = 5.0


class Unfinished(Exception):
    """A step that was stopped, has saved how far it came, and goes on at the next call; with its findings so far."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("not finished")
        self.findings = findings


@contextmanager
def stopped_in_time(seconds: float) -> Iterator[None]:
    """Ask the training inside to save and stop after so many seconds, or as soon after as it listens."""
    over, before = Event(), signal.getsignal(signal.SIGTERM)

    def ask() -> None:
        wait = max(0.0, seconds)
        while not over.wait(wait):
            wait = 0.01
            if signal.getsignal(signal.SIGTERM) is not before:  # a loop listens
                os.kill(os.getpid(), signal.SIGTERM)
                return

    Thread(target=ask, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def progress(run: Path, prefix: str, what: str = "") -> Iterator[Figure]:
    """How far a training run is, and how fast it went."""
    log = run / "metrics.jsonl"
    records = read_jsonl(log) if log.exists() else []
    if records:
        yield Figure("steps", what, records[-1]["step"], "")
    for name, unit in (("seconds", "s a step, the median"), ("tokens_per_second", "tokens a second, the median")):
        if values := [record[f"{prefix}/{name}"] for record in records if f"{prefix}/{name}" in record]:
            yield Figure(name.replace("_", " "), what, median(values), unit)


@dataclass
class Results:
    """The findings of a part so far, by step."""

    part: str
    setup: Setup
    machine: dict[str, Any] = field(default_factory=machine)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def resumed(cls, part: str, setup: Setup) -> Results:
        """The results of earlier calls on this kind of machine, as they are in the working folder; or none."""
        results = cls(part, setup)
        if (path := results.path).exists():
            earlier = json.loads(path.read_text(encoding="utf-8"))
            if results.kind(earlier["machine"]) == results.kind(results.machine):
                results.steps = earlier["steps"]
        return results

    @property
    def path(self) -> Path:
        """The file of results; a rehearsal has another."""
        return self.setup.work / f"{self.part}{'-rehearsal' if self.setup.rehearse else ''}.json"

    @staticmethod
    def kind(machine: dict[str, Any]) -> list[Any]:
        """What results of two calls must have in common to stand in one file."""
        packages = {name: version for name, version in machine["packages"].items() if name != "tyler-reasoning"}
        return [machine["gpu"] or machine["processor"], machine["python"], packages]

    def is_done(self, name: str) -> bool:
        return self.steps.get(name, {}).get("outcome") == "done"

    def add(self, name: str, outcome: str, seconds: float, findings: Sequence[Finding], error: str = "") -> None:
        """Record a step and publish all that there is."""
        checks = [finding for finding in findings if isinstance(finding, Check)]
        self.steps[name] = {
            "outcome": outcome,
            "seconds": round(seconds, 3),
            "checks": [asdict(check) for check in checks],
            "timings": [asdict(finding) for finding in findings if isinstance(finding, Timing)],
            "figures": [asdict(finding) for finding in findings if isinstance(finding, Figure)],
            **({"error": error} if error else {}),
        }
        self.publish()

    def publish(self) -> None:
        """Write the results into the working folder, and with their tables to where results are published."""
        content = {"part": self.part, "rehearsal": self.setup.rehearse, "machine": self.machine, "steps": self.steps}
        text = json.dumps(content, indent=1) + "\n"
        atomic_write(self.path, text)
        self.setup.output.mkdir(parents=True, exist_ok=True)
        atomic_write(self.setup.output / self.path.name, text)
        atomic_write((self.setup.output / self.path.name).with_suffix(".md"), page(content))


def page(content: dict[str, Any]) -> str:
    """Results as Markdown: the machine, then step by step."""
    where, packages = content["machine"], content["machine"]["packages"]
    lines = [
        f"# {content['part']}{', rehearsed' if content['rehearsal'] else ''}",
        "",
        f"{where['gpu'] or where['processor']}, torch {packages['torch']}, transformers {packages['transformers']}, "
        f"peft {packages['peft']}, Python {where['python']}, {where['time']}",
    ]
    for name, step in content["steps"].items():
        lines += ["", f"## {name}: {step['outcome']}, {step['seconds']:.0f} s", ""]
        for check in step["checks"]:
            mark = "" if check["value"] <= check["most"] else " **over**"
            lines.append(f"- {check['of']}: {check['value']:.2g}, at most {check['most']:.2g}{mark}")
        lines += ["", tables(step)] if step["timings"] or step["figures"] else []
        lines += ["```", step["error"], "```"] if "error" in step else []
    return "\n".join(lines) + "\n"


def run(part: str, setup: Setup, only: Sequence[str] = ()) -> int:
    """Do the steps of a part that are not done, in order; 0 when all are done, 1 when one failed or is left."""
    if setup.device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device here; --rehearse runs every step on a CPU", file=sys.stderr)
        return 2
    steps: list[Step] = importlib.import_module(f"gpu.{part}").steps(setup)
    if unknown := set(only) - {step.name for step in steps}:
        print(f"no step {', '.join(unknown)}; there are: {', '.join(step.name for step in steps)}", file=sys.stderr)
        return 2
    results = Results.resumed(part, setup)
    wanted = [step for step in steps if step.name in only] if only else steps
    with signals.unwinding():
        for step in wanted:
            if not only and results.is_done(step.name):
                note(f"{step.name}: done before")
            elif setup.seconds_left < step.seconds:
                note(f"{step.name}: not begun, {setup.seconds_left:.0f} s are left and it needs {step.seconds:.0f}")
            elif not attempt(step, setup, results):
                break
    results.publish()
    left = [step.name for step in wanted if not results.is_done(step.name)]
    note(
        f"{part}: {len(wanted) - len(left)} of {len(wanted)} steps are done{': not ' if left else ''}{', '.join(left)}"
    )
    return 1 if left else 0


def attempt(step: Step, setup: Setup, results: Results) -> bool:
    """Do a step and record it; whether the part goes on. A failure is a result; being asked to stop ends the part."""
    started, goes_on, error = time.monotonic(), True, ""
    findings: list[Finding] = []
    note(f"{step.name}: begins, {setup.seconds_left:.0f} s are left")
    try:
        for finding in step.work(setup):
            findings.append(finding)
        over = [finding for finding in findings if isinstance(finding, Check) and not finding.holds]
        outcome = "failed" if over else "done"
    except Unfinished as unfinished:
        outcome, findings = "unfinished", [*findings, *unfinished.findings]
    except KeyboardInterrupt:
        outcome, goes_on = "interrupted", False
    except Exception:
        outcome, error = "failed", traceback.format_exc(limit=-6)
        note(error)
    results.add(step.name, outcome, time.monotonic() - started, findings, error)
    note(f"{step.name}: {outcome}, {time.monotonic() - started:.1f} s")
    if setup.device == "cuda":
        torch.cuda.empty_cache()
    return goes_on
