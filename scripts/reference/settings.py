"""The page of settings, from the schema: every key with type, bounds, default and meaning."""

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from tyler.config.meanings import OPERATOR, first_paragraph, meaning
from tyler.config.schema import Config
from tyler.config.sections import sections_in
from tyler.modeling.operators import Operator

HEAD = """# Every setting

Defaults are the paper's, except that the backbone and the tasks are
`mini`'s; a preset (`src/tyler/configs/`) or a YAML file of yours says what differs, and `--stage1.learning_rate 1e-4`
changes one key of a run. A misspelt key, a wrong type or a value out of bounds is refused by name before anything is
loaded.

```yaml
extends: paper            # a preset, or a file beside this one
backbone: {id: path/to/model}
stage1: {learning_rate: 1.0e-4, micro_batch_size: 2}
```
"""
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
NAMES = {str: "text", int: "integer", float: "number", bool: "true, false", NoneType: "null"}


def page() -> str:
    """The page as Markdown."""
    return "\n".join([HEAD, *(section(name, field) for name, field in Config.model_fields.items())])


def section(name: str, field: FieldInfo) -> str:
    """One top-level key: a table of what it holds."""
    if name == "operators":
        rows, about = operator_rows(), "The typed latent operators, in the order of their action ids; a list of:"
    else:
        (owner,), about = sections_in(field.annotation), first_paragraph(field.annotation)
        rows = list(rows_of(name, owner))
    head = "| key | values | default | meaning |\n|---|---|---|---|"
    return "\n".join([f"## `{name}`\n\n{textwrap.fill(about, 120)}\n", head, *rows, ""])


def rows_of(prefix: str, owner: Any) -> Iterator[str]:
    """The rows of a section, those of the sections inside it after their key."""
    for name, field in owner.model_fields.items():
        key, nested = f"{prefix}.{name}", next(iter(sections_in(field.annotation)), None)
        if nested is None:
            yield row(key, values(field), default(field), meaning(owner, name))
        else:
            about = meaning(owner, name) or first_paragraph(nested)
            yield row(key, holds(field.annotation), "`null`" if field.default is None else "", about)
            yield from rows_of(key, nested)


def holds(annotation: Any) -> str:
    """What a key with sections in it is: one section, or a list of them, or null."""
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(holds(inner) for inner in get_args(annotation))
    return "null" if annotation is NoneType else "a list" if get_origin(annotation) is tuple else "a section"


def operator_rows() -> list[str]:
    shown = json.dumps([[each.name, each.num_latents, each.boundary] for each in Config().operators])
    kinds: dict[Any, str] = {str: "text", int: "integer, ≥ 1"}
    rows = [row(f"operators[].{key.name}", kinds[key.type], "", OPERATOR[key.name]) for key in fields(Operator)]
    return [*rows, row("operators", "at least one", f"`{shown}`", "The paper's O_g, O_s and O_p.")]


def row(*cells: str) -> str:
    first, *others = (cell.replace("|", "\\|") for cell in cells)
    return f"| `{first}` | " + " | ".join(others) + " |"


def values(field: FieldInfo) -> str:
    """The type of a key and its bounds."""
    return ", ".join([kind(field.annotation), *bounds(field.metadata)])


def kind(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " · ".join(f"`{option}`" for option in inner)
    if origin in (Union, UnionType):
        return " or ".join(kind(option) for option in inner)
    if origin is Annotated:
        return ", ".join([kind(inner[0]), *bounds(inner[1:])])
    if origin is tuple:
        return f"list of {kind(inner[0])}"
    if origin is dict:
        return "a section of any keys"
    return NAMES[annotation]


def bounds(metadata: Any) -> list[str]:
    """≥ 1, < 1 and the like; bounds stand in a field's metadata or in pydantic's own record of them."""
    flat = [bound for item in metadata for bound in getattr(item, "metadata", [item])]
    limits = [
        f"{sign} {limit(getattr(bound, name))}" for bound in flat for name, sign in SIGNS.items() if name in dir(bound)
    ]
    return limits + ["at least one" for bound in flat if "min_length" in dir(bound)]


def limit(number: float) -> str:
    return "2^63" if number == 2**63 else f"{number:g}"


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = json.dumps(field.get_default(call_default_factory=True), ensure_ascii=False)
    shorter = re.sub(r"e-0(\d)$", r"e-\1", value.replace("\\\\", "\\"))
    return "empty" if value == '""' else f"`{shorter}`"
