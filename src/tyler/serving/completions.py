"""`POST /v1/completions`: texts and token ids are continued as they are, with log-probabilities for evaluations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tyler.engine.request import TokenEvent
from tyler.serving.bodies import read
from tyler.serving.chat import part
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import DONE, answered, data, unless_disconnected
from tyler.serving.generation import Answer, Failed, Finished, Generation, Started, Text, Usage
from tyler.serving.openapi import takes
from tyler.serving.schema import USUAL_TOKENS, CompletionRequest
from tyler.serving.scoring import Scored, name_of, score_prompt, token_text, told
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
            choices.append(choice(service, body, index, prompt, answers[index]))
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
            scores = None if body.logprobs is None else logprobs(service, prompt.scores, 0)
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


def choice(service: Service, body: CompletionRequest, index: int, prompt: Continued, answer: Answer) -> dict[str, Any]:
    """One continuation, after its prompt where that is echoed."""
    scored: list[Scored | TokenEvent] = [*prompt.scores, *told(answer.tokens), *ending(answer)]
    found = None if body.logprobs is None else logprobs(service, scored, 0)
    return {
        "index": index,
        "text": prompt.text + answer.text,
        "logprobs": found,
        "finish_reason": answer.finish_reason,
        "tyler": answer.details(),
    }


def ending(answer: Answer) -> list[Scored]:
    """What stands among the tokens without text: the end token, or that no token came, for who counts on one."""
    done = answer.done
    if done.finish_reason == "eos":
        return [Scored(done.actions[-1], "", done.logprobs[-1])]
    return [] if answer.tokens else [Scored(None, "", None)]


def logprobs(service: Service, scored: Sequence[Scored | TokenEvent], start: int) -> dict[str, Any]:
    """Scores as completions have them: lists over the tokens, whose text begins at the character `start`."""
    offsets = list(accumulate((len(one.text) for one in scored), initial=start))[: len(scored)]
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
    sent = [0] * len(generation.answers)  # characters of each
    async for pieces in generation.pieces():
        for piece in pieces:
            if isinstance(piece, Failed):
                yield data(ApiError(500, piece.message, code="engine_failed").body())
                return
            shown = part(generation.answers[piece.index], piece)
            text, scored = shown.pop("delta").get("content", ""), list[Scored | TokenEvent]()
            if isinstance(piece, Started):
                if not body.echo:
                    continue
                prompt = await continued(service, body, ids[piece.index // n])
                text, scored = prompt.text, [*prompt.scores]
            elif isinstance(piece, Text):
                scored = [*told(piece.tokens)]
            elif isinstance(piece, Finished):
                scored = [*ending(generation.answers[piece.index])]
            if scored and body.logprobs is not None:
                shown["logprobs"] = logprobs(service, scored, sent[piece.index])
            sent[piece.index] += len(text)
            yield data(start | {"choices": [shown | {"text": text}]})
    if body.includes_usage:
        yield data(start | {"choices": [], "usage": generation.usage.of_chat()})
    yield DONE
