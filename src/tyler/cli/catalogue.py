"""`tyler runs` and `tyler config`: what there is, read from records and presets alone."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from tyler.cli.options import Overrides
from tyler.evaluation.options import OptionalFile

if TYPE_CHECKING:
    from tyler.evaluation.folders import AnyRun

WIDEST = 500
"""Columns of the list of runs: a path stands last and whole, and a narrow terminal wraps it."""


def runs(
    folder: Annotated[Positional[Path], arg(metavar="DIR")] = Path("runs"),
    json_: Annotated[bool, arg(name="json")] = False,
) -> None:
    """List the training runs and evaluations below a folder: what, how far, the best value, and where.

    Args:
        folder: Where to look.
        json_: A JSON object a line instead of a table.
    """
    from rich.console import Console

    from tyler.evaluation.folders import runs_below
    from tyler.evaluation.reports import for_terminal

    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}; give one that holds runs")
    lines = [row(run) for run in runs_below(folder)]
    if json_:
        for line in lines:
            print(json.dumps(line, ensure_ascii=False))
        return
    if not lines:
        print(f"no runs below {folder}; `tyler quickstart` or `tyler train stage1 mini` makes one")
        return
    rows = [("what", "status", "step", "best", "changed", f"in {folder}")]
    for line in lines:
        step = f"{line['step']}" if line["of"] is None else f"{line['step']}/{line['of']}"
        where = str(Path(line["where"]).relative_to(folder))
        rows.append((line["what"], line["status"], step, line["best"] or "–", line["changed"][5:], where))
    Console(width=WIDEST).print(for_terminal(rows, words=len(rows[0])))


def row(run: AnyRun) -> dict[str, Any]:
    """One line of the list."""
    from tyler.runs.catalogue import TrainingRun

    if isinstance(run, TrainingRun):
        best = run.best
        best_value = None if best is None else f"{best.metric.partition('/')[2]} {best.value:.4g} at step {best.step}"
    else:
        accuracy = run.accuracy
        best_value = None if accuracy is None else f"accuracy {100 * accuracy:.1f}%"
    newest = max(file.stat().st_mtime for file in run.path.iterdir() if file.is_file())
    return {
        "what": run.what,
        "status": run.status,
        "step": run.step,
        "of": run.total,
        "best": best_value,
        "changed": time.strftime("%Y-%m-%d %H:%M", time.localtime(newest)),
        "where": str(run.path),
    }


def report(
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")], page: OptionalFile = None
) -> None:
    """Write one page of HTML about runs and evaluations, from their records: curves, tables, answers, settings.

    The page needs no network and nothing beside it. Several runs are compared: their curves in one plot, their answers
    problem by problem, and the settings in which they differ.

    Args:
        runs: Run directories, folders of evaluations, or folders that hold some.
        page: The file; by default report.html in the folder, or for several runs/report.html.
    """
    from tyler.lens import run_report

    print(f"the report is {run_report.write(runs, page)}")


def config(name: Annotated[Positional[str], arg(metavar="NAME")], overrides: Overrides = ()) -> None:
    """Print a resolved config as YAML, every key below a comment with its meaning; the output is itself a config.

    Args:
        name: A YAML file, a preset (mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b), or a run's folder.
    """
    from tyler.config.files import load_config, load_run_config
    from tyler.config.meanings import annotated

    run = Path(name) / "config.yaml"
    print(annotated(load_run_config(run, overrides) if run.is_file() else load_config(name, overrides)), end="")
