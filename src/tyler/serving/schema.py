"""What the endpoints take. A field that is not here is refused by name; every text and list has a largest size.

Fields of the APIs that ask for what a latent reasoner does not do (tools, storage) may be sent with the value that asks
for nothing, since many clients always send them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

LONGEST_TEXT = 2**22
"""Characters of a text; a context of a million tokens holds about as many."""
LONGEST_PATTERN = 2**12
"""Characters of a regular expression."""
LONGEST_STOP = 256
"""Characters of a stop string: the end of the text is held against all its beginnings at every step."""
MOST_PROMPTS, MOST_MESSAGES, MOST_PARTS, MOST_IDS = 512, 2048, 256, 2**18
USUAL_TOKENS = 16
"""Of a completion that does not say, as in OpenAI's API; fewer where the server allows fewer."""
EFFORTS = {"none": 0, "minimal": 1, "low": 2, "medium": 5, "high": 10}
"""The budget of each `reasoning_effort`; medium is the paper's."""

Effort = Literal["none", "minimal", "low", "medium", "high"]


def only(*allowed: object) -> AfterValidator:
    """Refuses every value but these, which change nothing."""

    def check(value: object) -> object:
        if value not in allowed:
            shown = " or ".join(repr(one) for one in allowed if one is not None and one not in ([], {}))
            raise ValueError(f"not supported by this server; {f'send {shown}, or ' if shown else ''}omit it")
        return value

    return AfterValidator(check)


Nothing = Annotated[Any, only(None, [], {})]
Off = Annotated[bool | None, only(None, False)]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Name = Annotated[str, Field(max_length=256)]
StopString = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
StopStrings = Annotated[list[StopString], Field(max_length=16, fail_fast=True)]
MOST_BIASES = 1024
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


class Strict(BaseModel):
    """A part of a request; what it does not name is refused, or ignored where the server is set so."""

    model_config = ConfigDict(strict=True, json_schema_extra={"additionalProperties": False})

    @model_validator(mode="before")
    @classmethod
    def _names_are_known(cls, content: Any, info: ValidationInfo) -> Any:
        known = {field.alias or name for name, field in cls.model_fields.items()}
        if not isinstance(content, dict) or content.keys() <= known:
            return content
        unknown = next(name for name in content if name not in known)
        context = info.context or {}
        if context.get("unknown") != "ignore":
            raise PydanticCustomError("unknown_field", "{field} is not supported by this server", {"field": unknown})
        context["ignored"].append(unknown)
        return {name: value for name, value in content.items() if name in known}


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

    include_obfuscation: Off = None


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
    stream: bool | None = False
    tyler: TylerOptions = TylerOptions()
    user: Name | None = None
    metadata: Metadata | None = None

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
    seed: Seed | None = None
    stop: StopString | StopStrings | None = None
    stream_options: StreamOptions | None = None
    response_format: Format | None = None
    store: Off = None
    service_tier: Annotated[Name | None, only(None, "auto", "default")] = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def format(self) -> Format | None:
        return self.response_format

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class TextPart(Strict):
    """A piece of a message. Pictures and sounds are refused."""

    type: Literal["text", "input_text", "output_text"]
    text: Text
    annotations: Nothing = None
    logprobs: Nothing = None
    cache_control: Annotated[Any, only(None, {"type": "ephemeral"})] = None


Content = Text | Annotated[list[TextPart], Field(max_length=MOST_PARTS, fail_fast=True)]


class ChatMessage(Strict):
    """One turn. What an assistant's turn from this server has besides its text may be sent back, and is not read."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None
    reasoning_content: Text | None = None
    refusal: Nothing = None
    annotations: Nothing = None
    audio: Nothing = None
    function_call: Nothing = None
    tool_calls: Nothing = None
    name: Nothing = None


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]


class ChatRequest(Sampled):
    """`POST /v1/chat/completions`. An assistant's turn at the end is the beginning of the answer."""

    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    reasoning_effort: Effort | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Nothing = None
    functions: Nothing = None
    tool_choice: Annotated[Any, only(None, "none", "auto")] = None
    parallel_tool_calls: Off = None
    modalities: Annotated[Any, only(None, ["text"])] = None

    @property
    def alternatives(self) -> int:
        return self.top_logprobs or 0


