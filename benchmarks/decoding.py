"""The engine beside transformers' `generate`, beside its own bare forward, and its operator calls beside other ways.

    OMP_NUM_THREADS=1 python benchmarks/decoding.py [--quick] [--shape 0.5b --part 6] [--only calls] [--json out.json]

Prompts are random tokens, decoding is greedy, no answer ends early. On a CPU with one thread, seconds are those
of the processor. `--shape 0.5b` is Qwen2.5-0.5B's in bfloat16; `--part 6` takes a sixth of its layers and of its
vocabulary: every cost is a sixth and their ratios stay, for machines on which the whole takes too long.

plain       the engine under Never; transformers' `generate`; and the bare forward: the same lean decoder, the LM head
            and an argmax, without requests, rows, choices or log-probabilities
first       time to the first token of a prompt of 512, against `generate`
group       eight rollouts of one prompt, which is read once, against eight different prompts of the same length
calls       five operator calls spread over an answer: none, as the engine serves them, with the context encoded anew at
            each call, and with all caches of the batch dropped at each call. The figures are what the calls add
throughput  tokens a second over slots, five calls in each answer
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence

import torch

from harness import Contest, Figure, Report, Timing, Work, best_clock, compete, options, read
from models import endless_tokenizer, shaped, untrained
from tyler import Forced, Never, Request, Tyler
from tyler.engine.native.attention import Span
from tyler.engine.native.cache import Context, Room, position_bytes
from tyler.engine.native.engine import Engine
from tyler.engine.native.reader import Reader
from tyler.engine.native.row import Row
from tyler.modeling.architectures import PUBLISHED
from tyler.modeling.backbone import Backbone

HALF_BILLION = "Qwen/Qwen2.5-0.5B-Instruct"
PROMPT = 100
CALLS = 5
CALLED = ("none", "engine", "encoding again", "dropping caches")
Tokens = list[list[int]]
Times = tuple[int, int]
"""Rounds that count, and rounds before them."""


class EncodingAgain(Engine):
    """At a call, the synthesizer reads the row's whole context."""

    def _synthesize(self) -> list[tuple[Row, float]]:
        for row in self.rows:
            if row.call is not None:
                self.synthesis_reader.forget(row.slot, 0)
        return super()._synthesize()


class DroppingCaches(EncodingAgain):
    """At a call of any row the policy, too, forgets every row, as the released MemGen does."""

    def _synthesize(self) -> list[tuple[Row, float]]:
        if served := super()._synthesize():
            for row in self.rows:
                self.policy_reader.forget(row.slot, 0)
        return served


def build(shape: str, dtype: str, part: int) -> Tyler:
    """`mini`, or the random shape with a part of its layers and vocabulary."""
    if shape == "mini":
        backbone = Backbone.load("mini")
        return untrained(Backbone("mini", endless(backbone), endless_tokenizer()))
    for name in ("num_hidden_layers", "vocab_size"):
        PUBLISHED[HALF_BILLION][name] //= part
    return untrained(shaped(HALF_BILLION, dtype))


def endless(backbone: Backbone) -> torch.nn.Module:
    backbone.model.generation_config.eos_token_id = None
    return backbone.model


def prompts(batch: int, length: int) -> Tokens:
    draw = random.Random(length)
    return [[draw.randrange(2, 400) for _ in range(length)] for _ in range(batch)]


def clocked(work: Callable[[], Tokens], results: dict[str, Tokens], name: str) -> Work:
    """The work as a way of a contest, by the best clock; what it decodes is kept."""

    def way() -> float:
        clock = best_clock()
        started = clock()
        results[name] = work()
        return clock() - started

    return way


# ------------------------------------------------------------------------------------------------ ways


def decoded(model: Tyler, requests: Sequence[Request], kind: type[Engine] = Engine, **settings: int) -> Tokens:
    parts = (model.backbone, model.operators, model.policy, model.synthesizer, model.heads)
    answers = kind(*parts, **{"slots": len(requests), **settings}).run(requests)
    return [[a for a, is_op in zip(one.actions, one.is_operator, strict=True) if not is_op] for one in answers]


def never(model: Tyler, asked: Tokens, new: int) -> Tokens:
    return decoded(model, [Request(one, Never(), max_new_tokens=new) for one in asked])


def generated(model: Tyler, asked: Tokens, new: int) -> Tokens:
    ids = torch.tensor(asked)
    out = model.backbone.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new)
    return out[:, ids.shape[1] :].tolist()


@torch.no_grad()
def bare(model: Tyler, asked: Tokens, new: int) -> Tokens:
    """The forward of every step and nothing else; the buffers have their full size from the start."""
    backbone, rows, length = model.backbone, len(asked), len(asked[0])
    context = Context(Room(rows, length + new, 1), backbone.dim, backbone.dtype, backbone.device)
    reader = Reader(model.policy.decoder(), context)
    for row, prompt in enumerate(asked):
        context.write(row, 0, backbone.embed(torch.tensor(prompt)))

    def read(start: int, end: int) -> torch.Tensor:
        return reader.read([Span(row, start, end) for row in range(rows)]).view(rows, end - start, -1)

    hidden = read(0, length)
    tokens, head, table = [], backbone.head, backbone.embedding
    for step in range(new):
        chosen = torch.nn.functional.linear(hidden[:, -1], head).argmax(dim=-1)
        tokens.append(chosen)
        if step < new - 1:
            context.embeds[:, length + step] = torch.nn.functional.embedding(chosen, table)
            hidden = read(length + step, length + step + 1)
    return torch.stack(tokens, dim=1).tolist()


# -------------------------------------------------------------------------------------------- contests


