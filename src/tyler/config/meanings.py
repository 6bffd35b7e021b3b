"""What the keys of a config mean: the text below each field, and a config as YAML with these texts as comments."""

import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tyler.config.schema import Config
from tyler.config.sections import sections_in

WIDTH = 110
OPERATOR = {
    "name": "What checkpoints, logs and reports call it: letters, digits, underscores.",
    "num_latents": "N_k: latents of one invocation.",
    "boundary": "The rule that proposes its places, a key of `tyler.boundaries.rules.RULES`.",
}
"""The keys of an operator, a dataclass of the model and no section."""


def meaning(owner: type[BaseModel], name: str) -> str:
    """The text below a key, or an empty one; a class that changes only a default keeps its base's."""
    bases = [base for base in owner.__mro__ if issubclass(base, BaseModel) and name in base.model_fields]
    return next((one_line(text) for base in bases if (text := base.model_fields[name].description)), "")


def first_paragraph(owner: Any) -> str:
    """What a section is."""
    return one_line(inspect.getdoc(next(iter(sections_in(owner)), None)) or "")


def one_line(text: str) -> str:
    """A text in one line."""
    return " ".join(inspect.cleandoc(text).split())


def annotated(config: Config) -> str:
    """A config as YAML that loads as the same config, each key below a comment with its meaning and its default."""
    return "\n".join(_lines(Config, config.model_dump(mode="json"), Config().model_dump(mode="json"), "")) + "\n"


def _lines(
    owner: type[BaseModel], values: dict[str, Any], defaults: dict[str, Any] | None, indent: str
) -> Iterator[str]:
    for name, field in owner.model_fields.items():
        value, default = values[name], None if defaults is None else defaults.get(name)
        nested = next(iter(sections_in(field.annotation)), None)
        if not indent:
            yield ""
        about = _about(owner, name, field)
        if nested is not None and isinstance(value, dict):
            yield from _comment(about, indent)
            yield f"{indent}{name}:"
            yield from _lines(nested, value, default if isinstance(default, dict) else None, indent + "  ")
            continue
        ending = "" if defaults is None or value == default else f" Default: {json.dumps(default, ensure_ascii=False)}"
        yield from _comment(about + ending, indent)
        yield from textwrap.indent(_yaml(name, value), indent).splitlines()


def _about(owner: type[BaseModel], name: str, field: FieldInfo) -> str:
    if name == "operators":
        keys = " ".join(f"{key}: {text}" for key, text in OPERATOR.items())
        return f"The typed latent operators, in the order of their action ids. {keys}"
    return meaning(owner, name) or first_paragraph(field.annotation)


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _yaml(name: str, value: Any) -> str:
    """One key; a list's entries on a line each, or all on one where they are plain."""
    flow = None if isinstance(value, list | dict) else False
    return yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True, width=WIDTH, default_flow_style=flow)
