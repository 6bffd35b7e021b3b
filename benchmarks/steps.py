"""Where the time of a step goes: decoding on `mini`, and a training step of Stage 1 beside the plain full graph.

    OMP_NUM_THREADS=1 python benchmarks/steps.py [--only decode stage1] [--json out.json]

Every step runs twice: with nothing else, which gives its seconds, and under torch's profiler, which gives the shares of
what runs inside PyTorch. Times inside are the profiler's and a little long, as it looks at every operation. The rest of
a step is Python between two operations. Floors are operations over the rate of a large product, or bytes over the
bandwidth of a copy, whichever takes longer; both are measured first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import torch
from torch.profiler import ProfilerActivity, profile

from harness import Figure, Report, options, read
from tyler import Never, Request, Tyler
from tyler.modeling.backbone import Backbone

PROMPT = 100
PARTS = {
    "products": ("mm", "addmm", "addmm_", "bmm", "matmul", "linear", "baddbmm"),
    "attention": ("scaled_dot_product", "attention", "softmax"),
    "moving": (
        "copy",
        "cat",
        "index",
        "clone",
        "embedding",
        "gather",
        "scatter",
        "contiguous",
        "fill",
        "slice",
        "view",
    ),
}
"""What the names of operations contain; what is left is arithmetic on elements."""

Step = Callable[[], object]


def part_of(operation: str) -> str:
    """The part that an operation's time belongs to."""
    name = operation.removeprefix("aten::")
    if "autograd" in name or "Backward" in name:
        return "automatic differentiation"
    if name in PARTS["products"]:
        return "products"
    for part in ("attention", "moving"):
        if any(one in name for one in PARTS[part]):
            return part
    return "elements"


def split(step: Step, count: int) -> dict[str, float]:
    """Seconds of one of the `count` equal steps that a call makes, by part; the call has been made before."""
    started = time.perf_counter()
    step()
    whole = (time.perf_counter() - started) / count
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    parts: dict[str, float] = {"whole": whole}
    for event in seen.key_averages():
        part = part_of(event.key)
        parts[part] = parts.get(part, 0.0) + event.self_cpu_time_total / 1e6 / count
    parts["Python"] = max(0.0, whole - sum(seconds for part, seconds in parts.items() if part != "whole"))
    return parts


def product_rate(size: int = 1024) -> float:
    """Multiply-adds of a large float32 product a second, twice: the rate that floors are taken at."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def bandwidth(size: int = 2**27) -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.ones(size, dtype=torch.uint8)
    target, best = torch.empty_like(source), float("inf")
    for _ in range(10):
        started = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - started)
    return 2 * size / best


def endless_mini() -> Tyler:
    """mini, whose answers do not end by themselves."""
    backbone = Backbone.load("mini")
    backbone.model.generation_config.eos_token_id = None
    backbone.tokenizer.eos_token = None
    return Tyler.start(backbone, ())


def decode(model: Tyler, batch: int, new: int) -> Step:
    draw = Random(batch)
    requests = [
        Request([draw.randrange(2, 400) for _ in range(PROMPT)], Never(), max_new_tokens=new) for _ in range(batch)
    ]
    return lambda: model.engine(slots=batch).run(requests)


def figures(work: str, step: Step, count: int, floor: float) -> list[Figure]:
    """A step's seconds, its floor, and its parts in the order of what they take."""
    step()
    parts = split(step, count)
    found = [Figure(work, "whole", 1e3 * parts.pop("whole"), "ms"), Figure(work, "floor", 1e3 * floor, "ms")]
    return found + [Figure(work, part, 1e3 * parts[part], "ms") for part in sorted(parts, key=lambda one: -parts[one])]


def decoding(new: int, rate: float, copied: float) -> list[Figure]:
    """A step of plain decoding, the share of the prompts in it included."""
    model = endless_mini()
    weights = sum(one.numel() for one in model.backbone.model.parameters())
    found = []
    for batch in (1, 32):
        positions = batch * (PROMPT + new) / new
        floor = max(2 * weights * positions / rate, 4 * weights / copied)
        found += figures(f"decode, mini, batch {batch}", decode(model, batch, new), new, floor)
    return found


def stage1_step(rate: float, length: int, blocks: int = 6) -> list[Figure]:
    """Eight traces through the plain full graph, and as they are trained."""
    from training import build, full_graph, traces
    from tyler.config.loops import Stage1Config
    from tyler.training import stage1

    model, vocab = build(4, 256, 2048), 2048
    examples = traces(8, length, blocks, vocab, Random(0))
    weights = sum(one.numel() for one in model.backbone.model.parameters())
    read = sum(len(one.prompt_ids) + len(one.target_ids) for one in examples)
    latents = 8 * blocks * 16 / 3
    # Synthesizer and policy read everything once and differentiate it once: frozen weights have no gradient themselves.
    floor = 2 * 2 * 2 * weights * (read + latents) / rate
    trainer = stage1.Stage1Trainer(model, (), Stage1Config())
    steps = {
        "plain full graph": lambda: full_graph(model, examples),
        "ours": lambda: trainer.accumulate(examples),
    }
    return [one for way, step in steps.items() for one in figures(f"Stage 1, {way}", step, 1, floor)]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=("decode", "stage1"), default=("decode", "stage1"))
    arguments = read(parser)
    report, rate, copied = Report("steps", arguments), product_rate(), bandwidth()
    threads = f"{torch.get_num_threads()} threads"
    report.add(
        [Figure("a large product", threads, rate / 1e9, "GFLOP/s"), Figure("copy", threads, copied / 1e9, "GB/s")]
    )
    if "decode" in arguments.only:
        report.add(decoding(30 if arguments.quick else 100, rate, copied))
    if "stage1" in arguments.only:
        report.add(stage1_step(rate, 64 if arguments.quick else 128))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
