"""What a page shows of an evaluation: numbers as bars and tables, problems with the answers of every method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from tyler.evaluation.answers import Record
from tyler.evaluation.reports import (
    CAPTION,
    COLUMNS,
    SAMPLE_CAPTION,
    Report,
    groups,
    heading,
    interval,
    mean_accuracy,
    percent,
    rows,
    sample_rows,
    warnings,
)
from tyler.presentation import VERDICTS, as_html, colour_of, counted
from tyler.tasks import Outcome, find_task

FOLDER = files("tyler") / "assets" / "pages"


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def render(template: str, **values: Any) -> str:
    """A template with its values, escaped: whatever a model wrote stays text."""
    environment = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    own = {"css": Markup(_read("page.css")), "js": Markup(_read("page.js"))}
    return environment.get_template(template).render(**own, **values)


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

_LIGHT = "rgba(255,255,255,.5)"
PATTERNS = {
    Outcome.CORRECT: "none",
    Outcome.WRONG: f"repeating-linear-gradient(45deg,{_LIGHT} 0 2px,transparent 2px 8px)",
    Outcome.NO_BOX: f"radial-gradient({_LIGHT} 25%,transparent 27%) 0 0/7px 7px",
    Outcome.TRUNCATED: f"repeating-linear-gradient(90deg,{_LIGHT} 0 2px,transparent 2px 7px)",
    Outcome.UNPARSABLE: f"repeating-linear-gradient(0deg,{_LIGHT} 0 2px,transparent 2px 6px)",
    Outcome.TIMEOUT: f"repeating-linear-gradient(135deg,{_LIGHT} 0 2px,transparent 2px 6px)",
    Outcome.GOLD_ERROR: f"repeating-linear-gradient(135deg,{_LIGHT} 0 4px,transparent 4px 9px)",
    Outcome.TOO_LONG: f"repeating-linear-gradient(90deg,{_LIGHT} 0 4px,transparent 4px 12px)",
}


@dataclass(frozen=True)
class Style:
    """How one verdict is shown; `pattern` is a CSS background over the colour."""

    key: str
    word: str
    sign: str
    colour: str
    pattern: str


def style_of(outcome: Outcome) -> Style:
    """The style of an outcome."""
    word, sign = WORDS[outcome]
    return Style(str(outcome), word, sign, VERDICTS[str(outcome)], PATTERNS[outcome])


MOST_CHARACTERS = 2_000_000
"""Of the questions and answers on a page; the rest is in the store."""
NOT_KEPT = "The text of this answer was not kept."
KEPT_RIGHT, GAINED, LOST, KEPT_WRONG = "right in both", "gained", "lost", "wrong in both"


def view(
    reports: Sequence[Report], links: Mapping[str, str] | None = None, anchor: str = "evaluation"
) -> dict[str, Any]:
    """Everything that `assets/pages/evaluation.html` shows. `links` are files of records by the reports' names."""
    problems = _problems(reports)
    return {
        "anchor": anchor,
        "table": [(heading(reports), *COLUMNS[1:]), *rows(reports)],
        "mean": mean_accuracy(reports),
        "caption": CAPTION,
        "warnings": warnings(reports),
        "bars": [_bar(report) for report in reports],
        "samples": sample_rows(reports),
        "sample_caption": SAMPLE_CAPTION,
        "fared": [_fared(report) for report in reports],
        "legend": _legend(reports),
        "families": [_family_table(families, members) for families, members in groups(reports)],
        "records": list((links or {}).items()),
        **_calls(reports),
        **_answers(reports, problems),
    }


# --- numbers ----------------------------------------------------------------------------------------------------------


def _bar(report: Report) -> dict[str, Any]:
    low, high = report.interval
    return {
        "name": report.name,
        "value": 100 * report.accuracy,
        "low": 100 * low,
        "high": 100 * high,
        "text": percent(report.accuracy),
        "interval": interval(report),
        "count": f"{report.num_correct} of {len(report.records)}",
    }


def _outcomes(reports: Sequence[Report]) -> list[Outcome]:
    """Those that came up, in their fixed order."""
    return [one for one in Outcome if any(record.outcome is one for report in reports for record in report.records)]


def _fared(report: Report) -> dict[str, Any]:
    parts = [{"style": style_of(one), "share": 100 * report.share(one)} for one in _outcomes([report])]
    told = ", ".join(f"{style_of(one).word} {percent(report.share(one))}" for one in _outcomes([report]))
    return {"name": report.name, "parts": parts, "label": told, "count": counted(len(report.records), "answer")}


def _legend(reports: Sequence[Report]) -> list[tuple[Style, list[str]]]:
    """Each verdict that came up, with its share and count in every report."""
    return [(style_of(one), [_share_and_count(report, one) for report in reports]) for one in _outcomes(reports)]


def _share_and_count(report: Report, outcome: Outcome) -> str:
    return f"{percent(report.share(outcome))} ({sum(record.outcome is outcome for record in report.records)})"


def _family_table(families: Sequence[str], members: Sequence[Report]) -> list[tuple[str, ...]]:
    lines = [
        (report.name, *(f"{k}/{n} ({100 * k / n:.0f}%)" for k, n in report.by_family().values())) for report in members
    ]
    return [(heading(members), *(family or "other" for family in families)), *lines]


# --- operators --------------------------------------------------------------------------------------------------------


