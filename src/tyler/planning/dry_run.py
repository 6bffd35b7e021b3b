"""`tyler train METHOD CONFIG --dry-run`: whether a backbone trains here, how fast, and in how much memory.

The real architecture with random weights and a real tokenizer takes one optimizer step of a method, or of both stages,
at the config's micro-batches but on few and short texts (`shortened`). Every phase is timed, and its peak of memory is
compared with what `tyler plan` predicts for the same lengths.
"""

import ctypes
import gc
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

import psutil
import torch
from rich.console import Console
from rich.table import Table

from tyler.config.loops import TracesConfig
from tyler.config.schema import Config
from tyler.config.sections import Section
from tyler.engine.native.packing import can_pack
from tyler.model import Tyler
from tyler.modeling.architectures import located
from tyler.modeling.backbone import Backbone, best_device, dtype_name
from tyler.modeling.random_init import random_backbone, read_tokenizer
from tyler.planning import memory
from tyler.planning.memory import Parts
from tyler.planning.plan import GIB, PHASES, by_part, of_phase, parameter_table
from tyler.reasoners.table import find_training
from tyler.tasks import load_problems
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import prompt_ids
from tyler.training.calibration import boundary_requests, calibrate
from tyler.training.command import lora_of
from tyler.training.grpo import GrpoTrainer
from tyler.training.micro_batches import MicroBatches
from tyler.training.optimizer import Optimization, scaler_of
from tyler.training.planned import PROMPT, Parameters, Shape, count_parameters, rows_of
from tyler.training.stage2 import Stage2Trainer
from tyler.training.supervised import SupervisedTrainer
from tyler.training.teacher_forcing import Trace

LENGTH = 256
"""Tokens of a trace, unless another number is given."""
ANSWER = 32
"""Actions of a rollout, at most."""
MICRO_BATCHES = 2
"""Of a step on traces: enough to accumulate."""
CALIBRATION = 2
"""Problems that psi starts from."""
SAMPLE_SECONDS = 0.005
Part = TypeVar("Part", bound=Section)


@dataclass
class Phase:
    """One part of the dry run: how long it took, and its peak of memory beyond what the process held at the start."""

    name: str
    seconds: float = 0.0
    measured: int = 0
    predicted: Parts = field(default_factory=dict)
    answers: int = 0
    """Positions of an answer that it learned from, in the mean."""

    @property
    def expected(self) -> int:
        return sum(self.predicted.values())


@dataclass
class Report:
    """What a dry run found."""

    backbone: Backbone
    counts: Parameters
    phases: list[Phase]
    loss: float | None = None
    """Of the step on traces, where there was one."""


