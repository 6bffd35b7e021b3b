"""Tyler and the baselines on `mini`: one table, over several seeds, and the same at equal cost.

    python scripts/compare_mini.py run                                # everything; a killed comparison resumes
    python scripts/compare_mini.py run --rows MemGen --seeds 42       # one row, what it is trained from included
    python scripts/compare_mini.py report                             # docs/results/baselines-tables.md from records

CoT, SFT, GRPO and Tyler are read from the records of `study_mini.py`. Where a row has candidates, those of seed 42
answer development problems first (`dev` and `dev-harder`), and the best is what every seed is run with. Records go to
docs/results/baselines/ROW-SEED.json and choices to choice-NAME.json; what is there is not run again. One thread.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import itertools
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import study_mini as study
from study_figures import draw_costs
from study_mini import DEVELOPMENT, SPLITS, atomic_write, compact, markdown_row, slug, surroundings
from tyler.config.files import load_config
from tyler.config.schema import Config
from tyler.evaluation import budget_matching
from tyler.evaluation.pass_at_1 import evaluate
from tyler.evaluation.statistics import Paired
from tyler.reasoners import registry
from tyler.reasoners.memgen import grpo as memgen_grpo
from tyler.reasoners.memgen import sft as memgen_sft
from tyler.reasoners.registry import Loaded
from tyler.reasoners.softcot import sft as softcot
from tyler.tasks import load_problems

RECORDS = Path("docs/results/baselines")
FIRST_SEED = 42
CHOOSING = 150
"""Problems of each development split that choices are made on."""
MATCHING = 100
"""Problems of each development split that a setting of equal cost is looked for on."""
SECTIONS = ("softcot", "memgen.weaver", "memgen.weaver_grpo", "memgen.trigger")
UNSEEDED = "backbone"
"""The training of rows that have no seed."""

FROM_STUDY = {
    "CoT": "CoT",
    "SFT": "SFT",
    "GRPO": "GRPO",
    "Tyler, Stage 1": "Stage 1, all boundaries",
    "Tyler, Stage 2": "Stage 2",
    "Tyler, Stage 1, latents zeroed": "Stage 1, all boundaries, latents zeroed",
    "Tyler, Stage 1, mean latents": "Stage 1, all boundaries, mean latents",
    "Tyler, Stage 2, latents zeroed": "Stage 2, latents zeroed",
    "Tyler, Stage 2, mean latents": "Stage 2, mean latents",
}
"""Rows whose records the study has, under its names."""
TARGET = "Tyler, Stage 2"
"""Whose tokens per answer the others are matched to."""


def among(key: str, *values: object) -> tuple[tuple[str, ...], ...]:
    """One candidate for each value of a setting."""
    return tuple((f"{key}={value}",) for value in values)


@dataclass(frozen=True)
class Training:
    """How a model is made: `tyler train METHOD mini` with one of the candidates, and what it starts from."""

    method: str
    candidates: tuple[tuple[str, ...], ...] = ((),)
    start: str | None = None


TRAININGS: Mapping[str, Training] = {
    "softcot": Training("softcot", among("softcot.learning_rate", "1e-3", "3e-3", "1e-2")),
    "memgen": Training("memgen", among("memgen.weaver.learning_rate", "1e-3", "3e-3", "1e-2")),
    "memgen-grpo": Training("memgen-weaver-grpo", among("memgen.weaver_grpo.learning_rate", "1e-3", "2e-3"), "memgen"),
    "memgen-trigger": Training("memgen-trigger", among("memgen.trigger.learning_rate", "2e-3", "5e-3"), "memgen"),
}


@dataclass(frozen=True)
class Row:
    """A trained model under a method. `candidates` are of the method's own settings.

    `zeroed`: its latents are zeros. `matched`: its answers are to cost what Tyler's cost.
    """

    training: str
    method: str
    candidates: tuple[tuple[str, ...], ...] = ((),)
    zeroed: bool = False
    matched: bool = False


def rows() -> dict[str, Row]:
    """All rows that are run here, by the names that the tables use."""
    thoughts = ((), *among("temperature", 0.3, 1.0), *among("max_topk", 3))
    switches = ((), *among("window", 8, 32))
    found = {
        "Soft-Thinking": Row(UNSEEDED, "soft-thinking", thoughts),
        "SwiReasoning": Row(UNSEEDED, "swireasoning", switches),
        "SoftCoT": Row("softcot", "softcot", among("thoughts", 4, 8)),
        "MemGen": Row("memgen", "memgen"),
        "MemGen, weaver by GRPO": Row("memgen-grpo", "memgen"),
        "MemGen with trigger": Row("memgen-trigger", "memgen"),
    }
    zeroed = {f"{name}, latents zeroed": replace(found[name], zeroed=True) for name in ("SoftCoT", "MemGen")}
    matched = {f"{name}, matched": replace(row, matched=True) for name, row in found.items()}
    return found | zeroed | matched


# --- running ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Where models are trained, where records go, and where the study's are."""

    work: Path
    records: Path
    study: Path


