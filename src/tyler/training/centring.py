"""Where centred latents start (`stage1.latents=centred`): around the mean of what training traces give their queries.

Deviation: the paper has one projection. Hidden states at the queries may be nearly the same in every context, so that
it learns a constant long before it says anything of the problem; here the two learn apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tyler.model import Tyler
from tyler.modeling.synthesis import CentredHead, Head, mean_square
from tyler.training.micro_batches import CALIBRATION_ROWS
from tyler.training.teacher_forcing import Example, synthesize


@dataclass(frozen=True)
class Watched:
    """A head that keeps the hidden states it is given: [N, dim] for each call."""

    head: Head
    seen: list[Tensor] = field(default_factory=list)

    @property
    def queries(self) -> Tensor:
        return self.head.queries

    @property
    def num_latents(self) -> int:
        return self.head.num_latents

    def __call__(self, hidden: Tensor) -> Tensor:
        self.seen.append(hidden.float())
        return self.head(hidden)


@torch.no_grad()
def centre(model: Tyler, examples: Sequence[Example]) -> Tyler:
    """The model with its new operators centred on what the examples' insertions give them.

    Raises ValueError for an operator that fewer than two of them insert.
    """
    heads = {name: Watched(head) for name, head in model.synthesizer.mapping().items() if isinstance(head, Head)}
    for first in range(0, len(examples), CALIBRATION_ROWS):
        part = examples[first : first + CALIBRATION_ROWS]
        synthesize(model.backbone, model.synthesizer.training_decoder, heads, part)
    scale = float(mean_square(model.backbone.embedding).sqrt())
    for name, watched in heads.items():
        if len(watched.seen) < 2:
            raise ValueError(
                f"latents=centred needs two insertions of every operator, and {len(examples)} training traces have "
                f"{len(watched.seen)} of {name!r}; raise stage1.centring.num_traces"
            )
        hidden = torch.stack(watched.seen)
        if not bool((hidden != hidden[0]).any()):
            raise ValueError(f"latents=centred: the traces give {name!r} the same hidden states; take other traces")
        model.synthesizer.heads[name] = CentredHead.start(watched.head, hidden, scale)
    return model.with_heads(model.synthesizer.mapping())