def plain(model: Tyler, batch: int, new: int, times: Times) -> Iterator[Timing | Figure]:
    asked, results = prompts(batch, PROMPT), {}
    ways = {
        "engine": clocked(lambda: never(model, asked, new), results, "engine"),
        "generate": clocked(lambda: generated(model, asked, new), results, "generate"),
        "bare forward": clocked(lambda: bare(model, asked, new), results, "bare forward"),
    }
    yield from compete([Contest(f"plain, batch {batch}", ways, batch * new, "tokens")], *times)
    same = statistics.mean(one == other for one, other in zip(results["engine"], results["generate"], strict=True))
    yield Figure(f"plain, batch {batch}", "answers equal to generate's", same, "of all")


def first(model: Tyler, new: int, times: Times) -> Iterator[Timing | Figure]:
    asked, results = prompts(1, 512), {}
    ways = {
        "engine": clocked(lambda: never(model, asked, 1), results, "engine"),
        "generate": clocked(lambda: generated(model, asked, 1), results, "generate"),
    }
    yield from compete([Contest("first token, prompt 512", ways, 512, "positions")], *times)


def group(model: Tyler, new: int, times: Times) -> Iterator[Timing | Figure]:
    new, together, apart, results = min(new, 60), prompts(1, 200) * 8, prompts(8, 200), {}
    ways = {
        "one prompt": clocked(lambda: never(model, together, new), results, "one"),
        "eight prompts": clocked(lambda: never(model, apart, new), results, "eight"),
    }
    yield from compete([Contest("8 rollouts, prompt 200", ways, 8 * new, "tokens")], *times)


def calls(model: Tyler, batch: int, new: int, times: Times, which: Sequence[str]) -> Iterator[Timing | Figure]:
    draw, part, results = random.Random(batch), new // CALLS, {}
    places = [[part * turn + draw.randrange(part // 3, part - 1) for turn in range(CALLS)] for _ in range(batch)]
    asked = prompts(batch, PROMPT)
    routers = [Forced({place: ("state",) for place in row}) for row in places]
    requests = [Request(one, router, max_new_tokens=new + CALLS) for one, router in zip(asked, routers, strict=True)]
    ways = {
        "none": clocked(lambda: never(model, asked, new), results, "none"),
        "engine": clocked(lambda: decoded(model, requests), results, "engine"),
        "encoding again": clocked(lambda: decoded(model, requests, EncodingAgain), results, "again"),
        "dropping caches": clocked(lambda: decoded(model, requests, DroppingCaches), results, "dropping"),
    }
    name = f"{CALLS} calls, batch {batch}"
    timings = compete([Contest(name, {way: ways[way] for way in which}, batch * new, "tokens")], *times)
    yield from timings
    none, *others = (timing.seconds for timing in timings)
    added = [[a - b for a, b in zip(one, none, strict=True)] for one in others]
    for what, one in zip(which[2:], added[1:], strict=True):
        shares = [a / b for a, b in zip(one, added[0], strict=True)]
        yield Figure(name, f"{what} adds, over what the engine adds", statistics.median(shares), "times")


def throughput(model: Tyler, slots: int, new: int, times: Times) -> Iterator[Timing | Figure]:
    draw, new, results, count = random.Random(0), min(new, 100), {}, max(64, slots)
    requests = [
        Request(one, Forced({draw.randrange(new): ("state",) for _ in range(CALLS)}), max_new_tokens=new + CALLS)
        for one in prompts(count, 60)
    ]

    ways = {"engine": clocked(lambda: decoded(model, requests, slots=slots), results, "engine")}
    yield from compete([Contest(f"{count} requests, {slots} slots", ways, count * new, "tokens")], *times)


def memory(model: Tyler) -> Iterator[Figure]:
    cache = position_bytes(model.backbone.model.config, model.backbone.dtype)
    yield Figure("memory", "caches of both streams", 2 * cache, "bytes a position")
    yield Figure("memory", "context", model.backbone.dim * model.backbone.dtype.itemsize, "bytes a position")


def main() -> None:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--shape", choices=["mini", "0.5b"], default="mini")
    parser.add_argument("--dtype", default="bfloat16", help="of the 0.5b shape")
    parser.add_argument("--part", type=int, default=1, help="divide layers and vocabulary of the 0.5b shape by this")
    parser.add_argument("--batches", type=int, nargs="+", help="by default 1 8 32 64 (plain) and 1 8 (calls)")
    parser.add_argument("--warmups", type=int, default=1, help="rounds before those that count")
    parser.add_argument("--ways", type=int, choices=[2, 3, 4], default=4, help="how many of the ways to call, in order")
    parser.add_argument("--new-tokens", type=int, help="by default 600, and 60 with --quick")
    parser.add_argument("--only", nargs="+", default=["plain", "first", "group", "calls", "throughput"])
    arguments = read(parser)
    report = Report("decoding", arguments)
    model = build(arguments.shape, arguments.dtype, arguments.part)
    new, times = arguments.new_tokens or (60 if arguments.quick else 600), (arguments.rounds, arguments.warmups)
    report.add(memory(model))
    if "plain" in arguments.only:
        for batch in arguments.batches or ([1, 8] if arguments.quick else [1, 8, 32, 64]):
            report.add(plain(model, batch, new, times))
    if "first" in arguments.only:
        report.add(first(model, new, times))
    if "group" in arguments.only:
        report.add(group(model, new, times))
    if "calls" in arguments.only:
        for batch in arguments.batches or ([1] if arguments.quick else [1, 8]):
            report.add(calls(model, batch, new, times, CALLED[: arguments.ways]))
    if "throughput" in arguments.only and not arguments.quick:
        for slots in (1, 8, 32, 64, 128):
            report.add(throughput(model, slots, new, times))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