def trained(name: str, seed: int, candidate: tuple[str, ...], places: Places) -> tuple[Path, float]:
    """The folder of a trained model, made or gone on with, and the seconds of CPU that all its stages took."""
    training = TRAININGS[name]
    base, before = Path(), 0.0
    if training.start:
        base, before = trained(training.start, seed, chosen_training(training.start, places), places)
    folder = places.work / slug(f"{name} {' '.join(candidate)} {seed}".replace("=", " "))
    done, spent = (folder.parent / f"{folder.name}.{kind}" for kind in ("seconds", "spent"))
    if not done.exists():
        seeds = [f"{section}.seed={seed}" for section in SECTIONS]
        earlier = json.loads(spent.read_text()) if spent.exists() else 0.0
        started = time.process_time()
        try:
            make(training.method, load_config("mini", [*candidate, *seeds]), base, folder)
        finally:
            atomic_write(spent, json.dumps(earlier + time.process_time() - started))
        atomic_write(done, spent.read_text())
    return folder, before + json.loads(done.read_text())


def make(method: str, config: Config, base: Path, folder: Path) -> None:
    """`tyler train METHOD`, going on where it stands."""
    resume = (folder / "config.yaml").exists()
    match method:
        case "softcot":
            softcot.run(config, output=folder, resume=resume)
        case "memgen":
            memgen_sft.run(config, output=folder, resume=resume)
        case "memgen-weaver-grpo":
            memgen_grpo.run_weaver(config, start=base, output=folder, resume=resume)
        case _:
            memgen_grpo.run_trigger(config, start=base, output=folder, resume=resume)


def chosen_training(name: str, places: Places) -> tuple[str, ...]:
    """The candidate of a training whose model of the first seed solves most development problems."""
    training = TRAININGS[name]

    def score(candidate: tuple[str, ...]) -> int:
        folder, _ = trained(name, FIRST_SEED, candidate, places)
        return solved(str(folder), None, ())

    return choose(name, training.candidates, score, places)


def chosen_setting(name: str, row: Row, places: Places) -> tuple[str, ...]:
    """The candidate of a method's settings under which the first seed solves most development problems."""
    location = located(row, FIRST_SEED, places)[0]
    return choose(f"{name} setting", row.candidates, lambda one: solved(location, row.method, one), places)


def choose(name: str, candidates: Sequence[tuple[str, ...]], score: Any, places: Places) -> tuple[str, ...]:
    """The candidate of the best score, the first of equal ones; scores are kept. One candidate needs no score."""
    if len(candidates) == 1:
        return candidates[0]
    place = places.records / f"choice-{slug(name)}.json"
    if not place.exists():
        scores = {}
        for candidate in candidates:
            print(f"choosing {name}: {' '.join(candidate) or 'as it is'}", flush=True)
            scores[" ".join(candidate)] = score(candidate)
        told = {"name": name, "of": CHOOSING * len(DEVELOPMENT), "solved": scores, "environment": surroundings()}
        atomic_write(place, json.dumps(told) + "\n")
    scores = json.loads(place.read_text())["solved"]
    return max(candidates, key=lambda candidate: scores[" ".join(candidate)])


def solved(location: str, method: str | None, overrides: Sequence[str]) -> int:
    """Development problems that a model solves, of both splits."""
    loaded, total = load(location, method, overrides), 0
    for split, longest in DEVELOPMENT.items():
        reasoner = loaded.with_setting("max_new_tokens", longest).reasoner
        total += evaluate(reasoner, load_problems("mini", split, count=CHOOSING), show=False).num_correct
    return total


def load(location: str, method: str | None, overrides: Sequence[str]) -> Loaded:
    return registry.load(location, method, overrides, name=Path(location).name, slots=64)


def located(row: Row, seed: int, places: Places) -> tuple[str, float]:
    """What a row's method runs on, and the seconds of its training."""
    if row.training == UNSEEDED:
        return "mini", 0.0
    folder, seconds = trained(row.training, seed, chosen_training(row.training, places), places)
    return str(folder), seconds


