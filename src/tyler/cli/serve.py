"""`tyler serve`: a model behind the API that OpenAI's clients speak."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import UseAppendAction, arg

from tyler.cli.options import ModelName, RouterName, SomeDevice, SomeFile, SomeNumber, last_part, router_of
from tyler.evaluation.options import Loading

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
    api_key_file: SomeFile = None
    """A file that holds the key which every client must send; by default there is none."""
    allow_host: Several = ()
    """A name under which the server may be addressed besides its own, or * for any. May be repeated. Without one, a
    server that is open to a network and has no key answers to addresses and to names without a dot."""
    allow_origin: Several = ()
    """A web page's origin that may ask the server, as https://example.org. May be repeated; by default none."""
    max_body: Annotated[int, arg(metavar="BYTES")] = 4 * 2**20
    """The largest request."""
    drain_seconds: float = 30.0
    """How long answers in flight have to finish once the server is asked to stop."""


@dataclass(frozen=True)
class Decoding(Loading):
    """How answers are decoded."""

    router: RouterName = None
    """learned, never, boundaries or boundaries:0.25, where a request does not say; by default what its last stage
    trained for."""
    budget: SomeNumber = None
    """At most this many invocations, where a request does not say; by default no limit."""
    max_new_tokens: int = 2048
    """The most actions a request may ask for, and what it gets when it does not say."""
    slots: int = 32
    """Answers decoded at once."""
    device: SomeDevice = None
    """cpu, cuda, cuda:1 or mps; by default a CUDA device where there is one."""
    max_queue: int = 128
    """Answers that may wait; more are refused with 429."""
    invocations: Literal["inline", "first", "hidden"] = "inline"
    """Where chats show invocations as reasoning: where they happen, all before the text, or not at all."""


@dataclass(frozen=True)
class Logging:
    """What is written down."""

    log: SomeFile = None
    """The audit log: one JSON line for each request, without its text."""
    log_text: bool = False
    """Put prompts and answers into the audit log too."""
    log_bytes: Annotated[int, arg(metavar="BYTES")] = 64 * 2**20
    """A log of this size is rotated."""
    log_files: int = 5
    """How many logs are kept, the present one included."""


def serve(
    model: ModelName,
    name: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None,
    listening: Annotated[Listening, arg(name="")] = Listening(),
    decoding: Annotated[Decoding, arg(name="")] = Decoding(),
    logging: Annotated[Logging, arg(name="")] = Logging(),
) -> None:
    """Serve a model over HTTP: chats, completions and responses as OpenAI's clients ask for them, and metrics.

    Args:
        model: A saved model, Tyler's or a baseline's (mini-tyler ships), or a plain backbone: mini, smollm2 (see tyler
            fetch), a folder, a GGUF file or a Hub id.
        name: What clients call the model; by default the last part of MODEL.
    """
    router, engine = router_of(decoding.router), decoding.engine_choice
    if any(find_spec(module) is None for module in ("fastapi", "httptools", "uvicorn", "prometheus_client")):
        raise ValueError("tyler serve needs more packages: pip install 'path/to/tyler[serve]'")
    from tyler.reasoners import registry
    from tyler.serving import server

    settings = settings_of(name or last_part(model), listening, decoding, logging)
    loaded = registry.load(
        model,
        decoding.method,
        decoding.method_set,
        name=settings.name,
        backbone=decoding.backbone,
        device=decoding.device,
        router=router,
        budget=decoding.budget,
        max_new_tokens=decoding.max_new_tokens,
        slots=decoding.slots,
        engine=engine,
    )
    server.run(loaded, settings)


def settings_of(name: str, listening: Listening, decoding: Decoding, logging: Logging) -> ServerSettings:
    """The server's settings. Raises ValueError for what is none, and OSError for a log that cannot be written."""
    from tyler.serving.audit_log import check_writable
    from tyler.serving.settings import ServerSettings, key_in

    if logging.log is not None:  # before anything is loaded: what cannot be written is said now
        check_writable(logging.log)
    key = listening.api_key_file
    return ServerSettings(
        host=listening.host,
        port=listening.port,
        api_key=None if key is None else key_in(key),
        name=name,
        slots=decoding.slots,
        memory=decoding.bytes,
        max_queue=decoding.max_queue,
        max_new_tokens=decoding.max_new_tokens,
        max_body=listening.max_body,
        drain_seconds=listening.drain_seconds,
        hosts=listening.allow_host,
        origins=listening.allow_origin,
        invocations=decoding.invocations,
        log=logging.log,
        log_text=logging.log_text,
        log_bytes=logging.log_bytes,
        log_files=logging.log_files,
    )
