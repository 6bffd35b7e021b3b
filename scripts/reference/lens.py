"""The tables of the operator lens from docs/results/lens.json, which holds what `tyler lens MODEL --json` printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from tyler.evaluation.reports import markdown_row
from tyler.lens.block import TOGETHER
from tyler.lens.survey import Survey
from tyler.lens.tables import decoded_rows, decoded_tested_rows, tested_rows

TITLES = {"mini-tyler": "mini-tyler", "mini-stage-1": "Stage 1", "smollm2-stage-1": "SmolLM2, Stage 1"}
"""The model of each record, as the page names it."""


def section(file: Path) -> list[str]:
    """The part of the page of tables that is about the lens."""
    *tested, replaced, asked = tables(file)
    parts = ["## The operator lens"]
    for name, table in zip(surveys(file), tested, strict=True):
        parts += [f"### {TITLES[name]}: nats of log p of the tokens after a block", table]
    return [*parts, "### Share of answers that keep what is in their box", replaced, asked]


def surveys(file: Path) -> dict[str, Survey]:
    """The records, in the order of the page."""
    records = json.loads(file.read_text())
    return {name: TypeAdapter(Survey).validate_python(records[name]) for name in TITLES}


def tables(file: Path) -> list[str]:
    """Every table of the page: one for each record, then what is decoded again side by side."""
    found = surveys(file)
    told = {TITLES[name]: one for name, one in found.items()}
    return [
        *(tested(one) for one in found.values()),
        beside("all latents replaced by", {name: decoded_rows(one) for name, one in told.items()}),
        beside("asked of these shares", {name: decoded_tested_rows(one) for name, one in told.items()}),
    ]


def tested(found: Survey) -> str:
    """What is tested of each operator, with its number of blocks."""
    (asked, *_), *rows = tested_rows(found)
    counts = {name: f"{name}, {one.num_blocks} blocks" for name, one in found.operators.items()}
    return markdown([(asked, *(counts | {TOGETHER: "all at once"}).values()), *rows])


def beside(title: str, columns: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Tables of two columns with the same first one, as one."""
    of_each = [dict(rows[1:]) for rows in columns.values()]
    names = list(dict.fromkeys(name for one in of_each for name in one))
    return markdown([(title, *columns), *((name, *(one.get(name, "–") for one in of_each)) for name in names)])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows under their heads."""
    head, *body = rows
    return "\n".join([markdown_row(head), "|" + "---|" * len(head), *map(markdown_row, body)]) + "\n"
