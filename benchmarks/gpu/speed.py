"""How fast is it on a GPU? Qwen3-4B with random weights, in bfloat16: training, decoding, and operator calls.

Training stands beside the same loss with transformers and peft alone, decoding beside `generate`. A rehearsal has a
model of two layers. What does not fit on the device is left out and named.
"""

import functools
import gc
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from transformers import GenerationConfig, Qwen3Config

from gpu.reference import full_graph, gradients, traces
from gpu.steps import Check, Finding, Setup, Step
from harness import Contest, Figure, Work, compete, note, timed
from models import filled, shaped, untrained
from real_training import plain_step, supervised_model
from tyler import Forced, Never, Request, Tyler
from tyler.config.files import load_config
from tyler.config.loops import Stage1Config, TracesConfig
from tyler.modeling.backbone import Backbone
from tyler.reasoners import sft
from tyler.training import stage1
from tyler.training.teacher_forcing import Trace

SHAPE = "Qwen/Qwen3-4B"
COPIED = 2**32
"""Bytes of the copy that shows the bandwidth."""
CALLS = 8
"""Over which the time of a call is taken."""
SAME = 0.1
"""How far gradients of two ways may differ in bfloat16, as a share of their norm."""


@dataclass(frozen=True)
class Amounts:
    """How much is trained and decoded."""

    traces: int
    length: int
    """Tokens of the longest trace."""
    blocks: int
    prompt: int
    new_tokens: int
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    rounds: int
    """How often each way is timed."""


FULL = Amounts(8, 728, 4, 128, 64, (1, 8, 64), (128, 4096), rounds=3)
LITTLE = Amounts(2, 48, 2, 16, 6, (1, 2), (32, 64), rounds=1)


def amounts(setup: Setup) -> Amounts:
    """What is asked for, or a little where it is only tried."""
    return LITTLE if setup.rehearse else FULL


def steps(setup: Setup) -> list[Step]:
    """The device, training, decoding, calls."""
    given = amounts(setup)
    return [
        Step("copy", copy, 10),
        Step("SFT", fine_tuning, 45),
        Step("Stage 1", first_stage, 45),
        *(Step(f"decoding, {rows} rows", functools.partial(decoding, rows), 30) for rows in given.rows),
        *(Step(f"a call at {context:,}", functools.partial(call, context), 20) for context in given.contexts),
    ]


@functools.cache
def backbone(setup: Setup) -> Backbone:
    """Random weights of the real shape, made on the device."""
    if setup.rehearse:
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
        return filled("tiny", config, torch.bfloat16, torch.device(setup.device))
    return shaped(SHAPE, "bfloat16", setup.device)


def copy(setup: Setup) -> Iterator[Finding]:
    """The bandwidth of the device's memory, which is the floor of decoding, and the size of the model."""
    size = COPIED // 64 if setup.rehearse else COPIED
    source = torch.ones(size, dtype=torch.uint8, device=setup.device)
    target = torch.empty_like(source)
    seconds = min(timed(lambda: target.copy_(source)) for _ in range(10))
    yield Figure("copy", setup.device, 2 * size / seconds / 1e9, "GB/s, read and written")
    weights = sum(
        weight.nbytes for weight in {id(weight): weight for weight in backbone(setup).model.parameters()}.values()
    )
    yield Figure("weights", backbone(setup).id, weights / 1e9, "GB")


def fine_tuning(setup: Setup) -> Iterator[Finding]:
    """A step of SFT: tokens a second and memory, beside transformers and peft with the batch in one padded piece."""
    batch = examples(setup)
    model = supervised_model(backbone(setup), load_config("qwen3-4b"))
    assert model.policy.lora is not None
    trainer = sft.SftTrainer(model, batch, TracesConfig(micro_batch_tokens="auto"))
    ways: dict[str, Work] = {
        "tyler": lambda: [trainer.accumulate(batch)],
        "transformers + peft": lambda: plain_step(model, batch, 1),
    }
    learned = [parameter for parameter in model.policy.lora.parameters() if parameter.requires_grad]
    yield from trained("SFT", ways, learned, batch, amounts(setup).rounds)


def first_stage(setup: Setup) -> Iterator[Finding]:
    """A step of Stage 1, beside the equations written out with transformers and peft in one graph."""
    batch = examples(setup)
    model = untrained(backbone(setup))
    trainer = stage1.Stage1Trainer(model, (), Stage1Config(micro_batch_tokens="auto"))
    ways: dict[str, Work] = {
        "tyler": lambda: [trainer.accumulate(batch)],
        "transformers + peft": lambda: [full_graph(model, [example], num_targets(batch)) for example in batch],
    }
    yield from trained("Stage 1", ways, list(model.synthesizer.trainable()), batch, amounts(setup).rounds)


