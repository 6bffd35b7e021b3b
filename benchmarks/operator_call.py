"""The cost of one operator call against context length, beside encoding the whole context again.

    OMP_NUM_THREADS=2 python benchmarks/operator_call.py [--quick] [--json out.json]
    python benchmarks/operator_call.py --shape Qwen/Qwen2.5-0.5B-Instruct --only call --lengths 128 4096    # real

A row of the given context decodes 8 tokens between calls; the first call, which reads the whole context once, is not
counted. Ratios are to a call at the shortest context. The floor of a call is reading the new tokens and the queries
with the synthesizer, and the latents with the policy.
"""

from __future__ import annotations

import statistics
import time

import torch

from harness import Contest, Report, Work, compete, options, read
from models import shaped, sized, untrained
from tyler import STATE, Forced, Request, Tyler
from tyler.engine.request import InvocationEvent
from tyler.modeling.architectures import PUBLISHED

SPACING = 8
NEW = SPACING + STATE.num_latents


def call_seconds(model: Tyler, length: int, calls: int) -> float:
    """The median seconds of a call, without the first."""
    router = Forced({SPACING * place: ("state",) for place in range(1, calls + 2)})
    engine = model.engine(slots=1)
    spent, seconds = 0.0, []
    for event in engine.stream([Request([5] * length, router, max_new_tokens=SPACING * (calls + 2) + calls)]):
        if isinstance(event, InvocationEvent):
            (row,) = engine.running
            seconds.append(row.synthesis_seconds - spent)
            spent = row.synthesis_seconds
    assert len(seconds) == calls + 1
    return statistics.median(seconds[1:])


@torch.no_grad()
def encoding_seconds(model: Tyler, length: int) -> float:
    """Seconds of a call without a cache: the synthesizer reads everything again."""
    embeds = torch.zeros(1, length + STATE.num_latents, model.backbone.dim, dtype=model.backbone.dtype)
    decoder = model.synthesizer.decoder()
    started = time.perf_counter()
    decoder(inputs_embeds=embeds, use_cache=False)
    return time.perf_counter() - started


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--shape", choices=list(PUBLISHED), help="a known architecture instead of layers and dim")
    parser.add_argument("--dtype", default="bfloat16", help="of the known architecture")
    parser.add_argument("--only", nargs="+", choices=["call", "encode all"], default=["call", "encode all"])
    parser.add_argument("--warmups", type=int, default=1, help="rounds before those that count")
    arguments = read(parser)
    if arguments.quick:
        arguments.lengths, arguments.layers = [length for length in arguments.lengths if length <= 2048], 4
    sizes = (arguments.layers, arguments.dim)
    model = untrained(shaped(arguments.shape, arguments.dtype) if arguments.shape else sized(*sizes))
    report = Report("operator_call", arguments)

    def work(way: str, length: int) -> Work:
        if way == "call":
            return lambda: call_seconds(model, length, arguments.calls)
        return lambda: encoding_seconds(model, length)

    ways = {f"{way} at {length:,}": work(way, length) for way in arguments.only for length in arguments.lengths}
    report.add(compete([Contest(f"one call, {NEW} new positions", ways)], arguments.rounds, arguments.warmups))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
