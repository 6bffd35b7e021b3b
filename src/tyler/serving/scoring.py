"""log p of a prompt's tokens and of what was decoded after it, with the most probable alternatives.

One pass over the whole context, latents replayed, with the decoder that decodes: the numbers are those of decoding, and
those of `tyler.evaluation.harness`, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tyler.engine.detokenizer import IncrementalDetokenizer
from tyler.engine.native.engine import Engine
from tyler.engine.sampling import masked_logits
from tyler.engine.sizes import positions_at_once
from tyler.engine.trajectory import Trajectory, replay_context

BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}
"""The bytes that letters of a byte-level token stand for."""


@dataclass(frozen=True)
class Scored:
    """A token, or a drawn operator (`token` None), with log p (None for the first of a prompt) and its alternatives.

    `cut` marks a token of which a stop string has left only the text that is here.
    """

    token: int | None
    text: str
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
    cut: bool = False


@torch.no_grad()
def score_prompt(engine: Engine, ids: Sequence[int], top: int) -> list[Scored]:
    """log p over V of every token of a text under the policy, without operators."""
    device = engine.backbone.device
    states = hidden_states(engine, engine.backbone.embed(torch.tensor(list(ids), device=device)))
    logprobs, alternatives = [None], [()]  # type: list[float | None], list[tuple[tuple[int, float], ...]]
    for first, part in chunks(states[:-1], engine.backbone.vocab_size):
        table = engine.policy.token_logits(part).log_softmax(dim=-1)
        chosen = torch.tensor(list(ids[first + 1 : first + 1 + len(part)]), device=device)
        logprobs += table.gather(-1, chosen[:, None]).squeeze(-1).tolist()
        alternatives += best(table, top)
    texts = pieces(engine.backbone.tokenizer, ids)
    return [Scored(*one) for one in zip(ids, texts, logprobs, alternatives, strict=True)]


@torch.no_grad()
def score_answer(engine: Engine, trajectory: Trajectory, top: int) -> list[Scored]:
    """log p of every action as it was decoded, and what else was probable at its place.

    Raises ValueError for an answer with soft tokens, whose vectors are not kept.
    """
    device, vocab = engine.backbone.device, trajectory.vocab_size
    alternatives: list[tuple[tuple[int, float], ...]] = [()] * len(trajectory.actions)
    if top and trajectory.actions:
        embeds, decided_at = replay_context(trajectory, engine.backbone.embed, device)
        allowed, alternatives = trajectory.allowed().to(device), []
        for first, part in chunks(hidden_states(engine, embeds)[decided_at], vocab):
            scale = torch.full((len(part),), trajectory.sampling.scale, device=device)
            logits = masked_logits(engine.policy.logits(part), allowed[first : first + len(part)], scale)
            alternatives += best(logits.log_softmax(dim=-1)[:, :vocab], top)
    tokens = [action for action in trajectory.actions if action < vocab]
    texts = iter(pieces(engine.backbone.tokenizer, tokens))
    found = []
    for action, logprob, others in zip(trajectory.actions, trajectory.logprobs, alternatives, strict=True):
        if action < vocab:
            # One number for one token: the pass over the whole context rounds otherwise than decoding did.
            told = tuple((token, logprob if token == action else other) for token, other in others)
            found.append(Scored(action, next(texts), logprob, told))
        else:
            found.append(Scored(None, "", logprob, others))
    return found


def hidden_states(engine: Engine, embeds: Float[Tensor, "seq dim"]) -> Float[Tensor, "seq dim"]:
    """The policy's last hidden states of a context."""
    decoder = engine.batch.policy_reader.decoder
    states: Tensor = decoder(inputs_embeds=embeds[None], use_cache=False).last_hidden_state[0]
    return states


def chunks(states: Float[Tensor, "seq dim"], vocab: int) -> list[tuple[int, Tensor]]:
    """Parts whose logits are computed at a time, and where each begins."""
    size = positions_at_once(vocab)
    return [(first, states[first : first + size]) for first in range(0, len(states), size)]


def best(logprobs: Float[Tensor, "seq vocab"], top: int) -> list[tuple[tuple[int, float], ...]]:
    """The most probable tokens of each position."""
    if not top:
        return [()] * len(logprobs)
    values, ids = logprobs.topk(top, dim=-1)
    return [tuple(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]


def pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text of each token, special ones by their names; those of a split character are empty but for the last."""
    detokenizer, special = IncrementalDetokenizer(tokenizer), set(tokenizer.all_special_ids)
    detokenizer.tokens.extend(ids)
    texts = list(detokenizer)
    return [token_text(tokenizer, id) if id in special else text for id, text in zip(ids, texts, strict=True)]


def byte_level(tokenizer: PreTrainedTokenizerBase, id: int) -> bytes | None:
    """The bytes of a byte-level token, which may begin or end inside a character; None for a token of another kind."""
    letters = str(tokenizer.convert_ids_to_tokens(id))
    return bytes(BYTES[letter] for letter in letters) if all(letter in BYTES for letter in letters) else None


def token_text(tokenizer: PreTrainedTokenizerBase, id: int) -> str:
    r"""One token alone; bytes that are no text as OpenAI writes them, "bytes:\xe3\x82"."""
    found = byte_level(tokenizer, id)
    if found is None:
        return str(tokenizer.decode([id]))
    try:
        return found.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)


def token_bytes(tokenizer: PreTrainedTokenizerBase, id: int) -> bytes:
    """The bytes of one token alone."""
    found = byte_level(tokenizer, id)
    return token_text(tokenizer, id).encode() if found is None else found


def visible(scored: Sequence[Scored], trajectory: Trajectory) -> list[Scored]:
    """What was drawn in an answer, without what a stop string cut off its text; the texts of tokens join to its own."""
    left = len(trajectory.text)
    if trajectory.finish_reason != "stop":
        return list(scored)
    found = list[Scored]()
    for one in scored:
        if not left:
            break
        found.append(one if len(one.text) <= left else replace(one, text=one.text[:left], cut=True))
        left -= len(found[-1].text)
    return found


def name_of(tokenizer: PreTrainedTokenizerBase, scored: Scored) -> str:
    """What a token is called, as among its alternatives: itself, or its text in the answer where it says less."""
    if scored.token is None or scored.cut or byte_level(tokenizer, scored.token) is None:
        return scored.text
    return token_text(tokenizer, scored.token)
