"""The engine beside transformers' `generate`, beside its own bare forward, and its operator calls beside other ways.

    OMP_NUM_THREADS=1 python benchmarks/decoding.py [--quick] [--shape 0.5b --part 6] [--only calls] [--json out.json]

Prompts are random tokens, decoding is greedy, nobody ends an answer early. The competitors of a line take turns within
each round, so that a machine whose speed drifts slows all of them; a ratio is taken within its round, and the table
gives the median and the range over rounds. With one thread the time is the process's CPU time, which leaves out what
other work on the machine takes; with more it is wall time. `--part 6` takes a sixth of the 0.5b shape's layers and of
its vocabulary: every cost is a sixth and their ratios stay, for machines on which the whole takes too long.

plain       the engine under Never against `generate`, and against the bare forward: the same lean decoder over a cache
            of the same shape, the LM head and an argmax, without rows, events, choices or log-probabilities
first       time to the first token of a longer prompt, against `generate`
group       eight rollouts of one prompt, whose prompt is read once, against eight different prompts of the same length
calls       five operator calls spread over the answer: what they add to the time without calls, as the engine serves
            them, with the context encoded anew at each call, and with all caches of the batch dropped at each call
throughput  tokens per second over slots, operators at random places, calls served at once or after up to 16 steps
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import GenerationConfig

from tyler import Forced, Never, Request, Tyler
from tyler.backbone import Backbone
from tyler.context import Context, RaggedCache, Reader
from tyler.decoding import Engine
from tyler.shapes import PUBLISHED, random_backbone
from tyler.tasks.prompts import Prompt
from tyler.trajectory import Trajectory

HALF_BILLION = "Qwen/Qwen2.5-0.5B-Instruct"
CALLS = 5
Timed = dict[str, list[float]]
"""Seconds of each competitor, round by round."""


class EncodingAgain(Engine):
    """At a call, the synthesizer reads the row's whole context."""

    def _synthesize(self, parked: range) -> list[torch.Tensor]:
        for slot in parked:
            self.synthesis_reader.rewind(slot, 0)
        return super()._synthesize(parked)


class DroppingCaches(EncodingAgain):
    """At a call of any row, the policy forgets every row, as the released MemGen does."""

    def _synthesize(self, parked: range) -> list[torch.Tensor]:
        latents = super()._synthesize(parked)
        for slot in range(len(self.rows)):
            self.policy_reader.rewind(slot, 0)
        return latents


def build(shape: str, dtype: str, part: int) -> Tyler:
    """`mini`, or a random model of a published shape with mini's tokenizer; nothing is downloaded."""
    torch.manual_seed(0)
    backbone = Backbone.load("mini")
    if shape != "mini":
        for name in ("num_hidden_layers", "vocab_size"):
            PUBLISHED[HALF_BILLION][1][name] //= part
        backbone = random_backbone(HALF_BILLION, backbone.tokenizer, dtype=dtype)
    backbone.tokenizer.eos_token = None
    backbone.model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0)
    return Tyler.start(backbone, prompt=Prompt(""))


def prompts(batch: int, length: int) -> list[list[int]]:
    draw = random.Random(length)
    return [[draw.randrange(2, 400) for _ in range(length)] for _ in range(batch)]


def timed(work: Callable[[], object]) -> tuple[float, object]:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    result = work()
    return clock() - started, result


def warm(model: Tyler) -> None:
    """What only a process's first answer pays: lazy imports, tables, memory."""
    for ask in (on_the_engine, generated, bare):
        ask(model, prompts(1, 4), 2)


