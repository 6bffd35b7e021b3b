"""What all training commands do around their loops: what they start from, the run directory, and what it is held to."""

import functools
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Generic, TypeVar

from peft import PeftModel

from tyler.boundaries.rules import RULES
from tyler.config.files import dump, value_at
from tyler.config.loops import OptimizationConfig
from tyler.config.schema import Config
from tyler.engine.request import Request
from tyler.model import Tyler
from tyler.modeling import loading
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings, settings_of
from tyler.modeling.operators import Operator
from tyler.runs.catalogue import TrainingRun
from tyler.runs.checkpoints import RunError, checkpoint_step, latest_checkpoint
from tyler.runs.run import CONFIG, Run, TrainedRun
from tyler.runs.trackers import check_tracker, open_tracker
from tyler.tasks.decontamination import load_development, load_training, read_held_out
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt
from tyler.training import distributed
from tyler.training.sharding import load_settings

Model = TypeVar("Model")

logger = logging.getLogger(__name__)

NAMED = 5
"""As many problems are named where some are left out."""


@dataclass(frozen=True)
class Prepared(Generic[Model]):
    """A training with everything loaded: the model, hashes of what it learns from (`origin_of`), and its loop."""

    model: Model
    origin: dict[str, str]
    train: Callable[[TrainedRun], None]
    """Trains the model in place, logging and checkpointing into the run; resumes where that stands."""
    config: Config | None = None
    """The config as the run records it, where that says more than the one that was given."""


def training_command(prepare: Callable[..., Prepared[Model]]) -> Callable[..., Model]:
    """The command of a training that `prepare(config)` prepares, or `prepare(config, start=...)`: it loads, trains,
    saves into `output` and returns the trained model. `start` is the model to start from, of those commands that do;
    `resume` continues from the newest checkpoint in `output`; `replace` drops an earlier run there.

    A tracker that is missing is reported before anything is loaded. Processes that a launcher started train as one.
    """

    @functools.wraps(prepare)
    def command(
        config: Config, *, output: Path, start: Path | str | None = None, resume: bool = False, replace: bool = False
    ) -> Model:
        check_tracker(config.tracking)
        with distributed.joined(config.devices):
            prepared = prepare(config) if start is None else prepare(config, start=start)
            kept = prepared.config or config
            origin = prepared.origin | _source_origin(prepare)
            with opened_run(kept, output, resume=resume, replace=replace, origin=origin) as run:
                prepared.train(run)
        return prepared.model

    return command


def _source_origin(prepare: Callable[..., Any]) -> dict[str, str]:
    """The hash of the file of a method outside the package, which may be edited under its name."""
    if prepare.__module__.startswith("tyler."):
        return {}
    file = Path(inspect.getfile(prepare))
    return {f"the method's file {file.name}": hashlib.sha256(file.read_bytes()).hexdigest()}


# --- what a training starts from ------------------------------------------------------------------------------------


def load_backbone(config: Config, *, sharded: bool = False) -> Backbone:
    """The backbone of a config, on the CPU where it will be `sharded`."""
    theta, placed = config.backbone, load_settings(config, sharded=sharded)
    return loading.load_backbone(theta.id, theta.adapters, revision=theta.revision, **placed)


def plain_model(config: Config, backbone: Backbone, stage: str) -> Tyler:
    """A model without operators; draws from torch's global generator what a later LoRA is drawn after."""
    return Tyler.start(backbone, (), lora_of(config), config.prompt).at_stage(stage)


def lora_model(config: Config, backbone: Backbone, stage: str) -> Tyler:
    """The same with a new LoRA on its policy."""
    model = plain_model(config, backbone, stage)
    model.policy.add_lora(lora_of(config))
    return model


def lora_of(config: Config) -> LoraSettings:
    """The shape of both LoRAs."""
    return LoraSettings(**config.lora.model_dump())


def load_problems(config: Config) -> list[Problem]:
    """The training problems of a config, without those that are held out."""
    return load_training(config.training_set, config.held_out_sets, config.data.on_overlap)


def development_problems(config: Config, loop: OptimizationConfig) -> list[Problem]:
    """The problems that a loop watches; none where it watches none. Raises ValueError where they cannot be read."""
    watched = config.development_set if loop.eval_every else None
    if watched is None:
        if config.data.development is not None and loop.eval_every is None:
            logger.warning(
                "data.development is not used: the eval_every of this training is null; set it, or drop both"
            )
        return []
    try:
        return load_development(watched, config.held_out_sets)
    except ValueError as error:
        raise ValueError(
            f"the development problems cannot be read: {error}. Name their file with data.development.path, or set "
            "data.development=null to watch none"
        ) from error


def load_problems_that_fit(
    config: Config, loop: OptimizationConfig, request: Callable[[Problem], Request], backbone: Backbone
) -> tuple[list[Problem], list[Problem]]:
    """The training and the development problems of a config, without those whose prompts leave no room for the latents
    of an answer: the same for every method.

    Raises ValueError where no training problem is left.
    """
    longest_prompt = backbone.max_positions - config.most_latents

    def fitting(problems: Sequence[Problem], what: str) -> list[Problem]:
        fits = [len(request(problem).prompt_ids) <= longest_prompt for problem in problems]
        if left_out := [problem.id for problem, fit in zip(problems, fits, strict=True) if not fit]:
            more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
            logger.warning(
                "left out %d of %d %s problems, with prompts of over %d tokens: %s%s",
                *(len(left_out), len(problems), what, longest_prompt, ", ".join(left_out[:NAMED]), more),
            )
        return list(compress(problems, fits))

    training, development = load_problems(config), development_problems(config, loop)
    if not (kept := fitting(training, "training")):
        raise ValueError(
            f"all {len(training)} training problems have prompts of more than {longest_prompt} tokens, which leave no "
            "room for an answer in the model's context; train on shorter ones"
        )
    return kept, fitting(development, "development")


