"""An evaluation as one page of HTML that needs nothing else, and the files that a report is kept in."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tyler.evaluation.answers import Record
from tyler.evaluation.reports import (
    CAPTION,
    SAMPLE_CAPTION,
    Estimate,
    Report,
    family_rows,
    heading,
    interval,
    majority_at_k,
    mean_accuracy,
    mean_in_words,
    pass_at_k,
    percent,
    rows,
    sample_rows,
    warnings,
)
from tyler.evaluation.store import ANSWERS, shown, write_answers, write_verdicts
from tyler.presentation import VERDICTS, as_html, colour_of, counted
from tyler.runs.atomic_files import atomic_write
from tyler.runs.environment import environment
from tyler.tasks import Outcome, find_task
from tyler.tasks.problem import GradeOptions


def write(
    reports: Sequence[Report],
    folder: Path,
    title: str,
    settings: Mapping[str, Any] | None = None,
    facts: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
) -> None:
    """Write report.html and report.json.

    The page has the tables, bars with intervals, outcomes, and every answer with operators in place; whatever a model
    wrote is escaped, and answers of tasks that must not be shown are left out. `facts` stand at the top, by
    name, before the date, the version and the machine; `links` are files of records by the reports' names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    here = provenance()
    written = {key: json.dumps(value, ensure_ascii=False) for key, value in (settings or {}).items()}
    shown_facts, about = {**(facts or {}), **here}, view(reports, links)
    page = render("report.html", title=title, facts=shown_facts, view=about, settings=written)
    atomic_write(folder / "report.html", page)
    numbers = {**summary(reports, title, settings, here), "facts": dict(facts or {})}
    atomic_write(folder / "report.json", json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")


def save(reports: Sequence[Report], folder: str | Path, title: str, settings: Mapping[str, Any] | None = None) -> None:
    """Write the comparison, and each report's records to a directory of its own: `tyler eval --compare` reads those.

    Raises ValueError for two names that would be one directory.
    """
    folder = Path(folder)
    targets = {report.name: folder / slug(report.name) for report in reports}
    if len(set(targets.values())) < len(reports):
        raise ValueError(f"reports named {', '.join(targets)} would share a directory; give them other names")
    links = {name: f"{target.name}/{ANSWERS}" for name, target in targets.items()}
    facts = {"problems": f"{len({key for report in reports for key in report.problems})}"}
    write(reports, folder, title, settings, facts, links)
    for report in reports:
        target = targets[report.name]
        target.mkdir(parents=True, exist_ok=True)
        records = {target.name: [shown(record) for record in report.records]}
        write_answers(target / ANSWERS, records)
        write_verdicts(target, GradeOptions(), records)


def slug(name: str) -> str:
    """A file's name for a report's: letters, digits and dashes alone, so that no name leads out of its folder."""
    return re.sub(r"[^\w.+=]+", "-", name.lower()).strip("-.") or "report"


FORMAT = 1
"""Of report.json."""


def provenance() -> dict[str, str]:
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
    reports: Sequence[Report], title: str, settings: Mapping[str, Any] | None, origin: Mapping[str, str]
) -> dict[str, Any]:
    """What report.json holds."""
    return {
        "format": FORMAT,
        "title": title,
        "made": dict(origin),
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
        "pass_at": {str(k): asdict(estimate) for k, estimate in pass_at_k(records).items()} if several else {},
        "majority_at": {str(k): asdict(estimate) for k, estimate in majority_at_k(records).items()} if several else {},
        "verdicts": {str(outcome): counts[outcome] for outcome in Outcome if counts[outcome]},
        "families": {family: {"correct": k, "answers": n} for family, (k, n) in report.by_family().items() if family},
        "visible_tokens": report.mean(lambda record: record.visible_tokens),
        "latents": report.mean(lambda record: record.latents),
        "invocations": report.invocations,
        "invocations_by_operator": report.invocations_by_operator(),
        "seconds": report.seconds,
        "synthesis_share": report.synthesis_share,
    }


# --- what a page shows ------------------------------------------------------------------------------------------------


def render(template: str, **values: Any) -> str:
    """A template of `assets/pages` with its values, escaped: whatever a model wrote stays text."""
    loader = PackageLoader("tyler", "assets/pages")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "interval": interval, "counted": counted}
    environment.filters |= {"style": style_of, "traced": traced_html}
    return environment.get_template(template).render(**values)


class Style(NamedTuple):
    """How one verdict is shown: `key` names its pattern in page.css."""

    key: str
    word: str
    sign: str
    colour: str


WORDS = {
    Outcome.CORRECT: ("correct", "✓"),
    Outcome.WRONG: ("wrong", "✗"),
    Outcome.NO_BOX: ("no box", "□"),
    Outcome.TRUNCATED: ("cut off", "…"),
    Outcome.UNPARSABLE: ("unparsable", "?"),
    Outcome.TIMEOUT: ("timeout", "◷"),
    Outcome.GOLD_ERROR: ("gold unreadable", "!"),
    Outcome.TOO_LONG: ("too long", "↔"),
}
"""The word and the sign of each, the same in tables, legends and badges."""


def style_of(outcome: Outcome) -> Style:
    """The style of an outcome."""
    return Style(str(outcome), *WORDS[outcome], VERDICTS[str(outcome)])


