"""Solution traces as tokens, with the candidates of B(q, y) in them."""

import logging
from collections.abc import Sequence

from tyler.boundaries.detokenizer import token_spans
from tyler.boundaries.placement import candidates
from tyler.config.loops import OptimizationConfig
from tyler.config.schema import Config
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt, prompt_ids, target_ids
from tyler.training.command import development_problems, load_problems, shown
from tyler.training.teacher_forcing import Trace

logger = logging.getLogger(__name__)


def tokenize(backbone: Backbone, operators: Sequence[Operator], prompt: Prompt, problem: Problem) -> Trace:
    """Tokenize one problem and find its candidates. Raises ValueError when it has no solution."""
    if problem.solution is None:
        raise ValueError(f"problem {problem.id!r} has no solution trace; Stage 1 learns from traces")
    tokenizer = backbone.tokenizer
    targets = target_ids(tokenizer, problem.solution)
    pairs = candidates(problem.solution, token_spans(tokenizer, problem.solution, targets[:-1]), operators)
    asked = prompt_ids(tokenizer, problem.prompt, prompt.of_problem(problem))
    return Trace(problem.id, tuple(asked), tuple(targets), tuple(pairs))


def load_traces(config: Config, backbone: Backbone) -> list[Trace]:
    """The training traces of a config.

    Raises ValueError when a problem is held out for evaluation, or none is left after those over `max_length`.
    """
    return traces_of(load_problems(config), config, backbone)


def load_development(config: Config, backbone: Backbone, loop: OptimizationConfig) -> list[Trace]:
    """The development traces of a config, none where the loop watches none. Raises ValueError as `traces_of` does."""
    problems = development_problems(config, loop)
    return traces_of(problems, config, backbone) if problems else []


def traces_of(problems: Sequence[Problem], config: Config, backbone: Backbone) -> list[Trace]:
    """The problems as traces, without those that are too long or have no boundary: the same for every method.

    Raises ValueError when a problem has no solution, where latents leave no room for a trace, or none is left.
    """
    latents = config.most_latents
    limit = min(config.stage1.max_length, backbone.max_positions) - latents
    if limit < 1:
        raise ValueError(
            f"stage1.max_length={config.stage1.max_length} in the model's context of {backbone.max_positions} leaves "
            f"no room beside {latents} latents; raise it, or lower stage1.insertions.max, the operators' num_latents, "
            "or the latents of another method"
        )
    traces = [tokenize(backbone, config.operators, config.prompt, problem) for problem in problems]
    short = [trace for trace in traces if len(trace) <= limit]
    kept = [trace for trace in short if trace.candidates]
    if len(kept) < len(traces):
        logger.warning(
            "left out %d of %d traces, in every method: %d over %d tokens, %d without a boundary",
            *(len(traces) - len(kept), len(traces), len(traces) - len(short), limit, len(short) - len(kept)),
        )
    if not short:
        raise ValueError(
            f"none of the {len(traces)} traces has at most {limit} tokens, beside {latents} latents; "
            f"{longer(config, backbone.max_positions)}"
        )
    if not kept:
        raise ValueError(
            f"none of the {len(short)} traces has a boundary of an operator ({shown(config.operators)}); give an "
            "operator a boundary that the traces have"
        )
    return kept


def warn_of_idle(traces: Sequence[Trace], operators: Sequence[Operator]) -> None:
    """Say which operators have no place in any trace, and so would learn nothing."""
    placed = {operator.name for trace in traces for _, operator in trace.candidates}
    for one in operators:
        if one.name not in placed:
            logger.warning(
                "operator %r learns nothing: its boundary %r has no place in %d traces",
                *(one.name, one.boundary, len(traces)),
            )


def longer(config: Config, max_positions: int) -> str:
    """What to do where no trace is short enough."""
    if config.stage1.max_length < max_positions:
        return f"raise stage1.max_length={config.stage1.max_length}"
    return f"the model's context has {max_positions} positions: train on shorter traces, or another backbone"
