"""`tyler lens`: what the latent blocks of an answer do, or those of many answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from tyler.cli.options import ModelName
from tyler.evaluation.options import OptionalFile, OptionalFolder, Placement, RouterName, router_of

if TYPE_CHECKING:
    from rich.text import Text

    from tyler.engine.trajectory import Trajectory
    from tyler.lens.survey import Survey
    from tyler.lens.tables import Table
    from tyler.model import Tyler

    Shown = tuple[str, Any, str | Text, Sequence[Table]]
    """A result as a page of HTML, as plain data for JSON, and for a terminal: a heading and tables."""

PLACE = Placement()


def lens(
    model: ModelName,
    question: Annotated[Positional[str], arg(metavar="QUESTION", help_behavior_hint="")] = "",
    task: Annotated[str, arg(metavar="TASK")] = "mini",
    split: Annotated[str | None, arg(metavar="SPLIT", help_behavior_hint="")] = None,
    data: OptionalFolder = None,
    answers: OptionalFolder = None,
    count: int = 16,
    router: RouterName = None,
    max_new_tokens: int = 256,
    placement: Annotated[Placement, arg(name="")] = PLACE,
    seed: int = 0,
    json_: Annotated[bool, arg(name="json")] = False,
    page: OptionalFile = None,
) -> None:
    """Put the latent blocks of an answer under the lens: what can be read from them, and what replacing them changes.

    Every block is held against controls: zeros, its operator's means, noise, blocks of another problem, another
    operator and an untrained one, no block. Without a QUESTION the blocks of the task's problems are counted, with
    intervals.

    Args:
        model: A model with operators: a saved model, a run, or mini-tyler.
        question: The question whose answer is looked at.
        task: Whose problems the controls come from, and are counted without a QUESTION.
        split: Which split; by default the one that is reported.
        data: A file, or the folder with the task's official files.
        answers: An evaluation of this model as `tyler eval` keeps it: its answers are read, and none is decoded.
        count: How many problems of the task.
        router: learned, never, boundaries or boundaries:0.25 (a share); by default what its last stage trained for.
        max_new_tokens: At most this many actions in an answer.
        seed: Seed of the noise and of the choice of other problems.
        json_: Print JSON instead of tables.
        page: Also write all of it as a page of HTML that needs nothing else.
    """
    if page is not None and not page.absolute().parent.is_dir():
        raise ValueError(f"--page {page}: there is no folder {page.parent}; make it, or choose another file")
    bounded: dict[str, Any] = {"router": router_of(router), "max_new_tokens": max_new_tokens, "memory": placement.bytes}
    from tyler.lens.stored import answers_in
    from tyler.model import Tyler
    from tyler.tasks import load_problems

    loaded = Tyler.from_pretrained(model, device=placement.device, dtype=placement.dtype, backbone=placement.backbone)
    if not loaded.operators or loaded.stage == "backbone":
        raise ValueError(f"{model} has no trained operators; give a model of Stage 1 or 2, or mini-tyler")
    if answers is None:
        problems = [problem.prompt for problem in load_problems(task, split, path=data, count=count)]
        beside, source = loaded.solve(problems, **bounded), f"{task}, {split}" if split else task
    else:
        (problems, beside), source = answers_in(answers, loaded, count=count, **bounded), str(answers)
    if question:
        result = of_answer(loaded, model, question, loaded.solve(question, **bounded), beside, seed)
    else:
        from tyler.lens.survey import survey

        counted = survey(loaded, problems, answers=beside, seed=seed, **bounded)
        result = of_survey(counted, {"model": model, "problems": f"{len(problems)} of {source}"})
    show(result, json_, page)


def of_answer(
    loaded: Tyler, name: str, question: str, answer: Trajectory, others: Sequence[Trajectory], seed: int
) -> Shown:
    """The blocks of one answer, beside those of others."""
    from tyler.lens import tables
    from tyler.lens.block import read_blocks
    from tyler.presentation import as_html, as_text

    readings = read_blocks(loaded, answer, others, seed)
    every, facts = tables.answer_tables(readings), {"model": name, "answer": answer.summary()}
    page = tables.page(facts, every, question=question, traced=as_html(answer.text, answer.invocations))
    return page, [asdict(reading) for reading in readings], as_text(answer.text, answer.invocations), every[:2]


def of_survey(result: Survey, about: dict[str, str]) -> Shown:
    """The blocks of many answers, counted."""
    import tyler
    from tyler.lens import tables

    every, facts = tables.survey_tables(result), about | {"answers with operators": str(result.num_problems)}
    content = {**about, "version": tyler.__version__, **asdict(result)}
    return tables.page(facts, every), content, f"over {result.num_problems} problems, with 95% intervals", every[:-1]


def show(result: Shown, as_json: bool, page: Path | None) -> None:
    """Print a result, and write its page where one is wanted."""
    from rich.console import Console

    from tyler.evaluation.reports import for_terminal
    from tyler.runs.atomic_files import atomic_write

    html, content, heading, tables = result
    if as_json:
        Console().print_json(data=content)
    else:
        Console().print(heading)
        for table in tables:
            shown = for_terminal(table.rows, words=len(table.rows[0]), title=table.title)
            Console().print("", shown, *filter(None, [table.note]))
    if page is not None:
        atomic_write(page, html)
