"""Everything that can be set about a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

InvocationStyle = Literal["inline", "first", "hidden"]
"""How a chat shows invocations as reasoning: where they happen, all before the text, or not at all."""


@dataclass(frozen=True)
class ServerSettings:
    """How a model is served.

    `slots` answers are decoded at once and `max_queue` more may wait; `memory` bounds the bytes of contexts and caches.
    `max_new_tokens` is the most a request may ask for, and what it gets when it does not say. `max_body` is in bytes;
    `body_seconds` is how long a client may take to send one, `idle_seconds` how long to send its headers,
    `read_seconds` how long not to read a stream, and `drain_seconds` how long answers in flight have after SIGTERM.
    `hosts` are names under which the server may be addressed besides its own ("*" for any), `origins` web pages that
    may ask it.
    `log` is the audit log's file.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    name: str = "tyler"
    slots: int = 32
    memory: int | None = None
    max_queue: int = 128
    max_new_tokens: int = 2048
    max_body: int = 4 * 2**20
    body_seconds: float = 30.0
    idle_seconds: float = 30.0
    read_seconds: float = 60.0
    drain_seconds: float = 30.0
    ping_seconds: float = 15.0
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    invocations: InvocationStyle = "inline"
    log: Path | None = None
    log_text: bool = False
    log_bytes: int = 64 * 2**20
    log_files: int = 5

    def __post_init__(self) -> None:
        for setting in ("slots", "max_new_tokens", "max_body", "log_bytes", "log_files"):
            if getattr(self, setting) < 1:
                raise ValueError(f"{setting}={getattr(self, setting)}; it must be 1 or more")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port={self.port}; it must be from 0 (any that is free) to 65535")
        if self.max_queue < 0:
            raise ValueError(f"max_queue={self.max_queue}; it must be 0 or more")
        if self.api_key is not None and not self.api_key.strip():
            raise ValueError("the API key is empty; write one into the file, or leave --api-key-file out")
        if self.api_key is not None and not self.api_key.isascii():
            raise ValueError("the API key has characters that no header can carry; write one of ASCII into the file")


def key_in(path: Path) -> str:
    """The API key that a file holds. Raises ValueError for an empty one."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid UTF-8; write the API key into it") from error
    if not key:
        raise ValueError(f"{path} is empty; write the API key into it")
    return key
