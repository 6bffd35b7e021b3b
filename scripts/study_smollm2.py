"""The study on SmolLM2-135M-Instruct: its cells are run once, and what is there is not run again.

python scripts/study_smollm2.py run --data path/to/files          # everything; a killed study resumes
python scripts/study_smollm2.py run --data path/to/files --rows "Stage 2" --seeds 43    # and what it starts from
python scripts/study_smollm2.py keep --data path/to/files --rows SFT --seeds 42    # beside the records, for later cells
python scripts/study_smollm2.py run --study growth --data path/to/files      # what more training does
python scripts/study_smollm2.py status                             # which cells have records
python scripts/study_smollm2.py report                             # docs/results/smollm2-tables.md from the records
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from study_figures import draw_shares
from tyler.evaluation.reports import markdown_row
from tyler.evaluation.statistics import PairedShares, clustered
from tyler.experiments import records, smollm2_growth
from tyler.experiments import smollm2_study as smollm2
from tyler.experiments.cells import Cell, Questions, Sources
from tyler.experiments.grid import Grid
from tyler.experiments.training import keep
from tyler.runs.atomic_files import atomic_write

RECORDS = Path("docs/results/smollm2")
MODELS = "models"
"""Beside the records: trained models in half precision, whose cells need no training."""
SLOTS = 96
"""Answers decoded at once: rows that wait for a call leave fuller steps to the others than with 32 (13% faster)."""
STUDIES = {"first": smollm2, "growth": smollm2_growth}
"""What is declared. The tables are of the first, which alone has been run."""
TASKS = ("mawps", "mawpsvaried", "svamp", "gsm8k")
ASKED = {
    "MAWPS, test: 500 problems": smollm2.TEST,
    "SVAMP: 500 problems": smollm2.HARDER,
    "GSM8K, test: 500 problems": smollm2.GSM8K,
    "MAWPS, development, what may limit Stage 1: 300 problems": smollm2.DEVELOPMENT,
}
PANELS = dict(zip(ASKED, ("MAWPS", "SVAMP", "GSM8K", "MAWPS, development"), strict=True))
OPERATORS = ("global", "state", "procedure")
GROUPS = {
    "without operators": ("CoT", "SFT", "SFT, equal compute", "GRPO", "GSM8K: SFT", "GSM8K: GRPO"),
    "Stage 1: who is called, and how it is trained": (
        "Stage 1, all boundaries",
        "Stage 1, global alone",
        "Stage 1, random 50%",
        "Stage 1, never",
        "Stage 1, dense",
        "Stage 1, wide",
        "Stage 1, fast",
        "Stage 1, centred",
        "Stage 1, longer",
        "GSM8K: Stage 1",
    ),
    "Stage 1: what they say": (
        *(f"Stage 1, {control}" for control in smollm2.CONTROLS),
        "Stage 1, centred, means",
        "Stage 1, longer, means",
        "Pause tokens, all boundaries",
        "Pause tokens, global alone",
    ),
    "Stage 2": ("Stage 2", *(f"Stage 2, {control}" for control in smollm2.CONTROLS), "GSM8K: Stage 2"),
    "on the merged SFT model": (
        "SFT, merged",
        "On SFT: Stage 1, all boundaries",
        "On SFT: Stage 1, global alone",
        "On SFT: Stage 1, zeros",
        "On SFT: Stage 2",
    ),
    "other latent methods": ("Soft-Thinking", "SwiReasoning", "SoftCoT", "MemGen"),
}
"""The rows, as the figure shows them."""
HEADER = (
    "row",
    "k per seed",
    "all",
    "95%",
    "in a box",
    "calls g / s / p",
    "visible",
    "latents",
    "decoding s",
    "training s",
)
BEGINNING = """# The study on SmolLM2-135M: tables

In brief:

- One row is a model under one way of decoding; [what follows](smollm2.md) says it in words. Answers are greedy.
- k counts right answers, of the first 500 test problems or 300 for development, one k for each seed (42 where there is
  one). CoT has no seed.
- Comparisons are paired: the difference of the shares in points, its 95% bootstrap interval over problems, and an exact
  sign test over the problems on which the two differ.
