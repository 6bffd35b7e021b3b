"""Answers to a file of questions, kept one by one as they come, so that a killed command loses none.

Each line of the output is one answer: the line of the input it belongs to, its id where it has one, the question, which
sample it is, and the answer. A question that cannot be asked has an `error` in its place. While the command runs lines
are in the order of finishing, afterwards in that of the input. What could not be asked is asked again when it resumes.
"""

import json
import signal
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tyler.engine.request import Request
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.trajectory import Trajectory
from tyler.evaluation.line_files import LineFile
from tyler.evaluation.store import name_of
from tyler.reasoners.registry import Answerer
from tyler.runs.atomic_files import atomic_write
from tyler.runs.checkpoints import RunError
from tyler.runs.json_lines import read_jsonl
from tyler.runs.progress import bar
from tyler.runs.signals import Interrupted
from tyler.tasks.data_files import Row, read_rows
from tyler.tasks.prompts import Question

ANSWER_FIELDS = (
    *("text", "finish_reason", "limited_by", "num_visible", "num_latents", "num_invocations", "invocations"),
    *("budget", "seconds", "engine_seconds", "synthesis_seconds"),
)
"""What is reported of an answer, a part of `Trajectory.to_dict`."""

Key = tuple[int, int]
"""What names an answer: the line of its question, and which sample it is."""
IdAndQuestion = tuple[Any, Question]
"""The id that a line of the input has, or None, and its question."""


def answer_fields(trajectory: Trajectory) -> dict[str, Any]:
    """An answer for programs, in JSON's types."""
    everything = trajectory.to_dict()
    return {name: everything[name] for name in ANSWER_FIELDS} | {"seed": trajectory.sampling.seed}


def read_questions(path: Path) -> dict[int, IdAndQuestion]:
    """The questions of a file by their lines, each the text of `problem` or the conversation of `messages`.

    Raises ValueError, naming the file and the line, for a row without either and for a file that cannot be read.
    """
    return {row.number: (_id(row), _question(row)) for row in read_rows(path)}


def _id(row: Row) -> Any:
    """In JSON's types. Raises ValueError for a row that no answer can be written beside."""
    try:
        json.dumps(row.fields, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise row.error("id", f"or another is not valid Unicode ({error.reason})") from error
    return json.loads(json.dumps(row.fields.get("id"), default=str))


def _question(row: Row) -> Question:
    if "messages" not in row.fields:
        return row.text("problem")
    messages: Question = row.get("messages", list, "a list of messages, each with role and content")
    return messages


def run(
    answerer: Answerer,
    questions: Path,
    output: Path,
    *,
    sampling: Sampling,
    settings: Mapping[str, Any],
    num_samples: int = 1,
    slots: int = 32,
) -> list[dict[str, Any]]:
    """Answer a file of questions into `output`, whose lines are returned; the same call resumes after a kill.

    Every answer has a random stream of its own, from the sampling's seed, its line and its sample. `settings` are what
    else decides the answers. Raises RunError where `output` holds answers under other settings or to other questions,
    ValueError as `read_questions` does, and Interrupted where Ctrl-C stopped it.
    """
    lines = read_questions(questions)
    if output.exists() and output.samefile(questions):
        raise RunError(f"{output} is the file of the questions; choose another --answers")
    about = [answerer.weights(), answerer.dtype, answerer.text, asdict(sampling), settings]
    mark = name_of({"decisive": about})
    wanted = {(number, sample): line for number, line in lines.items() for sample in range(num_samples)}
    with closing(LineFile(output, '{"line": ')) as file:
        known = _known(output, wanted, mark)
        with bar(output.name, len(wanted), len(known), unit="answer", where=output.parent) as progress:

            def keep(key: Key, answer: Mapping[str, Any]) -> None:
                id, question = wanted[key]
                kind = "problem" if isinstance(question, str) else "messages"
                known[key] = {"line": key[0], "id": id, "sample": key[1], kind: question, **answer, "settings": mark}
                file.add(json.dumps(known[key], ensure_ascii=False))
                progress.advance()

            requests: dict[Key, Request] = {}
            for key in (key for key in wanted if key not in known):
                try:
                    stream = replace(sampling, seed=seed_of(sampling.seed, *key))
                    requests[key] = answerer.request(wanted[key][1], stream)
                    answerer.check(requests[key])
                except ValueError as error:
                    requests.pop(key, None)
                    keep(key, {"error": str(error)})
            keys = list(requests)
            try:
                answerer.run(
                    list(requests.values()),
                    slots=slots,
                    finished=lambda index, trajectory: keep(keys[index], answer_fields(trajectory)),
                )
            except KeyboardInterrupt as interrupt:
                kept = f"{len(known)} of {len(wanted)} answers are in {output}"
                signum = interrupt.signum if isinstance(interrupt, Interrupted) else signal.SIGINT
                raise Interrupted(f"{kept}; the same command resumes it", signum) from interrupt
        ordered = [known[key] for key in wanted]
        atomic_write(output, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in ordered))
        return ordered


def _known(output: Path, wanted: Mapping[Key, IdAndQuestion], mark: str) -> dict[Key, dict[str, Any]]:
    """The answers that the output has already; what could not be asked is asked again."""
    known = {}
    for number, answer in enumerate(read_jsonl(output), start=1):
        where = f"{output}, line {number}"
        if not isinstance(answer, dict) or not {"line", "sample", "settings"} <= answer.keys():
            raise RunError(f"{where} is not an answer of tyler solve; choose another --answers")
        if answer["settings"] != mark:
            raise RunError(
                f"{where} was answered by another model or under other settings; choose another --answers, or remove it"
            )
        key = (answer["line"], answer["sample"])
        if key not in wanted or answer.get("problem", answer.get("messages")) != wanted[key][1]:
            raise RunError(
                f"{where} answers a question that the input does not have, or more often than is asked now (-n); "
                "choose another --answers"
            )
        if "error" not in answer:
            known[key] = answer
    return known