def _calls(reports: Sequence[Report]) -> dict[str, Any]:
    """Invocations per answer, as bars and a table; empty without any."""
    means = [(report, report.invocations_by_operator()) for report in reports]
    names = list(dict.fromkeys(name for _, found in means for name in found))
    if not names:
        return {"calls": [], "operators": [], "call_table": []}
    highest = max(sum(found.values()) for _, found in means)
    return {
        "calls": [_call_bar(report.name, found, highest) for report, found in means],
        "operators": [(name, colour_of(name)) for name in names],
        "call_table": [
            (heading(reports), *names, "all"),
            *((r.name, *(f"{f.get(n, 0):.2f}" for n in names), f"{sum(f.values()):.2f}") for r, f in means),
        ],
    }


def _call_bar(name: str, means: Mapping[str, float], highest: float) -> dict[str, Any]:
    parts = [
        {"name": operator, "mean": mean, "share": 100 * mean / highest, "colour": colour_of(operator)}
        for operator, mean in means.items()
    ]
    told = ", ".join(f"{operator} {mean:.2f}" for operator, mean in means.items())
    return {"name": name, "mean": sum(means.values()), "parts": parts, "label": told or "none"}


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """One problem with the answers of every report that has it, by the reports' names."""

    answers: dict[str, list[Record]]

    @property
    def record(self) -> Record:
        return next(iter(self.answers.values()))[0]

    @property
    def length(self) -> int:
        """Characters that a page needs for it."""
        return len(self.record.prompt) + sum(
            len(one.text or NOT_KEPT) for group in self.answers.values() for one in group
        )


def _problems(reports: Sequence[Report]) -> list[Asked]:
    """The problems of all reports, in the order in which they come; those that must not be shown are left out."""
    found: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for report in reports:
        for key, answers in report.problems.items():
            if not find_task(key[0]).private:
                found.setdefault(key, {})[report.name] = answers
    return [Asked(answers) for answers in found.values()]


def _answers(reports: Sequence[Report], problems: Sequence[Asked]) -> dict[str, Any]:
    """The problems that a page has room for, what they can be filtered by, and how many they are."""
    kept, room = [], MOST_CHARACTERS
    for problem in problems:
        if (room := room - problem.length) < 0:
            break
        kept.append(problem)
    first, last = reports[0].name, reports[-1].name
    compared = first != last and any({first, last} <= problem.answers.keys() for problem in kept)
    changes = Counter(change for problem in kept if (change := _change(problem, first, last))) if compared else {}
    told = "All" if len(kept) == len(problems) else f"The first {len(kept)} of"
    return {
        "problems": [_shown(problem, first, last) for problem in kept],
        "shown": f"{told} {counted(len(problems), 'problem')}, operators where they were invoked.",
        "family_names": sorted({problem.record.family for problem in kept if problem.record.family}),
        "task_names": sorted({problem.record.task for problem in kept}),
        "changes": {key: changes[key] for key in (GAINED, LOST, KEPT_RIGHT, KEPT_WRONG) if changes.get(key)},
        "change_from": first,
        "change_to": last,
    }


def _change(problem: Asked, first: str, last: str) -> str:
    """What became of a problem from the first method to the last; empty where only one of them has it.

    Of several answers more than half must be right.
    """
    if first == last or not {first, last} <= problem.answers.keys():
        return ""
    before, after = (
        2 * sum(one.correct for one in group) > len(group) for group in map(problem.answers.get, (first, last)) if group
    )
    return {(True, True): KEPT_RIGHT, (False, True): GAINED, (True, False): LOST, (False, False): KEPT_WRONG}[
        before, after
    ]


def _shown(problem: Asked, first: str, last: str) -> dict[str, Any]:
    record = problem.record
    families = [record.family] if record.family else []
    return {
        "question": " ".join(record.prompt.split()) or record.id,
        "prompt": record.prompt,
        "family": record.family,
        "task": record.task,
        "verdicts": sorted({str(one.outcome) for group in problem.answers.values() for one in group}),
        "change": _change(problem, first, last),
        "badges": [badge for name, group in problem.answers.items() for badge in _badges(name, group, problem)],
        "about": " · ".join([*families, f"gold {_short(record.gold)}", record.id]),
        "answers": [_answer(name, one, len(group)) for name, group in problem.answers.items() for one in group],
    }


def _badges(name: str, group: Sequence[Record], problem: Asked) -> list[dict[str, Any]]:
    """The verdict on each method's answer, or how many of its answers have which."""
    prefix = f"{name}: " if len(problem.answers) > 1 else ""
    counts = [(outcome, len(list(some))) for outcome, some in groupby(sorted(one.outcome for one in group))]
    several = len(group) > 1
    return [
        {"style": style_of(one), "word": f"{prefix}{f'{count} ' if several else ''}{style_of(one).word}"}
        for one, count in counts
    ]


def _answer(name: str, record: Record, samples: int) -> dict[str, Any]:
    answered = "no answer" if record.answer is None else f"answered {_short(record.answer)}"
    tokens = f"{counted(record.visible_tokens, 'token')}, {counted(record.latents, 'latent')}"
    return {
        "name": f"{name}, sample {record.sample + 1}" if samples > 1 else name,
        "style": style_of(record.outcome),
        "traced": traced_html(record),
        "about": f"{answered} · {tokens} · {counted(len(record.calls), 'invocation')}",
    }


def traced_html(record: Record) -> Markup:
    """A completion with every operator where it was invoked, escaped."""
    return as_html(NOT_KEPT if record.text is None else record.text, record.calls)


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