- Intervals of a row are Wilson's; answers of several seeds to one problem count as alike.
- Calls, visible tokens and latents are means per answer; "in a box" is the share of answers that could be read; seconds
  are of one thread of a shared processor and do not rank the methods' speed.

Written by `python scripts/study_smollm2.py report`.
"""
SPREAD = """## Latents, over 100 development problems

Of the first call of each operator in every answer: root mean squares of its latents, of their mean over problems, slot
by slot, and of what is left without it, and the share of their squares that this is: 0% for a constant. Token
embeddings have 0.136.
"""
PAIRS = (
    ("SFT", "CoT"),
    ("Stage 1, all boundaries", "CoT"),
    ("Stage 1, all boundaries", "SFT"),
    ("Stage 1, all boundaries", "Stage 1, global alone"),
    ("Stage 1, all boundaries", "Stage 1, never"),
    *(("Stage 1, all boundaries", f"Stage 1, {name}") for name in smollm2.CONTROLS),
    ("Stage 1, all boundaries", "Pause tokens, all boundaries"),
    ("Stage 2", "Stage 1, all boundaries"),
    ("Stage 2", "GRPO"),
    *(("Stage 2", f"Stage 2, {name}") for name in smollm2.CONTROLS),
    ("On SFT: Stage 1, all boundaries", "SFT, merged"),
    ("On SFT: Stage 2", "SFT, merged"),
    ("Stage 1, all boundaries", "SFT, equal compute"),
    ("Stage 1, longer", "SFT, equal compute"),
    ("Stage 1, longer", "Stage 1, all boundaries"),
    ("Stage 1, longer", "Stage 1, longer, means"),
    ("Stage 1, all boundaries", "MemGen"),
    ("Stage 1, all boundaries", "SoftCoT"),
    *((f"Stage 1, {name}", "Stage 1, all boundaries") for name in ("dense", "wide", "fast", "centred")),
    ("Stage 1, centred", "Stage 1, centred, means"),
    ("GSM8K: SFT", "CoT"),
    ("GSM8K: Stage 1", "CoT"),
    ("GSM8K: Stage 1", "GSM8K: SFT"),
    ("GSM8K: Stage 2", "GSM8K: Stage 1"),
    ("GSM8K: Stage 2", "GSM8K: GRPO"),
)
"""The comparisons that the study is for, chosen before any of them was measured; those of Stage 2 with its controls
were added when the first of these had been, those with MemGen, SoftCoT and the longer Stage 1 later, and that with
its means last."""

Found = Mapping[str, Sequence[dict[str, Any]]]


def run(args: argparse.Namespace) -> None:
    """Run the cells that have no record yet, in the order of the study."""
    torch.set_num_threads(args.threads)
    grid = Grid(args.work, args.records, sources(args), kept=args.records / MODELS, slots=SLOTS)
    grid.run(chosen(args), processes=args.processes)


def keep_models(args: argparse.Namespace) -> None:
    """Put the trained models of some rows beside the records; what is published already is named, not copied."""
    cells = {(cell.training, cell.seed): cell for cell in chosen(args)}.values()
    if args.location and len(cells) > 1:
        raise ValueError(f"--location is the place of one model, and {len(cells)} were chosen; give --rows and --seeds")
    for cell in cells:
        print(
            keep(
                cell.training,
                cell.preset,
                cell.seed,
                sources(args),
                args.work,
                args.records / MODELS,
                args.location,
            )
        )


def sources(args: argparse.Namespace) -> Sources:
    """The official files of all tasks are in one folder."""
    return Sources(dict.fromkeys(TASKS, str(args.data)))


def chosen(args: argparse.Namespace) -> list[Cell]:
    """The cells of the rows and seeds that were asked for; what is not trained has no seed, and is of all."""
    study = STUDIES[args.study]
    seeds = {0, *(args.seeds or study.SEEDS)}
    cells = [cell for cell in study.cells() if cell.unseeded.seed in seeds]
    found = [cell for cell in cells if not args.rows or cell.row in args.rows]
    if unknown := sorted({*args.rows} - {cell.row for cell in study.cells()}):
        raise SystemExit(f"there is no row {unknown[0]!r}; allowed: {', '.join(map(repr, study.ROWS))}")
    if not found:
        raise SystemExit(f"no cell of {', '.join(map(repr, args.rows))} has one of the seeds {args.seeds}")
    return found


def status(args: argparse.Namespace) -> None:
    """One line for each row that was answered: seed, split, k of n, and processor seconds of training and decoding."""
    for found in answered(list(records.read(args.records).values())):
        k, n = found["outcomes"].count("c"), len(found["outcomes"])
        seconds = f"{found['training_seconds']:.0f} s training, {found['decoding_seconds']:.0f} s decoding"
        print(f"{found['row']:34} {found['seed']:3} {found['task']:6} {found['split']:5} {k:4}/{n}  {seconds}")


def answered(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records that tell who is right."""
    return [one for one in found if "outcomes" in one]


