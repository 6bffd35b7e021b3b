"""The operator lens: what one latent block of an answer does, with a control beside every measurement.

Four questions, all teacher-forced on the answer that the model gave, so that nothing is decoded again:

1. What can be read from it? The likeliest tokens at the policy's states at the latent positions, softmax(W_U h), and
   the embeddings nearest to the injected vectors.
2. Is it needed? KL(p(. | z) || p(. | do(z <- z'))) and the loss of log p(y) over the tokens behind the block, with z'
   zeros, the operator's means, noise of the same norm, another problem's block, or no block at all.
3. How much of the answer does it carry into another problem (`interchange`)?
4. After how many of its latents does the answer stay (`enough`)?

A picture without its control says nothing: what shows with noise or with another problem's block is not of this block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.engine.trajectory import Trajectory, pack
from tyler.model import Tyler

Blocks = Mapping[str, Sequence[Float[Tensor, "latents dim"]]]
"""Latents that the model computed for other problems, by operator."""
NUM_TOP = 5
REPLACEMENTS = ("zeros", "means", "noise", "other problem", "no block")


@dataclass(frozen=True)
class Readout:
    """What one latent can be read as: the likeliest tokens at its position, and the nearest embeddings, with scores."""

    likeliest: tuple[tuple[str, float], ...]
    nearest: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Effect:
    """What a replacement changes of the tokens behind a block.

    `divergence` is the mean KL per token in nats, `loss` the fall of their summed log-probability, `flipped` the share
    of tokens that would no longer be the likeliest.
    """

    divergence: float
    loss: float
    flipped: float


@dataclass(frozen=True)
class Reading:
    """One block of one answer."""

    operator: str
    position: int
    num_latents: int
    readouts: tuple[Readout, ...]
    effects: dict[str, Effect]
    enough: int
    """The fewest of its latents, from the first, with which every token behind it stays the likeliest one it was."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def read_blocks(model: Tyler, trajectory: Trajectory, others: Blocks, seed: int = 0) -> list[Reading]:
    """The lens over every block of an answer. `others` are latents of other problems; noise follows from `seed`.

    Raises ValueError for an answer without operators or with soft steps, and where `others` lacks an operator.
    """
    if not trajectory.invocations:
        raise ValueError("the answer invoked no operator; give a router that does, such as AtBoundaries()")
    missing = sorted({call.operator for call in trajectory.invocations} - {name for name in others if others[name]})
    if missing:
        raise ValueError(f"there are no latents of other problems for {', '.join(missing)}; answer more problems first")
    source = torch.Generator().manual_seed(seed)
    return [read_block(model, trajectory, index, others, source) for index in range(trajectory.num_invocations)]


@torch.no_grad()
def read_block(model: Tyler, trajectory: Trajectory, index: int, others: Blocks, source: torch.Generator) -> Reading:
    """The lens over one block."""
    call, latents = trajectory.invocations[index], trajectory.latents[index]
    truth = Forced.of(model, trajectory, index)
    changed = {
        name: with_block(trajectory, index, replacement)
        for name, replacement in replacements(latents, others[call.operator], source).items()
    }
    effects = {name: truth.effect(Forced.of(model, one, index)) for name, one in changed.items()}
    return Reading(
        operator=call.operator,
        position=call.position,
        num_latents=call.num_latents,
        readouts=tuple(readouts(model, trajectory, index)),
        effects=effects,
        enough=enough(model, trajectory, index, truth),
    )


def replacements(
    latents: Float[Tensor, "latents dim"], others: Sequence[Float[Tensor, "latents dim"]], source: torch.Generator
) -> dict[str, Tensor]:
    """What takes a block's place, by the names in REPLACEMENTS. A block without latents is no block."""
    noise = torch.randn(latents.shape, generator=source).to(latents)
    noise = noise / noise.norm(dim=-1, keepdim=True) * latents.norm(dim=-1, keepdim=True)
    drawn = int(torch.randint(len(others), (1,), generator=source))
    values = (torch.zeros_like(latents), torch.stack(list(others)).mean(dim=0), noise, others[drawn], latents[:0])
    return dict(zip(REPLACEMENTS, values, strict=True))


def with_block(trajectory: Trajectory, index: int, latents: Float[Tensor, "latents dim"]) -> Trajectory:
    """The same answer with other latents in one block's place, as many as before or fewer."""
    blocks = [*trajectory.latents[:index], latents, *trajectory.latents[index + 1 :]]
    return replace(trajectory, latents=blocks)


