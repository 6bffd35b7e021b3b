"""The page at `/`: its files, sent under a strict policy, and what it asks besides OpenAI's endpoints.

The files are plain ES modules and a stylesheet, as they were written; none of them is secret, so no key is needed for
them. It asks for the model, answers with p(operator), branches, and the lens. Nothing is kept between requests: a
branch and the lens get an answer's actions from the page; the engine repeats them, and so computes the same latents.
"""

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from importlib.resources import files
from string import Template
from typing import Annotated, Any

import torch
from fastapi import Request as HttpRequest
from pydantic import Field
from starlette.responses import JSONResponse, Response

import tyler
from tyler.engine.routing import Learned
from tyler.engine.shared_engine import Turn
from tyler.lens.block import read_block
from tyler.lens.interventions import blocks_of
from tyler.model import Tyler
from tyler.presentation import colour_of
from tyler.reasoners.reasoner import AnswerSettings
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import Event, Rendering
from tyler.serving.generation import Failed, Finished, Invocation, Piece, Started, Text, router_name
from tyler.serving.schema import Count, Generating, Ids, Name, Strict, Turns, Wanted, conversation_of
from tyler.serving.service import Service, refusing

EXAMPLES = (
    "Tom has 50 cups. Tom sells 24. Tom gets 33. How many cups are left?",
    "Find x when $5x - 28 = 47$.",
    "Leo has 60 apples. Leo doubles them. Leo breaks 34. How many apples now?",
    "If $6n + 3 = 3n + 36$, what is n?",
    "Find x when $3x + 9 = 30$.",
    "Zoe has 23 shells. Zoe gets 37. Zoe breaks 40. Zoe picks 32. How many shells are left?",
)
"""Questions to begin with, which `mini-tyler` answers right. The lens answers them too: the blocks of other problems
are its controls."""
CONTROL_TOKENS = 256

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ALONE = "answer.html"
"""A page that shows one answer without a server, once the page wrote that into it: it runs only what is inside."""
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


class Origin(Strict):
    """An answer that is begun again: its prompt, and the actions that are repeated."""

    prompt_ids: Annotated[Ids, Field(min_length=1)]
    actions: Ids


class PageQuestion(Generating):
    """`POST /api/answers`: a conversation, or an answer without the invocation after `branch.actions`."""

    messages: Turns | None = None
    branch: Origin | None = None
    max_new_tokens: Count | None = None
    stream: bool = True

    @property
    def wanted(self) -> Wanted:
        if (self.messages is None) == (self.branch is None):
            raise ApiError(400, "send messages or a branch, and only one of them", param="messages")
        question = conversation_of(self.messages or ()) if self.branch is None else self.branch.prompt_ids
        return Wanted([question], length=self.max_new_tokens, length_field="max_new_tokens")


class LensQuestion(Strict):
    """`POST /api/lens`: a whole answer, and the number of one of its invocations."""

    model: Name
    answer: Origin
    invocation: Annotated[int, Field(ge=0, lt=2**31)]


@cache
def contents() -> dict[str, str]:
    """All files of the page by their names."""
    folder = files("tyler").joinpath("assets", "page")
    found = {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir() if one.name.endswith(tuple(TYPES))}
    modules = [*(IMPORT.sub("", found[name]) for name in VIEW), "showStandalone();\n"]
    parts = {"script": "".join(modules), "style": found["temml.css"] + found["page.css"]}
    hashes = {f"{name}_hash": digest(text) for name, text in parts.items()}
    return found | {ALONE: Template(found[ALONE]).safe_substitute(parts | hashes)}


def sent(name: str) -> Response:
    """One file. Raises ApiError for an unknown name."""
    if name not in contents():
        raise ApiError(404, f"there is no '/page/{name}' here")
    kind = TYPES[name[name.rindex(".") :]]
    return Response(contents()[name], headers={**HEADERS, "Content-Type": f"{kind}; charset=utf-8"})


