"""A cell: a trained model, decoded in one way, on the problems of one split.

Its name is the hash of everything that decides its answers: the resolved settings of every stage of its training, the
training problems, the backbone's weights, the decoding, the evaluated problems and the version of this layout. A cell
that has a record under its name is never run again; a changed setting makes another cell and leaves the old one be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from tyler.config.engine_choice import NATIVE, EngineChoice
from tyler.config.files import load_config
from tyler.config.loops import ObjectiveConfig, OptimizationConfig
from tyler.config.schema import Config
from tyler.modeling.architectures import FETCHABLE, MINI, fetched_folder
from tyler.reasoners.table import TRAININGS
from tyler.tasks import Problem, load_problems
from tyler.tasks.decontamination import Selection, read_held_out, without_any
from tyler.tasks.grading import TASKS, find_task
from tyler.tasks.loading import has_files
from tyler.tasks.task import Generated

FORMAT = 2
"""Of cells and their records; a change makes all cells anew."""
UNTRAINED, KEPT = "backbone", "kept"
"""Where nothing is trained: a plain backbone answers, or the cell is read and never run."""
ACCURACY, TEXTS, LATENCY, LATENTS, SPREAD = "accuracy", "texts", "latency", "latents", "spread"
"""What is measured in a cell (`measures.py`). TEXTS is accuracy under another name: the first records of ACCURACY
hold no texts, and what is read of texts has records of its own. LATENCY decodes one answer at a time."""
NO_TRAINING = (UNTRAINED, "merge")
"""Methods that run and train nothing."""
SEEDED = tuple(Config().loops)
"""The sections whose seeds decide data order, draws and rollouts."""
SECTIONS = {UNTRAINED: (), "merge": (), **{name: trainer.reads for name, trainer in TRAININGS.items()}}
"""What a method of training reads of the config, besides `backbone` and `data`: sections, and settings in others."""
ROLLED_OUT = ("stage2", "grpo")
"""Methods of training whose answers come from any engine."""
ON_ANY_ENGINE = ("tyler", "cot")
"""Methods of decoding that need no engine in particular."""
FIRST_OBJECTIVE_FIELDS = {
    "group_size", "clip_range", "temperature", "updates_per_rollout", "advantage_epsilon", "scale_rewards",
}  # fmt: skip
"""What an objective had when FORMAT was introduced."""
DEFAULTS = Config().model_dump(mode="json")
OPTIONAL_FIELDS = {
    **{name: DEFAULTS["grpo"][name] for name in ObjectiveConfig.model_fields.keys() - FIRST_OBJECTIVE_FIELDS},
    "system": "",
    "max_skipped": OptimizationConfig.model_fields["max_skipped"].default,
    "rewards": DEFAULTS["rewards"],
}
"""Settings that are newer than FORMAT, with their defaults: only another value counts."""
REMOVED_FIELDS = {"coalesce": None}
"""Settings of decoding that FORMAT had and the config no longer has; they changed nothing."""
SPEED_ONLY_KEYS = ("eval_every", "checkpoint_every", "micro_batch_size", "micro_batch_tokens", "gradient_checkpointing")
"""Settings of a loop that change its speed or what is watched, not what is learned, but for what dropout draws."""


@dataclass(frozen=True)
class Training:
    """How a model is made: a method, what differs from the preset, and the training it starts from.

    `start` is the Stage 1 of a Stage 2, the weaver of MemGen's GRPO, or, where the method is "merge" or starts from a
    merged model, the model whose weights become the backbone.
    """

    method: str = UNTRAINED
    overrides: tuple[str, ...] = ()
    start: Training | None = None

    @property
    def stages(self) -> list[Training]:
        """All trainings that this one needs, itself last."""
        return [*(self.start.stages if self.start else []), self]

    def config(self, preset: str, seed: int, more: Sequence[str] = ()) -> Config:
        """The preset with what differs; the seed is that of every method."""
        return _loaded(preset, (*self.overrides, *more, *(f"{section}.seed={seed}" for section in SEEDED)))

    def identity(self, preset: str, seed: int, sources: Sources) -> dict[str, Any]:
        """What decides the weights: the backbone, and each stage's method, problems and the settings it reads."""
        config = self.config(preset, seed)
        stages = [stage._own_identity(preset, seed, sources) for stage in self.stages]
        return {"format": FORMAT, "backbone": sources.fingerprint(config), "stages": stages}

    def _own_identity(self, preset: str, seed: int, sources: Sources) -> dict[str, Any]:
        config = self.config(preset, seed)
        settings = config.model_dump(mode="json")
        del settings["stage2"]["shard_layers"]  # it came after FORMAT, and changes what fits, not what is learned
        read: dict[str, Any] = {name: reduce(getitem, name.split("."), settings) for name in SECTIONS[self.method]}
        read["backbone"] = {key: settings["backbone"][key] for key in ("thinking", "instruction", "system")}
        read["backbone"]["dtype"] = sources.dtype(config)
        if read.keys() != {"backbone"}:
            read["data"] = sources.learned(self.config(preset, seed, sources.placed(config)))
        if "decoding" in read:
            read["decoding"] |= REMOVED_FIELDS | (sources.engine.settings() if self.method in ROLLED_OUT else {})
        own_engine = ("engine", "engine_args") if settings["decoding"]["engine"] == NATIVE.name else ()
        return {"method": self.method, **as_first_named(read, (*SPEED_ONLY_KEYS, *own_engine))}


