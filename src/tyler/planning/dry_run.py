"""`tyler train stage1 CONFIG --dry-run`: whether a backbone trains here, how fast, and in how much memory.

The real architecture with random weights and a real tokenizer takes one optimizer step of each stage and decodes one
answer, at the config's micro-batches but on few and short texts (`shortened`). Every phase is timed, and its peak of
memory is compared with what `tyler plan` predicts for the same lengths; the full ones are predicted beside it.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import torch
from rich.console import Console
from rich.table import Table

from tyler.config.schema import Config
from tyler.engine.routing import Forced
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.architectures import located
from tyler.modeling.backbone import Backbone, best_device, dtype_name
from tyler.modeling.lora import LoraSettings
from tyler.modeling.random_init import random_backbone, read_tokenizer
from tyler.planning import memory, steps
from tyler.planning.memory import Parts, Shape, count_parameters
from tyler.planning.plan import GIB, Changes, by_part, changed, memory_table, parameter_table, predicted
from tyler.tasks import load_problems
from tyler.tasks.problem import Problem
from tyler.training.calibration import calibrate
from tyler.training.micro_batches import MicroBatches
from tyler.training.optimizer import Optimization, scaler_of
from tyler.training.rollouts import Rollout
from tyler.training.stage1 import Stage1Trainer
from tyler.training.stage2 import Stage2Trainer
from tyler.training.teacher_forcing import Example, Insertion
from tyler.training.traces import tokenize

LENGTH = 256
"""Tokens of a Stage 1 trace, unless told otherwise."""
ANSWER = 32
"""Actions of a rollout and of the decoded answer, at most."""
MICRO_BATCHES = 2
"""Of the Stage 1 step: enough to accumulate."""
CALIBRATION = 2
"""Problems that psi starts from."""
SAMPLE_SECONDS = 0.005


@dataclass
class Phase:
    """One part of the dry run: how long it took, and its peak of memory beyond what the process held at the start."""

    name: str
    seconds: float = 0.0
    measured: int = 0
    predicted: Parts = field(default_factory=dict)

    @property
    def expected(self) -> int:
        return sum(self.predicted.values())

    @property
    def difference(self) -> float:
        """(predicted - measured) / measured."""
        return (self.expected - self.measured) / max(1, self.measured)


@dataclass(frozen=True)
class Report:
    """What a dry run found."""

    backbone: Backbone
    counts: memory.Parameters
    phases: list[Phase]
    full: dict[str, Parts]
    """Predicted bytes of each phase at the config's full lengths."""
    loss: float
    answer: Trajectory


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


# --------------------------------------------------------------------------------------------------------- the steps


def rehearse(config: Config, tokenizer: Path, *, length: int = LENGTH, device: str | None = None) -> Report:
    """Build the config's backbone with random weights and take it through everything once.

    `length` is that of the Stage 1 traces in tokens. Raises ValueError for a shape that is not known.
    """
    torch.manual_seed(config.stage1.seed)
    reader = read_tokenizer(tokenizer)
    place = torch.device(device) if device is not None else best_device()
    meter, lora = Meter(place), LoraSettings(**config.lora.model_dump())
    with meter.phase("build") as build:
        backbone = random_backbone(config.backbone.id, reader, dtype=config.backbone.dtype, device=place)
        model = Tyler.start(backbone, config.operators, lora, config.prompt)
    shape, element = Shape.of(backbone.model.config), backbone.dtype.itemsize
    short = shortened(config, backbone, length)
    texts = load_problems("mini", "train", count=64, seed=config.data.seed)
    problems, examples = long_problems(model, texts), long_examples(model, texts, short, length)
    with meter.phase("stage1 step"):
        loss = stage1_step(model, examples, short)
    model.policy.add_lora(lora)
    with meter.phase("calibration"):
        calibrate(model, problems, short)
    with meter.phase("rollout"):
        trainer = Stage2Trainer(model, problems[:1], (), short)
        rollout = trainer.roll_out(problems[:1], step=0)
    with meter.phase("stage2 step"):
        stage2_step(trainer, rollout)
    with meter.phase("one answer"):
        answer = answer_once(model, problems[0])
    counts = count_parameters(shape, config.lora, config.operators)
    build.predicted = {"weights": counts.backbone * element, "adapters and heads": counts.stage1 * memory.FLOAT32}
    expected = predicted(shape, short, element)
    for phase in meter.phases[1:-1]:
        phase.predicted = expected[phase.name]
    return Report(backbone, counts, meter.phases, predicted(shape, config, element), loss, answer)


def shortened(config: Config, backbone: Backbone, length: int) -> Config:
    """The config with traces of `length` tokens, answers of at most ANSWER actions, and few of both."""
    latents = config.stage1.insertions.max * max(operator.num_latents for operator in config.operators)
    shorter: Changes = {
        "stage1.max_length": length + latents,
        "stage2.max_new_tokens": min(ANSWER, config.stage2.max_new_tokens),
        "stage2.batch_size": 1,
        "stage2.calibration.num_problems": CALIBRATION,
    }
    for section in ("stage1", "stage2"):  # what `auto` comes to here
        shorter[f"{section}.micro_batch_tokens"] = MicroBatches.of(config.loops[section], backbone).positions
    return changed(config, shorter)


