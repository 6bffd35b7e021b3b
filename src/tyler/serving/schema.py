"""What the three endpoints take. A field that is not here is refused by name; none is ignored.

Fields of OpenAI's API that ask for what a latent reasoner does not do (tools, penalties, storage) may be sent with the
value that asks for nothing, since many clients always send them.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

LONGEST_STOP = 256
"""Characters of a stop string: the end of the text is held against all its beginnings at every step."""
USUAL_TOKENS = 16
"""Of a completion that does not say, as in OpenAI's API; fewer where the server allows fewer."""
EFFORTS = {"none": 0, "minimal": 1, "low": 2, "medium": 5, "high": 10}
"""The budget of each `reasoning_effort`; medium is the paper's."""

Effort = Literal["none", "minimal", "low", "medium", "high"]


def only(*allowed: object) -> AfterValidator:
    """Refuses every value but these, which change nothing."""

    def check(value: object) -> object:
        if value not in allowed:
            shown = " or ".join(repr(one) for one in allowed if one is not None)
            raise ValueError(f"not supported by this server; send {shown or 'null'}, or leave it out")
        return value

    return AfterValidator(check)


Nothing = Annotated[Any, only(None, [], {})]
Zero = Annotated[float | None, only(None, 0.0)]
Off = Annotated[bool | None, only(None, False)]
StopString = Annotated[str, Field(max_length=LONGEST_STOP)]


class Strict(BaseModel):
    """A part of a request; what it does not name is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Body(Strict):
    """A whole request. Half a surrogate pair, which JSON can say and no text can hold, is refused wherever it is."""

    @model_validator(mode="before")
    @classmethod
    def _texts_can_be_written(cls, content: Any) -> Any:
        if not isinstance(content, dict):  # what is no object is refused anyway
            return content
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(f"a text holds {half!r}, which is half a character; send whole ones") from error
        except RecursionError as error:
            raise ValueError("it is nested too deeply; send what the API describes") from error
        return content


class TylerOptions(Strict):
    """Exact control over operators: a hard cap, and who routes."""

    budget: Annotated[int, Field(ge=0)] | None = None
    router: str | None = None


class ObfuscationOptions(Strict):
    """What a stream may hide: nothing is hidden here."""

    include_obfuscation: Off = None


class StreamOptions(ObfuscationOptions):
    """What a stream tells besides the answer."""

    include_usage: bool = False


class Asked(Body):
    """What every endpoint takes."""

    model: str
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = False
    tyler: TylerOptions = TylerOptions()
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Off = None
    service_tier: Annotated[str | None, only(None, "auto", "default")] = None


class Sampled(Asked):
    """What chats and completions take."""

    n: Annotated[int, Field(ge=1)] | None = 1
    seed: Annotated[int, Field(ge=0)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Zero = None
    frequency_penalty: Zero = None
    logit_bias: Nothing = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class TextPart(Strict):
    """A piece of a message. Pictures and sounds are refused."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    annotations: Nothing = None
    logprobs: Nothing = None


Content = str | list[TextPart]


class ChatMessage(Strict):
    """One turn. What an assistant's turn from this server has besides its text may be sent back, and is not read."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None
    reasoning_content: str | None = None
    refusal: Nothing = None
    annotations: Nothing = None
    audio: Nothing = None
    function_call: Nothing = None
    tool_calls: Nothing = None
    name: Nothing = None


class ChatRequest(Sampled):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    reasoning_effort: Effort | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Nothing = None
    functions: Nothing = None
    tool_choice: Annotated[Any, only(None, "none", "auto")] = None
    parallel_tool_calls: bool | None = None
    response_format: Annotated[Any, only(None, {"type": "text"})] = None
    modalities: Annotated[Any, only(None, ["text"])] = None


class CompletionRequest(Sampled):
    """`POST /v1/completions`: a text, or token ids, or several of either."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: Annotated[int, Field(ge=0)] | None = USUAL_TOKENS
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int | None, only(None, 1)] = None
    suffix: Nothing = None


class InputItem(Strict):
    """One item of a response's input: a turn, or a reasoning item of an earlier answer, which is not read."""

    type: Literal["message", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content | None = None
    id: str | None = None
    status: str | None = None
    summary: list[dict[str, Any]] | None = None
    encrypted_content: Nothing = None
    phase: Nothing = None
    tyler: dict[str, Any] | None = None


class Reasoning(Strict):
    """How much a response may reason."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Nothing = None


class ResponsesRequest(Asked):
    """`POST /v1/responses`. Nothing is stored, so every request brings its whole conversation."""

    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    reasoning: Reasoning | None = None
    stream_options: ObfuscationOptions | None = None
    tools: Nothing = None
    tool_choice: Annotated[Any, only(None, "none", "auto")] = None
    parallel_tool_calls: bool | None = None
    previous_response_id: Nothing = None
    conversation: Nothing = None
    include: Nothing = None
    background: Off = None
    truncation: Annotated[Any, only(None, "disabled")] = None
    text: Annotated[Any, only(None, {"format": {"type": "text"}})] = None
    top_logprobs: Annotated[Any, only(None, 0)] = None


def text_of(content: Content | None) -> str:
    """A message's text."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)
