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

from tyler.serving.bodies import read
from tyler.serving.chat import part
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import DONE, answered, data, unless_disconnected
from tyler.serving.generation import Answer, Failed, Generation, Started, Usage
from tyler.serving.openapi import takes
from tyler.serving.schema import USUAL_TOKENS, CompletionRequest
from tyler.serving.scoring import Scored, name_of, score_answer, score_prompt, token_text, visible
from tyler.serving.service import Limits, Service


@dataclass(frozen=True)
class Continued:
    """A prompt as token ids, the scores of its tokens where it is echoed with them, and its text where it is echoed."""

    ids: list[int]
    text: str
    scores: list[Scored]


def routes(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/completions", **takes(CompletionRequest))
    async def completions(http: Request) -> Response:
        body = await read(CompletionRequest, http, service.settings.unknown_fields)
        check(service, body)
        ids = await asyncio.to_thread(prompts_of, service, body.prompt)
        if body.max_tokens == 0:
            service.answer_settings(body, Limits(1), seed=body.seed)  # refuses what it would
            return JSONResponse(await unless_disconnected(http, echoed(service, body, ids, http)))
        generation = await begin(service, body, ids, http)
        stream = partial(streamed, service, body, generation, ids) if body.stream else None
        one = partial(whole, service, body, generation, ids)
        return await answered(http, service.settings, generation, one, stream)

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
    """Every prompt as token ids. Raises ApiError for none, an empty one, and ids that are not tokens."""
    several = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt
    many = cast(list[str | list[int]], several)
    if not many:
        raise ApiError(400, "0 prompts; send at least one", param="prompt")
    service.check_characters(text for text in many if isinstance(text, str))
    ids = [tokens_of(service, one) if isinstance(one, str) else one for one in many]
    known = service.servable.model.backbone.vocab_size
    for one in ids:
        if not one:
            raise ApiError(400, "a prompt is empty; send at least one token", param="prompt")
        if max(one) >= known:
            raise ApiError(400, f"token id {max(one)} is out of range; ids go to {known - 1}", param="prompt")
    return ids


def tokens_of(service: Service, text: str) -> list[int]:
    """A text's token ids, with the tokenizer's own first token unless the text begins with it."""
    tokenizer = service.tokenizer
    first = tokenizer.bos_token
    return list(tokenizer.encode(text, add_special_tokens=first is None or not text.startswith(first), verbose=False))


async def begin(service: Service, body: CompletionRequest, ids: Sequence[list[int]], http: Request) -> Generation:
    """Queue the continuations of every prompt, `n` of each."""
    given = "max_tokens" in body.model_fields_set
    limits = Limits(body.max_tokens if given else min(USUAL_TOKENS, service.settings.max_new_tokens))
    settings = service.answer_settings(body, limits, n=body.n or 1, seed=body.seed)
    service.check_room(len(ids) * (body.n or 1))
    requests = [request for one in ids for request in await service.requests(one, settings, body.n or 1)]
    return await service.generate(http, body, requests, prompts=len(ids))


# -- whole -----------------------------------------------------------------------------------------------------------


async def whole(
    service: Service, body: CompletionRequest, generation: Generation, ids: Sequence[list[int]]
) -> dict[str, Any]:
    """All continuations."""
    answers, n = await generation.finished(), body.n or 1
    choices = []
    for at, one in enumerate(ids):
        prompt = await continued(service, body, one)
        for index in range(at * n, at * n + n):
            choices.append(await choice(service, body, index, prompt, answers[index]))
    start = envelope(service, generation.id, generation.created)
    return start | {"choices": choices, "usage": generation.usage.of_chat()}


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
    return envelope(service, id, created) | {"choices": choices, "usage": usage}


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


def envelope(service: Service, id: str, created: int) -> dict[str, Any]:
    """What every object begins with."""
    return {"id": f"cmpl-{id}", "object": "text_completion", "created": created, "model": service.settings.name}


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
        found = logprobs(service, [*prompt.scores, *visible(scored, answer.done)])
    return {
        "index": index,
        "text": prompt.text + answer.text,
        "logprobs": found,
        "finish_reason": answer.finish_reason,
        "tyler": answer.details(),
    }


def logprobs(service: Service, scored: Sequence[Scored]) -> dict[str, Any]:
    """Scores as completions have them: lists over the tokens; a drawn operator stands among them without text."""
    offsets, end = [], 0
    for one in scored:
        offsets.append(end)
        end += len(one.text)
    tops = [{token_text(service.tokenizer, token): logprob for token, logprob in reversed(one.top)} for one in scored]
    return {
        "tokens": [name_of(service.tokenizer, one) for one in scored],
        "token_logprobs": [one.logprob for one in scored],
        "top_logprobs": [top if one.logprob is not None else None for one, top in zip(scored, tops, strict=True)],
        "text_offset": offsets,
    }


# -- a stream --------------------------------------------------------------------------------------------------------


async def streamed(
    service: Service, body: CompletionRequest, generation: Generation, ids: Sequence[list[int]]
) -> AsyncGenerator[bytes, None]:
    """The continuations as they come, then their usage where asked for. Invocations stand beside the text only."""
    start, n = envelope(service, generation.id, generation.created), body.n or 1
    start |= {"usage": None} if body.includes_usage else {}
    async for pieces in generation.pieces():
        for piece in pieces:
            if isinstance(piece, Failed):
                yield data(ApiError(500, piece.message, code="engine_failed").body())
                return
            shown = part(generation.answers[piece.index], piece)
            text = shown.pop("delta").get("content", "")
            if isinstance(piece, Started):
                if not body.echo:
                    continue
                text = str(service.tokenizer.decode(ids[piece.index // n]))
            yield data(start | {"choices": [shown | {"text": text}]})
    if body.includes_usage:
        yield data(start | {"choices": [], "usage": generation.usage.of_chat()})
    yield DONE
