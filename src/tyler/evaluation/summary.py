"""The numbers of a report for programs: report.json, beside every report.html and report.md.

    {"format": 1, "title": ..., "made": {"date", "version", "machine", "command"}, "settings": {...},
     "reports": [{"name", "tasks", "problems", "samples", "answers", "correct", "accuracy": {"value", "low", "high"},
                  "pass_at": {"1": {...}, ...}, "majority_at": {...}, "verdicts": {"correct": n}, "families": {...},
                  "visible_tokens", "latents", "invocations", "invocations_by_operator", "seconds", "synthesis_share"}],
     "mean_accuracy": ..., "warnings": [...]}

Shares are in [0, 1] with their 95% intervals; tokens, latents and invocations are means per answer; seconds are of all
answers, batched. What is not known is null. A change of meaning raises `format`; new keys do not.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from tyler.engine.presentation import counted
from tyler.evaluation.reports import Report, is_over_tasks, warnings
from tyler.evaluation.samples import Estimate, majority_at_k, pass_at_k
from tyler.runs.environment import environment
from tyler.tasks import Outcome

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
    over_tasks = is_over_tasks(reports)
    return {
        "format": FORMAT,
        "title": title,
        "made": dict(made),
        "settings": dict(settings or {}),
        "reports": [_numbers(report) for report in reports],
        "mean_accuracy": fmean(report.accuracy for report in reports) if over_tasks else None,
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
