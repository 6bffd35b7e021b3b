"""log p(a_t | x_t) of finished trajectories: the stored latents are replayed, so the synthesizer never runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tyler.engine.trajectory import Packed, Trajectory, pack
from tyler.modeling.backbone import Backbone
from tyler.training.objectives import chosen_logprobs


def decision_states(decoder: nn.Module, packed: Packed) -> Float[Tensor, "positions dim"]:
    """The hidden state that chose each drawn action, in one causal pass; row by row, without padding."""
    hidden = decoder(inputs_embeds=packed.embeds, use_cache=False).last_hidden_state
    rows = torch.arange(len(hidden), device=hidden.device)[:, None].expand_as(packed.decided_at)
    return hidden[rows[packed.mask], packed.decided_at[packed.mask]]


def replay_logprobs(
    decoder: nn.Module, head: Tensor, psi: Tensor, packed: Packed, *, chunk_size: int | None = None
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
    states = decision_states(decoder, packed)
    chosen = chosen_logprobs(
        states,
        head,
        psi,
        packed.actions[packed.mask],
        packed.allowed[packed.mask],
        temperature=temperature,
        chunk_size=chunk_size,
    )
    empty = torch.zeros_like(packed.logprobs)
    return empty.masked_scatter(packed.mask, chosen.logprobs), empty.masked_scatter(packed.mask, chosen.entropy)


def pack_for(backbone: Backbone, trajectories: Sequence[Trajectory]) -> Packed:
    """Pack trajectories with a backbone's own embeddings, on its device."""
    return pack(trajectories, backbone.embed, backbone.device)


def padded(rows: Sequence[Sequence[float]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ragged rows as a right-padded float32 tensor [rows, longest], and the mask of what is real."""
    values = pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    return values.to(device), (torch.arange(values.shape[1]) < lengths).to(device)
