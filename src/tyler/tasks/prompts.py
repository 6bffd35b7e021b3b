"""From a problem to the token ids of its prompt, and from a solution to those of its target."""

from __future__ import annotations

import json
import re
import secrets
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypedDict, cast

from jinja2 import TemplateError

from tyler.tasks.problem import Problem, leaves_thought_open

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONTROL = ("<", "[", "|")
"""How control tokens begin that are not among the tokenizer's special ones."""


class Cuts:
    """Where the messages of one prompt are to be cut; a random mark stands there while they are written
    into a chat template.

    Control tokens are the special ones, and those that the template writes (`<think>`, `<tool_call>`).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        template = json.dumps(tokenizer.chat_template, ensure_ascii=False)
        added = {token.content: token.special for token in tokenizer.added_tokens_decoder.values()}
        spelled = {text for text, special in added.items() if special or (text[:1] in CONTROL and text in template)}
        control = "|".join(re.escape(text) for text in spelled if len(text) > 1) or "(?!)"
        self._begins = re.compile(f"(?={control}).", re.DOTALL)
        self._mark = secrets.token_hex(16)

    def mark(self, text: str) -> str:
        """A message with its marks: one after the first letter of each control token that it spells."""
        return self._begins.sub(lambda letter: letter[0] + self._mark, text)

    def parts(self, written: str) -> list[str]:
        """The whole prompt, without marks, in the parts that are encoded one by one."""
        return written.split(self._mark)


def encode_parts(tokenizer: PreTrainedTokenizerBase, parts: Sequence[str]) -> list[int]:
    """Token ids of a prompt in parts; one without a chat template begins with what the tokenizer puts in front."""
    # Not verbose: what is too long is refused in our own words, where the context is known.
    first = tokenizer.encode(parts[0], add_special_tokens=tokenizer.chat_template is None, verbose=False)
    return [*first, *_continued(tokenizer, parts[1:])]


def _continued(tokenizer: PreTrainedTokenizerBase, parts: Sequence[str]) -> list[int]:
    return [id for part in parts for id in tokenizer.encode(part, add_special_tokens=False, verbose=False)]


BOXED_INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."
"""The paper requires the box but does not print its prompt; this is the wording the Qwen model cards recommend."""

DATE = "26 Jul 2024"
"""The date in prompts whose template takes one (Llama 3's): what Llama 3.2's own says where it knows no clock."""

_TAIL = 16
"""Tokens in which a prompt's last `<think>` stands, in whatever tokens it is written."""

ROLES = ("system", "user", "assistant")


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


Question = str | Problem | Sequence[Message]
"""What can be asked: a text, a problem of a task, or a conversation whose last turn is the user's."""


@dataclass(frozen=True)
class Prompt:
    """How a problem is put to the backbone: `instruction` follows the problem after a blank line ("" for none), in a
    conversation each turn of the user. `system` is said before it, unless a conversation has a system turn of its own.

    `thinking` is the thinking mode of chat templates that have one (Qwen3, SmolLM3), off by default.
    """

    instruction: str = BOXED_INSTRUCTION
    thinking: bool = False
    system: str = ""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Prompt:
        """The prompt a tokenizer asks for in its config (`instruction`, as mini's does), else the default."""
        return cls(instruction=tokenizer.init_kwargs.get("instruction", BOXED_INSTRUCTION))

    def of_problem(self, problem: Problem) -> Prompt:
        """The prompt with the problem's own instruction, where it has one."""
        return self if problem.instruction is None else replace(self, instruction=problem.instruction)

    def turns(self, question: Question) -> list[Message]:
        """What has been said before the answer. Raises ValueError for a problem without text, or no conversation."""
        before = [Message(role="system", content=self.system)] if self.system else []
        if isinstance(question, str):
            return [*before, Message(role="user", content=self.text(question))]
        if isinstance(question, Problem):
            return self.of_problem(question).turns(question.prompt)
        check_question(question)
        turns = checked(question)
        turns = turns if any(turn["role"] == "system" for turn in turns) else [*before, *turns]
        return [turn | {"content": self.text(turn["content"])} if turn["role"] == "user" else turn for turn in turns]

    def text(self, problem: str) -> str:
        """What the user says. Raises ValueError for a problem without text."""
        if not problem.strip():
            raise ValueError(f"the problem is empty ({problem!r}); give its text")
        return f"{problem}\n\n{self.instruction}" if self.instruction else problem


def check_question(question: object) -> None:
    """Raise ValueError for what cannot be asked."""
    if not isinstance(question, str | Problem | Sequence) or isinstance(question, bytes | bytearray):
        raise ValueError(
            f"a question is {question!r:.80}, a {type(question).__name__}; give a text, a problem of a task, or a list "
            "of messages"
        )


def as_questions(questions: Question | Sequence[Question]) -> list[Question]:
    """One question, or several, as a list. Raises ValueError for what is neither."""
    if isinstance(questions, str | Problem) or is_conversation(questions):
        return [cast(Question, questions)]
    check_question(questions)
    return list(cast(Sequence[Question], questions))


def check_text(text: str) -> None:
    """Raise ValueError for text that no tokenizer takes: half a surrogate pair, as bytes leave that are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the problem has {text[error.start]!r} at character {error.start}, which is not a character: its text was "
            "not UTF-8, or was cut within a character; give it in UTF-8"
        ) from error


def is_conversation(question: object) -> bool:
    """Whether something is a list of messages, and not a text or a problem."""
    return isinstance(question, Sequence) and bool(question) and isinstance(question[0], Mapping)


def checked(conversation: Sequence[Message]) -> list[Message]:
    """The messages as plain dictionaries.

    Raises ValueError for a message with other keys or another role, and where the last one is not the user's.
    """
    turns: list[Message] = []
    for message in conversation:
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise ValueError(f"a message is {message!r}; it must have exactly the keys role and content")
        if message["role"] not in ROLES or not isinstance(message["content"], str):
            raise ValueError(f"a message is {message!r}; its role must be {', '.join(ROLES)}, its content text")
        turns.append(Message(role=message["role"], content=message["content"]))
    if not turns or turns[-1]["role"] != "user":
        raise ValueError("the last message must be the user's: it is what is answered")
    return turns


def prompt_ids(tokenizer: PreTrainedTokenizerBase, question: Question, prompt: Prompt | None = None) -> list[int]:
    """Token ids of q: the turns in the tokenizer's chat template, up to where the assistant's turn begins.

    A tokenizer without a chat template gets each turn's text and a newline, with the tokens it puts in front by itself.
    What a turn says never becomes a control token. `prompt` is `Prompt()` by default. Raises
    ValueError for a problem without text, for invalid messages, and for those that the template refuses.
    """
    prompt = prompt or Prompt()
    return encode_parts(tokenizer, opened_turn(tokenizer, prompt.turns(question), prompt.thinking))


def opened_turn(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Message], thinking: bool = False) -> list[str]:
    """The turns in the tokenizer's chat template, up to where the assistant's next one begins, as text in the parts
    that are encoded one by one: one part, but for turns that spell control tokens.

    Raises ValueError for invalid text, and for what the template refuses.
    """
    cuts = Cuts(tokenizer)
    for turn in turns:
        check_text(turn["content"])
    marked = [{"role": turn["role"], "content": cuts.mark(turn["content"])} for turn in turns]
    if tokenizer.chat_template is None:
        return cuts.parts("".join(turn["content"] + "\n" for turn in marked))
    return cuts.parts(written_turns(tokenizer, marked, thinking))


def thought_is_open(tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt ends in an open thought, so that the answer begins within it; only its end is decoded."""
    return leaves_thought_open(str(tokenizer.decode(list(prompt_ids[-_TAIL:]), skip_special_tokens=False)))


def written_turns(tokenizer: PreTrainedTokenizerBase, turns: list[dict[str, str]], thinking: bool) -> str:
    """The turns in the tokenizer's chat template, open for the assistant.

    A template that takes a date gets `DATE`: with today's, prompts would change overnight, and a run that resumes the
    next day would refuse its own examples. Raises ValueError for what the template refuses.
    """
    try:
        return str(
            tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, enable_thinking=thinking, date_string=DATE
            )
        )
    except TemplateError as error:
        raise ValueError(f"the chat template of this model refuses these messages: {error}") from error


