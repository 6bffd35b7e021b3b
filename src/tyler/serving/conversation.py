"""Conversations: what a client sends is in the prompt, turn by turn, or is refused by its index."""

from __future__ import annotations

import secrets
from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from tyler.serving.errors import ApiError
from tyler.tasks.prompts import Cuts, Message, written_turns


@dataclass(frozen=True)
class Conversation:
    """Turns that are answered, the field of the request that each of them is, and the beginning of the answer."""

    question: list[Message]
    params: list[str]
    begun: str | None = None

    @classmethod
    def of(cls, turns: Iterable[tuple[str, str, str]]) -> Conversation:
        """Of (role, text, field) each; a developer is who others call system. An assistant's last turn begins the
        answer. Raises ApiError where nothing is there to be answered."""
        question, params, roles = list[Message](), list[str](), {"developer": "system"}
        for role, text, param in turns:
            question.append(Message(role=roles.get(role, role), content=text))
            params.append(param)
        begun = question.pop()["content"] if question and question[-1]["role"] == "assistant" else None
        if not question or question[-1]["role"] != "user":
            message = "the last message must be the user's, or an assistant's after it that the answer continues"
            raise ApiError(400, message, param=params[-1] if params else None, code="invalid_value")
        if not question[-1]["content"].strip():
            raise ApiError(400, "the message is empty; give its text", param=params[len(question) - 1])
        return cls(question, params, begun)


Question = Conversation | str | list[int]
"""What is answered; or a text, or token ids, that are continued as they are."""


class ChatTemplate:
    """A model's chat template, tried with made-up texts to see which turns it writes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, thinking: bool) -> None:
        self._tokenizer, self._thinking = tokenizer, thinking

    def check(self, conversation: Conversation) -> None:
        """Raise ApiError for the first turn that would not be in the prompt, by its field."""
        if self._tokenizer.chat_template is None:
            return
        roles = [turn["role"] for turn in conversation.question]
        marks = [f"turn{index}of{secrets.token_hex(8)}" for index in range(len(roles))]
        turns = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        try:
            written, at = written_turns(self._tokenizer, turns, self._thinking), 0
        except ValueError as error:
            first = bisect(range(1, len(turns)), False, key=lambda count: self._refuses(turns[:count]))
            raise refused_turn(conversation, first, str(error)) from error
        for index, mark in enumerate(marks):
            if (at := written.find(mark, at)) < 0:
                reason = f"the chat template of this model leaves out a {roles[index]} message at this place"
                raise refused_turn(conversation, index, reason)

    def _refuses(self, turns: list[dict[str, str]]) -> bool:
        try:
            written_turns(self._tokenizer, turns, self._thinking)
        except ValueError:
            return True
        return False

    def ids_of_beginning(self, text: str) -> list[int]:
        """Token ids of the beginning of an answer; like all messages it spells no control tokens."""
        cuts = Cuts(self._tokenizer)
        parts = cuts.parts(cuts.mark(text))
        return [id for part in parts for id in self._tokenizer.encode(part, add_special_tokens=False, verbose=False)]


def refused_turn(conversation: Conversation, index: int, reason: str) -> ApiError:
    """A 400 about one turn."""
    return ApiError(400, f"{reason}: {conversation.params[index]}", param=conversation.params[index])