@dataclass(frozen=True)
class Decoding:
    """How a trained model answers: `tyler` under a router, or another method with its settings.

    `router` is written as on the command line ("" for what the last stage trained for), `only` restricts it to some
    operators, `intervention` names what is done to the latents (`interventions.py`).
    """

    method: str = "tyler"
    settings: tuple[str, ...] = ()
    router: str = ""
    only: tuple[str, ...] = ()
    intervention: str = ""
    budget: int | None = None


@dataclass(frozen=True)
class Questions:
    """What is asked: `count` problems of a split, and the most actions an answer may take."""

    task: str
    split: str
    count: int | None
    max_new_tokens: int
    seed: int = 0


@dataclass(frozen=True)
class Sources:
    """Where problems are, and which backbone is meant: what a cell's name depends on besides its settings.

    `data` maps a task to its file or folder; a task that is not in it comes from the Hub or is generated. The folder of
    `jsonl` holds a file for each split, SPLIT.jsonl.
    """

    data: Mapping[str, str]
    fingerprints: dict[tuple[object, ...], str] = field(default_factory=dict)
    digests: dict[Questions | tuple[Selection, ...], str] = field(default_factory=dict)
    engine: EngineChoice = NATIVE
    """What answers wherever it can; where it cannot, the native engine does."""

    def engine_of(self, decoding: Decoding) -> EngineChoice:
        """The engine of a decoding: interventions and methods with an engine of their own have the native one."""
        return NATIVE if decoding.intervention or decoding.method not in ON_ANY_ENGINE else self.engine

    def problems(self, questions: Questions) -> list[Problem]:
        """The problems that are asked, in their order."""
        path = self.path(questions.task, questions.split)
        return load_problems(questions.task, questions.split, path=path, count=questions.count, seed=questions.seed)

    def path(self, task: str, split: str) -> str | None:
        """Where a split is read from; None for the Hub or a generator."""
        location = self.data.get(task)
        return f"{location}/{split}.jsonl" if location is not None and task == "jsonl" else location

    def placed(self, config: Config) -> list[str]:
        """Overrides that say where the files are of what a config trains on, watches and reports."""
        overrides = []
        if path := self.path(config.data.task, config.data.split):
            overrides.append(f"data.path={path}")
            if config.data.development is not None:
                task = config.data.development.task or config.data.task
                overrides.append(f"data.development.path={self.path(task, config.data.development.split)}")
        if path := self.path(config.evaluation.task, config.evaluation.split):
            overrides.append(f"evaluation.path={path}")
        return overrides

    def digest(self, questions: Questions) -> str:
        """The hash of the problems that are asked: of what a model reads, and what is right."""
        if questions not in self.digests:
            every = self.problems(questions)
            self.digests[questions] = digest((each.id, each.prompt, each.answer, each.instruction) for each in every)
        return self.digests[questions]

    def learned(self, config: Config) -> str:
        """The hash of what the training problems of a config say, without those that it leaves out as held out.

        The config says where its files are (`placed`). Held-out sets are read only where problems are left out: a
        training that refuses them learns all of its problems, or is not started.
        """
        training = config.training_set
        drops = config.data.on_overlap == "drop"
        sets = [each for each in config.held_out_sets if drops or each.set_aside is not None]
        key = (training, *sets)
        if key not in self.digests:
            problems = without_any(training.load(), read_held_out(sets))
            self.digests[key] = digest(each.content() for each in problems)
        return self.digests[key]

    def dtype(self, config: Config) -> str:
        """What a config's weights are in, on this machine where that is "auto": it decides answers too."""
        if config.backbone.dtype != "auto":
            return config.backbone.dtype
        from tyler.modeling.backbone import best_device, dtype_name, resolve_dtype

        return dtype_name(resolve_dtype("auto", best_device()))

    def fingerprint(self, config: Config) -> str:
        """The hash of a config's backbone, which is loaded once."""
        from tyler.modeling.loading import load_backbone

        theta = config.backbone
        key = (theta.id, theta.adapters, theta.revision, theta.dtype)
        if key not in self.fingerprints:
            loaded = load_backbone(theta.id, theta.adapters, revision=theta.revision, dtype=theta.dtype)
            self.fingerprints[key] = loaded.fingerprint()
        return self.fingerprints[key]


