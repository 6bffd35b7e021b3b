"""Every CPU benchmark in its quick form, one after the other: one JSON file and one page of tables.

    python benchmarks/run.py [--only NAME ...] [--data DATA] [--output benchmarks/results]

A benchmark is a file beside this one that takes `--quick` and `--json`; a new one joins by being there. Each runs in a
process of its own, with the threads of OMP_NUM_THREADS, by default one for each core. The grading benchmark needs the
official files and is left out without `--data`. Exit status 1 when a benchmark failed; the others are still kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import note, short, tables

HERE = Path(__file__).parent
NO_BENCHMARKS = ("harness", "models", "run", "on_vllm")
NEED_DATA = ("grading", "real_training")
ON_REQUEST = ("busy_core", "real_decoding")
"""The first keeps cores busy, the second needs a model that is fetched; they run where --only names them."""
MINUTES = 15
"""What all of them may take on two quiet cores."""

Result = dict[str, Any]
"""A report's content (`harness.Report`), or what went wrong."""


def benchmarks(folder: Path = HERE) -> list[str]:
    """The names of the benchmarks in a folder."""
    return sorted(path.stem for path in folder.glob("*.py") if path.stem not in NO_BENCHMARKS)


def run_one(name: str, options: Sequence[str], timeout: float, folder: Path = HERE) -> Result:
    """Run one benchmark and return its content; a failure is a result too, with the end of its output."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "out.json"
        command = [sys.executable, str(folder / f"{name}.py"), "--quick", "--json", str(path), *options]
        started = time.perf_counter()
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"benchmark": name, "error": f"took more than {timeout:.0f} s and was stopped"}
        if done.returncode != 0 or not path.exists():
            return {"benchmark": name, "error": "\n".join(done.stdout.strip().splitlines()[-5:])}
        whole = time.perf_counter() - started
        return {**json.loads(path.read_text(encoding="utf-8")), "process_seconds": whole}


def page(results: Sequence[Result]) -> str:
    """All tables as Markdown, under what they were measured on."""
    good = [one for one in results if "error" not in one]
    total = sum(one["process_seconds"] for one in good)
    lines = ["# CPU benchmarks", "", "Written by `python benchmarks/run.py`. How to read it: docs/benchmarks.md.", ""]
    if good:
        lines += [machine_line(good[0]["machine"], good[-1]["machine"]), "", f"In all {total / 60:.1f} minutes.", ""]
    for one in results:
        lines += [f"## {one['benchmark']}", ""]
        lines += [f"Failed:\n\n```text\n{one['error']}\n```" if "error" in one else tables(one), ""]
    return "\n".join(lines)


def machine_line(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """The machine and how busy it was: with a load above its cores, seconds are the neighbours' too."""
    packages = first["packages"]
    return (
        f"{first['processor']}, {first['cores']} cores, {first['threads']} threads, {first['memory_gib']} GiB; "
        f"torch {packages['torch']}, transformers {packages['transformers']}; load {short(first['load_at_the_start'])} "
        f"at the start, {short(last['load_at_the_end'])} at the end."
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=benchmarks(), metavar="NAME", help=", ".join(benchmarks()))
    parser.add_argument("--data", type=Path, help="folder with gsm8k_test.jsonl and math500_test.jsonl")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="where cpu.json and cpu.md go")
    parser.add_argument("--timeout", type=float, default=60 * MINUTES, help="seconds that one benchmark may take")
    arguments = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    results = []
    for name in arguments.only or benchmarks():
        if name in NEED_DATA and arguments.data is None:
            note(f"{name}: left out, give --data")
            continue
        if name in ON_REQUEST and not arguments.only:
            note(f"{name}: left out, give --only {name}")
            continue
        options = ["--data", str(arguments.data)] if name in NEED_DATA else []
        note(f"{name} ...")
        result = run_one(name, options, arguments.timeout)
        note(f"{name}: " + (result.get("error") or f"{result['process_seconds']:.0f} s"))
        results.append(result)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "cpu.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (arguments.output / "cpu.md").write_text(page(results), encoding="utf-8")
    print(page(results))
    return int(any("error" in one for one in results))


if __name__ == "__main__":
    sys.exit(main())
