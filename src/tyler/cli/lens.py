"""`tyler lens`: what the latent blocks of an answer do, or those of many answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from tyler.cli.options import ModelName
from tyler.evaluation.options import OptionalFile, OptionalFolder, Placement, RouterName, router_of

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

    from tyler.engine.trajectory import Trajectory
    from tyler.lens.tables import Table
    from tyler.model import Tyler

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
    decoding = {"router": router_of(router), "max_new_tokens": max_new_tokens, "memory": placement.bytes}
    from tyler.lens.stored import answers_in
    from tyler.model import Tyler
    from tyler.tasks import load_problems

    loaded = Tyler.from_pretrained(model, device=placement.device, dtype=placement.dtype, backbone=placement.backbone)
    if not loaded.operators or loaded.stage == "backbone":
        raise ValueError(f"{model} has no trained operators; give a model of Stage 1 or 2, or mini-tyler")
    if answers is None:
        problems = [problem.prompt for problem in load_problems(task, split, path=data, count=count)]
        subject = Subject(problems, f"{task}, {split}" if split else task)
    else:
        kept = answers_in(answers, loaded, count=count, router=router_of(router), max_new_tokens=max_new_tokens)
        subject = Subject(kept[0], str(answers), kept[1])
    if question:
        show(answer_view(loaded, model, question, subject, seed, decoding), json_, page)
    else:
        show(survey_view(loaded, model, subject, seed, decoding), json_, page)


@dataclass(frozen=True)
class Subject:
    """Problems, what they are called, and the model's answers where the store has them."""

    problems: list[str]
    name: str
    answers: list[Trajectory] | None = None


@dataclass(frozen=True)
class View:
    """The result in three formats: a page of HTML, plain data for JSON, and tables for a terminal."""

    page: str
    json: Any
    heading: str | Text
    tables: Sequence[Table]


def answer_view(
    loaded: Tyler, name: str, question: str, beside: Subject, seed: int, decoding: Mapping[str, Any]
) -> View:
    """The blocks of one answer, beside those of the answers to some problems."""
    from tyler.lens import tables
    from tyler.lens.block import read_blocks
    from tyler.presentation import as_html, as_text

    answer, *others = loaded.solve([question, *(beside.problems if beside.answers is None else ())], **decoding)
    others = beside.answers or others
    readings = read_blocks(loaded, answer, others, seed)
    every, facts = tables.answer_tables(readings), {"model": name, "answer": answer.summary()}
    page = tables.page(facts, every, question=question, traced=as_html(answer.text, answer.invocations))
    content = [asdict(reading) for reading in readings]
    return View(page, content, as_text(answer.text, answer.invocations), every[:2])


def survey_view(loaded: Tyler, name: str, subject: Subject, seed: int, decoding: Mapping[str, Any]) -> View:
    """The blocks of many answers, counted."""
    import tyler
    from tyler.lens import tables
    from tyler.lens.survey import survey

    described = f"{len(subject.problems)} of {subject.name}"
    result = survey(loaded, subject.problems, answers=subject.answers, seed=seed, **decoding)
    facts = {"model": name, "problems": described, "answers with operators": str(result.num_problems)}
    content = {"model": name, "problems": described, "version": tyler.__version__, **asdict(result)}
    every = tables.survey_tables(result)
    heading = f"over {result.num_problems} problems, with 95% intervals"
    return View(tables.page(facts, every), content, heading, every[:-1])


def show(view: View, as_json: bool, page: Path | None) -> None:
    """Print a result, and write its page where one is wanted."""
    from rich.console import Console

    from tyler.runs.atomic_files import atomic_write

    if as_json:
        Console().print_json(data=view.json)
    else:
        Console().print(view.heading, *map(terminal_table, view.tables))
    if page is not None:
        atomic_write(page, view.page)


def terminal_table(table: Table) -> RichTable:
    """A table for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(*table.rows[0], title=table.title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.caption, shown.caption_justify = table.note or None, "left"
    for row in table.rows[1:]:
        shown.add_row(*map(Text, row))
    return shown
