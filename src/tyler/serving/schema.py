"""What the endpoints take, and how it is read from the bytes of a request.

A field that is not here is refused by name; every text and list has a largest size, and what is malformed costs next to
nothing and delays no other request. Each body says in `wanted` what its own fields come to, so that one service answers
them all.
"""

import asyncio
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Self, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json
from transformers import PreTrainedTokenizerBase

from tyler.serving.errors import ApiError, of_validation, shortened
from tyler.serving.settings import UnknownFields
from tyler.tasks.prompts import Message, left_out

LONGEST_TEXT = 2**22
"""Characters of a text; a context of a million tokens holds about as many."""
LONGEST_PATTERN = 2**12
"""Characters of a regular expression."""
LONGEST_STOP = 256
"""Characters of a stop string: the end of the text is held against all its beginnings at every step."""
MOST_MESSAGES, MOST_PARTS, MOST_IDS, MOST_BIASES = 2048, 256, 2**18, 1024
EFFORTS = {"none": 0, "minimal": 1, "low": 2, "medium": 5, "high": 10}
"""The budget of each `reasoning_effort`; medium is the paper's."""

NOTHING: tuple[object, ...] = (False, [], {})
"""What a field that the server does not know may hold: many clients always send some that ask for nothing."""
USUAL: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "cache_control": ({"type": "ephemeral"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default", "standard_only"),
    "summary": ("auto",),
    "tool_choice": ("none", "auto", {"type": "none"}, {"type": "auto"}),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}
"""What these may hold besides, which is how this server answers anyway."""

Effort = Literal["none", "minimal", "low", "medium", "high"]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Name = Annotated[str, Field(max_length=256)]
StopString = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
StopStrings = Annotated[list[StopString], Field(max_length=16, fail_fast=True)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Biases = Annotated[
    dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MOST_BIASES),
]
Count = Annotated[int, Field(ge=1, le=2**31)]
Alternatives = Annotated[int, Field(ge=0, le=20)]
Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MOST_IDS, fail_fast=True)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class Strict(BaseModel):
    """A part of a request; what it does not name is refused, but for a value that asks for nothing. Null is nothing."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {
            name: value
            for name, value in content.items()
            if value is not None and (name in known or value not in (*NOTHING, *USUAL.get(name, ())))
        }


class TylerOptions(Strict):
    """Exact control over operators: a hard cap, and who routes."""

    budget: Annotated[int, Field(ge=0, le=2**31)] | None = None
    router: Name | None = None


class SchemaFormat(Strict):
    """A JSON Schema with its name; it is kept to exactly, whatever `strict` says."""

    name: Name | None = None
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class Format(SchemaFormat):
    """What an answer's text has to be: any text, JSON, JSON of a schema, or a text of a regular expression.

    Chats have the schema below `json_schema`, responses and messages beside `type`.
    """

    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: SchemaFormat | None = None
    pattern: Annotated[str, Field(min_length=1, max_length=LONGEST_PATTERN)] | None = None

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        if self.type == "json_schema" and self.schema_of is None:
            raise ValueError("type 'json_schema' needs a schema")
        if self.type == "regex" and self.pattern is None:
            raise ValueError("type 'regex' needs a pattern")
        if self.type != "regex" and self.pattern is not None:
            raise ValueError("a pattern is for type 'regex'")
        given = self.schema_ is not None, self.json_schema is not None and self.json_schema.schema_ is not None
        if all(given) or (any(given) and self.type in ("text", "regex")):
            raise ValueError("one schema is for type 'json_schema'")
        return self

    @property
    def schema_of(self) -> dict[str, Any] | None:
        """The schema, wherever it stands."""
        return self.json_schema.schema_ if self.json_schema is not None else self.schema_


class TextOptions(Strict):
    """What the text of a response or a message is."""

    format: Format | None = None


@dataclass(frozen=True)
class Conversation:
    """Turns that are answered, the field of the request that each of them is, and the beginning of the answer.

    What a client sends is in the prompt, turn by turn, or is refused by its index.
    """

    question: list[Message]
    params: list[str]
    begun: str | None = None

    @classmethod
    def of(cls, turns: Iterable[tuple[str, str, str]]) -> Self:
        """Of (role, text, field) each; a developer is who others call system. An assistant's last turn begins the
        answer. Raises ApiError where nothing is there to be answered."""
        given, roles = list(turns), {"developer": "system"}
        question = [Message(role=roles.get(role, role), content=text) for role, text, _ in given]
        params = [param for _, _, param in given]
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


@dataclass(frozen=True)
class Wanted:
    """What a request asks for, and what its protocol calls the fields that say so.

    Each question gets so many `answers`. `usual` is the length where none is asked for, by default all that the server
    allows; `latents` bounds those of all operator calls together; `alternatives` are told of at each place.
    """

    questions: Sequence[Question]
    answers: int = 1
    length: int | None = None
    length_field: str = "max_tokens"
    usual: int | None = None
    effort: Effort | None = None
    effort_field: str = "reasoning_effort"
    latents: int | None = None
    stops: tuple[str, ...] = ()
    format: Format | None = None
    alternatives: int = 0


class Generating(Strict):
    """What every endpoint that generates takes."""

    model: Name
    user: Name | None = None
    metadata: Metadata | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: Biases | None = None
    stop_token_ids: Annotated[Ids, Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stream: bool = False
    tyler: TylerOptions = TylerOptions()

    @property
    @abstractmethod
    def wanted(self) -> Wanted:
        """What the protocol's own fields ask for. Raises ApiError for an invalid question."""


