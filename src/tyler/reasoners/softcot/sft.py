"""The projection of SoftCoT learns from the traces that SFT learns."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tyler.config.schema import Config
from tyler.modeling.backbone import Backbone
from tyler.reasoners.softcot.model import SoftCot, Wording
from tyler.reasoners.softcot.settings import SoftCotConfig
from tyler.runs.metrics import SPEED, Metrics, from_traces
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import target_ids
from tyler.training.command import (
    Prepared,
    development_problems,
    load_backbone,
    load_problems,
    origin_of,
    training_command,
)
from tyler.training.supervised import SupervisedTrainer
from tyler.training.teacher_forcing import Trace, embed_ids
from tyler.training.traces import traces_of


@dataclass(frozen=True, kw_only=True)
class Example(Trace):
    """A trace whose prompt has places for thoughts on a problem; its targets may begin with the turn's header."""

    problem: Problem
    places: tuple[int, ...]


def tokenize(model: SoftCot, problem: Problem, number: int, *, learn_header: bool) -> Example:
    """A problem as a training example. With `learn_header` its targets begin where the release's labels do: after the
    end marker and the token that ends the user's turn, so with the header of the assistant's turn.
    """
    assert problem.solution is not None, "traces_of refuses a problem without"
    ids, places = model.prompt_with_places(problem, number)
    first = min(places[-1] + 3, len(ids)) if learn_header else len(ids)
    targets = ids[first:] + target_ids(model.backbone.tokenizer, problem.solution)
    return Example(problem.id, ids[:first], targets, problem=problem, places=places)


METRICS = Metrics("SoftCoT", from_traces("softcot", "the Linear", SPEED), sections=("softcot",))


class SoftCotTrainer(SupervisedTrainer[SoftCot, Example]):
    """The Linear learns from the solutions' tokens."""

    title, metrics = "SoftCoT", METRICS

    @property
    def module(self) -> nn.Module:
        return self.model.projection

    def batch_loss(self, part: Sequence[Example], num_targets: int) -> Tensor:
        rows = []
        for one in part:
            embeds, places = embed_ids(self.backbone, [*one.prompt_ids, *one.target_ids[:-1]]), torch.tensor(one.places)
            thoughts = self.model.thoughts(one.problem, len(places)).to(embeds.dtype)
            rows.append(embeds.index_copy(0, places.to(embeds.device), thoughts))
        return -self.logprobs(self.backbone.decoder, rows, part).sum() / num_targets


def examples_of(problems: Sequence[Problem], config: Config, model: SoftCot) -> list[Example]:
    """The problems whose traces every method learns from. Raises ValueError for one that is too long with a hint."""
    kept = {trace.id for trace in traces_of(problems, config, model.backbone)}
    settings = config.of(SoftCotConfig)
    examples = [
        tokenize(model, problem, settings.num_thoughts, learn_header=settings.learn_header)
        for problem in problems
        if problem.id in kept
    ]
    longest, room = max(map(len, examples)), model.backbone.max_positions
    if longest > room:
        raise ValueError(
            f"with its hint and thoughts a trace has {longest} tokens, and the model's context {room}; lower "
            f"stage1.max_length={config.stage1.max_length}"
        )
    return examples


@training_command
def run(config: Config) -> Prepared[SoftCot]:
    """`tyler train softcot`: the projection learns between the assistant and the backbone of the config."""
    settings, backbone = config.of(SoftCotConfig), load_backbone(config)
    own, dtype, device = settings.assistant, config.backbone.dtype, config.devices.device
    assistant = Backbone.load(own, dtype=dtype, device=device) if own else backbone
    torch.manual_seed(settings.seed)
    model = new_projection(config, backbone, assistant)
    problems = load_problems(config)
    examples, unseen = examples_of(problems, config, model), development_problems(config, settings)
    development = examples_of(unseen, config, model) if unseen else []
    models = f"{backbone.fingerprint()} {assistant.fingerprint()}"
    origin = origin_of(models, map(Problem.content, problems), backbone)
    return Prepared(model, origin, SoftCotTrainer(model, examples, settings, development).train)


def new_projection(config: Config, backbone: Backbone, assistant: Backbone) -> SoftCot:
    """Two models and a Linear as it starts; drawn from torch's global generator."""
    settings = config.of(SoftCotConfig)
    wording = Wording(settings.request, settings.hint, settings.eval_thoughts)
    return SoftCot.start(backbone, assistant, config.prompt, wording)


def rehearsed(backbone: Backbone, config: Config, trace: Trace) -> tuple[SoftCotTrainer, Example]:
    """What a dry run takes a step with, the backbone its own assistant."""
    settings, prompt, question = config.of(SoftCotConfig), trace.prompt_ids, "What is 2 + 3?"
    positions = tuple(range(min(settings.num_thoughts, len(prompt))))
    problem = Problem(trace.id, "mini", question, "5")
    example = Example(trace.id, prompt, trace.target_ids, problem=problem, places=positions)
    return SoftCotTrainer(new_projection(config, backbone, backbone), (), settings), example
