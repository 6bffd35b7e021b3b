"""Stage 1: latent synthesis optimization (Section 4.1). Phi learns from solution traces; the backbone is frozen.

For every trace, pairs (b, k) are drawn from its candidate boundaries, latents are inserted there, and the loss is the
cross-entropy of every visible target token. Read `train` from top to bottom.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.backbone import Backbone
from tyler.boundaries import candidates, sample_candidates
from tyler.config import Config, InsertionsConfig, Stage1Config, dump
from tyler.lora import LoraSettings
from tyler.model import Tyler
from tyler.objectives import stage1_loss
from tyler.operators import Operator
from tyler.progress import bar
from tyler.runs import Run, interruptible, open_run
from tyler.tasks import load_problems
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt, prompt_ids, target_ids
from tyler.teacher_forcing import Example, Insertion, synthesize, target_logprobs
from tyler.transcript import token_spans
from tyler.training import Optimization, batch_at, load_state, save_state


@dataclass(frozen=True)
class Trace:
    """A tokenized solution and its candidate pairs B(q, y)."""

    id: str
    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    candidates: tuple[tuple[int, Operator], ...]


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
        prompt_ids=tuple(prompt_ids(tokenizer, problem.prompt, prompt)),
        target_ids=tuple(targets),
        candidates=tuple(pairs),
    )


def draw_insertions(trace: Trace, config: InsertionsConfig, draw: random.Random) -> tuple[Insertion, ...]:
    """(b, k) ~ B(q, y): first the operator among those present, then a position of it; distinct, sorted by position."""
    chosen = [pair for pair in trace.candidates if pair[1].name == config.first][:1]
    rest = [pair for pair in trace.candidates if pair not in chosen]
    chosen += sample_candidates(rest, draw.randint(config.min, config.max) - len(chosen), draw)
    return tuple(Insertion(b, operator.name) for b, operator in sorted(chosen, key=trace.candidates.index))


def batch_loss(model: Tyler, examples: Sequence[Example], num_targets: int) -> Float[Tensor, ""]:
    """L_stage1 of some examples of a batch that has `num_targets` visible targets in all."""
    latents = synthesize(model.backbone, model.synthesizer.training_decoder, model.heads, examples)
    logprobs, mask = target_logprobs(model.backbone, examples, latents)
    return stage1_loss(logprobs, mask, num_targets)


def train(model: Tyler, traces: Sequence[Trace], config: Stage1Config, run: Run) -> None:
    """Train the model's synthesizer in place, logging and checkpointing into `run`; resumes where `run` stands."""
    parameters = model.synthesizer.trainable()
    total = config.num_steps(len(traces))
    optimization = Optimization.of(config, [(parameters, config.learning_rate)], total)
    newest = run.latest_checkpoint()
    done = load_state(newest, parameters, optimization) if newest else 0
    model.synthesizer.train()
    with bar("Stage 1", total, done) as progress, interruptible() as interruption:
        for step in range(done, total):
            started = time.perf_counter()
            examples = draw_batch(traces, config, step)
            loss = descend(model, examples, config.micro_batch_size or config.batch_size)
            check_finite(loss, step, examples)
            norm, rate = optimization.step(step)
            tokens = sum(len(example.prompt_ids) + len(example.target_ids) for _, example in examples)
            seconds = time.perf_counter() - started
            run.log(
                step + 1,
                {
                    "stage1/loss": loss,
                    "stage1/gradient_norm": norm,
                    "stage1/learning_rate": rate,
                    "stage1/insertions": sum(len(example.insertions) for _, example in examples) / len(examples),
                    "stage1/tokens_per_second": tokens / seconds,
                    "stage1/seconds": seconds,
                },
            )
            progress.advance(note=f"loss {loss:.3f}")
            last = step + 1 == total
            if last or interruption.requested or (config.checkpoint_every and (step + 1) % config.checkpoint_every == 0):
                save(run, step + 1, model, optimization)
            if interruption.requested and not last:
                raise interruption.stop(f"stopped after step {step + 1} of {total}; go on with --resume --output {run.path}")
    model.synthesizer.eval()


def draw_batch(traces: Sequence[Trace], config: Stage1Config, step: int) -> list[tuple[str, Example]]:
    """The examples of one step with their ids; which, and where latents go, follows from the seed and the step alone."""
    batch = []
    for epoch, index in batch_at(step, config.batch_size, len(traces), config.seed):
        trace = traces[index]
        insertions = draw_insertions(trace, config.insertions, random.Random(f"insertions {config.seed} {epoch} {index}"))
        batch.append((trace.id, Example(trace.prompt_ids, trace.target_ids, insertions)))
    return batch


def descend(model: Tyler, batch: Sequence[tuple[str, Example]], micro_batch_size: int) -> float:
    """Accumulate the gradient of the batch's loss over micro-batches; returns the loss."""
    examples = [example for _, example in batch]
    num_targets = sum(len(example.target_ids) for example in examples)
    total = 0.0
    for first in range(0, len(examples), micro_batch_size):
        loss = batch_loss(model, examples[first : first + micro_batch_size], num_targets)
        loss.backward()
        total += float(loss.detach())
    return total


def check_finite(loss: float, step: int, batch: Sequence[tuple[str, Example]]) -> None:
    """Stop at a loss that is not a number, before it reaches the weights."""
    if not torch.isfinite(torch.tensor(loss)):
        raise FloatingPointError(
            f"the loss is {loss} at step {step + 1}; the batch was {', '.join(id for id, _ in batch)}. "
            "Lower the learning rate or look at these examples; the last checkpoint is unharmed"
        )


def save(run: Run, step: int, model: Tyler, optimization: Optimization) -> None:
    def write(folder: Path) -> None:
        model.at_stage("stage1").save_pretrained(folder)
        save_state(folder, step, optimization.parameters, optimization)

    run.save_checkpoint(step, write)


def load_traces(config: Config, backbone: Backbone) -> list[Trace]:
    """The training traces of a config. Raises ValueError when none is left after those over `max_length`."""
    data, prompt = config.data, prompt_of(config)
    problems = load_problems(data.task, data.split, path=data.path, count=data.count, seed=data.seed)
    traces = [tokenize(backbone, config.operators, prompt, problem) for problem in problems]
    latents = config.stage1.insertions.max * max(operator.num_latents for operator in config.operators)
    limit = min(config.stage1.max_length, backbone.max_positions) - latents
    kept = [trace for trace in traces if len(trace.prompt_ids) + len(trace.target_ids) <= limit and trace.candidates]
    if not kept:
        raise ValueError(f"none of the {len(traces)} traces fits stage1.max_length={config.stage1.max_length}; raise it")
    return kept


def prompt_of(config: Config) -> Prompt:
    return Prompt(config.backbone.instruction, config.backbone.thinking)


def run(config: Config, *, output: Path, resume: bool = False, replace: bool = False) -> Tyler:
    """`tyler stage1`: load, train, save. Returns the trained model.

    `resume` goes on from the newest checkpoint in `output`; `replace` drops an earlier run there.
    """
    backbone = Backbone.load(config.backbone.id, revision=config.backbone.revision, dtype=config.backbone.dtype)
    traces = load_traces(config, backbone)
    torch.manual_seed(config.stage1.seed)
    lora = LoraSettings(**config.lora.model_dump())
    model = Tyler.start(backbone, config.operators, lora, prompt_of(config))
    with open_run(output, dump(config), resume=resume, replace=replace) as directory:
        train(model, traces, config.stage1, directory)
    return model.at_stage("stage1")
