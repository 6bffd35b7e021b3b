"""`tyler report`: one page of runs and evaluations, from what they left on disk alone."""

import json
import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import yaml

from tyler.config.files import flatten
from tyler.config.schema import Config
from tyler.engine.trajectory import Invocation
from tyler.evaluation.folders import AnyRun, EvaluationRun, runs_below
from tyler.evaluation.html_report import badges, command_of, machine_of, provenance, render, slug, style_of, view
from tyler.evaluation.reports import Report, percent
from tyler.evaluation.store import read_evaluations
from tyler.lens.curves import READING, Panel, label_of, panels, picture, series
from tyler.presentation import as_html, counted
from tyler.reasoners.table import every_metrics
from tyler.runs.atomic_files import atomic_write
from tyler.runs.catalogue import TrainingRun
from tyler.runs.json_lines import read_jsonl
from tyler.runs.run import CONFIG, REPORT, TRAJECTORIES
from tyler.tasks import Outcome, find_task

FIRST, LAST = 3, 6
"""Groups of rollouts that are shown of a run: so many from its beginning, and from its end."""
Kind = TypeVar("Kind", bound=AnyRun)


def write(paths: Sequence[Path], output: Path | None = None) -> Path:
    """Write the page of some runs, or of all below some folders; returns where.

    By default that is report.html in the one folder, or for several runs/report.html. Raises ValueError where there is
    neither a run nor an evaluation, and for records that cannot be read.
    """
    if not paths:
        raise ValueError("there is nothing to report on; give a run, an evaluation, or a folder that holds some")
    runs = named([run for path in paths for run in _runs(path)])
    file = output or (paths[0] if len(paths) == 1 else Path("runs")) / REPORT
    file.parent.mkdir(parents=True, exist_ok=True)
    title = runs[0][0] if len(runs) == 1 else f"{', '.join(map(str, paths))}: {counted(len(runs), 'run')}"
    atomic_write(file, page(runs, file.parent, title))
    return file


def _runs(path: Path) -> list[AnyRun]:
    if not path.is_dir():
        raise ValueError(f"there is no folder {str(path)!r}; give a run, an evaluation, or a folder that holds some")
    if not (runs := list(runs_below(path))):
        raise ValueError(f"{path} holds neither a run (config.yaml, metrics.jsonl) nor an evaluation (answers.parquet)")
    return runs


def named(runs: Sequence[Kind]) -> list[tuple[str, Kind]]:
    """Each run once, after what it is called on the page: its path, as far as paths differ."""
    unique = list({run.path.resolve(): run for run in runs}.items())
    base = os.path.commonpath([path.parent for path, _ in unique]) if unique else ""
    return [(os.path.relpath(path, base), run) for path, run in unique]


def page(runs: Sequence[tuple[str, AnyRun]], folder: Path, title: str) -> str:
    """The page, in `folder`: links to records are relative to it."""
    trained = [(name, run) for name, run in runs if isinstance(run, TrainingRun)]
    evaluated = named([run for _, run in runs if isinstance(run, EvaluationRun)])
    return render(
        "runs.html",
        title=title,
        facts=provenance(),
        overview=[("run", "what", "status", "step", "best or accuracy"), *(_overview(*run) for run in runs)],
        compared=_compared(trained),
        differing=_differing({name: run.config for name, run in trained}),
        runs=[_section(name, run, folder) for name, run in trained],
        evaluations=_evaluations(evaluated, folder),
        reading=READING,
    )


def _overview(name: str, run: AnyRun) -> tuple[str, ...]:
    step = f"{run.step}" if run.total is None else f"{run.step} of {run.total}"
    if not isinstance(run, TrainingRun):
        value = percent(run.accuracy)
    elif (best := run.best) is None:
        value = "–"
    else:
        value = f"{best.metric.partition('/')[2].replace('_', ' ')} {best.value:.4g}, step {best.step}"
    return name, run.what, run.status, step, value


def _compared(runs: Sequence[tuple[str, TrainingRun]]) -> list[dict[str, Any]]:
    """The first curve of every panel that at least two runs have, theirs in one plot."""
    members: dict[tuple[str, str], list[tuple[str, TrainingRun, Panel]]] = {}
    for name, run in runs:
        for panel in panels(run.metrics, run.budget):
            members.setdefault((panel.title, panel.keys[0]), []).append((name, run, panel))
    return [
        {
            "title": f"{title}: {label_of(key)}",
            "picture": picture(group[0][2], {name: run.metrics for name, run, _ in group}),
            "label": ", ".join(f"{name} {_end(run, key):.4g}" for name, run, _ in group),
        }
        for (title, key), group in members.items()
        if len(group) > 1
    ]


