"""Where centred latents start (`stage1.latents=centred`): around the mean of what training traces give their queries.

Deviation: the paper has one projection. Hidden states at the queries may be nearly the same in every context, so that
it learns a constant long before it says anything of the problem; here the two learn apart. It did not help: it stays
because `tyler reproduce smollm2` declares a comparison with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tyler.model import Tyler
from tyler.modeling.synthesis import CentredHead, Head, mean_square
from tyler.training.micro_batches import CALIBRATION_ROWS
from tyler.training.teacher_forcing import Example, synthesize


@torch.no_grad()
def centre(model: Tyler, examples: Sequence[Example]) -> Tyler:
    """The model with its new operators centred on what the examples' insertions give them.

    Raises ValueError for an operator that fewer than two of them insert, or that is always given the same.
    """
    scale = float(mean_square(model.backbone.embedding).sqrt())
    for name, seen in hidden_states(model, examples).items():
        if len(seen) < 2:
            raise ValueError(
                f"latents=centred needs two insertions of every operator, and {len(examples)} training traces have "
                f"{len(seen)} of {name!r}; raise stage1.centring.num_traces"
            )
        hidden, head = torch.stack(seen), model.synthesizer.mapping()[name]
        if bool((hidden == hidden[0]).all()):
            raise ValueError(f"latents=centred: the traces give {name!r} the same hidden states; take other traces")
        assert isinstance(head, Head), "new operators have plain heads"
        model.synthesizer.heads[name] = CentredHead.start(head, hidden, scale)
    return model.with_heads(model.synthesizer.mapping())


def hidden_states(model: Tyler, examples: Sequence[Example]) -> dict[str, list[Float[Tensor, "latents dim"]]]:
    """What the heads are given where the examples insert latents, by operator."""
    heads = model.synthesizer.mapping()
    seen: dict[str, list[Tensor]] = {name: [] for name in heads}

    def keep(name: str, head: nn.Module, given: tuple[Tensor]) -> None:
        seen[name].append(given[0].float())

    hooks = [head.register_forward_pre_hook(partial(keep, name)) for name, head in heads.items()]
    for first in range(0, len(examples), CALIBRATION_ROWS):
        part = examples[first : first + CALIBRATION_ROWS]
        synthesize(model.backbone, model.synthesizer.decoder, heads, part)
    for hook in hooks:
        hook.remove()
    return seen
