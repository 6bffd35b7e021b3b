"""`POST /v1/completions`: texts and token ids are continued as they are, with log-probabilities for evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field

from tyler.engine.request import TokenEvent
from tyler.serving.chat import Choices, part
from tyler.serving.generation import Answer, Finished, Generation, Piece, Started, Text
from tyler.serving.schema import Alternatives, Count, Ids, Sampled, Wanted
from tyler.serving.schema import Text as BoundedText
from tyler.serving.scoring import Scored, name_of, score_prompt
from tyler.serving.service import Service

Some = Field(min_length=1, max_length=512, fail_fast=True)
SomeIds = Annotated[Ids, Field(min_length=1)]
USUAL_TOKENS = 16
"""Of a completion that does not say, as in OpenAI's API; fewer where the server allows fewer."""


class CompletionRequest(Sampled):
    """A text, or token ids, or several of either."""

    prompt: BoundedText | SomeIds | Annotated[list[BoundedText], Some] | Annotated[list[SomeIds], Some]
    max_tokens: Count | None = None
    echo: bool = False
    logprobs: Alternatives | None = None

    @property
    def wanted(self) -> Wanted:
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        questions: Any = [self.prompt] if one else self.prompt
        return self.sampled(questions, length=self.max_tokens, usual=USUAL_TOKENS, alternatives=self.logprobs or 0)


class Completion(Choices[CompletionRequest]):
    """Texts, after their prompts where these are echoed. Invocations stand beside the text only."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, service: Service, body: CompletionRequest, generation: Generation) -> None:
        super().__init__(service, body, generation)
        self._echoed = [""] * len(generation.answers)
        """Of each answer the prompt as it is repeated; `_scores` are those of the prompt's tokens."""
        self._scores = [list[Scored]()] * len(generation.answers)
        self._sent = [0] * len(generation.answers)  # characters of each

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
            for index in range(first, first + self.body.n):
                self._echoed[index], self._scores[index] = text, scores

    def choice(self, answer: Answer) -> dict[str, Any]:
        scored: list[Scored | TokenEvent] = [*self._scores[answer.index], *answer.tokens, *ending(answer)]
        return {"text": self._echoed[answer.index] + answer.done.text, "logprobs": self._logprobs(scored)}

    def part(self, answer: Answer, piece: Piece) -> dict[str, Any] | None:
        shown, scored, at = part(answer, piece), list[Scored | TokenEvent](), answer.index
        text = shown.pop("delta").get("content", "")
        match piece:
            case Started():
                if not self.body.echo:
                    return None
                text, scored = self._echoed[at], [*self._scores[at]]
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
