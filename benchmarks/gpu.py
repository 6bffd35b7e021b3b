"""Decoding on a GPU machine: random weights of the real shapes are made there, and nothing is downloaded.

    python benchmarks/gpu.py [--shape qwen3-4b ...] [--json out.json]     on a machine with a CUDA GPU
    python benchmarks/gpu.py --shape tiny --device cpu                    the same from end to end, anywhere

First the bandwidth of a copy, which is the floor of decoding. Then for each shape, in bfloat16: plain decoding against
`transformers` generate (dynamic cache, and static cache compiled) at batch 1, 8, 32 and 64; time to first token; an
answer of 600 tokens with 5 calls against none, and the share of synthesis in it; one call at contexts of 128 to 8,192;
tokens a second with 1 to 128 slots, without calls and with calls that wait for others or do not; and `tyler plan`'s
estimate beside what was measured. Targets stand in the table. A shape needs its weights twice over the adapted maps and
the caches of 128 rows: 20 GB for Qwen2.5-1.5B, 60 GB for Qwen3-4B; what does not fit is left out and named. An hour for
all shapes is ample.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import GenerationConfig, Qwen3Config

from harness import Contest, Figure, Report, Timing, Work, compete, note, options, read, timed
from models import filled, shaped, untrained
from tyler import Forced, Never, Request, Tyler
from tyler.config.files import load_config
from tyler.engine.native.engine import Engine
from tyler.engine.request import InvocationEvent, TokenEvent
from tyler.engine.timings import Timings
from tyler.modeling.backbone import dtype_name, resolve_dtype
from tyler.planning.device_benchmark import this_device
from tyler.planning.memory import Shape
from tyler.planning.roofline import Lengths, rollout_costs, total_seconds

SHAPES = {
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "smollm3-3b": "HuggingFaceTB/SmolLM3-3B",
    "qwen3-4b": "Qwen/Qwen3-4B",
}
TARGETS = {
    "bandwidth": "at least 0.75",
    "synthesis": "at most 0.025",
    "answer": "at most 1.6 s",
    "throughput": "at least 25 x with 64",
}
"""For Qwen3-4B on an H100, in bfloat16."""
WAITING = {"at once": 0, "after up to 16 steps": 16}
"""Steps that a call may wait for others."""
COPIED = 2**32
"""Bytes of the copy that shows the bandwidth."""


@dataclass(frozen=True)
class Amounts:
    """How much is decoded: as asked for, or a little where only the script is tried."""

    prompt: int
    answer: int
    calls: int
    batches: tuple[int, ...]
    slots: tuple[int, ...]
    contexts: tuple[int, ...]
    plain: int
    """Tokens of the comparison with generate."""


FULL = Amounts(100, 600, 5, (1, 8, 32, 64), (1, 8, 32, 64, 128), (128, 512, 2048, 8192), plain=128)
LITTLE = Amounts(10, 24, 2, (1, 2), (1, 2), (32, 64), plain=8)


def build(shape: str, device: str) -> Tyler:
    """The shape with random weights; `tiny` is two layers of 64 and serves to try the script."""
    dtype = resolve_dtype("auto", torch.device(device))
    if shape != "tiny":
        return untrained(shaped(SHAPES[shape], dtype_name(dtype), device))
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
    )
    return untrained(filled("tiny", config, dtype, torch.device(device)))


# ------------------------------------------------------------------------------------------------------ measurements


def copy_bandwidth(device: str, size: int = COPIED) -> float:
    """Bytes a second that a copy reads and writes, the best of ten."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(timed(lambda: target.copy_(source)) for _ in range(10))


def requests(amounts: Amounts, count: int, new_tokens: int, calls: int) -> list[Request]:
    """Answers whose calls are at even places, in each row at others. `max_new_tokens` counts actions: calls on top."""
    gap = new_tokens // (calls + 1)
    names = ("global", "state", "procedure")

    def router(row: int) -> Forced | Never:
        places = (gap * (place + 1) + row * 7 % gap for place in range(calls))
        return Forced({place: (names[nth % 3],) for nth, place in enumerate(places)}) if calls else Never()

    return [Request([5 + row] * amounts.prompt, router(row), max_new_tokens=new_tokens + calls) for row in range(count)]


class Engines(Protocol):
    """An engine of so many slots: the same one while a contest lasts, as a server has."""

    def __call__(self, slots: int) -> Engine: ...

    def cache_clear(self) -> None: ...


def engines_of(model: Tyler) -> Engines:
    """The engine of a contest is kept, with its folded maps and caches."""
    return functools.lru_cache(maxsize=1)(lambda slots: model.engine(slots=slots))