class StreamOptions(Strict):
    """Whether a stream ends with what it cost."""

    include_usage: bool = False


class Sampled(Generating):
    """What chats and completions take."""

    n: Count = 1
    stop: StopString | StopStrings | None = None
    stream_options: StreamOptions = StreamOptions()
    response_format: Format | None = None

    def sampled(self, questions: Sequence[Question], **own: Any) -> Wanted:
        """What these fields ask for, with those of the protocol."""
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Wanted(questions, self.n, stops=stops, format=self.response_format, **own)


class TextPart(Strict):
    """A piece of a message. Pictures and sounds are refused."""

    type: Literal["text", "input_text", "output_text"]
    text: Text


class ThinkingPart(Strict):
    """Thinking of an earlier answer, which is not read: latents belong to the answer in which they were made."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text | None = None


Content = Text | Annotated[list[TextPart | ThinkingPart], Field(max_length=MOST_PARTS, fail_fast=True)]


def text_of(content: Any) -> str:
    """A message's text; thinking is not part of it."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content if isinstance(part, TextPart))


class Turn(Strict):
    """One turn. What an assistant's turn from this server has besides its text may be sent back, and is not read."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None
    reasoning_content: Text | None = None


Turns = Annotated[list[Turn], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]


def conversation_of(items: Iterable[object], *before: tuple[str, str, str], field: str = "messages") -> Conversation:
    """The turns of a field as the prompt takes them, after others; other items are not read."""
    turns = [(one.role, text_of(one.content), f"{field}.{at}") for at, one in enumerate(items) if isinstance(one, Turn)]
    return Conversation.of([*before, *turns])


Kind = TypeVar("Kind", bound=Strict)
LARGE = 64 * 2**10
"""Bytes from which on a body is parsed in another thread, one at a time: the event loop goes on."""
MOST_STRINGS, MOST_CONTAINERS, MOST_VALUES = 2**15, 2**13, 2**19
"""Of a body: a value takes up to a hundred times its bytes once it is parsed."""
STRING = re.compile(rb'"[^"]*"')
ONE_AT_A_TIME = asyncio.Lock()


async def read(kind: type[Kind], http: Request, unknown: UnknownFields) -> Kind:
    """The request's body. Raises ApiError for what it is not, naming the field."""
    content_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        given = shortened(content_type)
        raise ApiError(400, f"the content type is {given!r}; send application/json", code="invalid_json")
    body = await http.body()
    work = partial(parse, kind, body, unknown)
    if len(body) < LARGE:
        return work()
    async with ONE_AT_A_TIME:
        return await asyncio.to_thread(work)


def parse(kind: type[Kind], body: bytes, unknown: UnknownFields) -> Kind:
    """The fields of a body. Raises ApiError for what is wrong with it."""
    check_shape(body)
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        half = "; a text holds half a character" if "hex escape" in str(error) else ""
        raise ApiError(400, f"the body is not valid JSON: {error}{half}", code="invalid_json") from None
    try:
        return kind.model_validate(content, extra="forbid" if unknown == "refuse" else "ignore")
    except ValidationError as error:
        raise of_validation(error) from None


def check_shape(body: bytes) -> None:
    """Raise ApiError for a body of more values than any request has, before any of them is made."""
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # quotes within texts begin none
    body, strings = STRING.subn(b"", body, count=MOST_STRINGS + 1)  # brackets and commas within texts do not count
    containers, values = body.count(b"[") + body.count(b"{"), body.count(b",")
    for name, count, most in (
        ("texts", strings, MOST_STRINGS),
        ("lists and objects", containers, MOST_CONTAINERS),
        ("values", values, MOST_VALUES),
    ):
        if count > most:
            raise ApiError(400, f"the body has more than {most} {name}; send fewer", code="too_complex")
