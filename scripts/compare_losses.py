"""Stage 2 on `mini` with each loss, and in bfloat16 with and without the correction, over three seeds; one table.

    python scripts/compare_losses.py runs/losses [--rows grpo dapo ...] [--seeds 42 43 44]

Every training is a run of `tyler train stage1` or `stage2`: a killed one resumes with the same command, and a finished
one is not made again. `results.jsonl` has a line for each: the 600 problems right, the reward at the beginning, the
middle and the end, and how far engine and learner are apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from tyler.engine.routing import Learned
from tyler.model import Tyler
from tyler.runs.json_lines import read_jsonl
from tyler.tasks import load_problems
from tyler.training.verdicts import Verifier

DAPO = ["--grpo.loss", "dapo", "--grpo.clip_range_high", "0.28", "--grpo.mask_truncated", "true", "--grpo.redraws", "3"]
HALF = ["--backbone.dtype", "bfloat16"]
ROWS = {
    "grpo": [],
    "dapo": DAPO,
    "dr_grpo": ["--grpo.loss", "dr_grpo", "--grpo.scale_rewards", "none"],
    "bnpo": ["--grpo.loss", "bnpo"],
    "gspo": ["--grpo.importance", "sequence"],
    "bfloat16": [*HALF, "--grpo.correction", "token"],
    "bfloat16, by answer": [*HALF, "--grpo.correction", "sequence"],
    "bfloat16, no correction": [*HALF, "--grpo.correction", "none"],
}
"""What each row changes of `tyler train stage2 mini`."""


def tyler(stage: str, output: Path, *arguments: str) -> None:
    """Run a training command, or go on with the run that is there."""
    resume = ["--resume"] if (output / "config.yaml").exists() else []
    command = [
        sys.executable,
        "-m",
        "tyler",
        "train",
        stage,
        "mini",
        "--output",
        str(output),
        "--quiet",
        *resume,
        *arguments,
    ]
    subprocess.run(command, check=True)


def measured(row: str, seed: int, root: Path) -> dict[str, object]:
    """Train one row with one seed, and answer the 600 problems greedily."""
    half = HALF if row.startswith("bfloat16") else []
    start = root / ("stage1-bfloat16" if half else "stage1") / str(seed)
    output = root / row.replace(", ", "-").replace(" ", "-") / str(seed)
    tyler("stage1", start, "--stage1.seed", str(seed), *half)
    tyler("stage2", output, "--start", str(start), "--stage2.seed", str(seed), *ROWS[row])
    model = Tyler.from_pretrained(str(output), dtype="bfloat16" if half else "float32")
    problems = load_problems("mini", "eval")
    requests = [model.request(problem, router=Learned(), max_new_tokens=160) for problem in problems]
    verdicts = Verifier()(problems, model.engine(slots=64).run(requests))
    right = sum(verdict is not None and verdict.correct for verdict in verdicts)
    steps = [line for line in read_jsonl(output / "metrics.jsonl") if "stage2/loss" in line]
    return {"row": row, "seed": seed, "right": right, "of": len(problems), **curve(steps)}


def curve(steps: list[dict[str, float]]) -> dict[str, float]:
    """The mean reward of the first, the middle and the last ten steps; the mismatch over all."""
    middle = len(steps) // 2
    parts = {"first": steps[:10], "middle": steps[middle - 5 : middle + 5], "last": steps[-10:]}
    columns = {f"reward_{name}": fmean(step["stage2/reward"] for step in part) for name, part in parts.items()}
    for name in ("replay_gap", "replay_gap_mean", "replay_gap_p99", "cut_share"):
        values = [step[f"stage2/{name}"] for step in steps if f"stage2/{name}" in step]
        columns[name] = max(values) if name == "replay_gap" else fmean(values)
    return columns


def missing(results: Path, rows: list[str], seeds: list[int]) -> Iterator[tuple[str, int]]:
    """What has no line yet, seed by seed."""
    known = {(line["row"], line["seed"]) for line in read_jsonl(results)} if results.exists() else set()
    yield from ((row, seed) for seed in seeds for row in rows if (row, seed) not in known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 43, 44])
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = arguments.output / "results.jsonl"
    for row, seed in missing(results, arguments.rows, arguments.seeds):
        with results.open("a") as file:
            file.write(json.dumps(measured(row, seed, arguments.output)) + "\n")
    for row in arguments.rows:
        lines = [line for line in read_jsonl(results) if line["row"] == row]
        print(f"{row}: {fmean(line['right'] for line in lines):.1f} of {lines[0]['of']} ({len(lines)} seeds)", lines)


if __name__ == "__main__":
    main()
