"""What the page asks besides OpenAI's endpoints: the model, answers with p(operator), branches, the lens, an export.

Nothing is kept between requests. A branch and the lens get an answer's actions from the page; the engine repeats them,
and so computes the same latents again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, Self

import torch
from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

import tyler
from tyler.engine.routing import Learned
from tyler.engine.trajectory import Trajectory
from tyler.lens.block import read_block
from tyler.lens.interventions import blocks_of
from tyler.model import Tyler
from tyler.presentation import colour_of
from tyler.reasoners.reasoner import AnswerSettings
from tyler.serving import page
from tyler.serving.bodies import read, takes
from tyler.serving.conversation import Conversation
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import Event, Rendering, answered, unless_disconnected
from tyler.serving.generation import Failed, Generation, Invocation, Piece, router_name
from tyler.serving.generation import Text as TextPiece
from tyler.serving.schema import Body, Count, Generating, Ids, Limits, Messages, Strict, Text, conversation_of
from tyler.serving.service import Question, Service

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


class Origin(Strict):
    """An answer that is begun again: its prompt, and the actions that are repeated."""

    prompt_ids: Annotated[Ids, Field(min_length=1)]
    actions: Ids


class PageQuestion(Generating):
    """`POST /api/answers`: a question, a conversation, or an answer without the invocation after `branch.actions`."""

    question: Text | None = None
    messages: Messages | None = None
    branch: Origin | None = None
    max_new_tokens: Count | None = None
    stream: bool | None = True

    @model_validator(mode="after")
    def _asks_one_thing(self) -> Self:
        if sum(value is not None for value in (self.question, self.messages, self.branch)) != 1:
            raise ApiError(400, "send a question, messages or a branch, and only one of them", param="question")
        return self

    @property
    def limits(self) -> Limits:
        return Limits(self.max_new_tokens, "max_new_tokens")


class LensQuestion(Generating):
    """`POST /api/lens`: a whole answer, and the number of one of its invocations."""

    answer: Origin
    invocation: Annotated[int, Field(ge=0, lt=2**31)]


class Export(Body):
    """`POST /api/export`: an answer as the page keeps it."""

    answer: dict[str, Any]


def routes(service: Service) -> APIRouter:
    """The endpoints."""
    router, controls, unknown = APIRouter(prefix="/api"), Controls(service), service.settings.unknown_fields

    @router.get("/model")
    async def model() -> dict[str, Any]:
        return described(service)

    @router.post("/answers", **takes(PageQuestion))
    async def answers(http: HttpRequest) -> Response:
        body = await read(PageQuestion, http, unknown)
        watched = Watched(service, body, await begin(service, body, http))
        watched.style = "inline"
        return await answered(http, watched)

    @router.post("/lens", **takes(LensQuestion))
    async def lens(http: HttpRequest) -> Response:
        body = await read(LensQuestion, http, unknown)
        return JSONResponse(await unless_disconnected(http, looked(service, controls, body, http)))

    @router.post("/export", **takes(Export))
    async def export(http: HttpRequest) -> Response:
        body = await read(Export, http, unknown)
        content = await asyncio.to_thread(page.standalone, body.answer)
        headers = {"Content-Disposition": 'attachment; filename="answer.html"', "X-Content-Type-Options": "nosniff"}
        return Response(content, media_type="text/html", headers=headers)

    return router


# -- the model -------------------------------------------------------------------------------------------------------


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


def needed_model(service: Service) -> Tyler:
    """The same. Raises ApiError where it has no operators."""
    model = typed_model(service)
    if model is None:
        raise ApiError(400, f"{service.settings.name} has no trained operators to leave out or to look at")
    return model


# -- answers ---------------------------------------------------------------------------------------------------------


async def begin(service: Service, body: PageQuestion, http: HttpRequest) -> Generation:
    """Queue the answer. Raises ApiError for what is not allowed."""
    settings = service.answer_settings(body)
    if body.branch is not None:
        needed_model(service)
        check_origin(service, body.branch, "branch")
    (request,) = await service.requests(question_of(body), settings)
    branch = None if body.branch is None else tuple(body.branch.actions)
    return await service.generate(http, body, [replace(request, operator_probs=True, branch=branch)])


def question_of(body: PageQuestion) -> Question:
    """What is to be answered, or continued."""
    if body.branch is not None:
        return body.branch.prompt_ids
    if body.messages is not None:
        return conversation_of(body.messages)
    return Conversation.of([("user", body.question or "", "question")])


def check_origin(service: Service, origin: Origin, field: str) -> None:
    """Raise ApiError for ids that are not tokens, and for more actions than an answer of this server has."""
    service.check_ids(origin.prompt_ids, f"{field}.prompt_ids")
    most = service.settings.max_new_tokens
    if len(origin.actions) > most:
        message = f"{field}.actions has {len(origin.actions)} actions; this server allows up to {most}"
        raise ApiError(400, message, param=f"{field}.actions")


class Watched(Rendering[PageQuestion]):
    """How the answer is decoded, then what happens, then all there is to know of it."""

    def begun(self) -> Iterator[Event]:
        request = self.generation.answers[0].request
        yield (
            "start",
            {
                "id": self.generation.id,
                "budget": request.budget,
                "router": router_name(request.router),
                "sampling": asdict(request.sampling),
                "prompt_tokens": len(request.prompt_ids),
            },
        )

    def add(self, piece: Piece) -> Iterator[Event]:
        """Tokens and invocations, with p(operator) of each operator in `probs`, where it is known."""
        match piece:
            case TextPiece(tokens=tokens):
                yield "steps", {"steps": [{"text": one.text, "probs": rounded(one.operator_probs)} for one in tokens]}
            case Invocation(record=record, probs=probs):
                yield "steps", {"steps": [{"call": record, "probs": rounded(probs)}]}
            case Failed(error=error):
                yield "error", error.body()

    def ended(self) -> Iterator[Event]:
        yield "end", self.whole([])

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        (answer,) = self.generation.answers
        return {"trajectory": answer.done.to_dict(), "first_token_seconds": answer.watch.first_token_seconds}


def rounded(probs: tuple[float, ...]) -> list[float]:
    """Probabilities as far as a picture shows them."""
    return [round(prob, 6) for prob in probs]


# -- the lens --------------------------------------------------------------------------------------------------------


class Controls:
    """Answers to the example questions, which the lens takes as those to other problems. Asked for once."""

    def __init__(self, service: Service) -> None:
        self._service, self._answers, self._lock = service, list[Trajectory](), asyncio.Lock()

    async def beside(self, answer: Trajectory) -> list[Trajectory]:
        """Answers to other problems than this one's."""
        async with self._lock:
            if not self._answers:
                self._answers = await self._ask()
        return [one for one in self._answers if one.prompt_ids != answer.prompt_ids]

    async def _ask(self) -> list[Trajectory]:
        servable, settings = self._service.servable, self._service.settings
        asked = AnswerSettings(max_new_tokens=min(CONTROL_TOKENS, settings.max_new_tokens))
        requests = [servable.request(question, asked) for question in EXAMPLES]
        run = partial(servable.model.shared_engine.run, slots=settings.slots, memory=settings.memory)
        return await asyncio.to_thread(run, requests)


