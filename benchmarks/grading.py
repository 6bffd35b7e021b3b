"""Answers graded in a second: GSM8K and MATH-500, on one thread and on two.

    python benchmarks/grading.py --data-dir DATA [--rounds 5] [--json out.json]

GSM8K: every gold answer, as `$N$` and with a unit, against itself. MATH-500: the box of every solution against the gold
answer, the gold answer in other dress, and `0 + answer`, which sends every formula to the algebra. Rounds are
interleaved, so that a machine whose speed drifts slows all of them; starting the workers is not counted, and what they
have read before they remember.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tyler.tasks import gsm8k, mathematics
from tyler.tasks.answers import boxed_answer
from tyler.tasks.task import GradeOptions

Pair = tuple[str, str]


def gsm8k_pairs(folder: Path) -> list[Pair]:
    """Answer and gold."""
    lines = (folder / "gsm8k_test.jsonl").read_text("utf-8").splitlines()
    golds = [json.loads(line)["answer"].rpartition("#### ")[2] for line in lines]
    return [(form.format(gold), gold) for gold in golds for form in ("${}$", r"{} \text{{ dollars}}")]


def math500_pairs(folder: Path) -> list[Pair]:
    """Answer and gold."""
    rows = [json.loads(line) for line in (folder / "math500_test.jsonl").read_text("utf-8").splitlines()]
    boxes = [(boxed_answer(row["solution"]) or "", row["answer"]) for row in rows]
    golds = [row["answer"] for row in rows]
    plain = [(gold.replace(r"\frac", r"\dfrac").replace(" ", "  ") + ".", gold) for gold in golds]
    algebra = [(f"0+{gold}", gold) for gold in golds]
    return boxes + plain + algebra


def rate(equal: Callable[[str, str, GradeOptions], bool], pairs: list[Pair], threads: int) -> float:
    """Answers a second."""
    options = GradeOptions()
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda pair: equal(*pair, options), pairs, chunksize=1))
    return len(pairs) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir", type=Path, required=True, help="folder with gsm8k_test.jsonl and math500_test.jsonl"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    work = {
        "gsm8k": (gsm8k.equal, gsm8k_pairs(arguments.data_dir)),
        "math500": (mathematics.equal, math500_pairs(arguments.data_dir)),
    }
    rates: dict[tuple[str, int], list[float]] = {(name, threads): [] for name in work for threads in (1, 2)}
    for repeat in range(arguments.rounds + 1):
        for (name, threads), measured in rates.items():
            value = rate(*work[name], threads)
            if repeat:  # the first round starts the workers
                measured.append(value)
    rows = [
        {
            "task": name,
            "threads": threads,
            "answers": len(work[name][1]),
            "median_per_second": statistics.median(measured),
            "min_per_second": min(measured),
            "max_per_second": max(measured),
        }
        for (name, threads), measured in rates.items()
    ]
    print(
        f"{'task':8} {'threads':>7} {'answers':>8} {'answers/s':>10}   (lowest, highest of {arguments.rounds} rounds)"
    )
    for row in rows:
        low, high = row["min_per_second"], row["max_per_second"]
        print(
            f"{row['task']:8} {row['threads']:>7} {row['answers']:>8} {row['median_per_second']:>10.0f}"
            f"   ({low:.0f}, {high:.0f})"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"cpus": os.cpu_count(), "rates": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