class Meter:
    """Times phases and watches their memory: the process's on a CPU, the allocator's on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.phases: list[Phase] = []
        self._start = self._held()

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Measure what happens inside. What earlier phases still hold counts; what they let go of does not."""
        give_back()
        phase, done = Phase(name), threading.Event()
        self.phases.append(phase)
        watcher = threading.Thread(target=self._watch, args=(phase, done), daemon=True)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        watcher.start()
        started = time.perf_counter()
        try:
            yield phase
        finally:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            phase.seconds = time.perf_counter() - started
            done.set()
            watcher.join()
            phase.measured = max(phase.measured, self._peak() - self._start)

    def _watch(self, phase: Phase, done: threading.Event) -> None:
        while not done.wait(SAMPLE_SECONDS):
            phase.measured = max(phase.measured, self._peak() - self._start)

    def _held(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        return psutil.Process().memory_info().rss

    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else self._held()


def give_back() -> None:
    """Return freed memory to the system where the C library keeps it (glibc), or it would count as used."""
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def rehearse(
    config: Config, tokenizer: Path, method: str = "stage1", *, length: int = LENGTH, device: str | None = None
) -> Report:
    """Build the config's backbone with random weights and take it through a step of a method, or of both stages.

    `length` is that of the traces in tokens. Raises ValueError for a shape that is not known.
    """
    torch.manual_seed(config.stage1.seed)
    reader = read_tokenizer(tokenizer)
    meter = Meter(torch.device(device) if device is not None else best_device())
    with meter.phase("build") as build:
        backbone = random_backbone(config.backbone.id, reader, dtype=config.backbone.dtype, device=meter.device)
        short = shortened(config, backbone, length)
        problem = long_problem(backbone, config)
        training = find_training(method)
        learns_traces = isinstance(short.loops[training.loop], TracesConfig)
        if learns_traces:
            trainer, example = training.rehearse(backbone, short, random_trace(backbone, length))
            short = changed(short, {"stage1.max_length": trainer.num_positions(example)})
        else:
            policy = training.rehearse(backbone, short, [problem])
    shape, element = Shape.of(backbone.model.config), backbone.dtype.itemsize
    report = Report(backbone, count_parameters(shape, config.lora, config.operators), meter.phases)
    if learns_traces:
        rows = MICRO_BATCHES * rows_of(short, training.loop, short.stage1.max_length)
        with meter.phase(f"{method} step"):
            report.loss = learn(trainer, [example] * min(rows, trainer.loop.batch_size))
    else:
        improve(policy, [problem], meter, method)
    if method == "stage1":
        stage2(trainer.model, [problem] * CALIBRATION, short, meter)
    learned = training.step(shape, short).trained
    build.predicted = {"weights": report.counts.backbone * element, "adapters and heads": learned * memory.FLOAT32}
    packs = meter.device.type == "cpu" and can_pack(backbone.dtype)
    for phase in meter.phases[1:]:
        if phase.name in (*PHASES, f"{method} step"):
            learned_from = {"stage2.max_new_tokens": phase.answers - PROMPT, "grpo.budget": 0}
            planned = changed(short, learned_from) if phase.answers else short  # else answers are as long as allowed
            phase.predicted = of_phase(phase.name, shape, planned, element, packs)
    return report


def stage2(model: Tyler, problems: Sequence[Problem], config: Config, meter: Meter) -> None:
    """Stage 2 on the operators of a Stage 1: psi's start, a group, a step."""
    model.policy.add_lora(lora_of(config))
    trainer = Stage2Trainer(model, problems, (), config)
    with meter.phase("calibration"):
        answers = trainer.rollouts.answer(boundary_requests(model, problems, config))
        calibrate(model, answers, config.stage2.calibration)
        trainer.reference_psi.copy_(model.policy.psi.detach())
    improve(trainer, problems[:1], meter, "stage2")


def shortened(config: Config, backbone: Backbone, length: int) -> Config:
    """The config with traces of `length` tokens, answers of at most ANSWER actions, and few of both."""
    shorter: dict[str, Any] = {"stage1.max_length": length, "stage2.calibration.num_problems": CALIBRATION}
    for section, loop in config.loops.items():
        shorter[f"{section}.micro_batch_tokens"] = MicroBatches.of(loop, backbone).positions  # what `auto` comes to
        if not isinstance(loop, TracesConfig):
            shorter[f"{section}.batch_size"] = 1
            if (longest := getattr(loop, "max_new_tokens", None)) is not None:
                shorter[f"{section}.max_new_tokens"] = min(ANSWER, longest)
    return changed(config, shorter)


def changed(section: Part, changes: Mapping[str, Any]) -> Part:
    """A copy of a config, or of a section of one, with other values at some dotted keys."""
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        section = section.model_copy(update={name: changed(getattr(section, name), {rest: value}) if rest else value})
    return section


def long_problem(backbone: Backbone, config: Config) -> Problem:
    """A problem whose prompt has as many tokens as a plan reckons with: one text, again and again."""
    (problem,) = load_problems("mini", "train", count=1, seed=config.data.seed)
    short = replace(problem, id="dry", prompt=".")
    room = min(PROMPT, backbone.max_positions // 2) - len(prompt_ids(backbone.tokenizer, short, config.prompt))
    ids = backbone.tokenizer.encode(problem.prompt * room, add_special_tokens=False)
    return replace(short, prompt=str(backbone.tokenizer.decode(ids[:room])))


def random_trace(backbone: Backbone, length: int) -> Trace:
    """Tokens of a prompt, and those that follow it. Raises ValueError for fewer than 4 in all."""
    if length < 4:
        raise ValueError(f"length={length} leaves a trace no room for a prompt and an answer; give at least 4")
    first, tokens = min(PROMPT, length // 2), torch.randint(len(backbone.tokenizer), (length,)).tolist()
    return Trace("dry", tuple(tokens[:first]), tuple(tokens[first:]), ())


def learn(trainer: SupervisedTrainer[Any, Any], examples: Sequence[Any]) -> float:
    """One optimizer step on traces; returns the loss."""
    optimization = Optimization.of(trainer.loop, trainer.parameter_groups(), 1, scaler_of(trainer.backbone))
    trainer.module.train()
    loss = trainer.accumulate(examples, optimization.backward)
    optimization.step(0, ["the dry run's"], loss)
    trainer.module.eval()
    return loss


def improve(trainer: GrpoTrainer, problems: Sequence[Problem], meter: Meter, method: str) -> None:
    """A group of answers, and one update on it."""
    with meter.phase("rollout" if method == "stage2" else f"{method} rollout"):
        rollout = trainer.roll_out(problems, step=0)
    with meter.phase(f"{method} step") as phase:
        optimization = Optimization.of(trainer.loop, trainer.parameter_groups(), 1, scaler_of(trainer.backbone))
        trainer.improve(rollout, optimization, 0)
    phase.answers = ceil(mean(rollout.lengths))


def run(config: Config, tokenizer: Path | None = None, length: int | None = None, method: str = "stage1") -> None:
    """Rehearse and print. Without `tokenizer` the one in the backbone's own folder is taken; ValueError if none is."""
    if tokenizer is None:
        tokenizer = Path(located(config.backbone.id))
        if not tokenizer.is_dir():
            raise ValueError(
                f"a dry run needs no weights, but the real tokenizer of {config.backbone.id}: give --tokenizer with a "
                "folder that holds its tokenizer.json, tokenizer_config.json and, where it has one, chat_template.jinja"
            )
    console, length = Console(), LENGTH if length is None else length
    report = rehearse(config, tokenizer, method, length=length)
    console.print(
        f"{config.backbone.id} with random weights in {dtype_name(report.backbone.dtype)} on "
        f"{report.backbone.device}; traces of {length} tokens, answers of at most {ANSWER} actions"
    )
    for table in (parameter_table(report.counts), measured_table(report)):
        console.print(table)
    console.print("Random weights: the numbers mean size and speed, not skill.")


def measured_table(report: Report) -> Table:
    """Every phase: seconds, measured peak, and the prediction by part."""
    table = Table("phase", "seconds", "measured", "predicted", "by part", title="this dry run (GiB)")
    for phase in report.phases:
        shown = ("", "")
        if phase.predicted:
            difference = (phase.expected - phase.measured) / max(1, phase.measured)
            shown = (f"{phase.expected / GIB:.2f} ({difference:+.0%})", by_part(phase.predicted))
        table.add_row(phase.name, f"{phase.seconds:.1f}", f"{phase.measured / GIB:.2f}", *shown)
    return table