@dataclass(frozen=True)
class Cell:
    """One measurement. `row` is the name by which tables know its training and decoding, `measure` what is kept of the
    answers (`measures.py`)."""

    row: str
    preset: str
    training: Training
    decoding: Decoding
    questions: Questions
    seed: int
    measure: str = ACCURACY

    @property
    def unseeded(self) -> Cell:
        """The cell itself, or the one of seed 0 where nothing is trained: greedy decoding has no seed."""
        return replace(self, seed=0) if self.training.method == UNTRAINED else self

    def identity(self, sources: Sources) -> dict[str, Any]:
        """Everything that decides the answers, and what is kept of them where it is more than who is right."""
        return {
            "training": self.training.identity(self.preset, self.seed, sources),
            "decoding": asdict(self.decoding) | sources.engine_of(self.decoding).settings(),
            "questions": {**asdict(self.questions), "sha256": sources.digest(self.questions)},
            "seed": self.seed,
            **({} if self.measure == ACCURACY else {"measure": self.measure}),
        }


@cache
def _loaded(preset: str, overrides: tuple[str, ...]) -> Config:
    """A config, read once: a grid asks for the same few again and again."""
    return load_config(preset, overrides)


def digest(problems: Iterable[tuple[object, ...]]) -> str:
    """A hash of what problems say, in their order."""
    hashed = hashlib.sha256()
    for content in problems:
        hashed.update(json.dumps(content, ensure_ascii=False).encode())
    return hashed.hexdigest()[:16]


def as_first_named(settings: Any, dropped: Sequence[str]) -> Any:
    """Nested settings as FORMAT names them: without some keys, and newer ones where they are not at their default."""
    if not isinstance(settings, dict):
        return settings
    optional = OPTIONAL_FIELDS | ({"scale_rewards": "group"} if "optimizer" in settings else {})
    kept = {key: value for key, value in settings.items() if key not in optional or value != optional[key]}
    return {key: as_first_named(value, dropped) for key, value in kept.items() if key not in dropped}


def sources_in(folder: Path | None) -> Sources:
    """The tasks whose files are in a folder are read from it, all others from the Hub.

    Raises ValueError for a folder that is not there.
    """
    if folder is None:
        return Sources({})
    if not folder.is_dir():
        raise ValueError(f"--data {folder} is not a folder; give the folder with the tasks' official files")
    return Sources({name: str(folder) for name in TASKS if name == "jsonl" or has_files(name, folder)})


def is_at_hand(cell: Cell, sources: Sources) -> bool:
    """Whether a cell's name can be told without a network: its backbone and all its problems are on this machine."""
    config = cell.training.config(cell.preset, cell.seed)
    backbone = fetched_folder(config.backbone.id) if config.backbone.id in FETCHABLE else Path(config.backbone.id)
    learned = (stage.config(cell.preset, 0).data for stage in cell.training.stages)
    splits = {(cell.questions.task, cell.questions.split), *((data.task, data.split) for data in learned)}
    return (config.backbone.id == MINI or backbone.exists()) and all(
        isinstance(find_task(task), Generated) or Path(sources.path(task, split) or "nowhere").exists()
        for task, split in splits
    )