def examples(setup: Setup) -> list[Trace]:
    """The batch of both trainings: random ids, a quarter of them a prompt, with blocks of latents at random places."""
    given = amounts(setup)
    return traces(given.traces, given.length, given.blocks, backbone(setup).vocab_size, Random(0))


def num_targets(batch: list[Trace]) -> int:
    return sum(len(example.target_ids) for example in batch)


def trained(
    what: str, ways: dict[str, Work], learned: list[torch.nn.Parameter], batch: list, rounds: int
) -> Iterator[Finding]:
    """Peak memory, gradients and time of the ways that fit."""
    fitting, sums = {}, {}
    for way, work in ways.items():
        step = functools.partial(lambda way, work: sums.update({way: gradients(learned, work)}), way, work)
        peak = peak_memory(f"{what}, {way}", step)
        if peak is not None:
            yield from memory_figure(what, way, peak)
            fitting[way] = work
    if len(sums) > 1:
        ours, theirs = sums.values()
        off = float((ours - theirs).norm() / theirs.norm())
        yield Check(f"{what}: gradients against transformers + peft", off, SAME)
    sums.clear()
    tokens = sum(len(example.prompt_ids) + len(example.target_ids) for example in batch)
    yield from compete([Contest(f"{what}: {len(batch)} traces", fitting, tokens, "tokens")], rounds)


def peak_memory(what: str, work: Callable[[], object]) -> float | None:
    """The most bytes that the device held meanwhile, 0 on a CPU; None for what does not fit."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    try:
        work()
    except torch.OutOfMemoryError:
        note(f"{what}: left out, it does not fit on this device")
        return None
    finally:
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
    return float(torch.cuda.max_memory_allocated()) if on_gpu else 0.0


def memory_figure(what: str, way: str, peak: float | None) -> list[Figure]:
    """The peak as a figure, where it was measured."""
    return [Figure(f"{what}: peak memory", way, peak / 1e9, "GB")] if peak else []


def decoding(rows: int, setup: Setup) -> Iterator[Finding]:
    """So many answers at once: without calls, with five, and `generate` with its dynamic cache."""
    given, model = amounts(setup), untrained(backbone(setup))
    engine = model.engine(slots=rows)

    def decode(calls: int) -> Work:
        def work() -> None:
            answers = engine.run(requests(given, rows, calls))
            assert all(answer.num_visible == given.new_tokens and answer.num_invocations == calls for answer in answers)

        return work

    ways = {"engine": decode(0), "generate": lambda: generate(model, given, rows), "with 5 calls": decode(5)}
    peaks = {way: peak_memory(f"{rows} rows, {way}", work) for way, work in ways.items()}
    for way, peak in peaks.items():
        yield from memory_figure(f"{rows} rows", way, peak)
    fitting = {way: work for way, work in ways.items() if peaks[way] is not None}
    contest = Contest(f"{rows} rows", fitting, rows * given.new_tokens, "tokens")
    yield from compete([contest], amounts(setup).rounds, warmups=0)


def requests(given: Amounts, rows: int, calls: int) -> list[Request]:
    """Answers whose calls are at even places. `max_new_tokens` counts actions: calls on top."""
    gap = given.new_tokens // (calls + 1)
    names = ("global", "state", "procedure")
    calls_at = {max(1, gap) * (nth + 1): (names[nth % 3],) for nth in range(calls)}
    router = Forced(calls_at) if calls else Never()
    return [Request([5 + row] * given.prompt, router, max_new_tokens=given.new_tokens + calls) for row in range(rows)]


@torch.no_grad()
def generate(model: Tyler, given: Amounts, rows: int) -> None:
    """transformers' own loop over the same prompts."""
    base: Any = model.backbone
    ids = torch.tensor([request.prompt_ids for request in requests(given, rows, 0)], device=base.device)
    count = given.new_tokens
    config = GenerationConfig(max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
    out = base.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    assert out.shape[1] == given.prompt + count


def call(context: int, setup: Setup) -> Iterator[Finding]:
    """What a call adds to an answer at a context: the first, which reads all of it, and those after it.

    The device works while the host goes on, so that calls are timed by whole answers with none, one and nine of them.
    """
    engine = untrained(backbone(setup)).engine(slots=1)

    def answer(calls: int) -> Work:
        router = Forced({4 * nth: ("state",) for nth in range(1, calls + 1)})
        return lambda: [engine.run([Request([5] * context, router, max_new_tokens=40 + calls)])]

    ways = {f"{calls} calls": answer(calls) for calls in (0, 1, CALLS + 1)}
    timings = compete([Contest(f"40 tokens at {context:,}", ways)], amounts(setup).rounds)
    yield from timings
    without, one_call, all_calls = (statistics.median(timing.seconds) for timing in timings)
    yield Figure(f"a call at {context:,}", "the first, which reads all of it", 1e3 * (one_call - without), "ms")
    yield Figure(f"a call at {context:,}", "4 tokens after another", 1e3 * (all_calls - one_call) / CALLS, "ms")
