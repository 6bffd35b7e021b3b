"""log p of a prompt's tokens, and of an answer's as it was decoded, with the most probable alternatives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tyler.boundaries.detokenizer import IncrementalDetokenizer
from tyler.config.sizes import positions_at_once
from tyler.engine.base import BaseEngine
from tyler.engine.request import TokenEvent
from tyler.modeling.tokenizer import byte_level


@dataclass(frozen=True)
class Scored:
    """A token of a prompt with log p (None for the first) and its alternatives; or the end, where none came (None)."""

    token: int | None
    text: str
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@torch.no_grad()
def score_prompt(engine: BaseEngine, ids: Sequence[int], top: int) -> list[Scored]:
    """log p over V of every token of a text under the policy, without operators, whatever the engine decodes with."""
    tokens = torch.tensor(list(ids), device=engine.backbone.device)
    decoder, size = engine.policy.decoder, positions_at_once(engine.backbone.vocab_size)
    embeds = engine.backbone.embed(tokens)[None]
    states: Float[Tensor, "seq dim"] = decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state[0, :-1]
    logprobs, alternatives = [None], [()]  # type: list[float | None], list[tuple[tuple[int, float], ...]]
    for part, chosen in zip(states.split(size), tokens[1:].split(size), strict=True):  # so many logits exist at a time
        table = engine.policy.token_logits(part).log_softmax(dim=-1)
        logprobs += table.gather(-1, chosen[:, None]).squeeze(-1).tolist()
        best = table.topk(top, dim=-1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        alternatives += [tuple(zip(*pair, strict=True)) for pair in pairs]
    texts = pieces(engine.backbone.tokenizer, ids)
    return [Scored(*one) for one in zip(ids, texts, logprobs, alternatives, strict=True)]


def pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text of each token, special ones by their names; those of a split character are empty but for the last."""
    texts, special = IncrementalDetokenizer(tokenizer, ids), set(tokenizer.all_special_ids)
    return [name_of(tokenizer, id) if id in special else text for id, text in zip(ids, texts, strict=True)]


def token_bytes(tokenizer: PreTrainedTokenizerBase, token: int | Scored | TokenEvent) -> bytes:
    """The bytes of a token alone, or of one in a text: there it may have been cut, or have a space before it."""
    if isinstance(token, int):
        own, text = byte_level(tokenizer, token), str(tokenizer.decode([token]))
    else:
        is_whole = token.token is not None and not (isinstance(token, TokenEvent) and token.cut)
        own, text = byte_level(tokenizer, token.token or 0) if is_whole else None, token.text
    return text.encode() if own is None else own


def name_of(tokenizer: PreTrainedTokenizerBase, token: int | Scored | TokenEvent) -> str:
    r"""A token as text; bytes that are not text as OpenAI writes them, "bytes:\xe3\x82"."""
    found = token_bytes(tokenizer, token)
    try:
        return found.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)


def entries_of(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[TokenEvent]) -> list[dict[str, Any]]:
    """The tokens of a text as chats and responses have them, control tokens left out."""

    def entry(token: int | TokenEvent, logprob: float) -> dict[str, Any]:
        return {"token": name_of(tokenizer, token), "logprob": logprob, "bytes": list(token_bytes(tokenizer, token))}

    special = set(tokenizer.all_special_ids)
    shown = [token for token in tokens if token.token not in special]
    return [entry(token, token.logprob) | {"top_logprobs": [entry(*other) for other in token.top]} for token in shown]
