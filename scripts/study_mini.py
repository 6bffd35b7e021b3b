"""The study on `mini`: every claim of the paper that this scale can test, over several seeds.

    python scripts/study_mini.py run                            # everything; a killed study resumes
    python scripts/study_mini.py run --cells "Stage 2" --seeds 43    # one cell, what it is trained from included
    python scripts/study_mini.py run --development              # what was tried, on development problems
    python scripts/study_mini.py report                         # tables and figure in docs/results from the records

A cell is one trained model decoded in one way. Its records (verdict, tokens and invocations of every answer) go to
docs/results/mini/CELL-SEED.json; a cell that is there is not run again. One thread, so that a rerun gives the same k.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from study_figures import draw_shares
from tyler.config.files import load_config
from tyler.config.schema import Config
from tyler.engine.routing import AtBoundaries, Learned, Never, Router
from tyler.evaluation.pass_at_1 import evaluate
from tyler.evaluation.reports import Report, markdown_row
from tyler.evaluation.statistics import wilson
from tyler.model import Tyler
from tyler.modeling.interventions import fix, remove, share, swap, zero
from tyler.modeling.synthesis import Heads
from tyler.reasoners import grpo, sft
from tyler.reasoners.tyler import TylerReasoner
from tyler.runs.atomic_files import atomic_write
from tyler.runs.environment import environment
from tyler.tasks import Outcome, load_problems
from tyler.tasks.mini import FAMILIES
from tyler.training import merging, stage1, stage2

RECORDS, TRIED = Path("docs/results/mini"), Path("docs/results/mini-dev")
SPLITS = {"eval": 160, "harder": 192}
"""What is reported, with the actions an answer may take."""
DEVELOPMENT = {"dev": 160, "dev-harder": 192}
"""What choices are made on."""
OUTCOMES = {outcome: letter for outcome, letter in zip(Outcome, "cwntuxgl", strict=True)}
OPERATORS = ("global", "state", "procedure")


@dataclass(frozen=True)
class Training:
    """How a model is made: a method, what differs from the `mini` preset, and the model it starts from."""

    method: str
    overrides: tuple[str, ...] = ()
    start: str | None = None


def stage2_with(*overrides: str, start: str = "stage1") -> Training:
    return Training("stage2", overrides, start)


HARDER = "data.split=train-harder"
MATHEMATICS = "data.split=train-mathematics"
WIDE = (
    "lora.rank=32",
    "lora.alpha=64",
    "lora.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]",
)
GRPO_RATE = "stage2.learning_rate=5e-3"


TRAININGS: Mapping[str, Training] = {
    "backbone": Training("backbone"),
    "sft": Training("sft"),
    "grpo": Training("grpo", (GRPO_RATE,)),
    "stage1": Training("stage1"),
    "stage1-one": Training("stage1", ("stage1.insertions.max=1", "stage1.insertions.first=null")),
    "stage2": stage2_with(),
    "stage2-one": stage2_with(start="stage1-one"),
    "stage2-no-anchor": stage2_with("grpo.anchor_weight=0"),
    "stage2-no-budget": stage2_with("grpo.budget_weight=0"),
    "stage2-heavy-budget": stage2_with("grpo.budget_weight=0.5"),
    "stage2-budget-2": stage2_with("grpo.budget=2"),
    "stage2-budget-1": stage2_with("grpo.budget=1", "grpo.budget_weight=0.5"),
    "stage2-psi-0.1": stage2_with("stage2.calibration.rate=0.1"),
    "stage2-psi-0.02": stage2_with("stage2.calibration.rate=0.02"),
    # Of the changes; docs/results/mini.md says why each.
    "stage2-shy": stage2_with("stage2.calibration.rate=0.1", "grpo.budget=2"),
    "stage2-long": stage2_with("stage2.steps=150"),
    "stage2-on-harder": stage2_with(HARDER),
    "sft-harder": Training("sft", (HARDER,)),
    "grpo-harder": Training("grpo", (HARDER, GRPO_RATE)),
    "stage1-harder": Training("stage1", (HARDER,)),
    "stage2-harder": stage2_with(HARDER, start="stage1-harder"),
    "sft-mathematics": Training("sft", (MATHEMATICS,)),
    "grpo-mathematics": Training("grpo", (MATHEMATICS, GRPO_RATE)),
    "stage1-mathematics": Training("stage1", (MATHEMATICS,)),
    "stage2-mathematics": stage2_with(MATHEMATICS, start="stage1-mathematics"),
    "stage1-dense": Training("stage1", ("stage1.insertions.max=24",)),
    "stage2-dense": stage2_with(start="stage1-dense"),
    "sft-wide": Training("sft", WIDE),
    "stage1-wide": Training("stage1", WIDE),
    "stage2-wide": stage2_with(*WIDE, start="stage1-wide"),
    "sft-merged": Training("merge", (), "sft"),
    "stage1-on-sft": Training("stage1", (HARDER,), "sft-merged"),
    "stage2-on-sft": stage2_with(HARDER, start="stage1-on-sft"),
    "sft-on-sft": Training("sft", (HARDER,), "sft-merged"),
}


@dataclass(frozen=True)
class Cell:
    """One row of the study: a trained model, a router, and an intervention on its heads.

    A trained policy that gets other latents than it learned with may call for more without end, so an intervention on
    it comes with a hard cap on its calls.
    """

    training: str
    router: Router
    intervention: Callable[[Tyler], Heads] | None = None

    @property
    def budget(self) -> int | None:
        return 16 if self.intervention is not None and isinstance(self.router, Learned) else None


def silenced(model: Tyler) -> Heads:
    """Every operator's latents become zeros."""
    heads = model.heads
    for name in heads:
        heads = zero(heads, name)
    return heads


