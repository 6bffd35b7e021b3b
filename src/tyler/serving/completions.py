"""`POST /v1/chat/completions` and `/v1/completions`; `/tokenize` and `/detokenize` for the same conversations.

In a chat invocations appear as reasoning, where they happen, so that clients show them. In completions texts and token
ids are continued as they are, with log-probabilities for evaluations.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from tyler.engine.request import TokenEvent
from tyler.serving import schema
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import Event, Rendering, encoded
from tyler.serving.generation import Answer, Failed, Finished, Invocation, Piece, Started, Text, mark
from tyler.serving.schema import Alternatives, Count, Effort, Ids, Sampled, Strict, Turns, Wanted, conversation_of
from tyler.serving.scoring import Scored, entries_of, name_of, score_prompt
from tyler.serving.service import Service

Choosing = TypeVar("Choosing", bound=Sampled)
Some = Field(min_length=1, max_length=512, fail_fast=True)
SomeIds = Annotated[Ids, Field(min_length=1)]
USUAL_TOKENS = 16
"""Of a completion that does not say, as in OpenAI's API; fewer where the server allows fewer."""


class ChatRequest(Sampled):
    """An assistant's turn at the end is the beginning of the answer."""

    messages: Turns
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    reasoning_effort: Effort | None = None
    logprobs: bool = False
    top_logprobs: Alternatives | None = None

    @property
    def wanted(self) -> Wanted:
        lengths = {"max_tokens": self.max_tokens, "max_completion_tokens": self.max_completion_tokens}
        given = [(length, field) for field, length in lengths.items() if length is not None]
        length, field = min(given, default=(None, "max_tokens"))
        return self.sampled(
            [conversation_of(self.messages)],
            length=length,
            length_field=field,
            effort=self.reasoning_effort,
            alternatives=self.top_logprobs or 0,
        )


class Choices(Rendering[Choosing]):
    """One object with a choice for each answer, or chunks with some of each: what chats and completions have."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    @abstractmethod
    def choice(self, answer: Answer) -> dict[str, Any]:
        """A choice of the one object, but for what all of them have."""

    def part(self, answer: Answer, piece: Piece) -> dict[str, Any]:
        """A choice of a chunk. Nothing structured goes into `delta`: clients add up whatever they find there."""
        shown: dict[str, Any] = {"index": answer.index, "delta": {}, "logprobs": None, "finish_reason": None}
        match piece:
            case Started():
                shown["delta"] = {"role": "assistant", "content": ""}
            case Text(text=text):
                shown["delta"] = {"content": text}
            case Invocation(record=record):
                shown |= {"delta": {"reasoning_content": mark(record) + "\n"}, "tyler": {"invocations": [record]}}
            case Finished():
                shown |= {"finish_reason": answer.finish_reason, "tyler": answer.details()}
        return shown

    def add(self, piece: Piece) -> Iterable[Event]:
        if isinstance(piece, Failed):
            yield None, piece.error.body()
        else:
            yield None, self._chunk([self.part(self.generation.answers[piece.index], piece)])

    def ended(self) -> Iterable[bytes]:
        if self.body.stream_options.include_usage:
            yield encoded((None, self._chunk([]) | {"usage": self.generation.usage("prompt", "completion")}))
        yield b"data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        choices = [
            {"index": answer.index, "finish_reason": answer.finish_reason, "tyler": answer.details()}
            | self.choice(answer)
            for answer in self.generation.answers
        ]
        return self._envelope(self.kind) | {"choices": choices, "usage": self.generation.usage("prompt", "completion")}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An object of a stream; where usage is asked for, all but the last have none."""
        usage = {"usage": None} if self.body.stream_options.include_usage else {}
        return self._envelope(self.chunk_kind) | usage | {"choices": choices}

    def _envelope(self, kind: str) -> dict[str, Any]:
        id, created = f"{self.prefix}-{self.generation.id}", int(self.generation.started)
        return {"id": id, "object": kind, "created": created, "model": self.service.settings.name}


