"""Answers graded in a second: GSM8K and MATH-500, on one thread and on two.

    python benchmarks/grading.py --data DATA [--quick] [--json out.json]

GSM8K: every gold answer, as `$N$` and with a unit, against itself. MATH-500: the box of every solution against the gold
answer, the gold answer in other dress, and `0 + answer`, which sends every formula to the algebra. The warm-up
starts the workers, and what they have read before they remember.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from harness import Contest, Report, Work, compete, options, read
from tyler.tasks.answers import mathematics
from tyler.tasks.answers.boxed import boxed_answer
from tyler.tasks.benchmarks import gsm8k
from tyler.tasks.task import GradeOptions

Pair = tuple[str, str]
Equal = Callable[[str, str, GradeOptions], bool]


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


def grade_all(equal: Equal, pairs: list[Pair], threads: int) -> None:
    options = GradeOptions()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda pair: equal(*pair, options), pairs, chunksize=1))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with gsm8k_test.jsonl and math500_test.jsonl")
    arguments = read(parser)
    report, contests = Report("grading", arguments), []
    for name, equal, pairs in (
        ("GSM8K", gsm8k.equal, gsm8k_pairs(arguments.data)),
        ("MATH-500", mathematics.equal, math500_pairs(arguments.data)),
    ):
        ways: dict[str, Work] = {f"threads: {count}": partial(grade_all, equal, pairs, count) for count in (1, 2)}
        contests.append(Contest(name, ways, len(pairs), "answers"))
    report.add(compete(contests, arguments.rounds))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
