"""Kill both stages at random moments with SIGKILL and resume them: they must end in the weights of an untouched run.

    python scripts/kill_and_resume.py
    python scripts/kill_and_resume.py --kills 3 --config my.yaml

Every stage first runs undisturbed. Then runs of it are killed, again and again, each process at a moment drawn over the
length of the whole run or, one time in four, while a checkpoint is half written; a process that is not killed in time
finishes, is compared, and a new run begins. Exit status 1 at the first difference.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import hashlib
import importlib
import json
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tyler.cli.main import main as tyler
from tyler.runs.checkpoints import best_checkpoint, latest_checkpoint
from tyler.runs.json_lines import read_jsonl

SHORT = (
    *("data.count=64", "data.development.count=8"),
    *("stage1.steps=12", "stage1.batch_size=4", "stage1.checkpoint_every=2", "stage1.eval_every=3"),
    *("stage2.steps=12", "stage2.batch_size=2", "stage2.checkpoint_every=2", "stage2.eval_every=3"),
    *("stage2.calibration.num_problems=4", "stage2.max_new_tokens=96", "grpo.group_size=4"),
)
"""What makes `mini` a matter of seconds."""
POLL = 0.002
"""Seconds: a checkpoint takes longer to be written."""


@dataclass(frozen=True)
class Stage:
    """A training command and where its runs are."""

    name: str
    command: list[str]
    folder: Path

    def start(self, run: Path) -> int:
        """Start the command in a process of its own, or let it go on; returns the process id."""
        resume = ["--resume"] if (run / "config.yaml").exists() else []
        pid = os.fork()
        if pid == 0:
            with open(self.folder / "output.txt", "a") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            status = 1
            try:
                status = tyler([*self.command, "--output", str(run), *resume])
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        return pid


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="mini", help="a preset or a YAML file")
    parser.add_argument("--kills", type=int, default=20, help="of each stage")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--output", type=Path, help="where the runs stay; by default nowhere")
    arguments = parser.parse_args(argv)
    folder = arguments.output or Path(tempfile.mkdtemp(prefix="kill-and-resume-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty; choose another --output")
    settings = [f"--set={setting}" for setting in SHORT] if arguments.config == "mini" else []
    stages = [
        Stage("stage1", ["stage1", arguments.config, *settings], folder),
        Stage("stage2", ["stage2", arguments.config, "--start", str(folder / "stage1-whole"), *settings], folder),
    ]
    for module in ("tyler.training.stage1", "tyler.training.stage2"):
        importlib.import_module(module)  # here, and not again in every process
    try:
        equal = [torture(stage, arguments.kills, random.Random(f"{arguments.seed} {stage.name}")) for stage in stages]
    finally:
        if arguments.output is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(equal) else 1


def torture(stage: Stage, kills: int, draw: random.Random) -> bool:
    """Kill a stage `kills` times, and print what happened; returns whether every run ended like the undisturbed one."""
    whole = stage.folder / f"{stage.name}-whole"
    seconds = undisturbed(stage, whole)
    print(f"\n{stage.name}: `tyler {shlex.join(stage.command)}`, {seconds:.1f} s undisturbed\n", flush=True)
    expected, done, runs = fingerprint(whole), 0, 0
    while done < kills:
        runs += 1
        run = stage.folder / f"{stage.name}-{runs}"
        while (kill := attempt(stage, run, seconds, draw, armed=done < kills)) is not None:
            done += 1
            print(f"kill {done}, run {runs}, {kill}", flush=True)
        found = fingerprint(run)
        if differing := sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name)):
            print(f"\nrun {runs} of {stage.name} ended differently in: {', '.join(differing)}")
            return False
    print(f"\n{stage.name}: {done} kills in {runs} runs; {len(expected)} fingerprints are equal in all of them")
    return True


def undisturbed(stage: Stage, run: Path) -> float:
    """Run a stage in peace; returns the seconds from the opening of its directory to its end."""
    pid = stage.start(run)
    wait_until(pid, lambda: starts(run) > 0)
    opened = time.perf_counter()
    wait_until(pid, lambda: False)
    return time.perf_counter() - opened


def attempt(stage: Stage, run: Path, seconds: float, draw: random.Random, *, armed: bool) -> str | None:
    """Let a run go on and, if `armed`, kill it; when, and what it left. None when it came to its end."""
    before, pid = starts(run), stage.start(run)
    if not wait_until(pid, lambda: starts(run) > before):
        return None
    when, reached = moment(run, seconds, draw) if armed else ("never", lambda: False)
    if not wait_until(pid, reached):
        return None
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    newest = latest_checkpoint(run)
    return f"{when}: {newest.name if newest else 'no checkpoint'}{', one half written' if half_written(run) else ''}"


def moment(run: Path, seconds: float, draw: random.Random) -> tuple[str, Callable[[], bool]]:
    """When to kill, in words and as a condition: some time from now, or inside one of the next checkpoints."""
    in_checkpoint, delay, number = draw.random() < 0.25, draw.uniform(0, seconds), draw.randint(1, 3)
    seen: set[str] = set()

    def inside() -> bool:
        seen.update(half_written(run))
        return len(seen) >= number

    if in_checkpoint:
        return f"inside checkpoint {number} of the process", inside
    deadline = time.perf_counter() + delay
    return f"{delay:.2f} s", lambda: time.perf_counter() >= deadline


def wait_until(pid: int, condition: Callable[[], bool]) -> bool:
    """Wait for the condition; False when the process ended before it. Raises RuntimeError where it ended badly."""
    while not condition():
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended and status:
            raise RuntimeError(f"a process ended with {os.waitstatus_to_exitcode(status)}; see output.txt (--output)")
        if ended:
            return False
        time.sleep(POLL)
    return True


def starts(run: Path) -> int:
    """How often the run was opened."""
    path = run / "environment.json"
    return len(json.loads(path.read_text())) if path.exists() else 0


def half_written(run: Path) -> list[str]:
    """The checkpoints of which only a part is there."""
    return [path.name for path in (run / "checkpoints").glob(".step-*") if not path.name.endswith(".removed")]


def fingerprint(run: Path) -> dict[str, str]:
    """What has to come out the same: weights, states, the choice of the best, metrics but for times, trajectories."""
    last, best = latest_checkpoint(run), best_checkpoint(run)
    found = {"last": last.name if last else "", "best": best.name if best else ""}
    for folder in filter(None, (last, best)):
        for path in sorted(folder.rglob("*")):
            if path.suffix == ".safetensors" or path.name in ("state.json", "best.json"):
                found[f"{folder.name}/{path.relative_to(folder)}"] = sha256(path.read_bytes())
    metrics = [{key: line[key] for key in line if "second" not in key} for line in read_jsonl(run / "metrics.jsonl")]
    found["metrics"] = sha256(json.dumps(metrics).encode())
    trail = run / "trajectories.jsonl.gz"
    found["trajectories"] = sha256(trail.read_bytes() if trail.exists() else b"")  # Stage 1 writes none
    return found


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
