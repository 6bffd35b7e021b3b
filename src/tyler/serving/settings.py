"""Everything that can be set about a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

UnknownFields = Literal["refuse", "ignore"]
"""What becomes of a field of a request that the server does not know."""
KEY_VARIABLE = "TYLER_API_KEY"
"""The environment variable that holds the key where no file does."""


def sendable(key: str) -> str:
    """An API key. Raises ValueError for an invalid one."""
    if not key.strip() or not key.isascii():
        raise ValueError("an API key is empty or not ASCII, which no header can carry; change it")
    return key.strip()


class ServerSettings(BaseModel):
    """How a model is served; `tyler serve --help` says what each setting means.

    `aliases` are further names of the model, `api_keys` keys by the names under which they are logged, `hosts` names
    under which the server may be addressed, `origins` web pages that may ask it. A client has `body_seconds` to send a
    body, `idle_seconds` for its headers, and `read_seconds` to read what it was sent; a stream that is quiet for
    `ping_seconds` sends a comment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    api_keys: dict[str, Annotated[str, AfterValidator(sendable)]] = {}
    name: str = "tyler"
    aliases: tuple[str, ...] = ()
    slots: PositiveInt = 32
    memory: int | None = None
    max_queue: NonNegativeInt = 128
    max_new_tokens: PositiveInt = 2048
    budget: NonNegativeInt | None = None
    max_body: PositiveInt = 4 * 2**20
    body_seconds: float = 30.0
    idle_seconds: float = 30.0
    read_seconds: float = 60.0
    drain_seconds: int = 30
    ping_seconds: float = 15.0
    max_probes: PositiveInt = 5
    unknown_fields: UnknownFields = "refuse"
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    log: Path | None = None
    log_text: bool = False
    log_bytes: PositiveInt = 64 * 2**20
    log_files: Annotated[int, Field(ge=2)] = 5
    otlp: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the model."""
        return (self.name, *self.aliases)


def keys_in(path: Path) -> dict[str, str]:
    """The API keys of a file by their names: a line each, `KEY` or `NAME KEY`. Raises ValueError for a file without."""
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid UTF-8; write the API key into it") from error
    if not lines:
        raise ValueError(f"{path} is empty; write the API key into it")
    keys: dict[str, str] = {}
    for number, words in enumerate(lines, 1):
        if len(words) > 2 or (name := words[0] if len(words) == 2 else f"key-{number}") in keys:
            raise ValueError(f"{path}, line {number}: write KEY, or NAME KEY with a name of its own")
        keys[name] = words[-1]
    return keys