class LeftOut(NamedTuple):
    """Which turn a chat template does not write into the prompt, and why."""

    turn: int
    reason: str


def left_out(tokenizer: PreTrainedTokenizerBase, roles: Sequence[str], thinking: bool) -> LeftOut | None:
    """The first of these roles' turns that would not be in the prompt, tried with made-up texts; None where all are."""
    if tokenizer.chat_template is None:
        return None
    marks = [f"turn{index}of{secrets.token_hex(8)}" for index in range(len(roles))]
    turns = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]

    def refused(count: int) -> str:
        try:
            written_turns(tokenizer, turns[:count], thinking)
        except ValueError as error:
            return str(error)
        return ""

    if reason := refused(len(turns)):
        return LeftOut(bisect(range(1, len(turns)), False, key=lambda count: bool(refused(count))), reason)
    written, at = written_turns(tokenizer, turns, thinking), 0
    for index, mark in enumerate(marks):
        if (at := written.find(mark, at)) < 0:
            return LeftOut(index, f"the chat template of this model leaves out a {roles[index]} message at this place")
    return None


def ids_of_beginning(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of the beginning of an answer; like all messages it spells no control tokens."""
    cuts = Cuts(tokenizer)
    return _continued(tokenizer, cuts.parts(cuts.mark(text)))


def target_ids(tokenizer: PreTrainedTokenizerBase, solution: str) -> list[int]:
    """Token ids of y_{1:T}: the solution and the token that ends it.

    That is the one with which the chat template ends the assistant's turn (`<|im_end|>` for Qwen), where there is one,
    else `tokenizer.eos_token_id`; decoding stops at both. Raises ValueError for an empty solution, and for a tokenizer
    without an end token.
    """
    if not solution.strip():
        raise ValueError(f"the solution is empty ({solution!r}); a target needs text")
    end = turn_end(tokenizer)
    end = tokenizer.eos_token_id if end is None else end
    if end is None:
        raise ValueError(f"the tokenizer {tokenizer.name_or_path!r} has no eos_token; set the one that ends an answer")
    return [*tokenizer.encode(solution, add_special_tokens=False), end]


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token with which the chat template ends the assistant's turn; None without one, as in a base model's."""
    return None if tokenizer.chat_template is None else _turn_end(tokenizer, json.dumps(tokenizer.chat_template))


@lru_cache(maxsize=8)
def _turn_end(tokenizer: PreTrainedTokenizerBase, template: str) -> int | None:
    """The same, for a template that may be set anew: the added token that follows what the assistant said."""
    reply = "The answer is seven"
    turns = [{"role": "user", "content": "What is 3 + 4?"}, {"role": "assistant", "content": reply}]
    try:
        written = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False, date_string=DATE)
    except TemplateError:
        return None
    after = str(written).rpartition(reply)[2].lstrip()
    added = sorted(tokenizer.added_tokens_decoder.items(), key=lambda item: -len(item[1].content))
    return next((id for id, token in added if token.content and after.startswith(token.content)), None)
