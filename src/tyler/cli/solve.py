"""`tyler solve`: one question, answered as one watches, or a file of them."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from tyler.cli.logs import loading
from tyler.cli.options import AnyModel
from tyler.evaluation.options import Answering, OptionalFile

if TYPE_CHECKING:
    from tyler.engine.request import Event
    from tyler.reasoners.registry import Answerer

logger = logging.getLogger(__name__)

DEFAULT = Answering()


def solve(
    model: AnyModel,
    question: Annotated[Positional[str], arg(metavar="QUESTION", help_behavior_hint="")] = "",
    stop: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="TEXT")] = (),
    answering: Annotated[Answering, arg(name="")] = DEFAULT,
    json_: Annotated[bool, arg(name="json")] = False,
    stream: bool = False,
    show: Literal["always", "never"] = "always",
    input: OptionalFile = None,
    answers: OptionalFile = None,
) -> None:
    """Answer one question, printing tokens and operators as they come, or a file of questions.

    Args:
        question: The question; "-" reads it from standard input.
        stop: Text before which an answer ends; may be repeated.
        json_: Print each answer as a line of JSON.
        stream: With --json: one line for each token, invocation and end, as it happens.
        show: Whether operators stand in the text, with a line of counts below; never prints the text alone. In a pipe
            the counts go to standard error.
        input: Many questions, in .jsonl, .json, .csv or .parquet: `problem` or `messages` as in a chat, and `id` if
            there is one.
        answers: The file for their answers, a line of JSON each; the same command resumes it.
    """
    if (input is None) != (answers is None):
        raise ValueError("--input and --answers go together: a file of questions, and a file for their answers")
    if bool(question) == (input is not None):
        raise ValueError("tyler solve needs a QUESTION, or a file of them: --input FILE --answers FILE; one, not both")
    _check_printing(json_, stream, show, input)
    answering.check()
    from tyler.model import spread

    with loading(model):
        answerer = answering.load(model, answering).answerer(stop)
    if input is not None and answers is not None:
        _answer_file(answerer, input, answers, answering, stop)
        return
    text = sys.stdin.read() if question == "-" else question
    questions = spread([text], answering.sampling, None if answering.samples == 1 else answering.samples)
    events = answerer.events([answerer.request(prompt, its) for prompt, its in questions])  # the index is the sample
    if json_:
        _print_answers_as_json(events, {"model": model, "problem": text}, stream)
    else:
        from tyler.cli.answers import print_answers

        print_answers(events, operators=show == "always", alone=answering.samples == 1)


def _check_printing(as_json: bool, stream: bool, show: str, input: Path | None) -> None:
    if input is not None and (as_json or stream):
        raise ValueError("--json and --stream are for one QUESTION; the answers of a file are JSON lines anyway")
    if show != "always" and (as_json or input is not None):
        raise ValueError("--show is for the text of one QUESTION; omit it with --json and --input")
    if stream and not as_json:
        raise ValueError("--stream is for --json; text is always printed as it is decoded")


def _answer_file(
    answerer: Answerer, questions: Path, output: Path, answering: Answering, stop: tuple[str, ...]
) -> None:
    from tyler.evaluation import question_files

    settings = {
        "method": [answering.method, *answering.method_set],
        "router": answering.router,
        "budget": answering.budget,
        "max_new_tokens": answering.max_new_tokens,
        "stop": list(stop),
    }
    lines = question_files.run(
        answerer,
        questions,
        output,
        sampling=answering.sampling,
        settings=settings,
        num_samples=answering.samples,
        slots=answering.slots,
    )
    if failed := [line for line in lines if "error" in line]:
        its_id = "" if failed[0]["id"] is None else f" (id {failed[0]['id']!r})"
        first = f"first line {failed[0]['line']}{its_id}: {failed[0]['error']}"
        logger.warning("%d of %d could not be asked, %s", len(failed), len(lines), first)
    print(f"{len(lines) - len(failed)} answers are in {output}")


def _print_answers_as_json(events: Iterable[Event], header: dict[str, Any], stream: bool) -> None:
    """Print what happens, a JSON object a line; without `stream` the answers alone."""
    from dataclasses import asdict

    from tyler.engine.request import FinishEvent, InvocationEvent, TokenEvent
    from tyler.evaluation.question_files import answer_fields

    for event in events:
        match event:
            case TokenEvent(index=sample, token=token, text=text) if stream:
                _print_json({"event": "token", "sample": sample, "token": token, "text": text})
            case InvocationEvent(index=sample, invocation=invocation) if stream:
                _print_json({"event": "invocation", "sample": sample, **asdict(invocation)})
            case FinishEvent(index=sample, trajectory=trajectory):
                kind = {"event": "finish"} if stream else {}
                _print_json({**kind, **header, "sample": sample, **answer_fields(trajectory)})


def _print_json(line: dict[str, Any]) -> None:
    print(json.dumps(line, ensure_ascii=False), flush=True)