async def looked(service: Service, controls: Controls, body: LensQuestion, http: HttpRequest) -> dict[str, Any]:
    """What the lens shows of one block. Raises ApiError for one that the answer does not have."""
    model = needed_model(service)
    service.check_model(body.model)
    answer = await repeated(service, body, http)
    if body.invocation >= answer.num_invocations:
        message = f"invocation {body.invocation} does not exist; the answer has {answer.num_invocations}, from 0 on"
        raise ApiError(400, message, param="invocation")
    operator = answer.invocations[body.invocation].operator
    source = torch.Generator().manual_seed(0)
    service.open += 1  # a server that ends waits for it as for an answer
    try:
        others = await controls.beside(answer)
        reading = await service.dispatcher.beside_steps(
            lambda turn: read_block(model, answer, body.invocation, others, source, turn)
        )
    except ValueError as error:  # such as a bound on memory that the examples do not fit in
        raise ApiError(400, str(error)) from error
    finally:
        service.open -= 1
    return {**reading.to_dict(), "controls": len(blocks_of(others).get(operator, ()))}


async def repeated(service: Service, body: LensQuestion, http: HttpRequest) -> Trajectory:
    """The answer again, with its latents. Raises ApiError for actions that this model cannot have chosen."""
    check_origin(service, body.answer, "answer")
    ends = service.servable.model.backbone.eos_ids
    actions = tuple(action for action in body.answer.actions if action not in ends)
    if not actions:
        raise ApiError(400, "the answer is empty; send its actions", param="answer.actions")
    settings = AnswerSettings(max_new_tokens=len(actions), router=Learned())
    (request,) = await service.requests(body.answer.prompt_ids, settings)
    again = replace(request, budget=None, branch=actions)
    generation = await service.generate(http, body, [again])
    try:
        await generation.finished()
    finally:
        await generation.close()
    return generation.answers[0].done
