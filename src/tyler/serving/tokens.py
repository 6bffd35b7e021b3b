"""`POST /tokenize` and `/detokenize`: what the model's tokenizer makes of texts and conversations, and back."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import Request
from starlette.responses import JSONResponse, Response

from tyler.serving.errors import ApiError
from tyler.serving.schema import Ids, Name, Strict, Text, Turns, conversation_of
from tyler.serving.service import Service


class TokenizeRequest(Strict):
    """A text as it is, or a conversation in the chat template."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Turns | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(Strict):
    """Token ids of a text."""

    model: Name | None = None
    tokens: Ids


async def tokenize(service: Service, http: Request, body: TokenizeRequest) -> Response:
    """The token ids of a text, or of a conversation's prompt. Raises ApiError where neither or both are sent."""
    service.check_model(body.model or service.settings.name)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "send either prompt or messages", param="prompt")
    if body.messages is not None:
        ids = await service.prompt_ids(conversation_of(body.messages))
    else:
        service.check_characters([body.prompt or ""])
        encode = partial(service.tokenizer.encode, add_special_tokens=body.add_special_tokens, verbose=False)
        ids = await asyncio.to_thread(encode, body.prompt)
    longest = service.servable.model.backbone.max_positions
    return JSONResponse({"count": len(ids), "max_model_len": longest, "tokens": list(ids)})


async def detokenize(service: Service, http: Request, body: DetokenizeRequest) -> Response:
    """The text of token ids. Raises ApiError for ids that are not tokens."""
    service.check_model(body.model or service.settings.name)
    known = service.servable.model.backbone.vocab_size
    if (largest := max(body.tokens, default=0)) >= known:
        raise ApiError(400, f"token id {largest} is out of range; ids go to {known - 1}", param="tokens")
    return JSONResponse({"prompt": await asyncio.to_thread(service.tokenizer.decode, body.tokens)})
