"""log p(a_t | x_t) of finished trajectories: the stored latents are replayed, so the synthesizer never runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from tyler.engine.trajectory import Packed, Trajectory, pack
from tyler.modeling.backbone import Backbone
from tyler.training.objectives import chosen_logprobs
from tyler.training.packing import read_packed


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
    chunk_size: int | None = None,
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
