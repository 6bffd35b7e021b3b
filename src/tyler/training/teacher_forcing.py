"""Latents inside a given solution: the differentiable twin of the engine, for Stage 1.

A trace is read in chunks, with gradients: between two insertions the synthesizer reads what is new plus the queries,
exactly as it does while decoding, so that m insertions cost one pass over the trace and not m. The frozen policy reads
everything before a row's first latents without gradient: nothing there depends on Phi.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tyler.modeling.backbone import Backbone
from tyler.modeling.synthesis import Heads
from tyler.training.gradient_checkpointing import ChunkCache
from tyler.training.objectives import token_logprobs


@dataclass(frozen=True)
class Insertion:
    """Latents of `operator` before target token `position` (b in the paper)."""

    position: int
    operator: str


@dataclass(frozen=True)
class Example:
    """(q, y) with the pairs (b, k) drawn for it, in the order of their positions."""

    prompt_ids: Sequence[int]
    target_ids: Sequence[int]
    insertions: tuple[Insertion, ...] = ()

    def __post_init__(self) -> None:
        positions = [insertion.position for insertion in self.insertions]
        assert positions == sorted(positions), "insertions are in the order of their positions"
        assert not positions or 0 <= positions[0] <= positions[-1] < len(self.target_ids), "and before a target"

    def __len__(self) -> int:
        """Tokens of prompt and target."""
        return len(self.prompt_ids) + len(self.target_ids)


class ChunkReader:
    """A decoder that reads right-padded chunks one after the other, with gradients.

    Keys are masked by position and by whether they count: padding never does, queries only within their own chunk.
    """

    def __init__(self, decoder: nn.Module, batch: int, device: torch.device, num_layers: int) -> None:
        self.decoder = decoder
        self.cache = ChunkCache(num_layers)
        self.positions: Int[Tensor, "batch keys"] = torch.zeros(batch, 0, dtype=torch.long, device=device)
        self.kept: Bool[Tensor, "batch keys"] = torch.zeros(batch, 0, dtype=torch.bool, device=device)

    def read(
        self, chunks: list[Float[Tensor, "seq dim"]], starts: list[int], forget: list[int]
    ) -> Float[Tensor, "batch seq dim"]:
        """Last hidden states of one chunk per row, which starts at context position `starts[i]` and may be empty.

        The last `forget[i]` positions of a chunk are seen by that chunk alone.
        """
        device = self.positions.device
        lengths = torch.tensor([len(chunk) for chunk in chunks], device=device)[:, None]
        embeds = pad_sequence(chunks, batch_first=True)
        steps = torch.arange(embeds.shape[1], device=device)
        positions = torch.tensor(starts, device=device)[:, None] + steps
        present = steps < lengths
        keys = torch.cat([self.positions, positions], dim=1)
        counted = torch.cat([self.kept, present], dim=1)
        mask = counted[:, None, :] & (keys[:, None, :] <= positions[:, :, None])
        # Padding sees at least itself: a query that sees nothing has no softmax, and NaN spreads through gradients.
        mask[:, steps, self.positions.shape[1] + steps] = True
        hidden = self.decoder(
            inputs_embeds=embeds,
            position_ids=positions,
            attention_mask=mask[:, None],
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        self.positions = keys
        self.kept = torch.cat([self.kept, steps < lengths - torch.tensor(forget, device=device)[:, None]], dim=1)
        return hidden


def synthesize(
    backbone: Backbone,
    decoder: nn.Module,
    heads: Heads,
    examples: Sequence[Example],
    inputs: Callable[[Tensor], Tensor] | None = None,
) -> list[list[Float[Tensor, "latents dim"]]]:
    """z_b^k = O_k(x_b) for every insertion of every example, with gradients to Phi; x_b holds the earlier latents.

    `inputs` maps the embeddings of the context, not the queries, before the decoder reads them; None leaves them.
    """
    reader = ChunkReader(decoder, len(examples), backbone.device, backbone.num_layers)
    embeds = [embed_ids(backbone, [*example.prompt_ids, *example.target_ids]) for example in examples]
    latents: list[list[Tensor]] = [[] for _ in examples]
    read = [0] * len(examples)  # tokens of each example that the synthesizer has read
    for turn in range(max(len(example.insertions) for example in examples)):
        chunks, starts, queries = [], [], []
        for row, example in enumerate(examples):
            starts.append(read[row] + sum(len(block) for block in latents[row][:-1]))
            if turn >= len(example.insertions):
                chunks.append(embeds[row][:0])
                queries.append(0)
                continue
            insertion = example.insertions[turn]
            head = heads[insertion.operator]
            end = len(example.prompt_ids) + insertion.position
            new = torch.cat([*latents[row][-1:], embeds[row][read[row] : end]])
            chunks.append(torch.cat([inputs(new) if inputs else new, head.queries.to(new.dtype)]))
            queries.append(head.num_latents)
            read[row] = end
        hidden = reader.read(chunks, starts, forget=queries)
        for row, example in enumerate(examples):
            if queries[row]:
                end = len(chunks[row])
                latents[row].append(heads[example.insertions[turn].operator](hidden[row, end - queries[row] : end]))
    return latents


def insert(
    backbone: Backbone, example: Example, latents: Sequence[Float[Tensor, "latents dim"]]
) -> tuple[Float[Tensor, "seq dim"], list[int]]:
    """The latent-augmented context, and for each target token the position that predicts it (c~_t of Eq. operator-sft).

    The token after a block is predicted from the block's last latent. The last target predicts nothing and is left out.
    """
    tokens = embed_ids(backbone, [*example.prompt_ids, *example.target_ids[:-1]])
    blocks: dict[int, list[Tensor]] = {insertion.position: [] for insertion in example.insertions}
    for insertion, block in zip(example.insertions, latents, strict=True):
        blocks[insertion.position].append(block)
    pieces, decided_at = [tokens[: len(example.prompt_ids)]], []
    length = len(example.prompt_ids)
    for target in range(len(example.target_ids)):
        for block in blocks.get(target, []):
            pieces.append(block)
            length += len(block)
        decided_at.append(length - 1)
        pieces.append(tokens[len(example.prompt_ids) + target :][:1])
        length += 1
    return torch.cat(pieces), decided_at


def target_logprobs(
    backbone: Backbone,
    examples: Sequence[Example],
    latents: Sequence[Sequence[Float[Tensor, "latents dim"]]],
    chunk_size: int | None = None,
    decoder: nn.Module | None = None,
    temperature: float = 1.0,
) -> tuple[Float[Tensor, "batch targets"], Bool[Tensor, "batch targets"]]:
    """log p(y_t | c~_t) for every visible target token, right-padded, and the mask of real ones.

    Positions before a row's first latents are read without gradient: they do not depend on Phi. Operators are not
    actions here: the distribution is over V. `decoder` is the backbone's, by default called plainly.
    """
    contexts, decided = zip(*(insert(backbone, *pair) for pair in zip(examples, latents, strict=True)), strict=True)
    splits = [first_latent(example) for example in examples]
    reader = ChunkReader(decoder or backbone.decoder, len(examples), backbone.device, backbone.num_layers)
    nothing = [0] * len(examples)
    with torch.no_grad():
        prefix = reader.read(
            [context[:split] for context, split in zip(contexts, splits, strict=True)], nothing, nothing
        )
    suffix = reader.read([context[split:] for context, split in zip(contexts, splits, strict=True)], splits, nothing)
    states = []
    for row, positions in enumerate(decided):
        before = [position for position in positions if position < splits[row]]
        after = [position - splits[row] for position in positions[len(before) :]]
        states.append(torch.cat([prefix[row, before], suffix[row, after]]))
    targets = torch.tensor([token for example in examples for token in example.target_ids], device=backbone.device)
    chosen = token_logprobs(torch.cat(states), backbone.head, targets, temperature=temperature, chunk_size=chunk_size)
    lengths = [len(example.target_ids) for example in examples]
    logprobs = pad_sequence(list(chosen.split(lengths)), batch_first=True)
    mask = torch.arange(max(lengths), device=backbone.device) < torch.tensor(lengths, device=backbone.device)[:, None]
    return logprobs, mask


def num_positions(example: Example, heads: Heads) -> int:
    """Positions of the latent-augmented context: tokens and latents."""
    return len(example) + sum(heads[insertion.operator].num_latents for insertion in example.insertions)


def first_latent(example: Example) -> int:
    """Context position of the first latent; without insertions, the last position that predicts a target."""
    if example.insertions:
        return len(example.prompt_ids) + example.insertions[0].position
    return len(example.prompt_ids) + len(example.target_ids) - 2


def embed_ids(backbone: Backbone, ids: Sequence[int]) -> Float[Tensor, "seq dim"]:
    """Embeddings of a list of ids, which may be empty."""
    return backbone.embed(torch.tensor(list(ids), device=backbone.device, dtype=torch.long))
