"""The engine of this tree against that of another, in turn, on one machine and in one run.

    OMP_NUM_THREADS=1 python benchmarks/engine_pair.py OTHER/src [--only mini smollm2 sampled] [--json out.json]

OTHER is a checkout of an earlier state. Each tree decodes in a process of its own; the two take turns, one work at a
time, so that a machine whose speed drifts slows both. With one thread, seconds are those of the processor. Ratios are
to the other tree's time: 1.05 is a twentieth slower.

mini, smollm2   greedy, no operators, no answer ends early; `calls` serves five operator calls in each answer
sampled         32 rows at temperature 0.7 over a vocabulary of 152,000, without and with top_p=0.9
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness import Contest, Report, Work, compete, options, read

if TYPE_CHECKING:
    from tyler import Tyler

VOCABULARY = 152_000
WORKS = {
    "mini": [("mini", rows, 96, "never") for rows in (1, 8, 32)] + [("mini", 32, 96, "calls")],
    "smollm2": [("smollm2", rows, 16, "never") for rows in (1, 8, 32)],
    "sampled": [("152k", 32, 8, "sampled"), ("152k", 32, 8, "top-p")],
}
"""(model, rows, new tokens, way)."""


@cache
def model_of(name: str) -> Tyler:
    import torch

    from models import endless_tokenizer, sized, untrained
    from tyler.modeling.backbone import Backbone

    torch.manual_seed(0)
    if name == "152k":
        return untrained(sized(1, 64, vocab=VOCABULARY))
    backbone = Backbone.load(name, dtype="float32")
    backbone.model.generation_config.eos_token_id = None
    return untrained(Backbone(name, backbone.model, endless_tokenizer()))


def seconds_of(name: str, rows: int, new: int, way: str) -> float:
    """Decode once, with prompts of 60 to 140 tokens."""
    import torch

    from tyler import Forced, Never, Request, Sampling

    draw = random.Random(rows)
    prompts = [[draw.randrange(2, 150) for _ in range(draw.randrange(60, 141))] for _ in range(rows)]
    calls = {new * call // 6: ("state",) for call in range(1, 6)}
    router = Forced(calls) if way == "calls" else Never()
    sampling = {"sampled": Sampling(0.7, seed=1), "top-p": Sampling(0.7, top_p=0.9, seed=1)}.get(way, Sampling())
    model = model_of(name)
    engine = model.engine(slots=rows)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    engine.run([Request(prompt, router, sampling, max_new_tokens=new) for prompt in prompts])
    return clock() - started


class Side:
    """A process that decodes with one tree's sources, when it is told to."""

    def __init__(self, sources: Path) -> None:
        environment = os.environ | {"PYTHONPATH": f"{sources}{os.pathsep}{Path(__file__).parent}"}
        command = [sys.executable, __file__, "--serve"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def work(self, *work: object) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(*work, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def serve() -> None:
    """Do the works that are named on stdin, and print the seconds of each."""
    for line in sys.stdin:
        name, rows, new, way = line.split()
        print(seconds_of(name, int(rows), int(new), way), flush=True)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("other", type=Path, help="the sources of the other tree, a folder src")
    parser.add_argument("--only", nargs="+", choices=list(WORKS), default=list(WORKS))
    arguments = read(parser)
    sides = {"other": Side(arguments.other), "this": Side(Path(__file__).parents[1] / "src")}

    def way(side: Side, work: tuple[object, ...]) -> Work:
        return lambda: side.work(*work)

    contests = [
        Contest(
            f"{name}, {rows} rows, {kind}",
            {side: way(sides[side], (name, rows, new, kind)) for side in sides},
            rows * new,
            "tokens",
        )
        for only in arguments.only
        for name, rows, new, kind in WORKS[only]
    ]
    report = Report("engine_pair", arguments)
    report.add(compete(contests, arguments.rounds))
    for side in sides.values():
        side.close()
    report.publish(arguments.json)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
