"""The page at `/`: files of the package, sent under a strict policy, and one answer as a file that needs no server.

The files are plain ES modules and a stylesheet, as they were written. None of them is secret, so no key is needed for
them; all that they show comes from the page's API (`page_api.py`), which is guarded like every other endpoint.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from tyler.serving.errors import ApiError

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
VIEW = ("temml.js", "dom.js", "math.js", "operators.js", "ribbon.js", "lens.js", "answer.js")
"""The modules that show an answer, each before those that import it."""
IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def is_open(path: str) -> bool:
    """Whether a path is one of the page's files, which need no key."""
    return path == "/" or (path.startswith("/page/") and path.removeprefix("/page/") in contents())


def routes() -> APIRouter:
    """The page and its files."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def page() -> Response:
        return sent("index.html")

    @router.get("/page/{name}")
    async def file(name: str) -> Response:
        return sent(name)

    return router


def sent(name: str) -> Response:
    """One file. Raises ApiError for an unknown name."""
    if name not in contents():
        raise ApiError(404, f"there is no '/page/{name}' here")
    kind = TYPES[name[name.rindex(".") :]]
    return Response(contents()[name], headers={**HEADERS, "Content-Type": f"{kind}; charset=utf-8"})


@cache
def contents() -> dict[str, str]:
    """All files of the page by their names."""
    folder = files("tyler").joinpath("assets", "page")
    return {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir() if one.name.endswith(tuple(TYPES))}


def standalone(answer: dict[str, Any]) -> str:
    """An answer, as the page keeps it, as one HTML file: it loads nothing and runs only what this server wrote.

    What a model said is data in it: `<` is written as an escape, so no text ends the element that holds it.
    """
    script, style = bundle(), contents()["temml.css"] + contents()["page.css"]
    policy = f"default-src 'none'; img-src data:; style-src '{digest(style)}'; script-src '{digest(script)}'"
    data = json.dumps(answer, ensure_ascii=False).replace("<", "\\u003c")
    title = escape(str(answer.get("question") or "An answer")[:80])
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}; base-uri \'none\'">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n"
        '<body class="standalone">\n<main id="answer"></main>\n'
        f'<script type="application/json" id="data">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


@cache
def bundle() -> str:
    """The modules that show an answer as one, their imports of each other left out, and a line that shows it."""
    modules = [IMPORT.sub("", contents()[name]) for name in VIEW]
    return "".join([*modules, "showStandalone();\n"])


def digest(text: str) -> str:
    """What a policy names an inline element by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
