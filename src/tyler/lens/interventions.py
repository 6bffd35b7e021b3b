"""What is done to the latents of a model that is measured: controls that tell what its latents carry.

Each makes other heads for the same operators at the same places, with as many latents as before.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from tyler.engine.routing import AtBoundaries
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.interventions import fix, remove, share, swap, zero
from tyler.modeling.synthesis import Head, Heads, LatentHead, start_head
from tyler.training.replay import replay_context

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of a number. (Widened first, half of the bits of a narrow one are zeros, and draw few entries.)"""

Blocks = dict[str, list[Float[Tensor, "latents dim"]]]
"""Latents by operator, one entry for each call."""


class PooledHead(nn.Module):
    """Latents of other problems: each call takes the pool's entry that its own hidden states point to.

    Which entry follows from the bits of the hidden states, so that neighbouring contexts get unrelated entries and the
    same context gets the same one.
    """

    def __init__(self, head: LatentHead, pool: Sequence[Float[Tensor, "latents dim"]]) -> None:
        super().__init__()
        self.queries, self._pool = head.queries, torch.stack(list(pool))

    @property
    def num_latents(self) -> int:
        return self._pool.shape[1]

    def forward(self, hidden: Float[Tensor, "latents dim"]) -> Float[Tensor, "latents dim"]:
        bits = hidden[-1, :8].contiguous().view(INTEGERS[hidden.element_size()])
        return self._pool[int(bits.sum().abs()) % len(self._pool)].to(hidden.dtype)


def zeroed(model: Tyler, blocks: Blocks) -> Heads:
    """All latents are zeros."""
    return reduce(zero, model.heads, model.heads)


def averaged(model: Tyler, blocks: Blocks) -> Heads:
    """All latents are their operator's mean, slot by slot: nothing of the problem is left."""
    means = {name: torch.stack(latents).mean(dim=0) for name, latents in blocks.items()}
    return reduce(lambda heads, name: fix(heads, name, means[name]), means, model.heads)


def shuffled(model: Tyler, blocks: Blocks) -> Heads:
    """Latents of the right operator and of another problem."""
    pooled = {name: PooledHead(model.synthesizer.mapping()[name], latents) for name, latents in blocks.items()}
    return {**model.heads, **pooled}


def noise(model: Tyler, blocks: Blocks) -> Heads:
    """Normal vectors with the norm of the latents they stand for, one block for each that was seen."""
    source = torch.Generator().manual_seed(0)
    return shuffled(model, {name: [noise_like(block, source) for block in latents] for name, latents in blocks.items()})


def noise_like(latents: Float[Tensor, "latents dim"], source: torch.Generator) -> Float[Tensor, "latents dim"]:
    """Normal vectors with the norms of some latents."""
    drawn = torch.randn(latents.shape, generator=source).to(latents)
    return drawn / drawn.norm(dim=-1, keepdim=True) * latents.norm(dim=-1, keepdim=True)


NAMED: dict[str, Callable[[Tyler, Blocks], Heads]] = {
    "zeros": zeroed,
    "means": averaged,
    "shuffled": shuffled,
    "noise": noise,
}
"""Interventions on all operators, which may need the latents that the model itself computes."""
ON_OPERATORS: dict[tuple[str, int], Callable[..., Heads]] = {
    ("remove", 1): remove,
    ("zero", 1): zero,
    ("share", 1): share,
    ("swap", 2): swap,
}
"""Those on some operators, by their word and how many operators follow it."""


def intervene(
    model: Tyler, name: str, problems: Sequence[str], max_new_tokens: int, memory: int | None = None
) -> Tyler:
    """The model under an intervention: one of NAMED, or "remove global", "zero state", "share procedure", "swap a b".

    `problems` are answered at all boundaries, within `memory` bytes of contexts and caches, to see the model's own
    latents, where the intervention needs them. Raises ValueError for an intervention that does not exist.
    """
    word, *operators = name.split()
    if name in NAMED:
        blocks: Blocks = {}
        if name != "zeros":  # decoded, because no store has latents
            answers = model.solve(
                list(problems), router=AtBoundaries(), max_new_tokens=max_new_tokens, slots=32, memory=memory
            )
            blocks = blocks_of(answers)
        return model.with_heads(NAMED[name](model, blocks))
    if (change := ON_OPERATORS.get((word, len(operators)))) is None:
        allowed = f"{', '.join(NAMED)}, remove K, zero K, share K, swap K L"
        raise ValueError(f"there is no intervention {name!r}; allowed: {allowed}")
    return model.with_heads(change(model.heads, *operators))


def blocks_of(answers: Sequence[Trajectory]) -> Blocks:
    """All latents of some answers."""
    blocks: Blocks = {}
    for answer in answers:
        for call, latents in zip(answer.invocations, answer.latents, strict=True):
            blocks.setdefault(call.operator, []).append(latents)
    return blocks


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
    every = exchanged(latents, others.get(operator, ()), source)
    context = before(model, trajectory, index)
    if second := next_operator(model, operator):
        every["other operator"] = synthesized(model.synthesizer.decoder, model.heads[second], context)
    head = untrained_head(model, len(latents))
    every["untrained"] = synthesized(model.policy.reference_decoder, head, context)
    return {name: every[name] for name in REPLACEMENTS if name in every}


def exchanged(
    latents: Float[Tensor, "latents dim"], others: Sequence[Float[Tensor, "latents dim"]], source: torch.Generator
) -> dict[str, Float[Tensor, "latents dim"]]:
    """What takes the place of a block without a pass of the model. `others` are its operator's for other problems."""
    every = {"zeros": torch.zeros_like(latents), "noise": noise_like(latents, source), "no block": latents[:0]}
    drawn = int(torch.randint(max(1, len(others)), (1,), generator=source))
    if others:
        every |= {"means": torch.stack(list(others)).mean(dim=0), "other problem": others[drawn]}
    return every


def before(model: Tyler, trajectory: Trajectory, index: int) -> Float[Tensor, "seq dim"]:
    """x_t, the context in which a block was called for."""
    context, decided_at = replay_context(trajectory, model.backbone.embed, model.backbone.device)
    return context[: decided_at[trajectory.invocations[index].action] + 1]


def synthesized(
    decoder: PreTrainedModel, head: LatentHead, context: Float[Tensor, "seq dim"]
) -> Float[Tensor, "latents dim"]:
    """The latents of an operator in a context: one pass over x_t and Q_k, and Proj_k of the last N_k states."""
    embeds = torch.cat([context, head.queries.to(context)])[None]
    return head(decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state[0][-head.num_latents :])


def next_operator(model: Tyler, operator: str) -> str | None:
    """The operator after this one in the model's order, the first after the last; None where it is the only one."""
    names = [other.name for other in model.operators if other.name in model.heads]
    second = names[(names.index(operator) + 1) % len(names)]
    return second if second != operator else None


def untrained_head(model: Tyler, num_latents: int) -> Head:
    """The head of an operator before its first training step, the same one at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = Head(num_latents, model.backbone.dim)
        start_head(head, model.backbone)
    return head.to(model.backbone.device).requires_grad_(False)