def enough(model: Tyler, trajectory: Trajectory, index: int, truth: Forced) -> int:
    """The fewest latents of a block, from the first, with which every token behind it stays the likeliest."""
    latents = trajectory.latents[index]
    for count in range(len(latents)):
        if truth.effect(Forced.of(model, with_block(trajectory, index, latents[:count]), index)).flipped == 0:
            return count
    return len(latents)


# ----------------------------------------------------------------------------------------------------- teacher forcing


@dataclass(frozen=True)
class Forced:
    """log p over V of every visible token behind a block, teacher-forced, and those tokens."""

    logprobs: Float[Tensor, "tokens vocab"]
    tokens: Tensor

    @classmethod
    def of(cls, model: Tyler, trajectory: Trajectory, index: int) -> Forced:
        """One pass over an answer; `index` names the block."""
        packed = pack([trajectory], model.backbone.embed, model.backbone.device)
        hidden = model.policy.decoder()(inputs_embeds=packed.embeds, use_cache=False).last_hidden_state[0]
        first = trajectory.invocations[index].action + 1
        behind = [place for place in range(first, len(trajectory.actions)) if not trajectory.is_operator[place]]
        states = hidden[packed.decided_at[0, behind]]
        tokens = torch.tensor([trajectory.actions[place] for place in behind], device=hidden.device)
        return cls(model.policy.token_logits(states).log_softmax(dim=-1), tokens)

    def effect(self, other: Forced) -> Effect:
        """How far another distribution over the same tokens is from this one."""
        if not len(self.tokens):
            return Effect(0.0, 0.0, 0.0)
        divergence = (self.logprobs.exp() * (self.logprobs - other.logprobs)).sum(dim=-1).mean()
        own, found = (one.logprobs.gather(1, self.tokens[:, None]).sum() for one in (self, other))
        flipped = (self.logprobs.argmax(dim=-1) != other.logprobs.argmax(dim=-1)).float().mean()
        return Effect(float(divergence), float(own - found), float(flipped))


@torch.no_grad()
def readouts(model: Tyler, trajectory: Trajectory, index: int) -> list[Readout]:
    """What each latent of a block can be read as."""
    packed = pack([trajectory], model.backbone.embed, model.backbone.device)
    hidden = model.policy.decoder()(inputs_embeds=packed.embeds, use_cache=False).last_hidden_state[0]
    latents = trajectory.latents[index]
    start = int(packed.decided_at[0, trajectory.invocations[index].action]) + 1
    here = model.policy.token_logits(hidden[start : start + len(latents)]).softmax(dim=-1)
    table = torch.nn.functional.normalize(model.backbone.embedding.float(), dim=-1)
    near = torch.nn.functional.normalize(latents.float().to(table.device), dim=-1) @ table.t()
    return [Readout(top(model, likely), top(model, close)) for likely, close in zip(here, near, strict=True)]


def top(model: Tyler, scores: Float[Tensor, " vocab"]) -> tuple[tuple[str, float], ...]:
    """The tokens of the highest scores, as text."""
    values, ids = scores.topk(min(NUM_TOP, len(scores)))
    decode = model.backbone.tokenizer.decode
    return tuple((str(decode([one])), float(value)) for one, value in zip(ids.tolist(), values.tolist(), strict=True))


# --------------------------------------------------------------------------------------------------------- interchange


@torch.no_grad()
def interchange(
    model: Tyler, receiver: Trajectory, donor: Trajectory, index: int, answers: tuple[int, int]
) -> float | None:
    """How much of the way from the receiver's answer to the donor's its block carries: 0 nothing, 1 all of it.

    `answers` are a token of the receiver's answer and one of the donor's, each found at its last place in its answer.
    The donor's first block of the same operator takes the place of the receiver's block `index`; the score is how far
    that moves the logit difference of the two tokens, over the difference between the two problems' own contexts. None
    where the two contexts do not differ, or the donor has no such block.
    """
    operator = receiver.invocations[index].operator
    other = next((place for place, call in enumerate(donor.invocations) if call.operator == operator), None)
    if other is None:
        return None
    own, foreign = answers

    def margin(trajectory: Trajectory, token: int, block: int) -> float:
        forced = Forced.of(model, trajectory, block)
        row = int((forced.tokens == token).nonzero()[-1])
        return float(forced.logprobs[row, foreign] - forced.logprobs[row, own])

    start = margin(receiver, own, index)
    full = margin(donor, foreign, other) - start
    patched = margin(with_block(receiver, index, donor.latents[other]), own, index) - start
    return patched / full if full else None
