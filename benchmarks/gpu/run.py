"""Make carried packages importable, then run one part: what `run.sh` calls."""

import argparse
import os
import sys
import time
import zipfile
from pathlib import Path

STARTED = time.monotonic()
ROOT = Path(__file__).resolve().parents[2]
PARTS = ("right", "real", "speed")
MINUTES = 4.6
"""What a part may take: `run.sh` ends it after five, and what is under way needs time to be saved."""


def options() -> argparse.ArgumentParser:
    """What `run.sh` takes."""
    parser = argparse.ArgumentParser(prog="run.sh", description="Try and measure one part on a GPU.")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rehearse", action="store_true", help="little of everything, on a CPU")
    folder = ROOT / "build" / "gpu"
    parser.add_argument("--carried", type=Path, default=folder / "carried", help="the folder that pack.sh made")
    parser.add_argument("--work", type=Path, default=folder / "work", help="results and models, to go on from")
    published = "where results are published after each step; by default $OUT, or the working folder"
    parser.add_argument("--output", type=Path, default=os.environ.get("OUT"), help=published)
    parser.add_argument("--minutes", type=float, help=f"no step begins or goes on after so many; by default {MINUTES}")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="these steps, done or not")
    return parser


def unpack(carried: Path, site: Path) -> None:
    """Make the carried packages importable, here and in processes that are started here."""
    for wheel in sorted(carried.glob("packages/*.whl")):
        done = site / f".{wheel.name}"
        if not done.exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
            done.touch()
    paths = [str(ROOT / folder) for folder in ("src", "benchmarks", "", "tests", "tests/training")]
    paths += [str(site)] * site.exists()
    sys.path[:1] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def main() -> int:
    arguments = options().parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    unpack(arguments.carried, arguments.work / "packages")
    os.environ["TYLER_HOME"] = str(arguments.work.resolve() / "home")
    from gpu import steps

    minutes = arguments.minutes or (600.0 if arguments.rehearse else MINUTES)
    setup = steps.Setup(
        device="cpu" if arguments.rehearse else "cuda",
        rehearse=arguments.rehearse,
        carried=arguments.carried.resolve(),
        work=arguments.work.resolve(),
        output=(arguments.output or arguments.work).resolve(),
        deadline=STARTED + 60 * minutes,
    )
    return steps.run(arguments.part, setup, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