MOST_CHARACTERS = 2_000_000
"""Of the questions and answers on a page; the rest is in the store."""
NOT_KEPT = "The text of this answer was not kept."
KEPT_RIGHT, GAINED, LOST, KEPT_WRONG = "right in both", "gained", "lost", "wrong in both"


def view(
    reports: Sequence[Report], links: Mapping[str, str] | None = None, anchor: str = "evaluation"
) -> dict[str, Any]:
    """Everything that `assets/pages/evaluation.html` shows. `links` are files of records by the reports' names."""
    outcomes = [outcome for outcome in Outcome if any(report.share(outcome) for report in reports)]
    return {
        "anchor": anchor,
        "reports": reports,
        "table": rows(reports),
        "mean": mean_in_words(reports),
        "caption": CAPTION,
        "warnings": warnings(reports),
        "samples": sample_rows(reports),
        "sample_caption": SAMPLE_CAPTION,
        "outcomes": [(outcome, style_of(outcome)) for outcome in outcomes],
        "families": family_rows(reports),
        "records": list((links or {}).items()),
        **_calls(reports),
        **_answers(reports),
    }


def _calls(reports: Sequence[Report]) -> dict[str, Any]:
    """Invocations per answer by operator, as bars and a table; the table is empty without any."""
    means = {report.name: report.invocations_by_operator() for report in reports}
    names = list(dict.fromkeys(name for counts in means.values() for name in counts))
    lines = [
        (name, *(f"{counts.get(operator, 0):.2f}" for operator in names), f"{sum(counts.values()):.2f}")
        for name, counts in means.items()
    ]
    return {
        "calls": means,
        "most_calls": max(sum(counts.values()) for counts in means.values()),
        "operators": {name: colour_of(name) for name in names},
        "call_table": [(heading(reports), *names, "all"), *lines] if names else [],
    }


# --- answers ----------------------------------------------------------------------------------------------------------


ProblemAnswers = Mapping[str, list[Record]]
"""The answers of every report to one problem, by the reports' names."""


def _problems(reports: Sequence[Report]) -> list[ProblemAnswers]:
    """The problems of all reports, in the order in which they come; those that must not be shown are left out."""
    by_key: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for report in reports:
        for key, answers in report.problems.items():
            if not find_task(key[0]).private:
                by_key.setdefault(key, {})[report.name] = answers
    return list(by_key.values())


def _length(problem: ProblemAnswers) -> int:
    """Characters that a page needs for a problem."""
    every = [record for group in problem.values() for record in group]
    return len(every[0].prompt) + sum(len(record.text or NOT_KEPT) for record in every)


def _answers(reports: Sequence[Report]) -> dict[str, Any]:
    """The problems that a page has room for, what they can be filtered by, and how many they are."""
    problems = _problems(reports)
    fitting = [end <= MOST_CHARACTERS for end in accumulate(map(_length, problems))]
    first, last = reports[0].name, reports[-1].name
    kept = [_shown(problem, first, last) for problem, fits in zip(problems, fitting, strict=True) if fits]
    changes = Counter(problem["change"] for problem in kept)
    which = "All" if len(kept) == len(problems) else f"The first {len(kept)} of"
    return {
        "problems": kept,
        "shown": f"{which} {counted(len(problems), 'problem')}, operators where they were invoked.",
        "family_names": sorted({problem["record"].family for problem in kept} - {""}),
        "task_names": sorted({problem["record"].task for problem in kept}),
        "changes": {key: changes[key] for key in (GAINED, LOST, KEPT_RIGHT, KEPT_WRONG) if changes[key]},
        "change_from": first,
        "change_to": last,
    }


def _change(problem: ProblemAnswers, first: str, last: str) -> str:
    """What became of a problem from the first method to the last; empty where only one of them has it.

    Of several answers more than half must be right.
    """
    if first == last or not {first, last} <= problem.keys():
        return ""
    before, after = (2 * sum(record.correct for record in problem[name]) > len(problem[name]) for name in (first, last))
    if before:
        return KEPT_RIGHT if after else LOST
    return GAINED if after else KEPT_WRONG


def _shown(problem: ProblemAnswers, first: str, last: str) -> dict[str, Any]:
    many = len(problem) > 1
    verdicts = [
        badges([answer.outcome for answer in some], f"{name}: " if many else "") for name, some in problem.items()
    ]
    record = next(iter(problem.values()))[0]
    change = _change(problem, first, last)
    return {"record": record, "answers": problem, "change": change, "badges": list(chain.from_iterable(verdicts))}


def badges(outcomes: Sequence[Outcome], before: str = "") -> list[dict[str, Any]]:
    """The verdict on one answer, or how many of several have which."""
    counts = [(style_of(outcome), len(list(some))) for outcome, some in groupby(sorted(outcomes))]
    labelled = [(style, f"{count} " if len(outcomes) > 1 else "") for style, count in counts]
    return [{"style": style, "word": f"{before}{count}{style.word}"} for style, count in labelled]


def traced_html(record: Record) -> Markup:
    """A completion with every operator where it was invoked, escaped."""
    return as_html(NOT_KEPT if record.text is None else record.text, record.calls)
