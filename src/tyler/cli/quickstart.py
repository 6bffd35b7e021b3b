"""`tyler quickstart`: an answer of the shipped mini-tyler, then both stages and an evaluation, on a CPU, in minutes."""

import logging
import math
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from tyler.cli.logs import quietly
from tyler.config.files import load_config, value_at
from tyler.config.schema import Config
from tyler.engine.routing import AtBoundaries, Learned, Never, Router
from tyler.evaluation.html_report import save
from tyler.evaluation.pass_at_1 import evaluate
from tyler.evaluation.reports import Report, table
from tyler.lens.run_report import write as write_page
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.reasoners.tyler import TylerReasoner
from tyler.runs.json_lines import read_jsonl
from tyler.tasks import load_problems
from tyler.tasks.mini.world import SPLITS
from tyler.training import stage1, stage2

TWO_STEPS = ("stage1.steps=2", "stage2.steps=2", "stage2.calibration.num_problems=8", "data.development=null")
"""What `mini` is trained with to see how long a step takes."""


def run(*, output: Path, seed: int = 42, scale: float = 1.0) -> None:
    """Train, evaluate and show. Raises ValueError for a scale that is not positive and finite."""
    if not 0 < scale < math.inf:
        raise ValueError(f"scale={scale}; it must be a finite number above 0, where 1 is the documented run")
    started = time.perf_counter()
    console = Console()
    config = configure(seed, scale)
    show_answer(console, config, Tyler.from_pretrained("mini-tyler", dtype=config.backbone.dtype))
    say = partial(console.print, soft_wrap=True, highlight=False)
    say("\nThis was mini-tyler, which ships with tyler. Now such a model is trained and evaluated here.")
    say(f"Two steps of each stage were timed: all of it takes about {seconds_of(config) / 60:.1f} minutes.\n")
    plain = Tyler.start(Backbone.load(config.backbone.id, dtype=config.backbone.dtype), prompt=config.prompt)
    synthesized = stage1.run(config, output=output / "stage1", replace=True)
    tuned = stage2.run(config, start=output / "stage1", output=output / "stage2", replace=True)
    reports = [
        measure(config, "CoT", plain, Never()),
        measure(config, "Tyler Stage 1", synthesized, AtBoundaries()),
        measure(config, "Tyler Stage 2", tuned, Learned()),
    ]
    settings = config.model_dump(mode="json", include={"backbone", "evaluation", "decoding"})
    save(reports, output / "evaluation", "The mini backbone and both stages of Tyler", settings)
    write_page([output])
    console.print()
    console.print(table(reports, f"mini, {config.evaluation.split} problems, greedy decoding"))
    show_answer(console, config, tuned)
    say_where(console, output, time.perf_counter() - started)


def seconds_of(config: Config) -> float:
    """How long the run will take here, from two steps of each stage in a folder that is removed."""
    short = load_config("mini", TWO_STEPS)
    with TemporaryDirectory() as folder, quietly(True, logging.ERROR):
        first, second = Path(folder, "stage1"), Path(folder, "stage2")
        stage1.run(short, output=first)
        stage2.run(short, start=first, output=second)
        learning, rollout = (read_jsonl(path / "metrics.jsonl")[-1] for path in (first, second))
    decoding = rollout["stage2/rollout_seconds"]
    answered = decoding / (short.stage2.batch_size * short.grpo.group_size)
    return (
        (config.stage1.steps or 0) * learning["stage1/seconds"]
        + (config.stage2.steps or 0) * (decoding + rollout["stage2/learning_seconds"])
        + num_answers(config) * answered
    )


def num_answers(config: Config) -> int:
    """Of the three evaluations, and of Stage 2 to development problems."""
    development, every = config.data.development, config.stage2.eval_every
    looks = (config.stage2.steps or 0) // every if every else 0
    return 3 * (config.evaluation.count or 0) + looks * (development.count or 0 if development else 0)


def show_answer(console: Console, config: Config, model: Tyler) -> None:
    """A problem and its answer, with the operators in their places."""
    (problem,) = load_problems("mini", config.evaluation.split, count=1)
    answer = model.solve(problem.prompt, max_new_tokens=config.decoding.max_new_tokens)
    console.print(Panel(Text(problem.prompt), title="a problem", title_align="left"))
    title = "its answer; operators are silent and shown here"
    console.print(Panel(answer.__rich__(), title=title, title_align="left"))


def configure(seed: int, scale: float) -> Config:
    """The mini preset with every number of steps and problems scaled: of training, calibration, development and
    evaluation."""
    config = load_config("mini")
    keys = ("stage1.steps", "stage2.steps", "stage2.calibration.num_problems", "data.development.count")
    counts = {key: value_at(config, key) for key in keys}
    counts["evaluation.count"] = config.evaluation.count or SPLITS[config.evaluation.split].count
    scaled = [f"{key}={max(1, round(count * scale))}" for key, count in counts.items()]
    return load_config("mini", [*scaled, f"stage1.seed={seed}", f"stage2.seed={seed}"])


def measure(config: Config, name: str, model: Tyler, router: Router) -> Report:
    """Greedy Pass@1 on the fixed evaluation set."""
    decoding, problems = config.decoding, load_problems("mini", config.evaluation.split, count=config.evaluation.count)
    reasoner = TylerReasoner(name, model, router=router, max_new_tokens=decoding.max_new_tokens, slots=decoding.slots)
    return evaluate(reasoner, problems)


def say_where(console: Console, output: Path, seconds: float) -> None:
    """Where everything is, and what to run next."""
    lines = [
        f"\nDone in {seconds / 60:.1f} minutes. Everything is in {output}:",
        "  report.html              the curves of both stages, the table, and every answer",
        "  stage1/  stage2/         runs: config.yaml, metrics.jsonl, trajectories.jsonl.gz, checkpoints/",
        "  evaluation/              the answers, in answers.parquet, and a page of their own",
        "\nNext:",
        f'  tyler solve {output}/stage2 "Tom has 50 cups. Tom sells 24. Tom gets 33. How many cups are left?"',
        f"  tyler eval {output}/stage2 --task mini --split harder",
        f"  tyler eval --compare {output}/evaluation/cot {output}/evaluation/tyler-stage-2",
        "  tyler train stage1 mini --output runs/mine --stage1.steps 500",
    ]
    console.print("\n".join(lines), soft_wrap=True, highlight=False)