def averaged(model: Tyler) -> Heads:
    """Every operator's latents become their mean over the answers to development problems: none is of its problem."""
    problems = [problem.prompt for problem in load_problems("mini", "dev")]
    found: dict[str, list[Tensor]] = {}
    for trajectory in model.solve(problems, router=AtBoundaries(), max_new_tokens=DEVELOPMENT["dev"], slots=64):
        for call, latents in zip(trajectory.invocations, trajectory.latents, strict=True):
            found.setdefault(call.operator, []).append(latents)
    heads = model.heads
    for name, blocks in found.items():
        heads = fix(heads, name, torch.stack(blocks).mean(dim=0))
    return heads


def cells() -> dict[str, Cell]:
    """All rows, by the names that the tables use."""
    return reported() | changes()


def reported() -> dict[str, Cell]:
    """What the study reports, on evaluation problems."""
    return {
        "CoT": Cell("backbone", Never()),
        "SFT": Cell("sft", Never()),
        "GRPO": Cell("grpo", Never()),
        "Stage 1, all boundaries": Cell("stage1", AtBoundaries()),
        "Stage 1, never": Cell("stage1", Never()),
        **{f"Stage 1, {name} alone": Cell("stage1", AtBoundaries(only=(name,))) for name in OPERATORS},
        **{f"Stage 1, random {share_:.0%}": Cell("stage1", AtBoundaries(rate=share_)) for share_ in (0.25, 0.5, 0.75)},
        "Stage 1, all boundaries, latents zeroed": Cell("stage1", AtBoundaries(), silenced),
        "Stage 1, all boundaries, mean latents": Cell("stage1", AtBoundaries(), averaged),
        "Stage 1, global alone, mean latents": Cell("stage1", AtBoundaries(only=("global",)), averaged),
        "Stage 1, state alone, mean latents": Cell("stage1", AtBoundaries(only=("state",)), averaged),
        "Stage 1, procedure alone, mean latents": Cell("stage1", AtBoundaries(only=("procedure",)), averaged),
        "Stage 1 of one insertion, all boundaries": Cell("stage1-one", AtBoundaries()),
        "Stage 1 of one insertion, global alone": Cell("stage1-one", AtBoundaries(only=("global",))),
        "Stage 2": Cell("stage2", Learned()),
        "Stage 2 after one insertion": Cell("stage2-one", Learned()),
        "Stage 2 without anchor": Cell("stage2-no-anchor", Learned()),
        "Stage 2 without budget penalty": Cell("stage2-no-budget", Learned()),
        "Stage 2, budget weight 0.5": Cell("stage2-heavy-budget", Learned()),
        "Stage 2, budget 2": Cell("stage2-budget-2", Learned()),
        "Stage 2, budget 1, weight 0.5": Cell("stage2-budget-1", Learned()),
        "Stage 2, psi from 0.1": Cell("stage2-psi-0.1", Learned()),
        "Stage 2, psi from 0.02": Cell("stage2-psi-0.02", Learned()),
        "Stage 2, operators masked": Cell("stage2", Never()),
        "Stage 2, latents zeroed": Cell("stage2", Learned(), silenced),
        "Stage 2, mean latents": Cell("stage2", Learned(), averaged),
        **interventions(),
    }


