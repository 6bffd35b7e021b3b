"""Answers graded in a second: GSM8K and MATH-500, on one thread and on two.

    python benchmarks/grading.py --data DATA [--quick] [--json out.json]

GSM8K: every gold answer, as `$N$` and with a unit, against itself. MATH-500: the box of every solution against the gold
answer, the gold answer in other dress, and `0 + answer`, which sends every formula to the algebra. Both also as
`tyler eval` grades, where math-verify is asked too. The warm-up starts the workers, and what they have read before they
remember.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import Contest, Report, Work, compete, options, read
from tyler.tasks.answers import mathematics, symbolic
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


def with_math_verify(equal: Equal) -> Equal:
    """The same, and then math-verify on the same answer in a box, as the records of an evaluation keep it."""

    def both(answer: str, gold: str, options: GradeOptions) -> bool:
        same = equal(answer, gold, options)
        symbolic.math_verify(f"The answer is $\\boxed{{{answer}}}$.", gold, options.deadline)
        return same

    return both


def contest(name: str, equal: Equal, pairs: list[Pair]) -> Contest:
    def work(threads: int) -> Work:
        return lambda: grade_all(equal, pairs, threads)

    return Contest(name, {"1 thread": work(1), "2 threads": work(2)}, len(pairs), "answers")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with gsm8k_test.jsonl and math500_test.jsonl")
    arguments = read(parser)
    report = Report("grading", arguments)
    contests = [
        contest("GSM8K", gsm8k.equal, gsm8k_pairs(arguments.data)),
        contest("GSM8K, and math-verify", with_math_verify(gsm8k.equal), gsm8k_pairs(arguments.data)),
        contest("MATH-500", mathematics.equal, math500_pairs(arguments.data)),
        contest("MATH-500, and math-verify", with_math_verify(mathematics.equal), math500_pairs(arguments.data)),
    ]
    report.add(compete(contests, arguments.rounds))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