@torch.no_grad()
def silence(loaded: Loaded) -> None:
    """Let every latent of a loaded SoftCoT or MemGen be zeros."""
    model: Any = loaded.reasoner.model  # type: ignore[attr-defined]
    last = model.projection if loaded.method == "softcot" else model.weaver.weaver_to_reasoner
    last.weight.zero_()
    last.bias.zero_()


def measure(name: str, row: Row, seed: int, places: Places) -> dict[str, Any]:
    """Train what the row needs, answer every problem of the reported splits, and say what came of each."""
    plain = name.removesuffix(", matched").removesuffix(", latents zeroed")
    setting = chosen_setting(plain, row, places)
    location, seconds = located(row, seed, places)
    loaded = load(location, row.method, setting)
    if row.zeroed:
        silence(loaded)
    found: dict[str, Any] = {"row": name, "seed": seed, "weights": loaded.weights, "training_seconds": seconds}
    found |= {
        "training": chosen_training(row.training, places) if row.training in TRAININGS else (),
        "setting": setting,
    }
    for (split, longest), development in zip(SPLITS.items(), DEVELOPMENT, strict=True):
        there = loaded.with_setting("max_new_tokens", longest)
        told: dict[str, Any] = {}
        if row.matched:
            near = budget_matching.match(
                there, target_of(split, places), load_problems("mini", development, count=MATCHING)
            )
            there = budget_matching.with_setting(there, near)
            told["matching"] = budget_matching.summary(near) | {"trials": [asdict(trial) for trial in near.trials]}
        started = time.process_time()
        report = evaluate(there.reasoner, load_problems("mini", split), show=False)
        told["cpu_seconds"] = round(time.process_time() - started, 2)
        calls = {kind: round(mean, 3) for kind, mean in report.invocations_by_operator().items()}
        found[split] = compact(report) | {"calls": calls} | told
        del found[split]["invocations"]
    return found | {"environment": surroundings()}


def target_of(split: str, places: Places) -> float:
    """Mean visible tokens and latents of Tyler's answers, over its seeds. Raises ValueError without records of it."""
    if not (records := study.read(places.study).get(FROM_STUDY[TARGET])):
        raise ValueError(f"{places.study} has no records of {FROM_STUDY[TARGET]!r}; run study_mini.py first")
    return fmean(tokens(record, split) for record in records)


def tokens(record: dict[str, Any], split: str) -> float:
    """Mean visible tokens and latents of one record."""
    return fmean(record[split]["visible"]) + fmean(record[split]["latents"])


def run(names: Sequence[str], seeds: Sequence[int], places: Places) -> None:
    """Measure every row of every seed that has no record yet."""
    torch.set_num_threads(1)
    places.records.mkdir(parents=True, exist_ok=True)
    known = rows()
    for seed in seeds:
        for name in names or list(known):
            place = places.records / f"{slug(name)}-{seed}.json"
            if place.exists() or (known[name].training == UNSEEDED and seed != FIRST_SEED):
                continue  # greedy decoding of an untrained model has no seed
            print(f"{name}, seed {seed}", flush=True)
            text = json.dumps(measure(name, known[name], seed, places), ensure_ascii=False, separators=(",", ":"))
            atomic_write(place, text + "\n")


# --- reporting --------------------------------------------------------------------------------------------------------

Found = dict[str, list[dict[str, Any]]]
ORDER = (
    *("CoT", "Soft-Thinking", "SwiReasoning", "SoftCoT", "SFT", "GRPO", "MemGen", "MemGen, weaver by GRPO"),
    *("MemGen with trigger", "Tyler, Stage 1", "Tyler, Stage 2"),
)


def read(places: Places) -> Found:
    """The records of every row that has some: those of the paper's table in its order, then the rest."""
    studied = study.read(places.study)
    found = {name: studied[cell] for name, cell in FROM_STUDY.items() if cell in studied}
    for name in rows():
        files = sorted(places.records.glob(f"{slug(name)}-[0-9]*.json"))
        if here := [json.loads(file.read_text()) for file in files if file.stem.rpartition("-")[0] == slug(name)]:
            found[name] = here
    return {name: found[name] for name in sorted(found, key=lambda name: (*ORDER, *FROM_STUDY, *rows()).index(name))}


def report(places: Places) -> None:
    """The tables beside the records, and the figure of the methods of the paper's table."""
    found = read(places)
    atomic_write(places.records.parent / "baselines-tables.md", write(found, places))
    shown = {name: records for name, records in found.items() if name in ORDER}
    draw_costs(shown, list(SPLITS), places.records.with_suffix(".svg"))


