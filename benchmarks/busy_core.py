"""Commands beside another program: how much longer each takes when one core is busy.

    python benchmarks/busy_core.py [--quick] [--rounds 3] [--json out.json]

Each command runs in a process of its own, alone and beside programs that keep all cores but one busy (on two cores:
one), in turn. Threads are as a user has them: OMP_NUM_THREADS and the like are taken out of the environment, unless
`--keep-environment` is given, which shows what a setting does. The aim is a ratio of at most 2.5. On a machine on which
others work, "alone" is not alone, and no figure counts.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness import Contest, Report, compete, options, read

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT")

QUESTION = "What is 12 + 30?"
TRAINING = ("--stage1.steps", "8", "--stage1.eval_every", "null", "--data.count", "64", "--data.development", "null")


def commands(folder: Path, quick: bool) -> dict[str, list[str]]:
    """What is run, by its name: short forms of what users run. `folder` is theirs, new in every run."""
    chosen = {
        "solve": ["solve", "mini-tyler", QUESTION],
        "stage1, 8 steps": ["train", "stage1", "mini", "--output", str(folder / "stage1"), *TRAINING],
        "eval, 32 problems": ["eval", "mini-tyler", "--count", "32", "--output", str(folder / "eval")],
        "quickstart, a twentieth": ["quickstart", "--scale", "0.05", "--output", str(folder / "quickstart")],
    }
    return dict(list(chosen.items())[:2]) if quick else chosen


def spin() -> None:
    """Keep a core busy until killed."""
    while True:
        pass


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Within it so many other programs run, each on a core if there is one for each."""
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(programs)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def seconds(name: str, quick: bool, environment: Mapping[str, str]) -> float:
    """What a command takes from its start to its end. Raises CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tyler", *commands(Path(folder), quick)[name]]
        started = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - started


def main() -> None:
    parser = options(__doc__ or "", rounds=3)
    parser.add_argument("--keep-environment", action="store_true", help="leave settings of threads as they are")
    arguments = read(parser)
    taken = () if arguments.keep_environment else THREADS
    environment = {name: value for name, value in os.environ.items() if name not in taken}
    others = max(1, len(os.sched_getaffinity(0)) - 1)

    def contest(name: str) -> Contest:
        def alone() -> float:
            return seconds(name, arguments.quick, environment)

        def beside() -> float:
            with busy(others):
                return alone()

        return Contest(name, {"alone": alone, f"beside {others} busy": beside})

    report = Report("busy_core", arguments)
    report.add(compete(map(contest, commands(Path(), arguments.quick)), arguments.rounds, warmups=0))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
