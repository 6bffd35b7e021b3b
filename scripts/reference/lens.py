"""The tables of the operator lens from docs/results/lens.json, which holds what `tyler lens MODEL --json` printed."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from tyler.evaluation.reports import markdown_row
from tyler.lens.block import TOGETHER
from tyler.lens.survey import DECODED, Survey
from tyler.lens.tables import estimated, tested_rows

TITLES = {"mini-tyler": "mini-tyler", "mini-stage-1": "Stage 1", "smollm2-stage-1": "SmolLM2, Stage 1"}
"""The model of each record, as the page names it."""


def section(file: Path) -> list[str]:
    """The part of the page of tables that is about the lens."""
    *tests, lost = tables(file)
    parts = ["## The operator lens"]
    for name, table in zip(surveys(file), tests, strict=True):
        parts += [f"### {TITLES[name]}: nats of log p of the tokens after a block", table]
    return [*parts, "### Share of answers that lose what is in their box", lost]


def surveys(file: Path) -> dict[str, Survey]:
    """The records, in the order of the page."""
    records = json.loads(file.read_text())
    return {name: TypeAdapter(Survey).validate_python(records[name]) for name in TITLES}


def tables(file: Path) -> list[str]:
    """Every table of the page: one for each record, then what is decoded again side by side."""
    records = surveys(file)
    replaced = {TITLES[name]: record.operators[DECODED].measured.items() for name, record in records.items()}
    lost = {
        title: [("", ""), *((name.removeprefix("loss with "), estimated(share)) for name, share in shares)]
        for title, shares in replaced.items()
    }
    return [*(tested(record) for record in records.values()), beside("all latents replaced by", lost)]


def tested(record: Survey) -> str:
    """What is tested of each operator, with its number of blocks."""
    (question, *_), *rows = tested_rows(record)
    counts = {name: f"{name}, {operator.num_blocks} blocks" for name, operator in record.operators.items()}
    counts |= {TOGETHER: "all at once", DECODED: f"{record.operators[DECODED].num_blocks} answers decoded again"}
    return markdown([(question, *counts.values()), *rows])


def beside(title: str, columns: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Tables of two columns with the same first one, as one."""
    of_each = [{row[0]: row[1] for row in rows[1:]} for rows in columns.values()]
    names = list(dict.fromkeys(name for rows in of_each for name in rows))
    return markdown([(title, *columns), *((name, *(rows.get(name, "–") for rows in of_each)) for name in names)])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows under their heads."""
    head, *body = rows
    return "\n".join([markdown_row(head), "|" + "---|" * len(head), *map(markdown_row, body)]) + "\n"
