"""Pages of HTML that need nothing else: one file, no network. The templates are in assets/pages."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

FOLDER = files("tyler") / "assets" / "pages"


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def render(template: str, **values: Any) -> str:
    """A template with its values, escaped: whatever a model wrote stays text."""
    environment = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    own = {"css": Markup(_read("page.css")), "js": Markup(_read("page.js"))}
    return environment.get_template(template).render(**own, **values)
