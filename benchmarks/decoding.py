"""The engine beside transformers' `generate` and its own matrix products, and what operator calls cost.

    OMP_NUM_THREADS=1 python benchmarks/decoding.py [--model smollm2] [--quick] [--json out.json]

MODEL is mini, smollm2 (see `tyler fetch`), a folder, or a published id such as Qwen/Qwen2.5-0.5B-Instruct, which is
built with random weights. Prompts are random tokens, decoding is greedy, no answer ends early.

plain    the engine under Never; `generate`; and the matrix products of the same steps alone, which are the floor
calls    five operator calls spread over an answer, beside the same answer without them
dtypes   the engine in bfloat16 and float16 beside float32
depth    what an operator call adds to a step, after 128 tokens and after 4,096, or half a context, by the clock
"""

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from harness import Contest, Figure, Report, Timing, compete, on_processor, options, read
from models import Endless, shaped, untrained
from tyler import Forced, Never, Request, Tyler
from tyler.engine.request import TokenEvent
from tyler.modeling.architectures import PUBLISHED
from tyler.modeling.backbone import Backbone

PROMPT = 64
CALLS = 5
SHALLOW, DEEP, GAP, LATER = 128, 4096, 8, 7
PARTS = ("plain", "calls", "dtypes", "depth")
Tokens = list[list[int]]


def build(name: str, dtype: str) -> Tyler:
    """The model, with answers that never end."""
    if name in PUBLISHED:
        return untrained(shaped(name, dtype))
    backbone = Backbone.load(name, dtype=dtype)
    backbone.model.generation_config.eos_token_id = None
    return untrained(Endless.of(backbone))


def prompts(batch: int, length: int = PROMPT) -> Tokens:
    """Different for each row, and no special tokens, which are the first ids."""
    draw = random.Random(batch)
    return [[draw.randrange(100, 400) for _ in range(length)] for _ in range(batch)]


def decoded(model: Tyler, requests: Sequence[Request]) -> Tokens:
    answers = model.engine(slots=len(requests)).run(requests)
    assert all(answer.finish_reason == "length" for answer in answers), "an answer ended early"
    return [[a for a, is_op in zip(one.actions, one.is_operator, strict=True) if not is_op] for one in answers]


def generated(model: Tyler, asked: Tokens, new: int) -> Tokens:
    ids = torch.tensor(asked)
    generate: Any = model.backbone.model.generate
    out = generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new)
    return out[:, ids.shape[1] :].tolist()


@torch.no_grad()
def products(model: Tyler, batch: int, new: int) -> None:
    """Every weight matrix times as many states as decoding has: all of the prompts at once, then a state a row."""
    network = model.backbone.model
    head = network.get_output_embeddings()
    linears = [one for one in network.modules() if isinstance(one, torch.nn.Linear) and one is not head]
    for rows, times in ((batch * PROMPT, 1), (batch, new - 1)):
        inputs = {size: torch.randn(rows, size, dtype=head.weight.dtype) for size in {x.in_features for x in linears}}
        last = torch.randn(batch, head.in_features, dtype=head.weight.dtype)
        for _ in range(times):
            for one in linears:
                torch.nn.functional.linear(inputs[one.in_features], one.weight)
            torch.nn.functional.linear(last, head.weight)


def plain(model: Tyler, batch: int, new: int, rounds: int) -> Iterator[Timing | Figure]:
    asked, results = prompts(batch), dict[str, Tokens]()
    requests = [Request(one, Never(), max_new_tokens=new) for one in asked]
    ways = {
        "engine": on_processor(lambda: results.update(engine=decoded(model, requests))),
        "generate": on_processor(lambda: results.update(generate=generated(model, asked, new))),
        "products": on_processor(lambda: products(model, batch, new)),
    }
    yield from compete([Contest(f"plain, batch {batch}", ways, batch * new, "tokens")], rounds)
    same = statistics.mean(one == other for one, other in zip(results["engine"], results["generate"], strict=True))
    yield Figure(f"plain, batch {batch}", "answers equal to generate's", same, "of all")


def calls(model: Tyler, batch: int, new: int, rounds: int) -> Iterator[Timing]:
    draw, part = random.Random(batch), new // CALLS
    places = [[part * turn + draw.randrange(part // 3, part - 1) for turn in range(CALLS)] for _ in range(batch)]
    asked = prompts(batch)
    without = [Request(one, Never(), max_new_tokens=new) for one in asked]
    routers = [Forced({place: ("state",) for place in row}) for row in places]
    called = [Request(one, router, max_new_tokens=new + CALLS) for one, router in zip(asked, routers, strict=True)]
    ways = {
        "no call": on_processor(lambda: decoded(model, without)),
        f"{CALLS} calls": on_processor(lambda: decoded(model, called)),
    }
    yield from compete([Contest(f"calls, batch {batch}", ways, batch * new, "tokens")], rounds)


def dtypes(name: str, batch: int, new: int, rounds: int) -> Iterator[Timing]:
    ways = {}
    for dtype in ("float32", "bfloat16", "float16"):
        model = build(name, dtype)
        requests = [Request(one, Never(), max_new_tokens=new) for one in prompts(batch)]
        ways[dtype] = on_processor(partial(decoded, model, requests))
    yield from compete([Contest(f"dtypes, batch {batch}", ways, batch * new, "tokens")], rounds)


def depth(model: Tyler, rounds: int) -> Iterator[Figure]:
    """Tokens after a call and others, a call every GAP; the first call, which reads the whole context, does not count.
    The clock of a machine drifts by more than a call takes, so that single steps are compared, not stretches."""
    engine, end = model.engine(slots=1), GAP * (LATER + 2)
    router = Forced({GAP * nth: ("state",) for nth in range(1, LATER + 2)})
    costs: dict[int, list[float]] = {context: [] for context in (SHALLOW, min(DEEP, model.backbone.max_positions // 2))}
    for turn in range(-1, rounds):
        for context, found in costs.items():
            request = Request(prompts(1, context)[0], router, max_new_tokens=end + LATER + 1)
            moments = [time.perf_counter() for event in engine.stream([request]) if isinstance(event, TokenEvent)]
            steps = [later - earlier for earlier, later in pairwise(moments)][GAP:end]
            if turn >= 0:
                found += [step - statistics.median(steps) for step in steps[GAP - 1 :: GAP]]
    for context, found in costs.items():
        yield Figure(f"a call after {context:,} tokens", "adds", 1e3 * statistics.median(found), "ms")
    shallow, deep = map(statistics.median, costs.values())
    yield Figure("a call", "deep to shallow", deep / shallow, "", "at most 1.5")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batches", type=int, nargs="+", help="by default 1 8 32, and 1 8 with --quick")
    parser.add_argument("--new-tokens", type=int, help="by default 300, and 40 with --quick")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="by default all")
    arguments = read(parser)
    report, model = Report("decoding", arguments), build(arguments.model, arguments.dtype)
    new = arguments.new_tokens or (40 if arguments.quick else 300)
    chosen = arguments.only or PARTS
    for batch in arguments.batches or ([1, 8] if arguments.quick else [1, 8, 32]):
        if "plain" in chosen:
            report.add(plain(model, batch, new, arguments.rounds))
        if "calls" in chosen:
            report.add(calls(model, batch, new, arguments.rounds))
        if "dtypes" in chosen:
            report.add(dtypes(arguments.model, batch, new, arguments.rounds))
    if "depth" in chosen:
        report.add(depth(model, arguments.rounds))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