def write(found: Found, places: Places) -> str:
    """docs/results/baselines-tables.md."""
    unmatched = {name: records for name, records in found.items() if not name.endswith(", matched")}
    lines = [
        "# Tyler and the baselines on mini: tables",
        "",
        "In brief:",
        "",
        "- One row is one method; [mini, with baselines](baselines.md) says what follows. All have the same backbone.",
        "- k counts right answers, one k for each seed (42 to 44). CoT, Soft-Thinking and SwiReasoning have no seed.",
        "- Intervals are Wilson's and take seeds as independent.",
        "- Settings were chosen on development problems with seed 42, as listed first, and hold for all seeds.",
        "- Seconds are of CPU (the study's: of the wall) on a shared machine, and do not rank the methods' speed.",
        "",
        "Written by `python scripts/compare_mini.py report`, from docs/results/baselines (`python",
        "scripts/compare_mini.py run`) and, for CoT, SFT, GRPO and Tyler, from docs/results/mini (`python",
        "scripts/study_mini.py run`). Answers are greedy, on one thread.",
        "",
        *choices(places),
    ]
    for split in SPLITS:
        count = len(found["CoT"][0][split]["outcomes"])
        lines += ["", f"## {split}: {count} problems", "", *table(found, split)]
        lines += ["", "Right answers by family, with 95% intervals:", "", *study.by_family(unmatched, split, "method")]
    lines += ["", *at_equal_cost(found), "", *sources(found)]
    return "\n".join(lines) + "\n"


def choices(places: Places) -> list[str]:
    """What was chosen, among what, and how."""
    lines = [
        f"Choices were made on {CHOOSING} problems each of `dev` and `dev-harder` with seed {FIRST_SEED}, and hold for "
        "all seeds. SFT and GRPO were chosen on development problems too (docs/results/mini.md); Tyler is the preset.",
        "",
    ]
    for place in sorted(places.records.glob("choice-*.json")):
        told = json.loads(place.read_text())
        scores = ", ".join(f"{name or 'as it is'} {k}" for name, k in told["solved"].items())
        best = max(told["solved"], key=told["solved"].get) or "as it is"
        lines.append(f"- {told['name']}, solved of {told['of']}: {scores}. Chosen: {best}")
    return lines


def table(found: Found, split: str) -> list[str]:
    """Accuracy, failures and cost of every row that is not matched."""
    header = ["method", "k per seed", "all", "95%", "no box", "cut off", "visible", "latents", "tokens / Stage 2"]
    header += ["decoding s", "training s"]
    lines = [markdown_row(header), markdown_row(["---"] * len(header))]
    for name, records in found.items():
        if not name.endswith(", matched"):
            row = [name, *study.accuracy(records, split), failed(records, split, "n"), failed(records, split, "t")]
            row += [study.mean(records, split, "visible"), study.mean(records, split, "latents")]
            row += [
                ratio(found, records, split),
                f"{fmean(record[split].get('cpu_seconds', record[split]['seconds']) for record in records):.0f}",
            ]
            lines.append(markdown_row([*row, f"{fmean(record['training_seconds'] for record in records):.0f}"]))
    return lines


def failed(records: Sequence[dict[str, Any]], split: str, letter: str) -> str:
    """Share of an outcome over all seeds."""
    return f"{100 * fmean(one == letter for record in records for one in record[split]['outcomes']):.1f}%"


def ratio(found: Found, records: Sequence[dict[str, Any]], split: str) -> str:
    """Tokens per answer over those of Tyler."""
    if TARGET not in found:
        return ""
    target = fmean(tokens(record, split) for record in found[TARGET])
    return f"{fmean(tokens(record, split) for record in records) / target:.2f}"


def at_equal_cost(found: Found) -> list[str]:
    """The rows whose settings were matched to Tyler's tokens."""
    header = [
        "method",
        "split",
        "setting",
        "k per seed",
        "all",
        "95%",
        "cut off",
        "visible",
        "latents",
        "ratio",
        "within 10%",
    ]
    lines = [
        "## At the cost of Tyler, Stage 2",
        "",
        "The setting at which a method's answers have as many tokens, visible and latent, as those of Stage 2, found "
        f"on {MATCHING} development problems (as `tyler eval --match` does). Natural answers that are "
        "shorter cannot be made longer; then nothing is changed. CoT, SFT and GRPO have no setting but a cut; their "
        "ratios are in the tables above.",
        "",
        markdown_row(header),
        markdown_row(["---"] * len(header)),
    ]
    for name, records in found.items():
        for split in SPLITS if name.endswith(", matched") else ():
            settings = {setting_of(record[split]["matching"]) for record in records}
            reached = ratio(found, records, split)
            close = "yes" if reached and abs(float(reached) - 1) <= budget_matching.TOLERANCE else "no"
            row = [
                name,
                split,
                "; ".join(sorted(settings)),
                *study.accuracy(records, split),
                failed(records, split, "t"),
            ]
            row += [study.mean(records, split, "visible"), study.mean(records, split, "latents"), reached, close]
            lines.append(markdown_row(row))
    return lines