def in_turns(rounds: int, competitors: dict[str, Callable[[], object]]) -> tuple[Timed, dict[str, object]]:
    """Every competitor once a round; also what each gave at the end."""
    results: dict[str, object] = {}
    seconds: Timed = {name: [] for name in competitors}
    for _ in range(rounds):
        for name, work in competitors.items():
            spent, results[name] = timed(work)
            seconds[name].append(spent)
    return seconds, results


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """Median and range of the rounds' ratios."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return f"{statistics.median(ratios):6.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def milliseconds(seconds: Sequence[float], steps: int) -> str:
    return f"{1e3 * statistics.median(seconds) / steps:8.2f}"


# ------------------------------------------------------------------------------------------------ competitors


def on_the_engine(model: Tyler, asked: list[list[int]], new: int, engine: Callable[..., Engine] = Engine) -> object:
    return decoded(model, [Request(one, Never(), max_new_tokens=new) for one in asked], engine)


def decoded(model: Tyler, requests: list[Request], engine: Callable[..., Engine], **settings: int) -> object:
    settings = {"slots": len(requests), **settings}
    parts = (model.backbone, model.operators, model.policy, model.synthesizer, model.heads)
    return tokens_of(engine(*parts, **settings).run(requests))


def tokens_of(answers: Sequence[Trajectory]) -> list[list[int]]:
    return [[a for a, is_op in zip(one.actions, one.is_operator, strict=True) if not is_op] for one in answers]


def generated(model: Tyler, asked: list[list[int]], new: int) -> object:
    ids = torch.tensor(asked)
    out = model.backbone.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new)
    return out[:, ids.shape[1] :].tolist()


@torch.no_grad()
def bare(model: Tyler, asked: list[list[int]], new: int) -> object:
    """The forward of every step and nothing else. Context and cache have their full size from the start."""
    backbone, rows = model.backbone, range(len(asked))
    context = Context(len(asked), backbone.dim, backbone.dtype, backbone.device)
    reader = Reader(model.policy.decoder(), context)
    length = len(asked[0])
    context.reserve(length + new)
    for row, prompt in enumerate(asked):
        context.append(row, backbone.embed(torch.tensor(prompt)))
    hidden, _ = reader.read(rows, [length] * len(asked))
    tokens, head, table = [], backbone.head, backbone.embedding
    for step in range(new):
        chosen = torch.nn.functional.linear(hidden[:, -1], head).argmax(dim=-1)
        tokens.append(chosen)
        context.embeds[:, length + step] = torch.nn.functional.embedding(chosen, table)
        hidden, _ = reader.read(rows, [length + step + 1] * len(asked))
    return torch.stack(tokens, dim=1).tolist()


# ------------------------------------------------------------------------------------------------------ lines


def plain(model: Tyler, batches: Sequence[int], new: int, rounds: int) -> dict[str, object]:
    print(f"\nplain: ms a step, prompt 100, {new} new tokens (prefill included)")
    print(f"{'batch':>6} {'engine':>8} {'generate':>8} {'bare':>8}   generate / engine        engine / bare")
    found: dict[str, object] = {}
    for batch in batches:
        asked = prompts(batch, 100)
        competitors: dict[str, Callable[[], object]] = {
            "engine": lambda asked=asked: on_the_engine(model, asked, new),
            "generate": lambda asked=asked: generated(model, asked, new),
            "bare": lambda asked=asked: bare(model, asked, new),
        }
        seconds, results = in_turns(rounds, competitors)
        same = results["engine"] == results["generate"] == results["bare"]
        print(
            f"{batch:>6} {milliseconds(seconds['engine'], new)} {milliseconds(seconds['generate'], new)} "
            f"{milliseconds(seconds['bare'], new)}   {ratio(seconds['generate'], seconds['engine']):24} "
            f"{ratio(seconds['engine'], seconds['bare'])}{'' if same else '   tokens differ'}"
        )
        found[str(batch)] = {"seconds": seconds, "new_tokens": new, "same_tokens": same}
    return found


def first(model: Tyler, length: int, rounds: int) -> dict[str, object]:
    asked = prompts(1, length)
    seconds, _ = in_turns(
        rounds, {"engine": lambda: on_the_engine(model, asked, 1), "generate": lambda: generated(model, asked, 1)}
    )
    print(f"\nfirst token of a prompt of {length}: engine {milliseconds(seconds['engine'], 1)} ms, generate / engine "
          f"{ratio(seconds['generate'], seconds['engine'])}")  # fmt: skip
    return {"length": length, "seconds": seconds}


def group(model: Tyler, length: int, new: int, rounds: int) -> dict[str, object]:
    apart, together = prompts(8, length), prompts(1, length) * 8
    seconds, _ = in_turns(
        rounds,
        {"group": lambda: on_the_engine(model, together, new), "apart": lambda: on_the_engine(model, apart, new)},
    )
    print(
        f"\ngroup of 8, prompt {length}, {new} new tokens: {milliseconds(seconds['group'], 1)} ms, "
        f"different prompts / one {ratio(seconds['apart'], seconds['group'])}"
    )
    return {"length": length, "new_tokens": new, "seconds": seconds}


def calls(model: Tyler, batches: Sequence[int], new: int, rounds: int) -> dict[str, object]:
    print(f"\ncalls: {CALLS} in {new} new tokens after a prompt of 100; what they add to the time without")
    print(
        f"{'batch':>6} {'none s':>8} {'cached':>22} {'encoding again':>22} {'dropping caches':>22}   "
        "added: again / cached, dropping / cached"
    )
    found: dict[str, object] = {}
    for batch in batches:
        draw, part = random.Random(batch), new // CALLS
        places = [[part * turn + draw.randrange(part // 3, part - 1) for turn in range(CALLS)] for _ in range(batch)]
        asked = prompts(batch, 100)

        def requests(asked: list[list[int]] = asked, places: list[list[int]] = places) -> list[Request]:
            routers = [Forced({place: ("state",) for place in row}) for row in places]
            return [
                Request(one, router, max_new_tokens=new + CALLS) for one, router in zip(asked, routers, strict=True)
            ]

        competitors: dict[str, Callable[[], object]] = {
            "none": lambda asked=asked: on_the_engine(model, asked, new),
            "cached": lambda requests=requests: decoded(model, requests(), Engine),
            "again": lambda requests=requests: decoded(model, requests(), EncodingAgain),
            "dropping": lambda requests=requests: decoded(model, requests(), DroppingCaches),
        }
        seconds, results = in_turns(rounds, competitors)
        same = results["cached"] == results["again"] == results["dropping"]
        added = {
            name: [spent - none for spent, none in zip(seconds[name], seconds["none"], strict=True)]
            for name in ("cached", "again", "dropping")
        }
        shares = {
            name: ratio([a + b for a, b in zip(one, seconds["none"], strict=True)], seconds["none"])
            for name, one in added.items()
        }
        print(
            f"{batch:>6} {statistics.median(seconds['none']):8.2f} {shares['cached']:>22} {shares['again']:>22} "
            f"{shares['dropping']:>22}   {ratio(added['again'], added['cached'])}, "
            f"{ratio(added['dropping'], added['cached'])}{'' if same else '   tokens differ'}"
        )
        found[str(batch)] = {"seconds": seconds, "new_tokens": new, "same_tokens": same}
    return found


def throughput(model: Tyler, slots: Sequence[int], requests: int, new: int, rounds: int) -> dict[str, object]:
    print(f"\nthroughput: {requests} requests of {new} tokens with {CALLS} calls each; tokens a second")
    found: dict[str, object] = {}
    draw = random.Random(0)
    asked = [
        Request(one, Forced({draw.randrange(new): ("state",) for _ in range(CALLS)}), max_new_tokens=new + CALLS)
        for one in prompts(requests, 60)
    ]
    for count in slots:
        seconds, _ = in_turns(
            rounds,
            {
                f"coalesce {steps}": lambda steps=steps, count=count: decoded(
                    model, asked, Engine, slots=count, coalesce=steps
                )
                for steps in (0, 16)
            },
        )
        rates = {name: requests * new / statistics.median(one) for name, one in seconds.items()}
        print(f"{count:>6} slots: " + ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()))
        found[str(count)] = seconds
    return found


def position_bytes(model: Tyler) -> dict[str, int]:
    cache = RaggedCache.position_bytes(model.backbone.model.config, model.backbone.dtype)
    found = {"each cache": cache, "embedding": model.backbone.dim * model.backbone.dtype.itemsize}
    print(f"\nbytes of a position: {found}, {2 * cache + found['embedding']} in all")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["mini", "0.5b"], default="mini")
    parser.add_argument("--dtype", default="bfloat16", help="of the 0.5b shape")
    parser.add_argument("--part", type=int, default=1, help="divide layers and vocabulary of the 0.5b shape by this")
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=["plain", "first", "group", "calls", "throughput"])
    parser.add_argument("--quick", action="store_true", help="two rounds of short answers")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    model = build(arguments.shape, arguments.dtype, arguments.part)
    rounds, new = (2, 60) if arguments.quick else (arguments.rounds, 600)
    new = arguments.new_tokens or new
    config = model.backbone.model.config
    print(
        f"{arguments.shape}: {config.num_hidden_layers} layers, vocabulary {config.vocab_size}, "
        f"{model.backbone.dtype}, threads {torch.get_num_threads()}, {rounds} rounds"
    )
    warm(model)
    found: dict[str, object] = {"position_bytes": position_bytes(model)}
    lines: dict[str, Callable[[], dict[str, object]]] = {
        "plain": lambda: plain(model, arguments.batches or [1, 8, 32, 64], new, rounds),
        "first": lambda: first(model, 512, rounds),
        "group": lambda: group(model, 200, min(new, 60), rounds),
        "calls": lambda: calls(model, arguments.batches or [1, 8], new, rounds),
        "throughput": lambda: throughput(model, [1, 8, 32, 64], 64, min(new, 100), rounds),
    }
    for name in arguments.only:
        found[name] = lines[name]()
    if arguments.json:
        settings = vars(arguments) | {"json": str(arguments.json), "threads": torch.get_num_threads()}
        arguments.json.write_text(json.dumps({"arguments": settings, **found}, indent=2))


if __name__ == "__main__":
    main()
