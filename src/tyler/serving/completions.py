"""`POST /v1/completions`: texts and token ids are continued as they are, with log-probabilities for evaluations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tyler.engine.shared_engine import DecodingError
from tyler.serving.answers import Answer, Usage
from tyler.serving.chat import parts
from tyler.serving.errors import ApiError, engine_failed
from tyler.serving.event_stream import DONE, EventStream, data, unless_disconnected
from tyler.serving.schema import USUAL_TOKENS, CompletionRequest
from tyler.serving.scoring import Scored, name_of, score_answer, score_prompt, token_text
from tyler.serving.service import Exchange, Service

MOST_PROMPTS = 512
"""Prompts of one request."""


@dataclass(frozen=True)
class Continued:
    """A prompt as token ids, the scores of its tokens where it is echoed with them, and its text where it is echoed."""

    ids: list[int]
    text: str
    scores: list[Scored]


def routes(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, http: Request) -> Response:
        check(service, body)
        ids = await asyncio.to_thread(prompts_of, service, body.prompt)
        if body.max_tokens == 0:
            service.answer_settings(body, max_new_tokens=1, seed=body.seed, stop=body.stops)  # refuses what it would
            return JSONResponse(await unless_disconnected(http, echoed(service, body, ids, http)))
        exchange = await begin(service, body, ids, http)
        if body.stream:
            source = streamed(service, body, exchange, ids)
            return EventStream(source, exchange.close, service.settings)
        try:
            return JSONResponse(await unless_disconnected(http, whole(service, body, exchange, ids)))
        finally:
            await exchange.close()

    return router


def check(service: Service, body: CompletionRequest) -> None:
    """Raise ApiError for fields that do not go together."""
    service.check_model(body.model)
    if body.stream and body.logprobs is not None:
        raise ApiError(400, "logprobs are not streamed; ask without stream", param="logprobs")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream=true", param="stream_options")
    if body.max_tokens == 0 and (not body.echo or body.stream or (body.n or 1) > 1):
        raise ApiError(
            400, "max_tokens=0 only with echo, without stream and n; else send 1 or more", param="max_tokens"
        )


def prompts_of(service: Service, prompt: str | list[int] | list[str] | list[list[int]]) -> list[list[int]]:
    """Every prompt as token ids. Raises ApiError for none, too many, an empty one, and ids that are no tokens."""
    several = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt
    many = cast(list[str | list[int]], several)
    if not 0 < len(many) <= MOST_PROMPTS:
        raise ApiError(400, f"{len(many)} prompts; send 1 to {MOST_PROMPTS}", param="prompt")
    for text in many:
        service.check_characters([text] if isinstance(text, str) else [])
    ids = [tokens_of(service, one) if isinstance(one, str) else one for one in many]
    known = service.servable.model.backbone.vocab_size
    for one in ids:
        if not one:
            raise ApiError(400, "a prompt is empty; send at least one token", param="prompt")
        if wrong := [id for id in one if not 0 <= id < known]:
            raise ApiError(400, f"{wrong[0]} is no token of this model; ids go to {known - 1}", param="prompt")
    return ids


def tokens_of(service: Service, text: str) -> list[int]:
    """A text's token ids, with the tokenizer's own first token unless the text begins with it."""
    tokenizer = service.tokenizer
    first = tokenizer.bos_token
    return list(tokenizer.encode(text, add_special_tokens=first is None or not text.startswith(first)))


async def begin(service: Service, body: CompletionRequest, ids: Sequence[list[int]], http: Request) -> Exchange:
    """Ask the engine for every prompt, `n` times each."""
    said = "max_tokens" in body.model_fields_set
    longest = body.max_tokens if said else min(USUAL_TOKENS, service.settings.max_new_tokens)
    settings = service.answer_settings(body, max_new_tokens=longest, seed=body.seed, stop=body.stops)
    requests = []
    for one in ids:
        make = partial(service.servable.continuation, one, settings)
        requests += await service.requests(make, body.n or 1)
    return await service.exchange(http, body, requests, prompts=len(ids))


# -- whole -----------------------------------------------------------------------------------------------------------


async def whole(
    service: Service, body: CompletionRequest, exchange: Exchange, ids: Sequence[list[int]]
) -> dict[str, Any]:
    """All continuations."""
    answers, n = await exchange.finished(), body.n or 1
    choices = []
    for place, one in enumerate(ids):
        prompt = await continued(service, body, one)
        for index in range(place * n, place * n + n):
            choices.append(await choice(service, body, index, prompt, answers[index]))
    return envelope(exchange.id, exchange.created, exchange.model) | {
        "choices": choices,
        "usage": exchange.usage.of_chat(),
    }


async def echoed(service: Service, body: CompletionRequest, ids: Sequence[list[int]], http: Request) -> dict[str, Any]:
    """The prompts alone, scored."""
    choices, created = [], int(time.time())
    for one in ids:
        check_length(service, one)
    with service.scoring(http, body, ids) as id:
        for index, one in enumerate(ids):
            prompt = await continued(service, body, one)
            scores = None if body.logprobs is None else logprobs(service, prompt.scores)
            choices.append({"index": index, "text": prompt.text, "logprobs": scores, "finish_reason": "length"})
    usage = Usage(sum(map(len, ids)), 0, 0).of_chat()
    return envelope(id, created, service.settings.name) | {"choices": choices, "usage": usage}


def check_length(service: Service, ids: Sequence[int]) -> None:
    """Raise ApiError for a prompt that the model cannot hold."""
    longest = service.servable.model.backbone.max_positions
    if len(ids) > longest:
        message = f"the prompt has {len(ids)} tokens, and this model's context {longest} positions; shorten the prompt"
        raise ApiError(400, message, param="prompt", code="context_length_exceeded")


async def continued(service: Service, body: CompletionRequest, ids: list[int]) -> Continued:
    """A prompt, scored where that is asked for."""
    if not body.echo:
        return Continued(ids, "", [])
    scores = []
    if body.logprobs is not None:
        scores = await service.dispatcher.between_steps(partial(score_prompt, ids=ids, top=body.logprobs))
    return Continued(ids, str(service.tokenizer.decode(ids)), scores)


def envelope(id: str, created: int, model: str) -> dict[str, Any]:
    """What every object begins with."""
    return {"id": f"cmpl-{id}", "object": "text_completion", "created": created, "model": model}


async def choice(
    service: Service, body: CompletionRequest, index: int, prompt: Continued, answer: Answer
) -> dict[str, Any]:
    """One continuation, after its prompt where that is echoed."""
    found: dict[str, Any] | None = None
    if body.logprobs is not None:
        work = partial(score_answer, trajectory=answer.done, top=body.logprobs)
        try:
            scored = await service.dispatcher.between_steps(work)
        except ValueError as error:
            raise ApiError(400, str(error), param="logprobs") from error
        found = logprobs(service, [*prompt.scores, *scored])
    return {
        "index": index,
        "text": prompt.text + answer.text,
        "logprobs": found,
        "finish_reason": answer.finish_reason,
        "tyler": answer.details(),
    }


def logprobs(service: Service, scored: Sequence[Scored]) -> dict[str, Any]:
    """Scores as completions have them: lists over the tokens; a drawn operator stands among them by its mark."""
    offsets, end = [], 0
    for one in scored:
        offsets.append(end)
        end += len(one.text) if one.token is not None else 0
    tops = [{token_text(service.tokenizer, token): logprob for token, logprob in reversed(one.top)} for one in scored]
    return {
        "tokens": [name_of(service.tokenizer, one) for one in scored],
        "token_logprobs": [one.logprob for one in scored],
        "top_logprobs": [top if one.logprob is not None else None for one, top in zip(scored, tops, strict=True)],
        "text_offset": offsets,
    }


# -- a stream --------------------------------------------------------------------------------------------------------


async def streamed(
    service: Service, body: CompletionRequest, exchange: Exchange, ids: Sequence[list[int]]
) -> AsyncGenerator[bytes, None]:
    """The continuations as they come, then their usage where asked for. Invocations stand beside the text only."""
    start, n = envelope(exchange.id, exchange.created, exchange.model), body.n or 1
    start |= {"usage": None} if body.includes_usage else {}
    if body.echo:
        for index in range(len(exchange.answers)):
            text = str(service.tokenizer.decode(ids[index // n]))
            yield data(start | {"choices": [{"index": index, "text": text, "logprobs": None, "finish_reason": None}]})
    try:
        async for batch in exchange.events():
            for index, answer in enumerate(exchange.answers):
                mine = [event for event in batch if event.index == index]
                for one in parts(index, answer, mine, "hidden"):
                    text = one.pop("delta").get("content", "")
                    yield data(start | {"choices": [one | {"text": text}]})
    except DecodingError as error:
        yield data(engine_failed(str(error)).body())
        return
    if body.includes_usage:
        yield data(start | {"choices": [], "usage": exchange.usage.of_chat()})
    yield DONE
