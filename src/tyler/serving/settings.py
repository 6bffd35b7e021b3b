"""Everything that can be set about a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

InvocationStyle = Literal["inline", "first", "hidden"]
"""How a chat shows invocations as reasoning: where they happen, all before the text, or not at all."""
UnknownFields = Literal["refuse", "ignore"]
"""What becomes of a field of a request that the server does not know."""
KEY_VARIABLE = "TYLER_API_KEY"
"""The environment variable that holds the key where no file does."""


@dataclass(frozen=True)
class ServerSettings:
    """How a model is served.

    `aliases` are further names that clients may call the model by. `api_keys` are the keys that clients may send, by
    the names under which they are logged; without any, every client is served.
    `slots` answers are decoded at once and `max_queue` more may wait; `memory` bounds the bytes of contexts and caches.
    `max_new_tokens` is the most a request may ask for, and what it gets when it does not say; `budget` is the same for
    operator calls. `max_body` is in bytes; `body_seconds` is how long a client may take to send one, `idle_seconds` how
    long to send its headers, `read_seconds` how long not to read a stream, and `drain_seconds` how long answers in
    flight have after SIGTERM. After `max_probes` failed attempts to revive its engine the server gives up.
    `hosts` are names under which the server may be addressed besides its own ("*" for any), `origins` web pages that
    may ask it.
    `log` is the audit log's file; `otlp` is where traces are sent.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: Mapping[str, str] = field(default_factory=dict)
    name: str = "tyler"
    aliases: tuple[str, ...] = ()
    slots: int = 32
    memory: int | None = None
    max_queue: int = 128
    max_new_tokens: int = 2048
    budget: int | None = None
    max_body: int = 4 * 2**20
    body_seconds: float = 30.0
    idle_seconds: float = 30.0
    read_seconds: float = 60.0
    drain_seconds: float = 30.0
    ping_seconds: float = 15.0
    max_probes: int = 5
    unknown_fields: UnknownFields = "refuse"
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    invocations: InvocationStyle = "inline"
    log: Path | None = None
    log_text: bool = False
    log_bytes: int = 64 * 2**20
    log_files: int = 5
    otlp: str | None = None

    def __post_init__(self) -> None:
        least = {"slots": 1, "max_new_tokens": 1, "max_body": 1, "log_bytes": 1, "log_files": 2}
        least |= {"max_queue": 0, "max_probes": 1, "budget": 0}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ValueError(f"{name}={value}; it must be {minimum} or more")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port={self.port}; it must be from 0 (any that is free) to 65535")
        for name, key in self.api_keys.items():
            if not key.strip() or not key.isascii():
                raise ValueError(f"the API key {name!r} is empty or not ASCII, which no header can carry; change it")

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
