"""What takes the place of a latent block, so that one sees what the block itself does.

zeros, noise        nothing, and nothing of the same size
means               what its operator says on average: without the problem
other problem       what its operator said elsewhere
other operator      what another operator says in this very context: is the type real?
untrained           what an operator of this size says before it is trained: previews of the next tokens
no block            not even the place
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from tyler.engine.trajectory import Trajectory, replay_context
from tyler.model import Tyler
from tyler.modeling.synthesis import Head, LatentHead, start_head

Blocks = Mapping[str, Sequence[Float[Tensor, "latents dim"]]]
"""Latents that the model computed for other problems, by operator."""
REPLACEMENTS = ("zeros", "means", "noise", "other problem", "other operator", "untrained", "no block")


@torch.no_grad()
def replacements(
    model: Tyler, trajectory: Trajectory, index: int, others: Blocks, source: torch.Generator
) -> dict[str, Float[Tensor, "latents dim"]]:
    """What takes the place of a block, by the names in REPLACEMENTS, in their order; without latents there is no block.

    Noise has the norm of each latent, and it and the choice of another problem's block are drawn from `source`. What
    there is nothing to take from is absent: means and blocks of other problems where `others` has none of this
    operator, another operator where there is but one.
    """
    operator, latents = trajectory.invocations[index].operator, trajectory.latents[index]
    found = exchanged(latents, others.get(operator, ()), source)
    context = before(model, trajectory, index)
    if second := next_operator(model, operator):
        found["other operator"] = synthesized(model.synthesizer.decoder(), model.heads[second], context)
    head = untrained_head(model, len(latents))
    found["untrained"] = synthesized(model.policy.reference_decoder, head, context)
    return {name: found[name] for name in REPLACEMENTS if name in found}


def exchanged(
    latents: Float[Tensor, "latents dim"], others: Sequence[Float[Tensor, "latents dim"]], source: torch.Generator
) -> dict[str, Float[Tensor, "latents dim"]]:
    """What takes the place of a block without a pass of the model. `others` are its operator's for other problems."""
    noise = torch.randn(latents.shape, generator=source).to(latents)
    noise = noise / noise.norm(dim=-1, keepdim=True) * latents.norm(dim=-1, keepdim=True)
    drawn = int(torch.randint(max(1, len(others)), (1,), generator=source))
    found = {"zeros": torch.zeros_like(latents), "noise": noise, "no block": latents[:0]}
    if others:
        found |= {"means": torch.stack(list(others)).mean(dim=0), "other problem": others[drawn]}
    return found


def before(model: Tyler, trajectory: Trajectory, index: int) -> Float[Tensor, "seq dim"]:
    """x_t, the context in which a block was called for."""
    context, decided_at = replay_context(trajectory, model.backbone.embed, model.backbone.device)
    return context[: decided_at[trajectory.invocations[index].action] + 1]


def synthesized(
    decoder: PreTrainedModel, head: LatentHead, context: Float[Tensor, "seq dim"]
) -> Float[Tensor, "latents dim"]:
    """The latents of an operator in a context: one pass over x_t and Q_k, and Proj_k of the last N_k states."""
    embeds = torch.cat([context, head.queries.to(context)])[None]
    hidden = decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state[0]
    return head(hidden[-head.num_latents :])


def next_operator(model: Tyler, operator: str) -> str | None:
    """The operator after this one in the model's order, the first after the last; None where it is the only one."""
    names = [one.name for one in model.operators if one.name in model.heads]
    second = names[(names.index(operator) + 1) % len(names)]
    return second if second != operator else None


def untrained_head(model: Tyler, num_latents: int) -> Head:
    """The head of an operator before its first training step, the same one at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = Head(num_latents, model.backbone.dim)
        start_head(head, model.backbone)
    return head.to(model.backbone.device).requires_grad_(False)