def interventions() -> dict[str, Cell]:
    """The model after Stage 2 with one operator removed, silenced or in another's place."""
    found = {}
    for name in OPERATORS:
        found[f"Stage 2, {name} removed"] = Cell(
            "stage2", Learned(), lambda model, name=name: remove(model.heads, name)
        )
        found[f"Stage 2, {name} zeroed"] = Cell("stage2", Learned(), lambda model, name=name: zero(model.heads, name))
        found[f"Stage 2, {name} for all"] = Cell("stage2", Learned(), lambda model, name=name: share(model.heads, name))
    for first, second in (("global", "state"), ("global", "procedure"), ("state", "procedure")):
        found[f"Stage 2, {first} and {second} swapped"] = Cell(
            "stage2", Learned(), lambda model, first=first, second=second: swap(model.heads, first, second)
        )
    return found


COMPARED = (
    *("CoT", "SFT", "GRPO", "Stage 1, all boundaries", "Stage 1, global alone", "Stage 2"),
    *("Stage 1, all boundaries, mean latents", "Stage 1, global alone, mean latents"),
)
"""What changes are held against."""


def changes() -> dict[str, Cell]:
    """What was tried because Tyler does not pass SFT; chosen by, and therefore only run on, development problems."""
    return {
        "Stage 2, psi from 0.1, budget 2": Cell("stage2-shy", Learned()),
        "Stage 2, 150 steps": Cell("stage2-long", Learned()),
        "Stage 2 on harder problems": Cell("stage2-on-harder", Learned()),
        "harder: SFT": Cell("sft-harder", Never()),
        "harder: GRPO": Cell("grpo-harder", Never()),
        "harder: Stage 1, all boundaries": Cell("stage1-harder", AtBoundaries()),
        "harder: Stage 1, global alone": Cell("stage1-harder", AtBoundaries(only=("global",))),
        "harder: Stage 2": Cell("stage2-harder", Learned()),
        "mathematics: SFT": Cell("sft-mathematics", Never()),
        "mathematics: GRPO": Cell("grpo-mathematics", Never()),
        "mathematics: Stage 1, all boundaries": Cell("stage1-mathematics", AtBoundaries()),
        "mathematics: Stage 1, global alone": Cell("stage1-mathematics", AtBoundaries(only=("global",))),
        "mathematics: Stage 2": Cell("stage2-mathematics", Learned()),
        "dense: Stage 1, all boundaries": Cell("stage1-dense", AtBoundaries()),
        "dense: Stage 2": Cell("stage2-dense", Learned()),
        "wide: SFT": Cell("sft-wide", Never()),
        "wide: Stage 1, all boundaries": Cell("stage1-wide", AtBoundaries()),
        "wide: Stage 2": Cell("stage2-wide", Learned()),
        "on SFT: SFT": Cell("sft-on-sft", Never()),
        "on SFT: Stage 1, all boundaries": Cell("stage1-on-sft", AtBoundaries()),
        "on SFT: Stage 2": Cell("stage2-on-sft", Learned()),
    }


# --- running ----------------------------------------------------------------------------------------------------------


def config_of(training: Training, seed: int, more: Sequence[str] = ()) -> Config:
    """The preset with what differs; the seed decides data order, draws and rollouts of every method."""
    seeds = [f"{section}.seed={seed}" for section in ("stage1", "stage2", "sft")]
    return load_config("mini", [*training.overrides, *more, *seeds])


def trained(name: str, seed: int, work: Path) -> tuple[Tyler, float]:
    """The model of a training, made or gone on with where it is not finished, and the seconds all its stages took."""
    training = TRAININGS[name]
    if training.method == "backbone":
        return Tyler.from_pretrained("mini"), 0.0
    before = trained(training.start, seed, work)[1] if training.start else 0.0
    folder, start = work / f"{name}-{seed}", work / f"{training.start}-{seed}"
    done = work / f"{name}-{seed}.seconds"
    if done.exists():
        return Tyler.from_pretrained(str(folder)), json.loads(done.read_text())
    started, resume = time.perf_counter(), (folder / "config.yaml").exists()
    if training.method == "merge":
        merging.run(str(start), folder)
    elif training.method == "stage2":
        merged = TRAININGS[str(training.start)].start
        on = [f"backbone.id={work / f'{merged}-{seed}'}"] if merged else []
        stage2.run(config_of(training, seed, on), start=start, output=folder, resume=resume)
    else:
        on = [f"backbone.id={start}"] if training.start else []
        method = {"stage1": stage1, "sft": sft, "grpo": grpo}[training.method]
        method.run(config_of(training, seed, on), output=folder, resume=resume)
    seconds = before + time.perf_counter() - started
    atomic_write(done, json.dumps(seconds))
    return Tyler.from_pretrained(str(folder)), seconds


