"""SFT without operators: the policy's LoRA learns the traces of Stage 1, in the same order, from the text alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tyler.backbone import Backbone
from tyler.config import Config, SftConfig
from tyler.lora import LoraSettings
from tyler.model import Tyler
from tyler.objectives import chosen_logprobs
from tyler.recompute import recomputing
from tyler.runs import Run
from tyler.stage1 import Trace, load_traces, prompt_of
from tyler.trackers import check_tracker
from tyler.training import (
    Optimization,
    accumulate,
    batch_at,
    check_finite,
    load_state,
    opened_run,
    save_state,
    state_bytes,
    training_steps,
)


def batch_loss(
    model: Tyler, traces: Sequence[Trace], num_targets: int, gradient_checkpointing: bool = False
) -> Float[Tensor, ""]:
    """Cross-entropy of some traces' target tokens, over the batch's `num_targets`: what `transformers` computes."""
    device = model.backbone.device
    rows = [torch.tensor([*trace.prompt_ids, *trace.target_ids], device=device) for trace in traces]
    ids = pad_sequence(rows, batch_first=True)[:, :-1]  # on the right, so a causal pass needs no mask
    decoder = recomputing(model.policy.training_decoder, gradient_checkpointing)
    hidden = decoder(inputs_embeds=model.backbone.embed(ids), use_cache=False).last_hidden_state
    states = [
        hidden[row, len(trace.prompt_ids) - 1 : len(trace.prompt_ids) + len(trace.target_ids) - 1]
        for row, trace in enumerate(traces)
    ]
    targets = torch.tensor([token for trace in traces for token in trace.target_ids], device=device)
    return -chosen_logprobs(torch.cat(states), model.backbone.head, None, targets, None).logprobs.sum() / num_targets


def descend(
    model: Tyler, traces: Sequence[Trace], micro_batch_size: int, gradient_checkpointing: bool = False
) -> float:
    """Accumulate the gradient of the batch's loss over micro-batches; returns the loss."""
    num_targets = sum(len(trace.target_ids) for trace in traces)
    return accumulate(
        lambda part: batch_loss(model, part, num_targets, gradient_checkpointing), traces, micro_batch_size
    )


def train(model: Tyler, traces: Sequence[Trace], config: SftConfig, run: Run) -> None:
    """Train the model's eta in place, logging and checkpointing into `run`; goes on where `run` stands."""
    assert model.policy.lora is not None
    eta = [parameter for parameter in model.policy.lora.parameters() if parameter.requires_grad]
    run.require_space(state_bytes(eta) + model.saved_bytes())
    total = config.num_steps(len(traces))
    optimization = Optimization.of(config, [(eta, config.learning_rate)], total)
    newest = run.latest_checkpoint()
    done = load_state(newest, eta, optimization) if newest else 0

    def write(steps_done: int, folder: Path) -> None:
        model.save_pretrained(folder)
        save_state(folder, eta, optimization, steps_done=steps_done)

    model.policy.train()
    for step in training_steps("SFT", run, total, done, config.checkpoint_every, write):
        started = time.perf_counter()
        batch = [traces[index] for _, index in batch_at(step.number, config.batch_size, len(traces), config.seed)]
        size = config.micro_batch_size or config.batch_size
        loss = descend(model, batch, size, config.gradient_checkpointing)
        check_finite(loss, step.number, [trace.id for trace in batch])
        norm, rate = optimization.step(step.number, [trace.id for trace in batch])
        seconds = time.perf_counter() - started
        tokens = sum(len(trace.prompt_ids) + len(trace.target_ids) for trace in batch)
        metrics = {
            "sft/loss": loss,
            "sft/gradient_norm": norm,
            "sft/learning_rate": rate,
            "sft/tokens_per_second": tokens / seconds,
            "sft/seconds": seconds,
        }
        step.log(metrics, f"loss {loss:.3f}")
    model.policy.eval()


def run(config: Config, *, output: Path, resume: bool = False, replace: bool = False) -> Tyler:
    """`tyler train sft`: load, train, save. Returns the trained model.

    `resume` goes on from the newest checkpoint in `output`; `replace` drops an earlier run there.
    """
    check_tracker(config.tracking)
    backbone = Backbone.load(config.backbone.id, revision=config.backbone.revision, dtype=config.backbone.dtype)
    traces = load_traces(config, backbone)
    torch.manual_seed(config.sft.seed)
    lora = LoraSettings(**config.lora.model_dump())
    model = Tyler.start(backbone, (), lora, prompt_of(config)).at_stage("sft")
    model.policy.add_lora(lora)
    with opened_run(config, output, resume=resume, replace=replace) as directory:
        train(model, traces, config.sft, directory)
    return model
