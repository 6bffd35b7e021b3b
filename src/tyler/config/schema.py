"""Every setting of a run, with the paper's values as defaults (Table of hyper-parameters) on the shipped backbone.

A config is YAML over these sections. Whatever is misspelt or impossible is refused by name, before anything is loaded.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, create_model, field_validator, model_validator

from tyler.boundaries.rules import check_rules
from tyler.config.loops import (
    GrpoConfig,
    ObjectiveConfig,
    OptimizationConfig,
    RewardConfig,
    Stage1Config,
    Stage2Config,
    TracesConfig,
)
from tyler.config.sections import (
    BackboneConfig,
    CheckpointsConfig,
    DataConfig,
    DecodingConfig,
    DevicesConfig,
    EvaluationConfig,
    LoraConfig,
    MethodConfig,
    MoreDataConfig,
    Section,
    TrackingConfig,
    suggest,
)
from tyler.modeling.operators import PAPER_OPERATORS, Operator, check_operators
from tyler.reasoners.method import Training, found_at, packages
from tyler.tasks.decontamination import Selection, splits_of
from tyler.tasks.prompts import Prompt

AnySection = TypeVar("AnySection", bound=Section)


def with_sections(config: type[AnySection], trainings: Iterable[Training]) -> type[AnySection]:
    """A config that has the sections of trainings too. Raises ValueError for one that is not there, or there twice."""
    for training in trainings:
        settings = None if training.settings is None else found_at(training.settings)
        known = config.model_fields.get(name := training.section)
        if settings is None and known is None:
            raise ValueError(f"no config has the section {name!r} of {training.about!r}; give its class as `settings`")
        if settings is not None and known is not None and known.annotation is not settings:
            raise ValueError(f"a config has a section {name!r} already; give the loop of {training.about!r} another")
        if settings is not None and known is None:
            own: dict[str, Any] = {name: (settings, settings())}
            config = create_model(config.__name__, __base__=config, __doc__=config.__doc__, **own)
    return config


def with_methods(config: type[AnySection]) -> type[AnySection]:
    """A config that has a section for every method in a package of its own, as the package says."""
    return with_sections(config, chain(*(package.TRAININGS.values() for package in packages().values())))


@with_methods
class Config(Section):
    """All settings of one run: what is trained, a section for every training loop, and everything around them."""

    backbone: BackboneConfig = BackboneConfig()
    operators: Annotated[tuple[Operator, ...], Field(min_length=1)] = PAPER_OPERATORS
    """In the order of their action ids."""
    lora: LoraConfig = LoraConfig()
    data: DataConfig = DataConfig()
    stage1: Stage1Config = Stage1Config()
    stage2: Stage2Config = Stage2Config()
    grpo: GrpoConfig = GrpoConfig()
    rewards: Annotated[tuple[RewardConfig, ...], Field(min_length=1)] = (
        RewardConfig(name="verifier"),
        RewardConfig(name="budget"),
    )
    """What answers are rewarded for: the sum of these, each times its weight."""
    sft: TracesConfig = TracesConfig()
    """Fine-tuning without operators, on the traces of Stage 1 in the same order."""
    decoding: DecodingConfig = DecodingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    tracking: TrackingConfig = TrackingConfig()
    devices: DevicesConfig = DevicesConfig()

    @field_validator("operators")
    @classmethod
    def _operator_names_differ(cls, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
        check_rules(operators)
        return check_operators(operators)

    @field_validator("rewards")
    @classmethod
    def _rewards_differ_and_count(cls, rewards: tuple[RewardConfig, ...]) -> tuple[RewardConfig, ...]:
        titles = [reward.title for reward in rewards]
        if repeated := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f"two rewards are called {repeated[0]!r}; their metrics could not be told apart")
        if all(reward.weight == 0 for reward in rewards):
            raise ValueError("every weight is 0, so that nothing would be learned; give one reward a weight")
        return rewards

    @model_validator(mode="after")
    def _first_insertion_is_an_operator(self) -> Self:
        first, names = self.stage1.insertions.first, [operator.name for operator in self.operators]
        if first is not None and first not in names:
            raise ValueError(f"stage1.insertions.first = {first!r} is not an operator{suggest(first, names)}")
        return self

    @model_validator(mode="after")
    def _sharded_layers_are_read_in_step(self) -> Self:
        for section, loop in (("stage1", self.stage1), ("stage2", self.stage2)):
            if loop.shard_layers and loop.micro_batch_tokens is not None:
                raise ValueError(
                    f"{section}.shard_layers needs micro_batch_tokens=null, got {loop.micro_batch_tokens}: processes "
                    "read their layers in step, and examples differ in length; set micro_batch_size"
                )
        if self.stage2.shard_layers and self.decoding.engine == "native":
            raise ValueError(
                "stage2.shard_layers: the native engine decodes with whole layers; set decoding.engine to vllm, which "
                "holds weights of its own"
            )
        return self

    @model_validator(mode="after")
    def _micro_batches_fit(self) -> Self:
        for section, loop in self.loops.items():
            rows, given = self.rows(section), loop.micro_batch_size
            if given is not None and given > rows:
                group = rows // loop.batch_size
                step = f"{rows} answers ({loop.batch_size} prompts, {group} each)" if group > 1 else f"{rows} examples"
                raise ValueError(
                    f"{section}.micro_batch_size = {given}: a step has {step}; set at most {rows}, or null for all"
                )
        return self

    @property
    def loops(self) -> dict[str, OptimizationConfig]:
        """The settings of every training loop, by section: `stage1`, `memgen.weaver`."""
        return dict(_loops_in(self))

    @property
    def most_latents(self) -> int:
        """The most latents that any method adds to a text: all learn from the problems that leave room for them."""
        tyler = self.stage1.insertions.max * max(operator.num_latents for operator in self.operators)
        return max([tyler, *(section.most_latents for _, section in self if isinstance(section, MethodConfig))])

    def of(self, settings: type[AnySection]) -> AnySection:
        """The section of a method by its class: `config.of(SoftCotConfig)` is `softcot`."""
        return next(section for _, section in self if isinstance(section, settings))

    def rows(self, section: str) -> int:
        """How many examples a step of a loop learns from, or answers to its prompts: what micro-batches are made of."""
        loop = self.loops[section]
        if isinstance(loop, Stage2Config):
            return loop.batch_size * self.grpo.group_size
        return loop.batch_size * (loop.group_size if isinstance(loop, ObjectiveConfig) else 1)

    @property
    def prompt(self) -> Prompt:
        """How problems are put to the backbone."""
        return Prompt(self.backbone.instruction, self.backbone.thinking, self.backbone.system)

    @property
    def training_set(self) -> Selection:
        data = self.data
        beside = () if data.path is None else (data.path, _folder(data.path))

        def chosen(entry: DataConfig | MoreDataConfig, split: str | None) -> Selection:
            return Selection(entry.task, split, entry.path, entry.count, data.seed, entry.revision, weight=entry.weight)

        also = (replace(chosen(extra, _split(extra)), beside=beside) for extra in data.also)
        return replace(chosen(data, data.split), also=tuple(also))

    @property
    def development_set(self) -> Selection | None:
        """Problems to watch training with; None where no loop watches."""
        data, development = self.data, self.data.development
        if development is None or all(loop.eval_every is None for loop in self.loops.values()):
            return None
        task = development.task or data.task
        if development.path is None and development.split not in splits_of(task):
            count = sys.maxsize if development.count is None else development.count
            return replace(self.training_set, also=(), set_aside=count)
        beside = () if data.path is None else (data.path, _folder(data.path))
        return Selection(task, development.split, development.path, development.count, data.seed, beside=beside)

    @property
    def held_out_sets(self) -> list[Selection]:
        """What no training problem may be in: the sets named in `data.held_out`, the whole split of the evaluation, and
        the development problems.

        The last two are compared as far as they can be read, because a stage may need neither.
        """
        evaluation, development, held_out = self.evaluation, self.development_set, self.data.held_out
        paths = (self.data.path, evaluation.path)
        chosen = partial(Selection, beside=tuple(_folder(path) for path in paths if path is not None))
        sets = [chosen(entry.task, entry.split, entry.path, optional=entry.optional) for entry in held_out or ()]
        evaluated = chosen(
            evaluation.task, evaluation.split, evaluation.path, revision=evaluation.revision, optional=True
        )
        if held_out != () and not any(_covers(entry, evaluated) for entry in sets):
            sets.append(evaluated)
        return [*sets, replace(development, optional=True)] if development else sets


def _loops_in(section: Section) -> Iterator[tuple[str, OptimizationConfig]]:
    for name, value in section:
        if isinstance(value, OptimizationConfig):
            yield name, value
        elif isinstance(value, Section):
            yield from ((f"{name}.{below}", loop) for below, loop in _loops_in(value))


def _split(data: MoreDataConfig) -> str | None:
    return data.split or ("train" if "train" in splits_of(data.task) else None)


def _covers(selection: Selection, evaluated: Selection) -> bool:
    """Whether a held-out set is what is evaluated, or stands for it where its file or its split is not known."""
    if selection.task != evaluated.task or (evaluated.path is not None and selection.path != evaluated.path):
        return False
    return selection.name == evaluated.name or evaluated.split not in splits_of(evaluated.task)


def _folder(path: str) -> str:
    return path if Path(path).is_dir() else str(Path(path).parent)