class Chat(Choices[ChatRequest]):
    """Text as content, and operators as reasoning for people, where they were called."""

    def choice(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.done.text, "refusal": None}
        if answer.invocations:
            message["reasoning_content"] = "\n".join(map(mark, answer.invocations))
        return {"message": message, "logprobs": self._logprobs(answer.tokens)}

    def part(self, answer: Answer, piece: Piece) -> dict[str, Any]:
        shown = super().part(answer, piece)
        return shown | {"logprobs": self._logprobs(piece.tokens)} if isinstance(piece, Text) else shown

    def _logprobs(self, tokens: Sequence[TokenEvent]) -> dict[str, Any] | None:
        """log p of tokens, and of the most probable ones at their places, where that is asked for."""
        if not self.body.logprobs and self.body.top_logprobs is None:
            return None
        return {"content": entries_of(self.service.tokenizer, tokens), "refusal": None}


class CompletionRequest(Sampled):
    """A text, or token ids, or several of either."""

    prompt: schema.Text | SomeIds | Annotated[list[schema.Text], Some] | Annotated[list[SomeIds], Some]
    max_tokens: Count | None = None
    echo: bool = False
    logprobs: Alternatives | None = None

    @property
    def wanted(self) -> Wanted:
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        questions: Any = [self.prompt] if one else self.prompt
        return self.sampled(questions, length=self.max_tokens, usual=USUAL_TOKENS, alternatives=self.logprobs or 0)


@dataclass
class Completion(Choices[CompletionRequest]):
    """Texts, after their prompts where these are echoed. Invocations stand beside the text only."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __post_init__(self) -> None:
        self._echoed = [("", list[Scored]())] * len(self.generation.answers)
        """Of each answer the prompt as it is repeated, and the scores of its tokens."""
        self._sent = [0] * len(self.generation.answers)  # characters of each

    async def prepare(self) -> None:
        if not self.body.echo:
            return
        answers = self.generation.answers
        for first in range(0, len(answers), self.body.n):
            ids = answers[first].request.prompt_ids
            text, scores = str(self.service.tokenizer.decode(list(ids))), list[Scored]()
            if self.body.logprobs is not None:
                score = partial(score_prompt, ids=ids, top=self.body.logprobs)
                scores = await self.service.dispatcher.between_steps(score)
            self._echoed[first : first + self.body.n] = [(text, scores)] * self.body.n

    def choice(self, answer: Answer) -> dict[str, Any]:
        echoed, scores = self._echoed[answer.index]
        logprobs = self._logprobs([*scores, *answer.tokens, *ending(answer)])
        return {"text": echoed + answer.done.text, "logprobs": logprobs}

    def add(self, piece: Piece) -> Iterable[Event]:
        return () if isinstance(piece, Started) and not self.body.echo else super().add(piece)

    def part(self, answer: Answer, piece: Piece) -> dict[str, Any]:
        shown, scored, at = super().part(answer, piece), list[Scored | TokenEvent](), answer.index
        text = shown.pop("delta").get("content", "")
        match piece:
            case Started():
                text, scores = self._echoed[at]
                scored = [*scores]
            case Text(tokens=tokens):
                scored = [*tokens]
            case Finished():
                scored = [*ending(answer)]
        start = self._sent[at]
        self._sent[at] += len(text)
        return shown | {"text": text, "logprobs": self._logprobs(scored, start) if scored else None}

    def _logprobs(self, scored: Sequence[Scored | TokenEvent], start: int = 0) -> dict[str, Any] | None:
        """Scores, where they are asked for: lists over the tokens, whose text begins at the character `start`."""
        if self.body.logprobs is None:
            return None
        tokenizer = self.service.tokenizer
        tops = [{name_of(tokenizer, token): logprob for token, logprob in reversed(one.top)} for one in scored]
        return {
            "tokens": [name_of(tokenizer, one) for one in scored],
            "token_logprobs": [one.logprob for one in scored],
            "top_logprobs": [top if one.logprob is not None else None for one, top in zip(scored, tops, strict=True)],
            "text_offset": list(accumulate((len(one.text) for one in scored[:-1]), initial=start)),
        }


def ending(answer: Answer) -> list[Scored]:
    """What stands among the tokens without text: the end token, or that no token came, for who counts on one."""
    done = answer.done
    if done.finish_reason == "eos":
        return [Scored(done.actions[-1], "", done.logprobs[-1])]
    return [] if answer.tokens else [Scored(None, "", None)]


class TokenizeRequest(Strict):
    """A text as it is, or a conversation in the chat template."""

    model: schema.Name | None = None
    prompt: schema.Text | None = None
    messages: Turns | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(Strict):
    """Token ids of a text."""

    model: schema.Name | None = None
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
