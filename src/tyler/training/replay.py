"""log p(a_t | x_t) of finished trajectories: the stored latents are replayed, so the synthesizer never runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from tyler.engine.trajectory import Trajectory
from tyler.modeling.backbone import Backbone
from tyler.training.objectives import chosen_logprobs
from tyler.training.packing import read_packed


@dataclass(frozen=True)
class Packed:
    """Trajectories as right-padded tensors. `decided_at` is the position whose hidden state chose each action."""

    embeds: Float[Tensor, "batch seq dim"]
    actions: Int[Tensor, "batch actions"]
    decided_at: Int[Tensor, "batch actions"]
    mask: Bool[Tensor, "batch actions"]
    is_operator: Bool[Tensor, "batch actions"]
    allowed: Bool[Tensor, "batch actions operators"]
    logprobs: Float[Tensor, "batch actions"]
    temperature: Float[Tensor, "batch"]


def replay_context(
    trajectory: Trajectory, embed: Callable[[Tensor], Tensor], device: torch.device
) -> tuple[Float[Tensor, "seq dim"], list[int]]:
    """x_t of the whole trajectory, with its stored latents, and for each action the position that decided it.

    Raises ValueError for one with soft steps or a soft prompt: their vectors are not kept.
    """
    if trajectory.num_soft:
        raise ValueError(f"a trajectory with {trajectory.num_soft} soft positions cannot be replayed from its tokens")
    tokens = embed(torch.tensor([*trajectory.prompt_ids, *trajectory.visible_ids], device=device))
    latents, decided_at = iter(trajectory.latents), []
    pieces, start, read = [], 0, len(trajectory.prompt_ids)
    length = read
    for is_operator in trajectory.is_operator:
        decided_at.append(length - 1)
        if is_operator:
            pieces += [tokens[start:read], next(latents).to(tokens)]
            start, length = read, length + len(pieces[-1])
        else:
            read, length = read + 1, length + 1
    return torch.cat([*pieces, tokens[start:]]), decided_at


def pack(backbone: Backbone, trajectories: Sequence[Trajectory]) -> Packed:
    """Pack trajectories for one pass of the learner. Padding is on the right, so a causal pass needs no mask."""
    embed, device = backbone.embed, backbone.device
    contexts, decided = zip(*(replay_context(trajectory, embed, device) for trajectory in trajectories), strict=True)

    def pad(rows: list[Tensor], value: float) -> Tensor:
        return pad_sequence(rows, batch_first=True, padding_value=value).to(device)

    return Packed(
        embeds=pad(list(contexts), 0.0),
        actions=pad([torch.tensor(t.actions) for t in trajectories], 0),
        decided_at=pad([torch.tensor(d) for d in decided], 0),
        mask=pad([torch.tensor(t.drawn(), dtype=torch.bool) for t in trajectories], False),
        is_operator=pad([torch.tensor(t.is_operator, dtype=torch.bool) for t in trajectories], False),
        allowed=pad([t.allowed() for t in trajectories], False),
        logprobs=pad([torch.tensor(t.logprobs, dtype=torch.float32) for t in trajectories], 0.0),
        temperature=torch.tensor([t.sampling.scale for t in trajectories], device=device),
    )


def decision_states(
    decoder: PreTrainedModel, packed: Packed, *, recompute: bool = False
) -> Float[Tensor, "positions dim"]:
    """The hidden state that chose each drawn action, in one causal pass; row by row, without padding."""
    chosen_at = [places[drawn] for places, drawn in zip(packed.decided_at, packed.mask, strict=True)]
    ends = [int(places.max()) + 1 if len(places) else 1 for places in chosen_at]
    rows = [embeds[:end] for embeds, end in zip(packed.embeds, ends, strict=True)]
    hidden = read_packed(decoder, rows, recompute=recompute)
    return torch.cat([states[places] for states, places in zip(hidden, chosen_at, strict=True)])


def replay_logprobs(
    decoder: PreTrainedModel,
    head: Tensor,
    psi: Tensor,
    packed: Packed,
    *,
    recompute: bool = False,
) -> tuple[Float[Tensor, "batch actions"], Float[Tensor, "batch actions"]]:
    """log p of every drawn action under the rollout's masks and temperature, and the entropy; 0 elsewhere.

    All trajectories must have been sampled at one temperature (ValueError).
    """
    temperature = packed.temperature[0].item()
    if not bool((packed.temperature == temperature).all()):
        raise ValueError(
            f"the trajectories were sampled at temperatures {sorted(set(packed.temperature.tolist()))}; "
            "replay one at a time"
        )
    states = decision_states(decoder, packed, recompute=recompute)
    chosen = chosen_logprobs(
        states,
        head,
        psi,
        packed.actions[packed.mask],
        packed.allowed[packed.mask],
        temperature=temperature,
    )
    empty = torch.zeros_like(packed.logprobs)
    return empty.masked_scatter(packed.mask, chosen.logprobs), empty.masked_scatter(packed.mask, chosen.entropy)


def padded(rows: Sequence[Sequence[float]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ragged rows as a right-padded float32 tensor [rows, longest], and the mask of what is real."""
    values = pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    return values.to(device), (torch.arange(values.shape[1]) < lengths).to(device)