def decode(
    engines: Engines,
    amounts: Amounts,
    rows: int,
    new_tokens: int,
    calls: int = 0,
    *,
    coalesce: int = 0,
) -> Timings:
    """Decode `rows` answers at once; returns where the host's time went.

    Synthesis ends when the device has done it. What the host does while the device decodes costs nothing.
    """
    engine = engines(rows)
    engine.timings, engine.coalesce = Timings(), coalesce
    answers = engine.run(requests(amounts, rows, new_tokens, calls))
    assert all(answer.num_visible == new_tokens and answer.num_invocations == calls for answer in answers)
    return engine.timings


@torch.no_grad()
def generate(model: Tyler, amounts: Amounts, rows: int, **settings: object) -> None:
    """transformers' own loop over the same prompts."""
    backbone = model.backbone
    ids = torch.tensor([request.prompt_ids for request in requests(amounts, rows, 1, 0)], device=backbone.device)
    config = GenerationConfig(
        max_new_tokens=amounts.plain, min_new_tokens=amounts.plain, do_sample=False, pad_token_id=0, **settings
    )
    out = backbone.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    assert out.shape[1] == amounts.prompt + amounts.plain


def first_token(engines: Engines, amounts: Amounts) -> None:
    """Until the first token of an answer is there, and the answer is over."""
    events = list(engines(1).stream(requests(amounts, 1, 1, 0)))
    assert isinstance(events[0], TokenEvent)


def call_seconds(engines: Engines, length: int) -> float:
    """The median seconds of a call 8 tokens after the last, at a given context; the first call reads it all."""
    router = Forced({8 * place: ("state",) for place in range(1, 6)})
    engine, seconds = engines(1), []
    engine.timings, spent = Timings(), 0.0
    for event in engine.stream([Request([5] * length, router, max_new_tokens=54)]):
        if isinstance(event, InvocationEvent):
            seconds.append(engine.timings.synthesis - spent)
            spent = engine.timings.synthesis
    return statistics.median(seconds[1:])


def fits(what: str, work: Callable[[], object], engines: Engines) -> bool:
    """Whether the device has the memory; tried once, which also warms up."""
    try:
        work()
    except torch.OutOfMemoryError:
        engines.cache_clear()
        note(f"{what}: left out, it does not fit this device")
        return False
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True


# ----------------------------------------------------------------------------------------------------------- a shape


def plain_contests(model: Tyler, engines: Engines, amounts: Amounts, shape: str) -> list[Contest]:
    """Plain decoding, the engine against generate."""
    caches = {"generate, dynamic cache": {"cache_implementation": None}}
    if model.backbone.device.type == "cuda":  # compiling pays there, and only there
        caches["generate, static cache, compiled"] = {"cache_implementation": "static"}

    def ours(rows: int) -> Work:
        return lambda: decode(engines, amounts, rows, amounts.plain)

    def theirs(rows: int, settings: dict[str, object]) -> Work:
        return lambda: generate(model, amounts, rows, **settings)

    return [
        Contest(
            f"{shape}, plain, batch {rows}",
            {"engine": ours(rows)} | {name: theirs(rows, settings) for name, settings in caches.items()},
            rows * amounts.plain,
            "tokens",
        )
        for rows in amounts.batches
        if fits(f"{shape}, batch {rows}", ours(rows), engines)
    ]


