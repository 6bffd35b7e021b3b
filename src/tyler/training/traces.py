"""Solution traces as tokens, with the candidates of B(q, y) in them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tyler.boundaries.placement import candidates
from tyler.config.schema import Config
from tyler.engine.detokenizer import token_spans
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.tasks.decontamination import load_training
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt, prompt_ids, target_ids
from tyler.training.command import development_problems

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trace:
    """A tokenized solution and its candidate pairs B(q, y)."""

    id: str
    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    candidates: tuple[tuple[int, Operator], ...]

    def content(self) -> tuple[object, ...]:
        """What a run learns from it."""
        return self.id, self.prompt_ids, self.target_ids


def tokenize(backbone: Backbone, operators: Sequence[Operator], prompt: Prompt, problem: Problem) -> Trace:
    """Tokenize one problem and find its candidates. Raises ValueError when it has no solution."""
    if problem.solution is None:
        raise ValueError(f"problem {problem.id!r} has no solution trace; Stage 1 learns from traces")
    tokenizer = backbone.tokenizer
    targets = target_ids(tokenizer, problem.solution)
    spans = token_spans(tokenizer, problem.solution, targets[:-1])
    pairs = candidates(problem.solution, spans, operators)
    return Trace(
        id=problem.id,
        prompt_ids=tuple(prompt_ids(tokenizer, problem.prompt, prompt.of_problem(problem))),
        target_ids=tuple(targets),
        candidates=tuple(pairs),
    )


def load_traces(config: Config, backbone: Backbone) -> list[Trace]:
    """The training traces of a config.

    Raises ValueError when a problem is held out for evaluation, or none is left after those over `max_length`.
    """
    problems = load_training(config.training_set, config.held_out_sets, config.data.on_overlap)
    return traces_of(problems, config, backbone)


def load_development(config: Config, backbone: Backbone) -> list[Trace]:
    """The development traces of a config, none where nothing watches Stage 1. Raises ValueError as `traces_of` does."""
    problems = development_problems(config, config.stage1)
    return traces_of(problems, config, backbone) if problems else []


def traces_of(problems: Sequence[Problem], config: Config, backbone: Backbone) -> list[Trace]:
    """The problems as traces, without those that are too long or have no boundary.

    Raises ValueError when a problem has no solution, where latents leave no room for a trace, or none is left.
    """
    latents = config.stage1.insertions.max * max(operator.num_latents for operator in config.operators)
    limit = min(config.stage1.max_length, backbone.max_positions) - latents
    if limit < 1:
        raise ValueError(
            f"stage1.max_length={config.stage1.max_length} in the model's context of {backbone.max_positions} leaves "
            f"no room beside the {latents} latents of {config.stage1.insertions.max} blocks; raise it, or lower "
            "stage1.insertions.max or the operators' num_latents"
        )
    prompt = config.prompt
    traces = [tokenize(backbone, config.operators, prompt, problem) for problem in problems]
    kept = [trace for trace in traces if len(trace.prompt_ids) + len(trace.target_ids) <= limit and trace.candidates]
    if len(kept) < len(traces):
        logger.warning(
            "left out %d of %d traces: over %d tokens, or without a boundary",
            len(traces) - len(kept),
            len(traces),
            limit,
        )
    if not kept:
        raise ValueError(
            f"none of the {len(traces)} traces fits stage1.max_length={config.stage1.max_length}; raise it"
        )
    return kept
