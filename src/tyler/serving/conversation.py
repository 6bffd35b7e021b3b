"""Conversations: what a client sends is in the prompt, turn by turn, or is refused by its index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from tyler.serving.errors import ApiError
from tyler.tasks.prompts import Message, left_out


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

    def check(self, tokenizer: PreTrainedTokenizerBase, thinking: bool) -> None:
        """Raise ApiError for the first turn that would not be in the prompt, by its field."""
        if (found := left_out(tokenizer, [turn["role"] for turn in self.question], thinking)) is not None:
            raise ApiError(400, f"{found.reason}: {self.params[found.turn]}", param=self.params[found.turn])


Question = Conversation | str | list[int]
"""What is answered; or a text, or token ids, that are continued as they are."""
