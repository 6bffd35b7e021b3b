"""What the endpoints take. A field that is not here is refused by name; every text and list has a largest size.

Fields of the APIs that ask for what a latent reasoner does not do (tools, storage) may be sent with a value that asks
for nothing, since many clients always send them. Each body says in `limits`, `stops`, `format` and `conversation` what
its own fields come to, so that one service answers them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tyler.serving.conversation import Conversation
from tyler.serving.errors import ApiError

LONGEST_TEXT = 2**22
"""Characters of a text; a context of a million tokens holds about as many."""
LONGEST_PATTERN = 2**12
"""Characters of a regular expression."""
LONGEST_STOP = 256
"""Characters of a stop string: the end of the text is held against all its beginnings at every step."""
MOST_MESSAGES, MOST_PARTS, MOST_IDS, MOST_BIASES = 2048, 256, 2**18, 1024
EFFORTS = {"none": 0, "minimal": 1, "low": 2, "medium": 5, "high": 10}
"""The budget of each `reasoning_effort`; medium is the paper's."""

NOTHING: tuple[object, ...] = (None, False, [], {})
"""What a field that the server does not know may hold."""

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
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MOST_IDS, fail_fast=True)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


@dataclass(frozen=True)
class Limits:
    """How much one request may generate, and what its protocol calls the fields that say so.

    `usual` is the length where none is asked for, by default all that the server allows; `latents` bounds those of all
    operator calls together.
    """

    length: int | None = None
    length_field: str = "max_tokens"
    usual: int | None = None
    effort: Effort | None = None
    effort_field: str = "reasoning_effort"
    latents: int | None = None
    latents_field: str = "thinking"


class Strict(BaseModel):
    """A part of a request; what it does not name is refused, but for a value that asks for nothing.

    Fields that do not go together are refused by an ApiError.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: value for name, value in content.items() if name in known or value not in NOTHING}


class Body(Strict):
    """A whole request."""


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
    def _says_what(self) -> Format:
        needed = {"json_schema": ("a schema", self.schema_of), "regex": ("a pattern", self.pattern)}
        name, value = needed.get(self.type, ("", ""))
        if value is None:
            raise ValueError(f"type {self.type!r} needs {name}")
        if self.type != "regex" and self.pattern is not None:
            raise ValueError("a pattern is for type 'regex'")
        return self

    def told(self) -> dict[str, Any]:
        """The same as a response repeats it."""
        return self.model_dump(by_alias=True, exclude_none=True)

    @property
    def schema_of(self) -> dict[str, Any] | None:
        """The schema, wherever it stands."""
        return self.json_schema.schema_ if self.json_schema is not None else self.schema_


class ObfuscationOptions(Strict):
    """What a stream may hide: nothing is hidden here."""


class StreamOptions(ObfuscationOptions):
    """What a stream says besides the answer."""

    include_usage: bool = False


class Generating(Body):
    """What every endpoint that generates takes."""

    model: Name
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
    seed: Seed | None = None
    stream: bool | None = False
    tyler: TylerOptions = TylerOptions()
    user: Name | None = None
    metadata: Metadata | None = None

    @property
    def limits(self) -> Limits:
        """How much is asked for."""
        return Limits()

    @property
    def answers(self) -> int:
        """How many answers each question gets."""
        return 1

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return ()

    @property
    def format(self) -> Format | None:
        """What the text has to be."""
        return None

    @property
    def alternatives(self) -> int:
        """How many other tokens are told of at each place."""
        return 0


class Sampled(Generating):
    """What chats and completions take."""

    n: Count | None = 1
    stop: StopString | StopStrings | None = None
    stream_options: StreamOptions | None = None
    response_format: Format | None = None
    service_tier: Literal["auto", "default"] | None = None

    @property
    def answers(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def format(self) -> Format | None:
        return self.response_format

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with what it cost."""
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _options_have_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream=true", param="stream_options")
        return self


class CacheControl(Strict):
    """What is to be cached; here that is every prompt."""

    type: Literal["ephemeral"]


class TextPart(Strict):
    """A piece of a message. Pictures and sounds are refused."""

    type: Literal["text", "input_text", "output_text"]
    text: Text
    cache_control: CacheControl | None = None


Role = Literal["system", "developer", "user", "assistant"]
Content = Text | Annotated[list[TextPart], Field(max_length=MOST_PARTS, fail_fast=True)]


def text_of(content: Any) -> str:
    """A message's text; thinking is not part of it."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content if isinstance(part, TextPart))


class ChatMessage(Strict):
    """One turn. What an assistant's turn from this server has besides its text may be sent back, and is not read."""

    role: Role
    content: Content | None
    reasoning_content: Text | None = None


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]


def conversation_of(messages: Iterable[Any], *before: tuple[str, str, str]) -> Conversation:
    """Messages as the prompt takes them, after other turns."""
    said = [(one.role, text_of(one.content), f"messages.{at}") for at, one in enumerate(messages)]
    return Conversation.of([*before, *said])