def setting_of(told: dict[str, Any]) -> str:
    return f"{told['setting']} = {told['value']}" if told["setting"] else "nothing changed"


def sources(found: Found) -> list[str]:
    """Where differences from CoT come from: from boxes that were missing, from other answers, from latents."""
    header = ["method", "split", "solved, CoT not", "of these CoT had no box", "CoT solved, it not", "of these no box"]
    lines = [
        "## What comes from latents, and what from format or an early end",
        "",
        "Problems that only one of the two solves, all seeds together. Where CoT had no box, an answer that ends in a "
        "box gains without better reasoning; on mini that is what writing in the style of the traces does.",
        "",
        markdown_row(header),
        markdown_row(["---"] * len(header)),
    ]
    for name, records in found.items():
        for split in SPLITS if name != "CoT" else ():
            plain = found["CoT"][0][split]["outcomes"]
            pairs = Counter(pair for record in records for pair in zip(plain, record[split]["outcomes"], strict=True))
            won = {before: n for (before, after), n in pairs.items() if after == "c" != before}
            lost = {after: n for (before, after), n in pairs.items() if before == "c" != after}
            counts = [sum(won.values()), won.get("n", 0), sum(lost.values()), lost.get("n", 0)]
            lines.append(markdown_row([name, split, *map(str, counts)]))
    return [*lines, "", *zeroed(found), "", *ends(found)]


INSTEAD = {", latents zeroed": "with zeros in their places", ", mean latents": "with their means over other problems"}
"""What stands in the place of a row's latents."""


def zeroed(found: Found) -> list[str]:
    """The same model with something else in place of its latents, problem by problem."""
    lines = []
    for (ending, instead), (name, records) in itertools.product(INSTEAD.items(), found.items()):
        plain = name.removesuffix(ending)
        if plain == name or plain not in found:
            continue
        of_seed = {record["seed"]: record for record in found[plain]}
        for split in SPLITS:
            both = [(of_seed[one["seed"]][split]["outcomes"], one[split]["outcomes"]) for one in records]
            with_, without = ([letter == "c" for pair in both for letter in pair[side]] for side in (0, 1))
            counts = Paired.of(without, with_)
            low, high = (100 * bound for bound in counts.interval())
            lines.append(
                f"- {plain} on `{split}`: {counts.second} of {counts.count} with its latents, {counts.first} "
                f"{instead}: {100 * counts.difference:+.1f} points (95% {low:+.1f} to {high:+.1f})."
            )
    return lines


def ends(found: Found) -> list[str]:
    """How Soft-Thinking's thoughts end on a model without `</think>`: at the answer's box."""
    lines = []
    for record in found.get("Soft-Thinking", []):
        for split in SPLITS:
            never = sum(visible <= 1 for visible in record[split]["visible"])  # at most the token that ends the answer
            lines.append(
                f"- Soft-Thinking on `{split}`: {never} of {len(record[split]['visible'])} answers are soft to their "
                "end; the others turn explicit at the box (mini has no `</think>`), so all their steps are soft ones."
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="measure the rows that have no record")
    running.add_argument("--rows", nargs="+", default=[], choices=list(rows()), metavar="ROW")
    running.add_argument("--seeds", nargs="+", type=int, default=[42, 43, 44])
    running.add_argument("--work", type=Path, default=Path("runs/comparison"), help="where models are trained")
    reporting = commands.add_parser("report", help="write the tables from the records")
    for command in (running, reporting):
        command.add_argument("--records", type=Path, default=RECORDS)
        command.add_argument("--study", type=Path, default=study.RECORDS, help="the records of study_mini.py")
    args = parser.parse_args()
    places = Places(getattr(args, "work", Path()), args.records, args.study)
    if args.command == "run":
        run(args.rows, args.seeds, places)
    else:
        report(places)


if __name__ == "__main__":
    main()