def _end(run: TrainingRun, key: str) -> float:
    """The mean of a metric over the last tenth of its steps."""
    _, values = series(run.metrics, key)
    return fmean(values[-max(1, len(values) // 10) :])


def _differing(configs: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The settings in which some configs differ, after a row of their names."""
    flat = [flatten(config) for config in configs.values()]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = [(key, *(_yaml(settings.get(key)) for settings in flat)) for key in keys]
    return [("setting", *configs), *(row for row in rows if len(set(row[1:])) > 1)]


def _section(name: str, run: TrainingRun, folder: Path) -> dict[str, Any]:
    start = run.starts[-1] if run.starts else {}
    facts = {"what": f"{run.what}, {run.status} at step {run.step}" + (f" of {run.total}" if run.total else "")}
    if start:
        facts |= {
            "started": start["time"].replace("T", " ").replace("+00:00", " UTC"),
            "machine": machine_of(start),
            "command": command_of(start),
        }
    read_by = {prefix: set(metrics.sections) for prefix, metrics in every_metrics().items()}
    unread = set() if run.loop is None else set().union(*read_by.values()) - read_by.get(run.loop, set())
    changed = _differing({"here": run.config, "default": Config().model_dump(mode="json")})
    return {
        "name": name,
        "anchor": f"run-{slug(name)}",
        "facts": facts,
        "panels": [
            {
                "title": panel.title,
                "picture": picture(panel, {"": run.metrics}),
                "label": ", ".join(f"{label_of(key)} {_end(run, key):.4g}" for key in panel.keys),
            }
            for panel in panels(run.metrics, run.budget)
        ],
        "changed": [row for row in changed if row[0].partition(".")[0] not in unread],
        "config": (run.path / CONFIG).read_text(encoding="utf-8"),
        **_rollouts(run, folder),
    }


def _rollouts(run: TrainingRun, folder: Path) -> dict[str, Any]:
    """The first and the last groups of rollouts that a run logged."""
    file = run.path / TRAJECTORIES
    lines = read_jsonl(file) if file.exists() else []
    groups = [list(members) for _, members in groupby(lines, key=lambda line: (line["step"], line["problem"]))]
    shown = groups if len(groups) <= FIRST + LAST else [*groups[:FIRST], *groups[-LAST:]]
    return {
        "groups": [_group(members) for members in shown],
        "all_groups": len(groups),
        "trajectories": os.path.relpath(file, folder),
    }


def _group(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    members = [{**line, "outcome": Outcome(line["outcome"] or "timeout")} for line in lines]  # null: not graded in time
    return {
        "title": f"Step {members[0]['step']}: {members[0]['problem']}",
        "about": f"{counted(len(members), 'rollout')}, {_rewarded('mean reward', members)}",
        "badges": badges([member["outcome"] for member in members]),
        "members": [
            {
                "style": style_of(member["outcome"]),
                "traced": as_html(
                    member["text"],
                    [Invocation(call[0], call[1], call[2], 0, call[3]) for call in member["invocations"]],
                ),
                "about": f"{_rewarded('reward', [member])}, {counted(len(member['invocations']), 'invocation')}",
            }
            for member in members
        ],
    }


def _rewarded(name: str, members: Sequence[Mapping[str, Any]]) -> str:
    known = [member["reward"] for member in members if member["reward"] is not None]
    return f"{name} {fmean(known):.2f}" if known else "left out of its group"


def _evaluations(runs: Sequence[tuple[str, EvaluationRun]], folder: Path) -> list[dict[str, Any]]:
    """Each task with the answers of every evaluation that has it, side by side."""
    by_task: dict[str, list[tuple[str, EvaluationRun, Report]]] = {}
    for name, run in runs:
        records = [record for some in read_evaluations(run.path).values() for record in some]
        for task in dict.fromkeys(record.task for record in records):
            report = Report(name, tuple(record for record in records if record.task == task))
            by_task.setdefault(task, []).append((name, run, report))
    return [
        {
            "title": find_task(task).title,
            "view": view(
                [report for _, _, report in members],
                {name: os.path.relpath(run.path / "answers.parquet", folder) for name, run, _ in members},
                anchor=f"task-{task}",
            ),
            "settings": {
                name: {key: json.dumps(value, ensure_ascii=False) for key, value in run.settings.items()}
                for name, run, _ in members
                if run.settings
            },
        }
        for task, members in by_task.items()
    ]


def _yaml(value: Any) -> str:
    """A setting as YAML writes it, in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