class CompletionRequest(Sampled):
    """`POST /v1/completions`: a text, or token ids, or several of either."""

    prompt: (
        Text
        | Ids
        | Annotated[list[Text], Field(max_length=MOST_PROMPTS, fail_fast=True)]
        | Annotated[list[Ids], Field(max_length=MOST_PROMPTS, fail_fast=True)]
    )
    max_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = USUAL_TOKENS
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int | None, only(None, 1)] = None
    suffix: Nothing = None

    @property
    def alternatives(self) -> int:
        return self.logprobs or 0


class SummaryPart(Strict):
    """A reasoning item's text."""

    type: Literal["summary_text"] = "summary_text"
    text: Text = ""


class InputItem(Strict):
    """One item of a response's input: a turn, or a reasoning item of an earlier answer, which is not read."""

    type: Literal["message", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content | None = None
    id: Name | None = None
    status: Name | None = None
    summary: Annotated[list[SummaryPart], Field(max_length=MOST_PARTS, fail_fast=True)] | None = None
    encrypted_content: Nothing = None
    phase: Nothing = None
    tyler: Annotated[dict[Name, Any], Field(max_length=16)] | None = None


class Reasoning(Strict):
    """How much a response may reason. A summary names the operator, whatever length is requested."""

    effort: Effort | None = None
    summary: Annotated[Name | None, only(None, "auto")] = None
    generate_summary: Nothing = None


class TextOptions(Strict):
    """What the text of a response is."""

    format: Format | None = None
    verbosity: Annotated[Name | None, only(None, "medium")] = None


class ResponsesRequest(Generating):
    """`POST /v1/responses`. Nothing is stored, so every request brings its whole conversation."""

    input: Text | Annotated[list[InputItem], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    instructions: Text | None = None
    max_output_tokens: Count | None = None
    reasoning: Reasoning | None = None
    stream_options: ObfuscationOptions | None = None
    tools: Nothing = None
    tool_choice: Annotated[Any, only(None, "none", "auto")] = None
    parallel_tool_calls: Off = None
    previous_response_id: Nothing = None
    conversation: Nothing = None
    include: Annotated[Any, only(None, [], ["message.output_text.logprobs"])] = None
    background: Off = None
    truncation: Annotated[Any, only(None, "disabled")] = None
    text: TextOptions | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    store: Off = None
    service_tier: Annotated[Name | None, only(None, "auto", "default")] = None

    @property
    def format(self) -> Format | None:
        return None if self.text is None else self.text.format

    @property
    def alternatives(self) -> int:
        return self.top_logprobs or 0

    @property
    def logprobs(self) -> bool:
        """Whether log-probabilities are told."""
        return bool(self.include) or self.top_logprobs is not None


class ThinkingBlock(Strict):
    """Thinking of an earlier answer, which is not read: latents belong to the answer in which they were made."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text | None = None


AnthropicContent = Text | Annotated[list[TextPart | ThinkingBlock], Field(max_length=MOST_PARTS, fail_fast=True)]


class AnthropicTurn(Strict):
    """One turn of Anthropic's messages."""

    role: Literal["user", "assistant"]
    content: AnthropicContent


class Thinking(Strict):
    """Whether the model may think, and in how many latents."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None


class OutputConfig(Strict):
    """What the text of a message is."""

    format: Format | None = None


class AnthropicMetadata(Strict):
    """Who asks."""

    user_id: Name | None = None


class MessagesCount(Body):
    """`POST /v1/messages/count_tokens`."""

    model: Name
    messages: Annotated[list[AnthropicTurn], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    system: Content | None = None
    thinking: Thinking | None = None
    tools: Nothing = None
    tool_choice: Annotated[Any, only(None, {"type": "none"}, {"type": "auto"})] = None


class MessagesRequest(MessagesCount, Generating):
    """`POST /v1/messages`, Anthropic's."""

    max_tokens: Count
    stop_sequences: StopStrings | None = None
    metadata: AnthropicMetadata | None = None  # type: ignore[assignment]
    service_tier: Annotated[Name | None, only(None, "auto", "standard_only")] = None
    output_config: OutputConfig | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(self.stop_sequences or ())

    @property
    def format(self) -> Format | None:
        return None if self.output_config is None else self.output_config.format


class TokenizeRequest(Body):
    """`POST /tokenize`: a text as it is, or a conversation in the chat template."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(Body):
    """`POST /detokenize`."""

    model: Name | None = None
    tokens: Ids


def text_of(content: Any) -> str:
    """A message's text; thinking is not part of it."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content if isinstance(part, TextPart))
