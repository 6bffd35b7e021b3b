"""`tyler plan` against what it plans: steps of both stages and decoding, on this machine, measured and predicted.

    OMP_NUM_THREADS=1 python benchmarks/plan.py [--quick] [--json out.json]

Two shapes with random weights in float32: `mini`, and a Qwen3 of 67 million parameters. The device is measured
again in every round, just before the work, and the prediction is made from that. On a CPU with one thread, seconds are
those of the processor, so that what others do on the machine counts little; the ratio is predicted over measured.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from harness import Contest, Report, Work, compete, options, read
from models import shaped, sized, untrained
from tyler import Forced, Never, Request, Sampling, Tyler
from tyler.config.files import load_config
from tyler.config.schema import Config
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.planning.device_benchmark import best_clock, synchronize, this_device
from tyler.planning.hardware import Device
from tyler.planning.memory import Shape
from tyler.planning.roofline import Cost, Lengths, learning_costs, rollout_costs, stage1_costs, total_seconds
from tyler.tasks.problem import Problem
from tyler.training.rollouts import Rollout
from tyler.training.stage1 import Stage1Trainer
from tyler.training.stage2 import Stage2Trainer
from tyler.training.teacher_forcing import Example, Insertion

FRESH_SECONDS = 30
CALLS = 3
"""Operator calls of every decoded answer."""


@dataclass(frozen=True)
class Setting:
    """A model, and how much is read and decoded at once."""

    name: str
    model: Tyler
    config: Config
    lengths: Lengths

    @property
    def group(self) -> int:
        return self.config.stage2.batch_size * self.config.grpo.group_size


def setting(name: str, backbone: Backbone, lengths: Lengths, *overrides: str) -> Setting:
    """Small batches: what is checked is the time of a step, not training."""
    config = load_config(
        "mini",
        [
            "stage1.batch_size=4",
            "stage1.insertions.min=2",
            "stage1.insertions.max=2",
            "stage1.insertions.first=null",
            "lora.dropout=0.0",
            "stage2.batch_size=1",
            "grpo.group_size=8",
            "decoding.slots=8",
            *overrides,
        ],
    )
    model = untrained(backbone).at_stage("stage2")
    model.policy.add_lora(LoraSettings(**config.lora.model_dump()))
    return Setting(name, model, config, lengths)


# ---------------------------------------------------------------------------------------------------- what is done


def ids(one: Setting, count: int, seed: int) -> list[int]:
    draw = random.Random(f"{one.name} {seed}")
    return [draw.randrange(one.model.backbone.vocab_size) for _ in range(count)]


def stage1_step(one: Setting) -> None:
    """One gradient of Phi; two blocks a third and two thirds into each trace."""
    target, settings = one.lengths.target, one.config.stage1
    insertions = (Insertion(target // 3, "global"), Insertion(2 * target // 3, "state"))
    examples = [
        Example(ids(one, one.lengths.prompt, row), ids(one, target, -row - 1), insertions)
        for row in range(settings.batch_size)
    ]
    one.model.synthesizer.train()
    Stage1Trainer(one.model, (), settings).accumulate([("x", example) for example in examples])
    one.model.synthesizer.zero_grad(set_to_none=True)
    one.model.synthesizer.eval()


def requests(one: Setting, count: int) -> list[Request]:
    """Sampled answers of the planned length, with the calls at even places."""
    gap = one.lengths.answer // (CALLS + 1)
    router = Forced({gap * (place + 1): ("state",) for place in range(CALLS)}) if one.lengths.calls else Never()
    return [
        Request(ids(one, one.lengths.prompt, row), router, Sampling(1.0, seed=row), max_new_tokens=one.lengths.answer)
        for row in range(count)
    ]


def decode(one: Setting, count: int) -> Rollout:
    """Decode, and make up a reward: learning needs one, and its worth does not matter here."""
    trajectories = one.model.engine(slots=min(count, one.config.decoding.slots)).run(requests(one, count))
    assert all(len(answer.actions) == one.lengths.answer for answer in trajectories)
    rewards = torch.rand(1, count)
    return Rollout([Problem("made up", "mini", "", "")], trajectories, [], rewards)


def learning(one: Setting, rollout: Rollout) -> None:
    """One gradient of eta and psi."""
    Stage2Trainer(one.model, rollout.problems, (), one.config).learn(replace(rollout, start=None))
    one.model.policy.zero_grad(set_to_none=True)


# ------------------------------------------------------------------------------------------- measured and predicted


class Gauge:
    """The device, measured again when the last measurement is too old to speak for a shared machine."""

    def __init__(self) -> None:
        self._measured = -math.inf

    def device(self) -> Device:
        if time.perf_counter() - self._measured > FRESH_SECONDS:
            self._device, self._measured = this_device("float32"), time.perf_counter()
        return self._device


@dataclass(frozen=True)
class Forecast:
    """The seconds that a plan gives some costs, on the device as it is now."""

    costs: dict[str, Cost]
    gauge: Gauge

    def seconds(self) -> float:
        return total_seconds(self.costs, self.gauge.device(), "float32")


def measured(work: Callable[[], object]) -> Work:
    """The work by the clock that measures the device."""

    def run() -> float:
        clock = best_clock()
        synchronize()
        started = clock()
        work()
        synchronize()
        return clock() - started

    return run


def contests(one: Setting, gauge: Gauge) -> list[Contest]:
    rollout, lengths = decode(one, one.group), one.lengths
    alone = one.config.model_copy(update={"decoding": one.config.decoding.model_copy(update={"slots": 1})})
    single = Setting(one.name, one.model, alone, lengths)
    shape = Shape.of(one.model.backbone.model.config)
    pieces: dict[str, tuple[Callable[[], object], dict[str, Cost]]] = {
        "Stage 1 step": (lambda: stage1_step(one), stage1_costs(shape, one.config, lengths, 4)),
        f"rollout of {one.group}": (
            lambda: decode(one, one.group),
            rollout_costs(shape, one.config, lengths, one.group, 4),
        ),
        "Stage 2 learning": (lambda: learning(one, rollout), learning_costs(shape, one.config, lengths, 4)),
        "one answer": (lambda: decode(single, 1), rollout_costs(shape, alone, lengths, 1, 4)),
    }
    return [
        Contest(f"{one.name}, {name}", {"measured": measured(work), "predicted": Forecast(costs, gauge).seconds})
        for name, (work, costs) in pieces.items()
    ]


def main() -> None:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--shape", nargs="+", choices=["mini", "67M"], default=["mini", "67M"])
    arguments: argparse.Namespace = read(parser)
    report = Report("plan", arguments)
    small = Lengths(prompt=24, target=72, answer=64, calls=CALLS)
    large = Lengths(prompt=48, target=48 if arguments.quick else 192, answer=16 if arguments.quick else 96, calls=CALLS)
    settings = {
        "mini": lambda: setting("mini", shaped("mini", "float32"), small),
        "67M": lambda: setting("67M", sized(16, 512, vocab=16384), large, "stage1.micro_batch_size=2"),
    }
    gauge = Gauge()
    for name in arguments.shape:
        report.add(compete(contests(settings[name](), gauge), arguments.rounds))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
