"""`POST /v1/completions`: texts and token ids are continued as they are, with log-probabilities for evaluations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal, Self, cast

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import Response

from tyler.engine.request import TokenEvent
from tyler.serving.bodies import read, takes
from tyler.serving.chat import Choices, part
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import answered
from tyler.serving.generation import Answer, Finished, Generation, Piece, Started, Text
from tyler.serving.schema import Ids, Limits, Sampled
from tyler.serving.schema import Text as BoundedText
from tyler.serving.scoring import Scored, name_of, score_prompt, token_text, told
from tyler.serving.service import Service

MOST_PROMPTS = 512
USUAL_TOKENS = 16
"""Of a completion that does not say, as in OpenAI's API; fewer where the server allows fewer."""


class CompletionRequest(Sampled):
    """A text, or token ids, or several of either."""

    prompt: (
        BoundedText
        | Ids
        | Annotated[list[BoundedText], Field(max_length=MOST_PROMPTS, fail_fast=True)]
        | Annotated[list[Ids], Field(max_length=MOST_PROMPTS, fail_fast=True)]
    )
    max_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = None
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Literal[1] | None = None

    @model_validator(mode="after")
    def _nothing_only_with_echo(self) -> Self:
        if self.max_tokens == 0 and (not self.echo or self.stream or self.answers > 1):
            message = "max_tokens=0 only with echo, without stream and n; else send 1 or more"
            raise ApiError(400, message, param="max_tokens")
        return self

    @property
    def limits(self) -> Limits:
        return Limits(self.max_tokens or None, usual=USUAL_TOKENS)

    @property
    def answers(self) -> int:
        return 0 if self.max_tokens == 0 else super().answers

    @property
    def alternatives(self) -> int:
        return self.logprobs or 0


def routes(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/completions", **takes(CompletionRequest))
    async def completions(http: Request) -> Response:
        body = await read(CompletionRequest, http, service.settings.unknown_fields)
        service.check_model(body.model)
        ids = await asyncio.to_thread(prompts_of, service, body.prompt)
        generation = await service.begin(http, body, ids)
        return await answered(http, Completion(service, body, generation))

    return router


def prompts_of(service: Service, prompt: str | list[int] | list[str] | list[list[int]]) -> list[list[int]]:
    """Every prompt as token ids. Raises ApiError for none, an empty one, and ids that are not tokens."""
    several = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt
    many = cast(list[str | list[int]], several)
    if not many:
        raise ApiError(400, "0 prompts; send at least one", param="prompt")
    service.check_characters(text for text in many if isinstance(text, str))
    longest = service.servable.model.backbone.max_positions
    ids = [tokens_of(service, one) if isinstance(one, str) else one for one in many]
    for one in ids:
        if not one:
            raise ApiError(400, "a prompt is empty; send at least one token", param="prompt")
        service.check_ids(one, "prompt")
        if len(one) > longest:
            message = f"the prompt has {len(one)} tokens, and this model's context {longest} positions"
            code = "context_length_exceeded"
            raise ApiError(400, f"{message}; shorten the prompt", param="prompt", code=code)
    return ids


def tokens_of(service: Service, text: str) -> list[int]:
    """A text's token ids, with the tokenizer's own first token unless the text begins with it."""
    tokenizer = service.tokenizer
    first = tokenizer.bos_token
    return list(tokenizer.encode(text, add_special_tokens=first is None or not text.startswith(first), verbose=False))


@dataclass(frozen=True)
class Echoed:
    """A prompt as the answer repeats it: its text, and the scores of its tokens; empty where it is not echoed."""

    text: str = ""
    scores: Sequence[Scored] = ()


async def echoed(service: Service, body: CompletionRequest, ids: Sequence[int]) -> Echoed:
    """A prompt, scored where that is asked for."""
    if not body.echo:
        return Echoed()
    scores = list[Scored]()
    if body.logprobs is not None:
        scores = await service.dispatcher.between_steps(partial(score_prompt, ids=ids, top=body.logprobs))
    return Echoed(str(service.tokenizer.decode(list(ids))), scores)


class Completion(Choices[CompletionRequest]):
    """Texts, after their prompts where these are echoed. Invocations stand beside the text only."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, service: Service, body: CompletionRequest, generation: Generation) -> None:
        super().__init__(service, body, generation)
        self.style = "inline"
        self._prompts = list[Echoed]()
        self._sent = [0] * len(generation.answers)  # characters of each

    async def prepare(self) -> None:
        self._prompts = [await echoed(self.service, self.body, ids) for ids in self.generation.prompts]
        if not self.generation.answers:
            self.generation.done()

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        found = super().whole(pieces)
        if not self.generation.answers:  # prompts that were only scored
            scores = [logprobs(self.service, self.body, prompt.scores) for prompt in self._prompts]
            found["choices"] = [
                {"index": index, "text": prompt.text, "logprobs": its, "finish_reason": "length"}
                for index, (prompt, its) in enumerate(zip(self._prompts, scores, strict=True))
            ]
        return found

    def choice(self, answer: Answer) -> dict[str, Any]:
        prompt = self._prompts[answer.index // self.body.answers]
        scored: list[Scored | TokenEvent] = [*prompt.scores, *told(answer.tokens), *ending(answer)]
        return {"text": prompt.text + answer.text, "logprobs": logprobs(self.service, self.body, scored)}

    def part(self, answer: Answer, piece: Piece) -> dict[str, Any] | None:
        shown, scored = part(answer, piece), list[Scored | TokenEvent]()
        text = shown.pop("delta").get("content", "")
        match piece:
            case Started(index=index):
                if not self.body.echo:
                    return None
                prompt = self._prompts[index // self.body.answers]
                text, scored = prompt.text, [*prompt.scores]
            case Text(tokens=tokens):
                scored = [*told(tokens)]
            case Finished():
                scored = [*ending(answer)]
        start = self._sent[answer.index]
        self._sent[answer.index] += len(text)
        return shown | {"text": text, "logprobs": logprobs(self.service, self.body, scored, start) if scored else None}


def ending(answer: Answer) -> list[Scored]:
    """What stands among the tokens without text: the end token, or that no token came, for who counts on one."""
    done = answer.done
    if done.finish_reason == "eos":
        return [Scored(done.actions[-1], "", done.logprobs[-1])]
    return [] if answer.tokens else [Scored(None, "", None)]


def logprobs(
    service: Service, body: CompletionRequest, scored: Sequence[Scored | TokenEvent], start: int = 0
) -> dict[str, Any] | None:
    """Scores as completions have them, where they are asked for: lists over the tokens, whose text begins at the
    character `start`."""
    if body.logprobs is None:
        return None
    tops = [{token_text(service.tokenizer, token): logprob for token, logprob in reversed(one.top)} for one in scored]
    return {
        "tokens": [name_of(service.tokenizer, one) for one in scored],
        "token_logprobs": [one.logprob for one in scored],
        "top_logprobs": [top if one.logprob is not None else None for one, top in zip(scored, tops, strict=True)],
        "text_offset": list(accumulate((len(one.text) for one in scored[:-1]), initial=start)) if scored else [],
    }