def call_contests(engines: Engines, amounts: Amounts, shape: str, shares: list[float]) -> list[Contest]:
    """An answer with calls against one without, one call at several contexts, and the first token."""

    def answer(calls: int) -> Work:
        def work() -> None:
            spent = decode(engines, amounts, 1, amounts.answer, calls)
            if calls:
                shares.append(spent.synthesis / spent.total)

        return work

    def part() -> None:
        decode(engines, amounts, 1, amounts.answer // 6)

    def call(length: int) -> Work:
        return lambda: call_seconds(engines, length)

    return [
        Contest(
            f"{shape}, {amounts.answer} tokens, batch 1",
            {"no calls": answer(0), f"{amounts.calls} calls": answer(amounts.calls), "a sixth of it": part},
            amounts.answer,
            "tokens",
        ),
        Contest(f"{shape}, one call", {f"context {length:,}": call(length) for length in amounts.contexts}),
        Contest(f"{shape}, first token", {"engine": lambda: first_token(engines, amounts)}),
    ]


def slot_contests(engines: Engines, amounts: Amounts, shape: str) -> list[Contest]:
    """As many answers as slots: without operators, and with calls that are served at once or wait for others."""

    def work(slots: int, calls: int = 0, coalesce: int = 0) -> Work:
        return lambda: decode(engines, amounts, slots, amounts.plain, calls, coalesce=coalesce)

    def ways(slots: int) -> dict[str, Work]:
        calls = {f"{amounts.calls} calls, {how}": work(slots, amounts.calls, steps) for how, steps in WAITING.items()}
        return {"engine": work(slots)} | calls

    return [
        Contest(f"{shape}, {slots} slots", ways(slots), slots * amounts.plain, "tokens")
        for slots in amounts.slots
        if fits(f"{shape}, {slots} slots", work(slots), engines)
    ]


def timed_if_it_fits(contest: Contest, rounds: int, engines: Engines) -> list[Timing]:
    """One contest after the other, so that its engines stay: by the end of the warm-up all they need is recorded."""
    try:
        return compete([contest], rounds, warmups=1)
    except torch.OutOfMemoryError:
        engines.cache_clear()
        note(f"{contest.name}: left out, one of its ways does not fit this device")
        return []


def judged(
    model: Tyler, amounts: Amounts, shape: str, timings: list[Timing], shares: list[float], copied: float
) -> list[Figure]:
    """The figures that have targets, and the plan beside the measured answer."""
    median = {(one.work, one.way): statistics.median(one.seconds) for one in timings}
    answer = f"{shape}, {amounts.answer} tokens, batch 1"
    if (answer, "no calls") not in median:
        return []
    # What an answer costs once (the prompt) is no part of a step.
    sixth = amounts.answer // 6
    per_token = (median[answer, "no calls"] - median[answer, "a sixth of it"]) / (amounts.answer - sixth)
    read = sum(one.nbytes for one in {id(one): one for one in model.backbone.model.parameters()}.values())
    with_calls = median[answer, f"{amounts.calls} calls"]
    rates = {
        slots: one.rate.median
        for slots in amounts.slots
        for one in timings
        if (one.work, one.way) == (f"{shape}, {slots} slots", "engine") and one.rate
    }
    targets = TARGETS if shape == "qwen3-4b" else dict.fromkeys(TARGETS, "")
    figures = [
        Figure(f"{shape}: of copy bandwidth", "batch 1", read / per_token / copied, "", targets["bandwidth"]),
        Figure(
            f"{shape}: share of synthesis",
            f"{amounts.calls} calls",
            statistics.median(shares),
            "",
            targets["synthesis"],
        ),
        Figure(f"{shape}: answer", f"{amounts.calls} calls", with_calls, "s", targets["answer"]),
        Figure(f"{shape}: the plan's answer", f"{amounts.calls} calls", planned(model, amounts), "s"),
    ]
    many = [slots for slots in rates if slots in (64, amounts.slots[-1])]
    return figures + [
        Figure(f"{shape}: tokens/s over batch 1", f"{slots} slots", rates[slots] / rates[1], "x", targets["throughput"])
        for slots in many
        if 1 in rates
    ]


def planned(model: Tyler, amounts: Amounts) -> float:
    """What `tyler plan` expects of the answer with calls, on this device as measured."""
    config = load_config("paper", ["decoding.slots=1"])
    dtype = dtype_name(model.backbone.dtype)
    lengths = Lengths(amounts.prompt, 1, amounts.answer, amounts.calls)
    shape = Shape.of(model.backbone.model.config)
    costs = rollout_costs(shape, config, lengths, 1, model.backbone.dtype.itemsize)
    return total_seconds(costs, this_device(dtype), dtype)


def measure(shape: str, arguments: argparse.Namespace, amounts: Amounts, copied: float) -> list[Timing | Figure]:
    """Everything about one shape."""
    note(f"{shape}: drawing weights")
    torch.compiler.reset()  # what was compiled for another shape counts towards the same limit
    model, shares = build(shape, arguments.device), []
    engines = engines_of(model)
    contests = plain_contests(model, engines, amounts, shape)
    contests += call_contests(engines, amounts, shape, shares)
    contests += slot_contests(engines, amounts, shape)
    timings = [timing for contest in contests for timing in timed_if_it_fits(contest, arguments.rounds, engines)]
    return [*timings, *judged(model, amounts, shape, timings, shares, copied)]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--shape", nargs="+", choices=[*SHAPES, "tiny"], default=list(SHAPES), help="by default all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = read(parser)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; `--shape tiny --device cpu` tries the script without one")
    if arguments.device == "cpu" and arguments.shape != ["tiny"]:
        parser.error("on a CPU only --shape tiny is measured; the real shapes are what benchmarks/run.py is not for")
    amounts = LITTLE if arguments.shape == ["tiny"] else FULL
    report = Report("gpu", arguments)
    copied = copy_bandwidth(arguments.device, COPIED if arguments.device == "cuda" else COPIED // 64)
    report.add([Figure("copy", arguments.device, copied / 1e9, "GB/s, read and written")])
    for shape in arguments.shape:
        report.add(measure(shape, arguments, amounts, copied))
        report.publish(arguments.json)  # after each, so that whoever is stopped has something


if __name__ == "__main__":
    main()
