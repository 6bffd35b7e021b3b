"""An evaluation as one page of HTML that needs nothing else, and the files that a report is kept in."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tyler.evaluation.reports import Report, mean_accuracy, warnings
from tyler.evaluation.samples import Estimate, majority_at_k, pass_at_k
from tyler.evaluation.store import ANSWERS, shown, write_answers, write_verdicts
from tyler.evaluation.views import render, view
from tyler.presentation import counted
from tyler.runs.atomic_files import atomic_write
from tyler.runs.environment import environment
from tyler.tasks import Outcome

Facts = Mapping[str, str]
"""What stands at the top of a report, by name: the problems, the date, the machine, the command."""


def html(
    reports: Sequence[Report],
    title: str,
    settings: Mapping[str, Any] | None = None,
    facts: Facts | None = None,
    links: Mapping[str, str] | None = None,
) -> str:
    """One page: the tables, bars with intervals, outcomes, and every answer with operators in place.

    Whatever a model wrote is escaped. Answers of tasks that must not be shown are left out. `facts` stand at the top;
    `links` are files of records by the reports' names.
    """
    written = {key: json.dumps(value, ensure_ascii=False) for key, value in (settings or {}).items()}
    return render("report.html", title=title, facts=facts or {}, view=view(reports, links), settings=written)


def write(
    reports: Sequence[Report],
    folder: Path,
    title: str,
    settings: Mapping[str, Any] | None = None,
    facts: Facts | None = None,
    links: Mapping[str, str] | None = None,
) -> None:
    """Write report.html and report.json. `facts` come before the date, the version and the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    here = made()
    numbers = summary(reports, title, settings, here)
    atomic_write(folder / "report.html", html(reports, title, settings, {**(facts or {}), **here}, links))
    atomic_write(folder / "report.json", json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")


def save(
    reports: Sequence[Report],
    folder: str | Path,
    title: str,
    settings: Mapping[str, Any] | None = None,
    facts: Facts | None = None,
) -> None:
    """Write the comparison, and each report's records to a directory of its own: `tyler eval --compare` reads those.

    Raises ValueError for two names that would be one directory.
    """
    folder = Path(folder)
    places = {report.name: folder / slug(report.name) for report in reports}
    if len(set(places.values())) < len(reports):
        raise ValueError(f"reports named {', '.join(places)} would share a directory; give them other names")
    links = {name: f"{place.name}/{ANSWERS}" for name, place in places.items()}
    facts = facts or {"problems": f"{len({key for report in reports for key in report.problems})}"}
    write(reports, folder, title, settings, facts, links)
    for report in reports:
        place = places[report.name]
        place.mkdir(parents=True, exist_ok=True)
        records = {place.name: [shown(record) for record in report.records]}
        write_answers(place / ANSWERS, records)
        write_verdicts(place, "official", records)


def slug(name: str) -> str:
    """A file's name for a report's: letters, digits and dashes alone, so that no name leads out of its folder."""
    return re.sub(r"[^\w.+=]+", "-", name.lower()).strip("-.") or "report"


FORMAT = 1
"""Of report.json."""


def made() -> dict[str, str]:
    """When, by what, where and with which command a report is made."""
    here = environment()
    return {
        "date": here["time"].replace("T", " ").replace("+00:00", " UTC"),
        "version": f"tyler {here['packages']['tyler-reasoning']}, torch {here['packages']['torch']}",
        "machine": machine_of(here),
        "command": command_of(here),
    }


def machine_of(environment: Mapping[str, Any]) -> str:
    """The device, the cores and the system of an entry of environment.json."""
    device = environment.get("device", environment["processor"])
    return f"{device}, {counted(environment['cores'], 'core')}, {environment['platform']}"


def command_of(environment: Mapping[str, Any]) -> str:
    """The command of an entry of environment.json, as it is typed."""
    program, *arguments = environment["command"]
    name = "tyler" if Path(program).name == "__main__.py" else Path(program).name
    return shlex.join([name, *arguments])


def summary(
    reports: Sequence[Report], title: str, settings: Mapping[str, Any] | None, made: Mapping[str, str]
) -> dict[str, Any]:
    """What report.json holds."""
    return {
        "format": FORMAT,
        "title": title,
        "made": dict(made),
        "settings": dict(settings or {}),
        "reports": [_numbers(report) for report in reports],
        "mean_accuracy": mean_accuracy(reports),
        "warnings": warnings(reports),
    }


def _numbers(report: Report) -> dict[str, Any]:
    records = report.records
    counts = Counter(record.outcome for record in records)
    several = report.samples > 1
    low, high = report.interval
    return {
        "name": report.name,
        "tasks": list(dict.fromkeys(record.task for record in records)),
        "problems": len(report.problems),
        "samples": report.samples,
        "answers": len(records),
        "correct": report.num_correct,
        "accuracy": asdict(Estimate(report.accuracy, low, high)),
        "pass_at": {str(k): asdict(one) for k, one in pass_at_k(records).items()} if several else {},
        "majority_at": {str(k): asdict(one) for k, one in majority_at_k(records).items()} if several else {},
        "verdicts": {str(outcome): counts[outcome] for outcome in Outcome if counts[outcome]},
        "families": {family: {"correct": k, "answers": n} for family, (k, n) in report.by_family().items() if family},
        "visible_tokens": report.mean(lambda record: record.visible_tokens),
        "latents": report.mean(lambda record: record.latents),
        "invocations": report.mean(lambda record: len(record.calls)),
        "invocations_by_operator": report.invocations_by_operator(),
        "seconds": report.seconds,
        "synthesis_share": report.synthesis_share,
    }