def by_row(found: Sequence[dict[str, Any]], asked: Questions) -> dict[str, list[dict[str, Any]]]:
    """The records of a task, one for each seed, in the order of the study."""
    own = [one for one in answered(found) if (one["task"], one["split"]) == (asked.task, asked.split)]
    refuse_twice(own)
    rows = {row: sorted((one for one in own if one["row"] == row), key=lambda one: one["seed"]) for row in smollm2.ROWS}
    return {row: of_row for row, of_row in rows.items() if of_row}


def refuse_twice(found: Sequence[dict[str, Any]]) -> None:
    """Raise ValueError where two records of one kind are of the same row and seed: one is of earlier settings."""
    for (row, seed), count in Counter((one["row"], one["seed"]) for one in found).items():
        if count > 1:
            asked = f"{found[0]['task']} {found[0]['split']}"
            raise ValueError(f"{count} records are of {row}, seed {seed}, {asked}; remove those of earlier settings")


def numbers(of_row: Sequence[dict[str, Any]]) -> list[str]:
    """What a row's records come to."""
    ks, outcomes = [one["outcomes"].count("c") for one in of_row], "".join(one["outcomes"] for one in of_row)
    low, high = clustered(solved(of_row), len(of_row))
    calls = [name for one in of_row for answer in one["calls"] for name, _ in answer]
    return [
        ", ".join(map(str, ks)),
        f"{100 * sum(ks) / len(outcomes):.1f}%",
        f"{100 * low:.1f}–{100 * high:.1f}",
        f"{100 * sum(outcome in 'cw' for outcome in outcomes) / len(outcomes):.1f}%",
        " / ".join(f"{calls.count(name) / len(outcomes):.2f}" for name in OPERATORS),
        *(f"{fmean(value for one in of_row for value in one[key]):.1f}" for key in ("visible", "latents")),
        *(f"{fmean(one[key] for one in of_row):.0f}" for key in ("decoding_seconds", "training_seconds")),
    ]


def solved(of_row: Sequence[dict[str, Any]]) -> list[float]:
    """Each problem's share of right answers over the seeds. Raises ValueError for records of other problems."""
    if any(one["ids"] != of_row[0]["ids"] for one in of_row):
        raise ValueError(f"the records of {of_row[0]['row']} are of different problems; answer them again")
    return [seeds.count("c") / len(seeds) for seeds in zip(*(one["outcomes"] for one in of_row), strict=True)]


def paired(rows: Found) -> list[str]:
    """The comparisons of which both sides have records, over the seeds that both have."""
    header = ("first", "second", "difference", "95%", "only the first", "only the second", "of", "p")
    lines = [markdown_row(header), markdown_row(["---"] * len(header))]
    for first, second in PAIRS:
        if pairs := matched(rows.get(first, []), rows.get(second, [])):
            ours, theirs = zip(*pairs, strict=True)
            counts = PairedShares(tuple(solved(theirs)), tuple(solved(ours)))
            low, high = counts.interval()
            p = counts.p_value()
            told = [
                f"{100 * counts.difference:+.1f}",
                f"{100 * low:+.1f} to {100 * high:+.1f}",
                *(f"{counts.only_second}", f"{counts.only_first}", f"{counts.count}"),
                f"{p:.3f}" if p >= 0.001 else "< 0.001",
            ]
            lines.append(markdown_row([first, second, *told]))
    return lines


