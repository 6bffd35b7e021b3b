"""An evaluation as one page of HTML that needs nothing else, and the files that a report is kept in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from tyler.evaluation.records import RECORDS, Record
from tyler.evaluation.reports import CAPTION, COLUMNS, Report, groups, markdown, mean_accuracy, rows, warnings
from tyler.evaluation.statistics import wilson
from tyler.runs.atomic_files import atomic_write
from tyler.tasks import Outcome, find_task

EXAMPLES = 60
"""Answers shown in full on the page, of each report."""


def html(reports: Sequence[Report], title: str, settings: Mapping[str, Any] | None = None) -> str:
    """One page that needs nothing else: the tables, bars with intervals, outcomes, and answers with operators in place.

    Whatever a model wrote is escaped. Answers of tasks that must not be shown are left out.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files("tyler") / "assets" / "report.html").read_text(encoding="utf-8"))
    return template.render(
        title=title,
        columns=COLUMNS,
        rows=rows(reports),
        caption=CAPTION,
        mean=mean_accuracy(reports),
        warnings=warnings(reports),
        bars=[_bar(report) for report in reports],
        outcomes=list(Outcome),
        groups=groups(reports),
        operators=[(report.name, report.invocations_by_operator()) for report in reports],
        examples=[(report.name, _examples(report)) for report in reports],
        settings={key: json.dumps(value, ensure_ascii=False) for key, value in (settings or {}).items()},
    )


def _bar(report: Report) -> dict[str, Any]:
    low, high = wilson(report.num_correct, len(report.records))
    shares = {str(outcome): 100 * report.share(outcome) for outcome in Outcome}
    return {
        "name": report.name,
        "accuracy": 100 * report.accuracy,
        "low": 100 * low,
        "high": 100 * high,
        "shares": {outcome: share for outcome, share in shares.items() if share},
    }


def _examples(report: Report) -> list[tuple[Record, Markup]]:
    """The first answers, right and wrong alike in the proportion in which they come."""
    shown = [record for record in report.records if not find_task(record.task).private][:EXAMPLES]
    return [(record, traced_html(record)) for record in shown]


def traced_html(record: Record) -> Markup:
    """A completion with every operator where it was invoked, escaped."""
    parts, shown = [], 0
    for call in record.invocations:
        parts.append(escape(record.completion[shown : call.offset]))
        parts.append(Markup('<b class="op op-{0}">{0} ×{1}</b>').format(call.operator, call.num_latents))
        shown = call.offset
    return Markup("").join([*parts, escape(record.completion[shown:])])


def write(reports: Sequence[Report], folder: Path, title: str, settings: Mapping[str, Any] | None = None) -> None:
    """Write report.md and report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / "report.md", f"# {title}\n\n{markdown(reports, settings)}")
    atomic_write(folder / "report.html", html(reports, title, settings))


def save(reports: Sequence[Report], folder: str | Path, title: str) -> None:
    """Write the comparison, and each report's records to a directory of its own: `tyler eval --compare` reads those."""
    folder = Path(folder)
    write(reports, folder, title)
    for report in reports:
        place = folder / slug(report.name)
        place.mkdir(parents=True, exist_ok=True)
        atomic_write(place / RECORDS, "".join(record.to_json() + "\n" for record in report.records))


def slug(name: str) -> str:
    """A file's name for a report's."""
    return "-".join(name.lower().split())
