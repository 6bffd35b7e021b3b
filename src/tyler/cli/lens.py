"""`tyler lens`: what the latent blocks of an answer do, or those of many answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from tyler.cli.options import (
    Dtype,
    ModelName,
    OptionalBackbone,
    OptionalBytes,
    OptionalDevice,
    OptionalFolder,
    RouterName,
    memory_of,
    router_of,
)
from tyler.presentation import as_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tyler.engine.trajectory import Trajectory
    from tyler.lens.block import Reading
    from tyler.lens.survey import Survey
    from tyler.model import Tyler


def lens(
    model: ModelName,
    question: Annotated[Positional[str], arg(metavar="QUESTION", help_behavior_hint="")] = "",
    task: Annotated[str, arg(metavar="TASK")] = "mini",
    split: Annotated[str | None, arg(metavar="SPLIT", help_behavior_hint="")] = None,
    data: OptionalFolder = None,
    count: int = 16,
    router: RouterName = None,
    max_new_tokens: int = 256,
    memory: OptionalBytes = None,
    device: OptionalDevice = None,
    dtype: Dtype = "auto",
    backbone: OptionalBackbone = None,
    seed: int = 0,
    json_: Annotated[bool, arg(name="json")] = False,
    page: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,
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
        count: How many problems of the task.
        router: learned, never, boundaries or boundaries:0.25 (a share); by default what its last stage trained for.
        max_new_tokens: At most this many actions an answer.
        memory: At most so much context and caches, as 4GB or 512MiB: answers wait for room. By default half of what is
            free.
        device: cpu, cuda, cuda:1 or mps; by default a CUDA device where there is one.
        dtype: What the model computes in; auto is bfloat16 on a GPU that has it, else float32.
        backbone: Where the backbone of a checkpoint is, if it is not where it was: a folder, a GGUF file or a Hub id.
        seed: Of the noise and of the choice of other problems.
        json_: Print JSON instead of tables.
        page: Also write all of it as a page of HTML that needs nothing else.
    """
    if page is not None and not page.absolute().parent.is_dir():
        raise ValueError(f"--page {page}: there is no folder {page.parent}; make it, or choose another place")
    asking = {"router": router_of(router), "max_new_tokens": max_new_tokens, "memory": memory_of(memory)}
    from tyler.model import Tyler
    from tyler.runs.atomic_files import atomic_write
    from tyler.tasks import load_problems

    loaded = Tyler.from_pretrained(model, device=device, dtype=dtype, backbone=backbone)
    if not loaded.operators or loaded.stage == "backbone":
        raise ValueError(f"{model} has no trained operators; give a model of Stage 1 or 2, or mini-tyler")
    problems = [problem.prompt for problem in load_problems(task, split, path=data, count=count)]
    if question:
        seen = seen_in(loaded, model, question, problems, seed, asking)
    else:
        described = f"{len(problems)} of {task}{f', {split}' if split else ''}"
        seen = surveyed(loaded, model, described, problems, seed, asking)
    show(seen, json_)
    if page is not None:
        atomic_write(page, seen.page)


@dataclass(frozen=True)
class Seen:
    """The result in three formats: a page of HTML, JSON, and text for a terminal."""

    page: str
    json: str
    tables: list[RenderableType]


def seen_in(loaded: Tyler, name: str, question: str, problems: list[str], seed: int, asking: Mapping[str, Any]) -> Seen:
    """The blocks of one answer, beside those of the answers to some problems."""
    from tyler.lens.block import read_blocks
    from tyler.lens.tables import answer_page

    answer, *others = loaded.solve([question, *problems], **asking)
    readings = read_blocks(loaded, answer, others, seed)
    content = json.dumps([reading.to_dict() for reading in readings])
    return Seen(answer_page(name, question, answer, readings), content, answer_tables(answer, readings))


def surveyed(
    loaded: Tyler, name: str, described: str, problems: list[str], seed: int, asking: Mapping[str, Any]
) -> Seen:
    """The blocks of many answers, counted."""
    import tyler
    from tyler.lens.survey import survey
    from tyler.lens.tables import survey_page

    result = survey(loaded, problems, seed=seed, **asking)
    content = {"model": name, "problems": described, "version": tyler.__version__, **result.to_dict()}
    return Seen(survey_page(name, described, result), json.dumps(content), survey_tables(result))


def show(seen: Seen, as_json: bool) -> None:
    """Print what was seen."""
    from rich.console import Console

    console = Console()
    if as_json:
        console.print_json(seen.json)
        return
    for part in seen.tables:
        console.print(part)


def answer_tables(answer: Trajectory, readings: Sequence[Reading]) -> list[RenderableType]:
    """An answer with its operators, and two rows for each of its blocks."""
    from tyler.lens.tables import LOSSES, block_rows, loss_rows

    tables = [tabled(loss_rows(readings), LOSSES), tabled(block_rows(readings), "what is in them")]
    return [as_text(answer.text, answer.invocations), *tables]


def survey_tables(result: Survey) -> list[RenderableType]:
    """What is tested, what each replacement costs, and what else was counted: the tables of the page but its last."""
    from tyler.lens import tables

    *shown, _ = tables.survey_tables(result)
    over = f"over {result.num_problems} problems, with 95% intervals"
    return [over, *(tabled(table["rows"], table["title"]) for table in shown)]


def tabled(rows: Sequence[Sequence[str]], title: str) -> Table:
    """Rows of text as a table, the heads first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(*rows[0], title=title or None, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table