def long_problems(model: Tyler, texts: Sequence[Problem]) -> list[Problem]:
    """Problems whose prompts have as many tokens as a plan reckons with: several texts, one after the other."""
    tokens = min(memory.PROMPT, model.backbone.max_positions // 2)
    count = max(1, tokens // len(model.request(texts[0]).prompt_ids))
    joined = (" ".join(one.prompt for one in texts[first : first + count]) for first in range(0, len(texts), count))
    return [replace(texts[0], id=f"dry-{place}", prompt=prompt) for place, prompt in enumerate(joined)]


def long_examples(model: Tyler, texts: Sequence[Problem], config: Config, length: int) -> list[Example]:
    """MICRO_BATCHES micro-batches of a trace of `length` tokens: solutions one after the other, with latents at the
    last places that it has, where they cost most."""
    text = "\n\n".join(problem.solution or "" for problem in texts)
    enough = 8 * max(1, length)
    text = (text * (1 + enough // len(text)))[:enough]  # no tokenizer has longer tokens on average
    trace = tokenize(model.backbone, config.operators, model.prompt, replace(texts[0], solution=text))
    if length < len(trace.prompt_ids) + 2:
        raise ValueError(
            f"length={length} leaves a trace no room behind its prompt of {len(trace.prompt_ids)} tokens; "
            f"give at least {len(trace.prompt_ids) + 2}"
        )
    targets = trace.target_ids[: length - len(trace.prompt_ids)]
    last = [pair for pair in trace.candidates if pair[0] < len(targets)][-config.stage1.insertions.max :]
    example = Example(trace.prompt_ids, targets, tuple(Insertion(place, operator.name) for place, operator in last))
    rows = MICRO_BATCHES * steps.rows_of(config, "stage1", config.stage1.max_length)
    return [example] * min(rows, config.stage1.batch_size)


def stage1_step(model: Tyler, examples: Sequence[Example], config: Config) -> float:
    """One optimizer step of Phi; returns the loss."""
    trainer = Stage1Trainer(model, (), config.stage1)
    optimization = Optimization.of(config.stage1, trainer.parameter_groups(), 1, scaler_of(model.backbone))
    trainer.begin()
    loss = trainer.accumulate(examples, optimization.backward)
    optimization.step(0, ["the dry run's"], loss)
    trainer.end()
    return loss


def stage2_step(trainer: Stage2Trainer, rollout: Rollout) -> None:
    """One update of {eta, psi} on one group."""
    optimization = Optimization.of(trainer.loop, trainer.parameter_groups(), 1, scaler_of(trainer.backbone))
    trainer.reference_psi.copy_(trainer.model.policy.psi.detach())
    trainer.improve(rollout, optimization, 0)


def answer_once(model: Tyler, problem: Problem) -> Trajectory:
    """One greedy answer with every operator invoked, wherever the random policy would have."""
    names = tuple(operator.name for operator in model.operators)
    request = model.request(problem, router=Forced({0: names[:1], 4: names[1:]}), max_new_tokens=ANSWER)
    return model.engine(slots=1).run([request])[0]


# --------------------------------------------------------------------------------------------------------- the tables


def run(config: Config, tokenizer: Path | None = None, length: int | None = None) -> None:
    """Rehearse and print. Without `tokenizer` the one in the backbone's own folder is taken; ValueError if none is."""
    if tokenizer is None:
        tokenizer = Path(located(config.backbone.id))
        if not tokenizer.is_dir():
            raise ValueError(
                f"a dry run needs no weights, but the real tokenizer of {config.backbone.id}: give --tokenizer with a "
                "folder that holds its tokenizer.json, tokenizer_config.json and, where it has one, chat_template.jinja"
            )
    console, length = Console(), LENGTH if length is None else length
    report = rehearse(config, tokenizer, length=length)
    console.print(
        f"{config.backbone.id} with random weights in {dtype_name(report.backbone.dtype)} on "
        f"{report.backbone.device}; traces of {length} tokens, answers of at most {ANSWER} actions"
    )
    full = memory_table(report.full, "at the config's full lengths (GiB)")
    for table in (parameter_table(report.counts), measured_table(report), full):
        console.print(table)
    answer = report.answer
    console.print(
        f"Stage 1 loss {report.loss:.2f}; one answer of {answer.num_visible} visible tokens and {answer.num_latents} "
        f"latents in {answer.num_invocations} invocations. Random weights: the numbers mean size and speed, not skill."
    )


def measured_table(report: Report) -> Table:
    """Every phase: seconds, measured peak, and the prediction by part."""
    table = Table("phase", "seconds", "measured", "predicted", "by part", title="this dry run (GiB)")
    for phase in report.phases:
        shown = ("", "")
        if phase.predicted:
            shown = (f"{phase.expected / GIB:.2f} ({phase.difference:+.0%})", by_part(phase.predicted))
        table.add_row(phase.name, f"{phase.seconds:.1f}", f"{phase.measured / GIB:.2f}", *shown)
    return table