def measure(name: str, cell: Cell, seed: int, work: Path, splits: Mapping[str, int]) -> dict[str, Any]:
    """Train what the cell needs, answer every problem of the splits, and say what came of each."""
    model, seconds = trained(cell.training, seed, work)
    if cell.intervention is not None:
        model = model.with_heads(cell.intervention(model))
    found: dict[str, Any] = {"cell": name, "seed": seed, "weights": model.fingerprint(), "training_seconds": seconds}
    for split, max_new_tokens in splits.items():
        reasoner = TylerReasoner(name, model, cell.router, budget=cell.budget, max_new_tokens=max_new_tokens, slots=64)
        found[split] = compact(evaluate(reasoner, load_problems("mini", split)))
    return found | {"environment": surroundings()}


def surroundings() -> dict[str, Any]:
    """What a record says of where it was made; not its command, which names the folders of a machine."""
    return {key: value for key, value in environment().items() if key != "command"}


def compact(report: Report) -> dict[str, Any]:
    """A report's records as short as they can be and still recount every number."""
    return {
        "families": "".join(str(FAMILIES.index(record.family)) for record in report.records),
        "levels": "".join(str(record.level) for record in report.records),
        "outcomes": "".join(OUTCOMES[record.outcome] for record in report.records),
        "visible": [record.visible_tokens for record in report.records],
        "latents": [record.latents for record in report.records],
        "invocations": {
            name: "".join(
                chr(48 + min(74, sum(call.operator == name for call in record.invocations)))
                for record in report.records
            )
            for name in OPERATORS
        },
        "seconds": round(report.seconds, 2),
    }


def run(names: Sequence[str], seeds: Sequence[int], work: Path, records: Path, splits: Mapping[str, int]) -> None:
    """Measure every cell of every seed that has no record yet."""
    torch.set_num_threads(1)
    records.mkdir(parents=True, exist_ok=True)
    known = cells()
    for seed in seeds:
        for name in names:
            place = records / f"{slug(name)}-{seed}.json"
            if place.exists() or (known[name].training == "backbone" and seed != seeds[0]):
                continue  # greedy decoding of an untrained model has no seed
            print(f"{name}, seed {seed}", flush=True)
            text = json.dumps(measure(name, known[name], seed, work, splits), ensure_ascii=False, separators=(",", ":"))
            atomic_write(place, text + "\n")


def slug(name: str) -> str:
    return name.lower().replace(",", "").replace(":", "").replace("%", "").replace(" ", "-")


# --- reporting --------------------------------------------------------------------------------------------------------