def origin_of(
    model: str, examples: Iterable[tuple[object, ...]], backbone: Backbone, operators: Sequence[Operator] = ()
) -> dict[str, str]:
    """Hashes of what a run learns from: the fingerprint of the model that it starts from, its examples in order, how
    the model is asked, and what the operators' boundaries mean, for a rule may be edited under its name."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "backslashreplace"))
    found = {"the weights it starts from": model, "the training examples": digest.hexdigest()}
    for name in {one.boundary: None for one in operators}:
        rule = vars(RULES[name])
        told = {key: sorted(value) if isinstance(value, frozenset) else value for key, value in rule.items()}
        found[f"the rule {name!r}"] = hashlib.sha256(repr(told).encode()).hexdigest()
    return found | backbone.text_origin()


def check_inherited(config: Config, start: Path | str, backbone: Backbone, recorded: Mapping[str, Any]) -> None:
    """Raise ValueError for a `start` whose run is not finished, and, naming every key, where a config says otherwise
    than the trained model there.

    `recorded` has that model's own settings by their keys in the config. A training records its whole config, so what
    it takes from another model must be in there as it is used.
    """
    if (newest := latest_checkpoint(start)) and (run := TrainingRun(Path(start))).status != "finished":
        raise ValueError(
            f"{start} is not finished (step {run.step} of {run.total}): resume it first (--resume), or name the "
            f"checkpoint to start from, such as --start {newest}"
        )
    pairs = {key: (value_at(config, key), value) for key, value in recorded.items()}
    if backbone.id == config.backbone.id:
        pairs["backbone.revision"] = (config.backbone.revision, backbone.revision)
    faults = [
        f"{key} is {shown(asked)}, and there {shown(value)}" for key, (asked, value) in pairs.items() if asked != value
    ]
    if faults:
        raise ValueError(
            f"the config conflicts with {start}, which this training starts from: {'; '.join(faults)}. Give the "
            "settings it was trained with, or start from another model"
        )


def shown(value: Any) -> str:
    """A setting in a message: operators in a few words, anything else as Python writes it."""
    if isinstance(value, tuple) and all(isinstance(one, Operator) for one in value):
        return ", ".join(f"{one.name} ({one.num_latents} latents, {one.boundary})" for one in value) or "none"
    return repr(value)


def prompt_settings(prompt: Prompt) -> dict[str, Any]:
    """A model's prompt by the keys of a config."""
    return {f"backbone.{key}": value for key, value in asdict(prompt).items()}


def lora_settings(config: Config, section: str, lora: PeftModel) -> dict[str, Any]:
    """An adapter's settings by the keys of a config's section, "lora" or "memgen.lora"."""
    found = asdict(settings_of(lora))
    asked = value_at(config, f"{section}.target_modules")
    if set(asked) == set(found["target_modules"]):  # their order says nothing
        found["target_modules"] = asked
    return {f"{section}.{key}": value for key, value in found.items()}


# --- the run directory ----------------------------------------------------------------------------------------------


@contextmanager
def opened_run(
    config: Config,
    output: Path,
    *,
    resume: bool = False,
    replace: bool = False,
    origin: Mapping[str, str] | None = None,
) -> Iterator[TrainedRun]:
    """The run directory of a training command, with the tracker that the config names, held to its `origin`.

    Of several processes the first writes it and the others follow. Raises RunError as `Run` does, for both flags at
    once, and where a process does not see what the first one wrote; TrackerError where the tracker cannot start.
    """
    with ExitStack() as stack:
        first = distributed.run_on_rank_zero(lambda: _opened(stack, config, output, resume, replace, origin))
        run: TrainedRun = first or TrainedRun(output)
        seen = distributed.gather((run.path / CONFIG).exists() and run.latest_checkpoint())
        if len(set(seen)) > 1:
            raise RunError(
                f"process {distributed.rank()} of {distributed.world()} sees "
                f"{seen[distributed.rank()] or 'no checkpoint'} in {output}, and the first "
                f"{seen[0] or 'no checkpoint'}; all machines need the same directory"
            )
        yield run


def _opened(
    stack: ExitStack, config: Config, output: Path, resume: bool, replace: bool, origin: Mapping[str, str] | None
) -> Run:
    """The run, held to its origin, with its tracker; `stack` closes both."""
    if resume and replace:
        raise RunError(f"cannot both resume and replace {output}; choose one")
    kept: dict[str, Any] = {"keep_checkpoints": config.checkpoints.keep, "lock": config.checkpoints.lock}
    if resume:
        run = Run.resume(output, dump(config), defaults_text=dump(type(config)()), origin=origin, **kept)
    else:
        run = Run.create(output, dump(config), replace=replace, **kept)
    stack.enter_context(run)
    run.check_provenance(origin or {})
    if origin is not None:
        sets = config.held_out_sets
        notes = {one.location: read.note for one, read in zip(sets, read_held_out(sets), strict=True)}
        run.note_at_start({"held_out": notes})
    newest = run.latest_checkpoint()
    done = checkpoint_step(newest) if newest else 0
    tracker = open_tracker(config.tracking, run.path, config.model_dump(mode="json"), steps_done=done)
    if tracker is not None:
        run.also_log(tracker.log)
        stack.callback(tracker.finish)
    return run