def matched(
    first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Records of equal seeds; what has no seed stands beside every one. Raises ValueError for other problems."""
    pairs = [
        (one, other)
        for one in first
        for other in second
        if one["seed"] == other["seed"] or 0 in (one["seed"], other["seed"])
    ]
    for one, other in pairs:
        if one["ids"] != other["ids"]:
            raise ValueError(f"{one['row']} and {other['row']} answered different problems; answer them again")
    return pairs


def tables(found: Sequence[dict[str, Any]]) -> str:
    """Everything counted, as Markdown."""
    lines = [BEGINNING]
    for title, asked in ASKED.items():
        rows = by_row(found, asked)
        if not rows:
            continue
        lines += [f"## {title}", "", markdown_row(HEADER), markdown_row(["---"] * len(HEADER))]
        lines += [markdown_row([row, *numbers(of_row)]) for row, of_row in rows.items()]
        comparisons = paired(rows)
        lines += ["", "Problem by problem, who alone is right:", "", *comparisons, ""] if len(comparisons) > 2 else [""]
    return "\n".join([*lines, *spread(found)])


def spread(found: Sequence[dict[str, Any]]) -> list[str]:
    """How far each model's latents differ from problem to problem."""
    own = [one for one in found if "spread" in one]
    refuse_twice(own)
    of_row = {one["row"]: one for one in own}
    header = (
        "row",
        "operator",
        "answers",
        "scale",
        "scale of the mean",
        "around it",
        "share",
        "decoding s",
        "training s",
    )
    lines = [SPREAD, markdown_row(header), markdown_row(["---"] * len(header))]
    for row in filter(of_row.get, smollm2.DIFFERING):
        for operator in filter(of_row[row]["spread"].get, OPERATORS):
            one = of_row[row]["spread"][operator]
            scales = (one["scale"], one["scale_of_mean"], one["scale"] * one["around_mean"] ** 0.5)
            costs = (f"{of_row[row][key]:.0f}" for key in ("decoding_seconds", "training_seconds"))
            told = (f"{one['calls']}", *(f"{scale:.3f}" for scale in scales), f"{100 * one['around_mean']:.2f}%")
            lines.append(markdown_row([row, operator, *told, *costs]))
    return [*lines, ""] if of_row else []


def report(args: argparse.Namespace) -> None:
    """The tables and the figure beside the records."""
    found = list(records.read(args.records).values())
    file = args.records.parent / f"{args.records.name}-tables.md"
    atomic_write(file, tables(found))
    draw(found, args.records.with_suffix(".svg"))
    print(file)


def draw(found: Sequence[dict[str, Any]], file: Path) -> None:
    """Every row's share of right answers, one panel for each task that has been answered."""
    shown: dict[str, dict[int, dict[str, dict[str, Any]]]] = {}
    panels = {PANELS[title]: rows for title, asked in ASKED.items() if (rows := by_row(found, asked))}
    for panel, rows in panels.items():
        for row, of_row in rows.items():
            for one in of_row:
                shown.setdefault(row, {}).setdefault(one["seed"], {})[panel] = one
    if not panels:
        return
    draw_shares({row: list(seeds.values()) for row, seeds in shown.items()}, list(panels), file, GROUPS, "SFT")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run the cells that have no record")
    running.add_argument("--threads", type=int, default=1, help="of all processes together")
    running.add_argument("--processes", type=int, default=1, help="trainings and cells that run beside each other")
    keeping = commands.add_parser("keep", help="put finished models beside the records, for later cells")
    keeping.add_argument("--location", default="", help="where the model is published, instead of a copy")
    for command in (running, keeping):
        command.add_argument("--study", choices=STUDIES, default="first", help="give the second its own --records")
        command.add_argument("--data", type=Path, required=True, help="the folder with the tasks' official files")
        command.add_argument("--work", type=Path, default=Path("runs/smollm2"), help="where models are trained")
        command.add_argument("--rows", nargs="+", default=[], metavar="ROW", required=command is keeping)
        command.add_argument("--seeds", nargs="+", type=int, choices=smollm2.SEEDS, help="all by default")
    commands.add_parser("status", help="what has been measured")
    commands.add_parser("report", help="write the tables from the records")
    args = parser.parse_args()
    {"run": run, "keep": keep_models, "status": status, "report": report}[args.command](args)


if __name__ == "__main__":
    main()