def read(records: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of every cell that has some, in the order of the study and of the seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in cells():
        files = sorted(records.glob(f"{slug(name)}-[0-9]*.json"))
        if here := [json.loads(file.read_text()) for file in files if file.stem.rpartition("-")[0] == slug(name)]:
            found[name] = here
    return found


def correct(records: Sequence[dict[str, Any]], split: str) -> list[int]:
    """k of each seed."""
    return [record[split]["outcomes"].count("c") for record in records]


def accuracy(records: Sequence[dict[str, Any]], split: str) -> tuple[str, str, str]:
    """k of each seed, the share over all of them, and its 95% Wilson interval, which takes the seeds as independent."""
    per_seed, count = correct(records, split), len(records[0][split]["outcomes"])
    low, high = wilson(sum(per_seed), count * len(per_seed))
    share_ = sum(per_seed) / (count * len(per_seed))
    return ", ".join(map(str, per_seed)), f"{100 * share_:.1f}%", f"{100 * low:.1f}–{100 * high:.1f}"


def calls(records: Sequence[dict[str, Any]], split: str) -> str:
    """Mean invocations per answer of each operator, over all seeds."""
    answers = sum(len(record[split]["outcomes"]) for record in records)
    totals = {
        name: sum(ord(letter) - 48 for record in records for letter in record[split]["invocations"][name])
        for name in OPERATORS
    }
    return " / ".join(f"{total / answers:.2f}" for total in totals.values())


def mean(records: Sequence[dict[str, Any]], split: str, key: str) -> str:
    return f"{fmean(value for record in records for value in record[split][key]):.1f}"


def families(records: Sequence[dict[str, Any]], split: str) -> dict[str, str]:
    """k/n of each family over all seeds, and its 95% interval in per cent."""
    tallies: dict[str, list[bool]] = {}
    for record in records:
        for family, outcome in zip(record[split]["families"], record[split]["outcomes"], strict=True):
            tallies.setdefault(FAMILIES[int(family)], []).append(outcome == "c")
    told = {}
    for family, tally in tallies.items():
        low, high = wilson(sum(tally), len(tally))
        told[family] = f"{sum(tally)}/{len(tally)} ({100 * low:.0f}–{100 * high:.0f})"
    return told


def by_family(found: Mapping[str, list[dict[str, Any]]], split: str, heading: str) -> list[str]:
    """A table of all families."""
    lines = [markdown_row([heading, *FAMILIES]), markdown_row(["---"] * (1 + len(FAMILIES)))]
    for name, records in found.items():
        told = families(records, split)
        lines.append(markdown_row([name, *(told[family] for family in FAMILIES)]))
    return lines


def tables(found: Mapping[str, list[dict[str, Any]]]) -> str:
    """Everything counted, as Markdown."""
    lines = [
        "# The study on mini: tables",
        "",
        "In brief:",
        "",
        "- One row is one cell of the study; [mini, claim by claim](mini.md) says what follows. Answers are greedy.",
        "- k counts right answers, one k for each seed: 42, then 43 and 44 where they were run. CoT has no seed.",
        "- Intervals are Wilson's and take seeds as independent.",
        "- Calls (of `global`, `state`, `procedure`), visible tokens and latents are means per answer.",
        "- Seconds are of one shared machine and do not rank the methods' speed.",
        "",
        "Written by `python scripts/study_mini.py report`.",
        "",
    ]
    first = next(iter(found.values()))[0]
    for split in [name for name in (*SPLITS, *DEVELOPMENT) if name in first]:
        count = len(first[split]["outcomes"])
        header = [
            "cell",
            "k per seed",
            "all",
            "95%",
            "calls g / s / p",
            "visible",
            "latents",
            "decoding s",
            "training s",
        ]
        lines += [f"## {split}: {count} problems", "", markdown_row(header), markdown_row(["---"] * len(header))]
        for name, records in found.items():
            seconds = fmean(record[split]["seconds"] for record in records)
            row = [name, *accuracy(records, split), calls(records, split), mean(records, split, "visible")]
            row += [mean(records, split, "latents"), f"{seconds:.0f}"]
            lines.append(markdown_row([*row, f"{fmean(record['training_seconds'] for record in records):.0f}"]))
        lines += ["", "Right answers by family, with 95% intervals:", "", *by_family(found, split, "cell"), ""]
    return "\n".join(lines)


def report() -> None:
    """The tables beside the records, and the figure of those that are reported."""
    for records in (RECORDS, TRIED):
        atomic_write(records.parent / f"{records.name}-tables.md", tables(read(records)))
    draw_shares(read(RECORDS), list(SPLITS), RECORDS.with_suffix(".svg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="measure the cells that have no record")
    running.add_argument("--cells", nargs="+", default=[], choices=list(cells()), metavar="CELL")
    running.add_argument("--seeds", nargs="+", type=int, help="42 43 44; 42 alone on development problems")
    running.add_argument("--work", type=Path, default=Path("runs/study"), help="where models are trained")
    running.add_argument("--records", type=Path, help=f"{RECORDS}; {TRIED} on development problems")
    running.add_argument("--development", action="store_true", help="answer development problems, to choose by")
    commands.add_parser("report", help="write the tables and the figure from the records")
    args = parser.parse_args()
    if args.command == "run":
        if not args.development and (tried := [name for name in args.cells if name in changes()]):
            parser.error(f"{tried[0]} is a change, which answers development problems only; give --development")
        names = args.cells or ([*COMPARED, *changes()] if args.development else list(reported()))
        seeds = args.seeds or ([42] if args.development else [42, 43, 44])
        records = args.records or (TRIED if args.development else RECORDS)
        run(names, seeds, args.work, records, DEVELOPMENT if args.development else SPLITS)
    else:
        report()


if __name__ == "__main__":
    main()
