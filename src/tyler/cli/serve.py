"""`tyler serve`: a model behind the API that OpenAI's clients speak."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import yaml
from tyro.conf import arg

from tyler.cli.options import AnyModel
from tyler.evaluation.options import Limits, Loading, RouterName, last_part
from tyler.serving.settings import ServerSettings

DEFAULT, LOADED = ServerSettings(), Loading()


def serve(
    model: AnyModel,
    router: RouterName = None,
    settings: Annotated[ServerSettings, arg(name="")] = DEFAULT,
    placement: Annotated[Loading, arg(name="")] = LOADED,
    log_level: Literal["debug", "info", "warning", "error"] = "info",
) -> None:
    """Serve a model over HTTP: chats, completions, responses and messages as OpenAI's and Anthropic's clients ask for
    them, a page, and metrics.

    --config FILE reads these settings from YAML by the names of their flags; a flag overrides the file.

    Args:
        router: learned, never, boundaries or boundaries:0.25, where a request does not say; by default what its last
            stage trained for.
        log_level: What is logged to stderr; info has a line for each request.
    """
    limits = Limits(settings.budget, router, settings.max_new_tokens)
    _ = limits.routed, placement.engine_choice  # what is wrong is said before anything is loaded
    try:
        from tyler.serving import audit_log, server

        if settings.otlp is not None:
            from tyler.serving import tracing  # noqa: F401  # here, and not when the model is loaded
    except ModuleNotFoundError as error:
        extra = "otel" if "opentelemetry" in str(error) else "serve"
        raise ValueError(f"tyler serve needs more packages: pip install 'path/to/tyler[{extra}]'") from error
    name = settings.name or last_part(model)
    settings = replace(settings.with_keys(), name=name, memory=placement.bytes)
    say_on_stderr(log_level)
    # A log that cannot be written, and an address that is taken, are reported before the model is loaded.
    if settings.log is not None:
        audit_log.check_writable(settings.log)
    with server.listen(settings) as socket:
        server.run(placement.load(model, limits, name=name, slots=settings.slots), settings, socket)


def say_on_stderr(level: str) -> None:
    """Let what happens be said on stderr with its time, from this level on; other packages say warnings."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logger = logging.getLogger("tyler")
    logger.handlers.clear()  # other commands say it in plain lines
    logger.setLevel(level.upper())


def with_config(argv: Sequence[str]) -> list[str]:
    """The arguments with those of `--config FILE` before them, so that a flag overrides the file.

    Raises ValueError for a file that is not a mapping of flags to values.
    """
    argv = [part for flag in argv for part in (flag.split("=", 1) if flag.startswith("--config=") else [flag])]
    if "--config" not in argv:
        return argv
    at = argv.index("--config")
    if at + 1 == len(argv):
        raise ValueError("--config needs a file: --config serve.yaml")
    rest, path = [*argv[:at], *argv[at + 2 :]], Path(argv[at + 1])
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{path} must map names of flags to values, such as `slots: 16`")
    model = content.pop("model", None)
    typed = rest[:1] if rest and not rest[0].startswith("-") else []  # the model that goes before the file's
    return [*(typed or [str(model)] * (model is not None)), *flags_of(content), *rest[len(typed) :]]


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
