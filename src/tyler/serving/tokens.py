"""`POST /tokenize` and `/detokenize`: what the model's tokenizer makes of texts and conversations, and back."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tyler.reasoners.reasoner import AnswerSettings
from tyler.serving.bodies import read, takes
from tyler.serving.errors import ApiError
from tyler.serving.schema import Body, Ids, Messages, Name, Text, conversation_of
from tyler.serving.service import Service


class TokenizeRequest(Body):
    """A text as it is, or a conversation in the chat template."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(Body):
    """Token ids of a text."""

    model: Name | None = None
    tokens: Ids


def routes(service: Service) -> APIRouter:
    """The endpoints."""
    router = APIRouter()

    @router.post("/tokenize", **takes(TokenizeRequest))
    async def tokenize(http: Request) -> Response:
        body = await read(TokenizeRequest, http, service.settings.unknown_fields)
        ids = await ids_of(service, body)
        longest = service.servable.model.backbone.max_positions
        return JSONResponse({"count": len(ids), "max_model_len": longest, "tokens": ids})

    @router.post("/detokenize", **takes(DetokenizeRequest))
    async def detokenize(http: Request) -> Response:
        body = await read(DetokenizeRequest, http, service.settings.unknown_fields)
        service.check_model(body.model or service.settings.name)
        service.check_ids(body.tokens, "tokens")
        return JSONResponse({"prompt": service.tokenizer.decode(body.tokens)})

    return router


async def ids_of(service: Service, body: TokenizeRequest) -> list[int]:
    """The token ids of a text, or of a conversation's prompt. Raises ApiError where neither or both are sent."""
    service.check_model(body.model or service.settings.name)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "send either prompt or messages", param="prompt")
    if body.messages is not None:
        settings = AnswerSettings(max_new_tokens=1)
        return list((await service.requests(conversation_of(body.messages), settings))[0].prompt_ids)
    service.check_characters([body.prompt or ""])
    tokenizer = service.tokenizer
    return list(tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens, verbose=False))
