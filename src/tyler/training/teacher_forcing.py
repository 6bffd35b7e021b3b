"""Latents inside a given solution: the differentiable twin of the engine, for Stage 1.

A trace is read in chunks, with gradients: between two insertions the synthesizer reads what is new plus the queries,
exactly as it does while decoding, so that m insertions cost one pass over the trace and not m. The frozen policy reads
everything before a row's first latents without gradient: nothing there depends on Phi.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.modeling.synthesis import ConstantHead, Heads
from tyler.training.objectives import token_logprobs
from tyler.training.packing import PackedReader, interleaved


@dataclass(frozen=True)
class Insertion:
    """Latents of `operator` before target token `position` (b in the paper)."""

    position: int
    operator: str


@dataclass(frozen=True)
class Trace:
    """(q, y) as tokens: a prompt and the solution that it teaches, with its candidate pairs B(q, y), and those (b, k)
    that were drawn from them, in the order of their positions."""

    id: str
    prompt_ids: Sequence[int]
    target_ids: Sequence[int]
    candidates: tuple[tuple[int, Operator], ...] = ()
    insertions: tuple[Insertion, ...] = ()

    def __post_init__(self) -> None:
        positions = [insertion.position for insertion in self.insertions]
        assert positions == sorted(positions), "insertions are in the order of their positions"
        assert not positions or 0 <= positions[0] <= positions[-1] < len(self.target_ids), "and before a target"

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.target_ids)

    def with_latents(self, insertions: tuple[Insertion, ...]) -> Self:
        return replace(self, insertions=insertions)

    def content(self) -> tuple[object, ...]:
        """What a run learns from it."""
        return self.id, self.prompt_ids, self.target_ids


def synthesize(
    backbone: Backbone,
    decoder: PreTrainedModel,
    heads: Heads,
    examples: Sequence[Trace],
    inputs: Callable[[Tensor], Tensor] | None = None,
    *,
    recompute: bool = False,
) -> list[list[Float[Tensor, "latents dim"]]]:
    """z_b^k = O_k(x_b) for every insertion of every example, with gradients to Phi; x_b holds the earlier latents.

    `inputs` maps the embeddings of the context, not the queries, before the decoder reads them; None leaves them.
    """
    drawn = [[heads[insertion.operator] for insertion in example.insertions] for example in examples]
    if all(isinstance(head, ConstantHead) for head in chain(*drawn)):  # which read nothing
        return [[head(head.queries.to(backbone.dtype)) for head in row] for row in drawn]
    reader = PackedReader(decoder, len(examples), recompute=recompute)
    embeds = [embed_ids(backbone, [*example.prompt_ids, *example.target_ids]) for example in examples]
    latents: list[list[Tensor]] = [[] for _ in examples]
    read = [0] * len(examples)  # tokens of each example that the synthesizer has read
    for turn in range(max(map(len, drawn))):
        chunks, queries = [row[:0] for row in embeds], [0] * len(examples)
        rows = [row for row, of_row in enumerate(drawn) if turn < len(of_row)]
        for row in rows:
            example, head = examples[row], drawn[row][turn]
            end = len(example.prompt_ids) + example.insertions[turn].position
            new = torch.cat([*latents[row][-1:], embeds[row][read[row] : end]])
            chunks[row] = torch.cat([inputs(new) if inputs else new, head.queries.to(new.dtype)])
            queries[row], read[row] = head.num_latents, end
        hidden = reader.read(chunks, forget=queries)
        for row in rows:
            latents[row].append(drawn[row][turn](hidden[row][-queries[row] :]))
    return latents


def insert(
    backbone: Backbone, example: Trace, latents: Sequence[Float[Tensor, "latents dim"]]
) -> tuple[Float[Tensor, "seq dim"], list[int]]:
    """The latent-augmented context, and for each target token the position that predicts it (c~_t of Eq. operator-sft).

    The token after a block is predicted from the block's last latent. The last target predicts nothing and is left out.
    """
    tokens = embed_ids(backbone, [*example.prompt_ids, *example.target_ids[:-1]])
    first, places = len(example.prompt_ids), [insertion.position for insertion in example.insertions]
    steps = [1] * len(example.target_ids)
    for place, block in zip(places, latents, strict=True):
        steps[place] += len(block)
    context = interleaved(tokens, zip((first + place for place in places), latents, strict=True))
    return context, [first - 2 + end for end in accumulate(steps)]


def target_logprobs(
    backbone: Backbone,
    examples: Sequence[Trace],
    latents: Sequence[Sequence[Float[Tensor, "latents dim"]]],
    temperature: float = 1.0,
    *,
    recompute: bool = False,
) -> tuple[Float[Tensor, "batch targets"], Bool[Tensor, "batch targets"]]:
    """log p(y_t | c~_t) for every visible target token, right-padded, and the mask of real ones.

    Positions before a row's first latents are read without gradient: they do not depend on Phi. Operators are not
    actions here: the distribution is over V.
    """
    contexts, decided = zip(*(insert(backbone, *pair) for pair in zip(examples, latents, strict=True)), strict=True)
    splits = [first_latent(example) for example in examples]
    reader = PackedReader(backbone.decoder, len(examples), recompute=recompute)
    with torch.no_grad():
        prefix = reader.read([context[:split] for context, split in zip(contexts, splits, strict=True)])
    suffix = reader.read([context[split:] for context, split in zip(contexts, splits, strict=True)])
    states = [torch.cat(both)[places] for both, places in zip(zip(prefix, suffix, strict=True), decided, strict=True)]
    targets = torch.tensor([token for example in examples for token in example.target_ids], device=backbone.device)
    chosen = token_logprobs(torch.cat(states), backbone.head, targets, temperature=temperature)
    lengths = [len(example.target_ids) for example in examples]
    logprobs = pad_sequence(list(chosen.split(lengths)), batch_first=True)
    mask = torch.arange(max(lengths), device=backbone.device) < torch.tensor(lengths, device=backbone.device)[:, None]
    return logprobs, mask


def at_the_end(target: Sequence[int], operators: Sequence[str]) -> tuple[Insertion, ...]:
    """An insertion of each operator before one of the last targets."""
    first = len(target) - len(operators)
    return tuple(Insertion(max(0, first + number), name) for number, name in enumerate(operators))


def num_positions(example: Trace, heads: Heads) -> int:
    """Positions of the latent-augmented context: tokens and latents."""
    return len(example) + sum(heads[insertion.operator].num_latents for insertion in example.insertions)


def first_latent(example: Trace) -> int:
    """Context position of the first latent; without insertions, the last position that predicts a target."""
    at = example.insertions[0].position if example.insertions else len(example.target_ids) - 2
    return len(example.prompt_ids) + at


def embed_ids(backbone: Backbone, ids: Sequence[int]) -> Float[Tensor, "seq dim"]:
    """Embeddings of a list of ids, which may be empty."""
    return backbone.embed(torch.tensor(list(ids), device=backbone.device, dtype=torch.long))
