"""`tyler serve`: a model behind the API that OpenAI's clients speak."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import yaml
from tyro.conf import UseAppendAction, arg

from tyler.cli.options import AnyModel
from tyler.evaluation.options import Limits, Loading, OptionalFile, OptionalNumber, RouterName, last_part

if TYPE_CHECKING:
    from tyler.serving.settings import ServerSettings

Several = Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME")]


@dataclass(frozen=True)
class Listening:
    """Where, and to whom."""

    host: Annotated[str, arg(metavar="HOST")] = "127.0.0.1"
    """The address to listen at; by default only this machine can reach it."""
    port: int = 8000
    """The port to listen at."""
    api_key_file: OptionalFile = None
    """A file with the keys of which every client must send one: a line each, KEY or NAME KEY. Without it the variable
    TYLER_API_KEY holds the key; by default no key is needed."""
    allow_host: Several = ()
    """A name under which the server may be addressed besides its own, or * for any. May be repeated. Without one, a
    server that is open to a network and has no key answers to addresses and to names without a dot."""
    allow_origin: Several = ()
    """A web page's origin that may ask the server, as https://example.org. May be repeated; by default none."""
    max_body: Annotated[int, arg(metavar="BYTES")] = 4 * 2**20
    """The largest request."""
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    """What becomes of a field of a request that the server does not know: a 400 that names it, or nothing."""
    max_probes: Annotated[int, arg(metavar="N")] = 5
    """After so many failed attempts to revive its engine the process ends with status 1, to be started again."""
    drain_seconds: int = 30
    """How long answers in flight have to finish once the server is asked to stop."""


@dataclass(frozen=True)
class Decoding(Loading, Limits):
    """How answers are decoded."""

    router: RouterName = None
    """learned, never, boundaries or boundaries:0.25, where a request does not say; by default what its last stage
    trained for."""
    budget: OptionalNumber = None
    """The most invocations a request may ask for, and what it gets when it does not say; by default no limit."""
    max_new_tokens: int = 2048
    """The most actions a request may ask for, and what it gets when it does not say."""
    slots: int = 32
    """Answers decoded at once."""
    max_queue: int = 128
    """Answers that may wait; more are refused with 429."""


@dataclass(frozen=True)
class Logging:
    """What is written down."""

    log: OptionalFile = None
    """The audit log: one JSON line for each request, without its text."""
    log_text: bool = False
    """Put prompts and answers into the audit log too."""
    log_bytes: Annotated[int, arg(metavar="BYTES")] = 64 * 2**20
    """A log of this size is rotated."""
    log_files: int = 5
    """How many logs are kept, the present one included; 2 or more."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is said on stderr; info has a line for each request."""
    otlp: Annotated[str | None, arg(metavar="URL", help_behavior_hint="")] = None
    """Where OpenTelemetry traces are sent, as http://127.0.0.1:4318; by default nowhere."""


def serve(
    model: AnyModel,
    name: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None,
    alias: Several = (),
    listening: Annotated[Listening, arg(name="")] = Listening(),
    decoding: Annotated[Decoding, arg(name="")] = Decoding(),
    logging: Annotated[Logging, arg(name="")] = Logging(),
) -> None:
    """Serve a model over HTTP: chats, completions, responses and messages as OpenAI's and Anthropic's clients ask for
    them, a page, and metrics.

    --config FILE reads these settings from YAML by the names of their flags; a flag goes before the file.

    Args:
        name: What clients call the model; by default the last part of MODEL.
        alias: Another name that clients may call it by. May be repeated.
    """
    _ = decoding.routed, decoding.engine_choice  # what is wrong is said before anything is loaded
    if any(find_spec(module) is None for module in ("fastapi", "uvicorn", "prometheus_client")):
        raise ValueError("tyler serve needs more packages: pip install 'path/to/tyler[serve]'")
    if logging.otlp is not None and not can_trace():
        raise ValueError("--otlp needs more packages: pip install 'path/to/tyler[otel]'")
    from tyler.serving import server

    settings = settings_of(name or last_part(model), alias, listening, decoding, logging)
    say_on_stderr(logging.log_level)
    # An address that is taken is reported before the model is loaded.
    with server.listen(settings) as socket:
        loaded = decoding.load(model, decoding, name=settings.name, slots=decoding.slots)
        server.run(loaded, settings, socket)


def can_trace() -> bool:
    """Whether the packages of the extra `otel` are installed."""
    try:
        return all(map(find_spec, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")))
    except ModuleNotFoundError:
        return False


def say_on_stderr(level: str) -> None:
    """Let what happens be said on stderr with its time, from this level on; other packages say warnings."""
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logger = logging.getLogger("tyler")
    logger.handlers.clear()  # other commands say it in plain lines
    logger.setLevel(level.upper())


def settings_of(
    name: str, aliases: tuple[str, ...], listening: Listening, decoding: Decoding, logging: Logging
) -> ServerSettings:
    """The server's settings. Raises ValueError for invalid ones, and OSError for a log that cannot be written."""
    from pydantic import ValidationError

    from tyler.serving.audit_log import check_writable
    from tyler.serving.settings import KEY_VARIABLE, ServerSettings, keys_in

    if logging.log is not None:  # before anything is loaded: what cannot be written is said now
        check_writable(logging.log)
    file, key = listening.api_key_file, os.environ.get(KEY_VARIABLE)
    flags = vars(listening) | vars(decoding) | vars(logging)
    given = {name: flags[name] for name in ServerSettings.model_fields if name in flags}
    given |= {"name": name, "aliases": aliases, "memory": decoding.bytes}
    given |= {"hosts": listening.allow_host, "origins": listening.allow_origin}
    given["api_keys"] = keys_in(file) if file is not None else {} if key is None else {KEY_VARIABLE: key}
    try:
        return ServerSettings(**given)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ValueError(f"{wrong['loc'][0]}={wrong['input']}: {wrong['msg'].removeprefix('Value error, ')}") from error


def with_config(argv: Sequence[str]) -> list[str]:
    """The arguments with those of `--config FILE` before them, so that a flag goes before the file.

    Raises ValueError for a file that is not a mapping of flags to values.
    """
    if "--config" not in argv:
        return list(argv)
    at = argv.index("--config")
    if at + 1 == len(argv):
        raise ValueError("--config needs a file: --config serve.yaml")
    rest, path = [*argv[:at], *argv[at + 2 :]], Path(argv[at + 1])
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{path} must map names of flags to values, as `slots: 16`")
    model = content.pop("model", None)
    own = [str(model)] if model is not None and (not rest or rest[0].startswith("-")) else []
    return [*own, *rest[:1], *flags_of(content), *rest[1:]] if rest and not own else [*own, *flags_of(content), *rest]


def flags_of(content: Mapping[str, object]) -> list[str]:
    """The flags that a config file stands for: true is a flag alone, false none, a list a flag repeated."""
    flags: list[str] = []
    for key, value in content.items():
        flag = "--" + key.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            for item in value if isinstance(value, list) else [value]:
                flags += [flag, str(item)]
    return flags