def digest(text: str) -> str:
    """What a policy names an inline element by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def described(service: Service) -> dict[str, Any]:
    """What the page can offer."""
    usual, typed = service.usual, typed_model(service)
    operators = () if typed is None else typed.operators
    return {
        "name": service.settings.name,
        "method": service.servable.name,
        "backbone": service.servable.model.backbone.id,
        "version": tyler.__version__,
        "operators": [
            {"name": one.name, "latents": one.num_latents, "colour": colour_of(one.name)} for one in operators
        ],
        "router": router_name(usual.router),
        "budget": usual.budget,
        "max_new_tokens": service.settings.max_new_tokens,
        "examples": EXAMPLES[:4],
    }


def typed_model(service: Service) -> Tyler | None:
    """The model, where it has trained operators that may be routed, replayed and looked at; else None."""
    model = service.servable.model
    if not isinstance(model, Tyler) or service.usual.sampler is not None or model.stage not in ("stage1", "stage2"):
        return None
    return model if model.operators else None


def model_of(service: Service, origin: Origin, field: str) -> Tyler:
    """The model that gave an answer. Raises ApiError where it has no operators, or gives no answer of such a length."""
    model, most = typed_model(service), service.settings.max_new_tokens
    if model is None:
        raise ApiError(400, f"{service.settings.name} has no trained operators to leave out or to look at")
    if len(origin.actions) > most:
        message = f"{field}.actions has {len(origin.actions)} actions; this server allows up to {most}"
        raise ApiError(400, message, param=f"{field}.actions")
    return model


async def answer(service: Service, http: HttpRequest, body: PageQuestion) -> Response:
    """An answer, or what becomes of one without one of its calls. Raises ApiError for what is not allowed."""
    branch = None
    if body.branch is not None:
        model_of(service, body.branch, "branch")
        branch = tuple(body.branch.actions)
    generation = await service.begin(http, body, operator_probs=True, branch=branch)
    return await Watched(service, body, generation).response()


class Watched(Rendering[PageQuestion]):
    """How the answer is decoded, then what happens, then all there is to know of it."""

    def add(self, piece: Piece) -> Iterator[Event]:
        """Tokens and invocations, with p(operator) of each operator in `probs`, where it is known."""
        match piece:
            case Started():
                yield "start", self._settings()
            case Text(tokens=tokens):
                yield "steps", {"steps": [{"text": one.text, "probs": rounded(one.operator_probs)} for one in tokens]}
            case Invocation(record=record, probs=probs):
                yield "steps", {"steps": [{"call": record, "probs": rounded(probs)}]}
            case Failed(error=error):
                yield "error", error.body()
            case Finished():
                yield "end", self.whole()

    def _settings(self) -> dict[str, Any]:
        request = self.generation.answers[0].request
        return {
            "id": self.generation.id,
            "budget": request.budget,
            "router": router_name(request.router),
            "sampling": asdict(request.sampling),
            "prompt_tokens": len(request.prompt_ids),
        }

    def whole(self) -> dict[str, Any]:
        return {"trajectory": self.generation.answers[0].done.to_dict()}


def rounded(probs: tuple[float, ...]) -> list[float]:
    """Probabilities as far as a picture shows them."""
    return [round(prob, 6) for prob in probs]


async def look(service: Service, http: HttpRequest, body: LensQuestion) -> Response:
    """What the lens shows of one block. Raises ApiError for one that the answer does not have."""
    model, settings = model_of(service, body.answer, "answer"), service.settings
    service.check_model(body.model)
    actions = tuple(one for one in body.answer.actions if one not in model.backbone.eos_ids)
    if not actions:
        raise ApiError(400, "the answer is empty; send its actions", param="answer.actions")
    same = AnswerSettings(max_new_tokens=len(actions), router=Learned())
    again = replace(await service.request(body.answer.prompt_ids, same), budget=None, branch=actions)
    short = AnswerSettings(max_new_tokens=min(CONTROL_TOKENS, settings.max_new_tokens))
    run = partial(model.shared_engine.run, slots=settings.slots, memory=settings.memory)

    def read(turn: Turn) -> dict[str, Any]:
        """The answer again, with its latents; then its block, with those of other problems as controls."""
        (answer,) = run([again])
        if body.invocation >= answer.num_invocations:
            message = f"invocation {body.invocation} does not exist; the answer has {answer.num_invocations}, from 0 on"
            raise ApiError(400, message, param="invocation")
        service.controls = service.controls or run([service.servable.request(one, short) for one in EXAMPLES])
        others = [one for one in service.controls if one.prompt_ids != answer.prompt_ids]
        reading = read_block(model, answer, body.invocation, others, torch.Generator().manual_seed(0), turn)
        return {**asdict(reading), "controls": len(blocks_of(others).get(reading.operator, ()))}

    with refusing():  # such as a bound on memory that the examples do not fit in
        return JSONResponse(await service.dispatcher.beside_steps(read))
