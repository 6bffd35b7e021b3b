"""Everything that can be set about a server; `tyler serve` takes the same, under the same names. Without torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, Self

from tyro.conf import Suppress, UseAppendAction, arg

from tyler.evaluation.options import OptionalFile, OptionalNumber

UnknownFields = Literal["refuse", "ignore"]
"""What becomes of a field of a request that the server does not know."""
KEY_VARIABLE = "TYLER_API_KEY"
"""The environment variable that holds the key where no file does."""
Words = UseAppendAction[tuple[str, ...]]
LEAST = {
    **dict.fromkeys(("slots", "max_new_tokens", "max_body", "max_probes", "log_bytes"), 1),
    **dict.fromkeys(("port", "max_queue", "budget"), 0),
    "log_files": 2,
}
"""The smallest value of each number."""


@dataclass(frozen=True)
class ServerSettings:
    """How a model is served; `api_keys` are by the names that are logged. Raises ValueError, by name, for an invalid
    value."""

    name: Annotated[str, arg(metavar="NAME", help_behavior_hint="")] = ""
    """What clients call the model; by default the last part of MODEL."""
    aliases: Annotated[Words, arg(name="alias", metavar="NAME")] = ()
    """Another name that clients may call it by. May be repeated."""
    host: Annotated[str, arg(metavar="HOST")] = "127.0.0.1"
    """The address to listen at; by default only this machine can reach it."""
    port: int = 8000
    """The port to listen at."""
    api_key_file: OptionalFile = None
    """A file with the keys of which every client must send one: a line each, KEY or NAME KEY. Without it the variable
    TYLER_API_KEY holds the key; by default no key is needed."""
    hosts: Annotated[Words, arg(name="allow-host", metavar="NAME")] = ()
    """A name under which the server may be addressed besides its own, or * for any. May be repeated. Without one, a
    server that is open to a network and has no key answers to addresses and to names without a dot."""
    origins: Annotated[Words, arg(name="allow-origin", metavar="NAME")] = ()
    """A web page's origin that may ask the server, such as https://example.org. May be repeated; by default none."""
    max_body: Annotated[int, arg(metavar="BYTES")] = 4 * 2**20
    """The largest request."""
    unknown_fields: UnknownFields = "refuse"
    """What becomes of a field of a request that the server does not know: a 400 that names it, or nothing."""
    max_probes: Annotated[int, arg(metavar="N")] = 5
    """After so many failed attempts to revive its engine the process ends with status 1, to be started again."""
    drain_seconds: int = 30
    """How long answers in flight have to finish once the server is asked to stop."""
    budget: OptionalNumber = None
    """The most invocations a request may ask for, and what it gets when it does not say; by default no limit."""
    max_new_tokens: int = 2048
    """The most actions a request may ask for, and what it gets when it does not say."""
    slots: int = 32
    """Answers decoded at once."""
    max_queue: int = 128
    """Answers that may wait; more are refused with 429."""
    log: OptionalFile = None
    """The audit log: one JSON line for each request, without its text."""
    log_text: bool = False
    """Put prompts and answers into the audit log too."""
    log_bytes: Annotated[int, arg(metavar="BYTES")] = 64 * 2**20
    """A log of this size is rotated."""
    log_files: int = 5
    """How many logs are kept, the present one included; 2 or more."""
    otlp: Annotated[str | None, arg(metavar="URL", help_behavior_hint="")] = None
    """Where OpenTelemetry traces are sent, such as http://127.0.0.1:4318; by default nowhere."""
    memory: Annotated[int | None, Suppress] = None
    api_keys: Annotated[Mapping[str, str], Suppress] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name}={value}: it must be at least {least}")
        if self.port > 65535:
            raise ValueError(f"port={self.port}: it must be at most 65535")
        if any(not key.strip() or not key.isascii() for key in self.api_keys.values()):
            raise ValueError("an API key is empty or not ASCII, which no header can carry; change it")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def with_keys(self) -> Self:
        """The same with the keys of the file, else of the environment. Raises ValueError as `keys_in` does."""
        key = os.environ.get(KEY_VARIABLE)
        own = {} if key is None else {KEY_VARIABLE: key.strip()}
        return replace(self, api_keys=own if self.api_key_file is None else keys_in(self.api_key_file))


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
