"""`tyler lens`: what the latent blocks of an answer do, or those of many answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from tyler.cli.options import ModelName, RouterName, SomeBytes, SomeFolder, memory_of, router_of

if TYPE_CHECKING:
    from rich.table import Table

    from tyler.analysis.lens import Reading
    from tyler.analysis.survey import Estimate, Survey


def lens(
    model: ModelName,
    question: Annotated[Positional[str], arg(metavar="QUESTION", help_behavior_hint="")] = "",
    task: Annotated[str, arg(metavar="TASK")] = "mini",
    split: Annotated[str | None, arg(metavar="SPLIT", help_behavior_hint="")] = None,
    data_dir: SomeFolder = None,
    count: int = 16,
    router: RouterName = None,
    max_new_tokens: int = 256,
    memory: SomeBytes = None,
    seed: int = 0,
    json_: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Put the latent blocks of an answer under the lens: what can be read from them, and what replacing them changes.

    Every block is held against controls: zeros, its operator's means, noise, another problem's block, no block.
    Without a QUESTION the blocks of the task's problems are counted, with intervals.

    Args:
        model: A model with operators: a saved model, a run, or mini-tyler.
        question: The question whose answer is looked at.
        task: Whose problems the controls come from, and are counted without a QUESTION.
        split: Which split; by default the one that is reported.
        data_dir: A file, or the folder with the task's official files.
        count: How many problems of the task.
        router: learned, never, boundaries or boundaries:0.25 (a share); by default what its last stage trained for.
        max_new_tokens: At most this many actions an answer.
        memory: At most so much context and caches, as 4GB or 512MiB: answers wait for room; by default no bound.
        seed: Of the noise and of the choice of other problems.
        json_: Print JSON instead of tables.
    """
    chosen, bound = router_of(router), memory_of(memory)
    from rich.console import Console

    from tyler.analysis.lens import read_blocks
    from tyler.analysis.survey import others_of, survey
    from tyler.model import Tyler
    from tyler.tasks import load_problems

    loaded = Tyler.from_pretrained(model)
    if not loaded.operators or loaded.stage == "backbone":
        raise ValueError(f"{model} has no trained operators; give a model of Stage 1 or 2, or mini-tyler")
    problems = [problem.prompt for problem in load_problems(task, split, path=data_dir, count=count)]
    console = Console()
    if not question:
        found = survey(loaded, problems, router=chosen, max_new_tokens=max_new_tokens, seed=seed, memory=bound)
        console.print_json(json.dumps(asdict(found))) if json_ else console.print(survey_table(found))
        return
    answer, *others = loaded.solve([question, *problems], router=chosen, max_new_tokens=max_new_tokens, memory=bound)
    readings = read_blocks(loaded, answer, others_of([answer, *others], answer), seed)
    if json_:
        console.print_json(json.dumps([reading.to_dict() for reading in readings]))
        return
    console.print(answer.text, highlight=False, markup=False)
    console.print(block_table(readings))


def block_table(readings: list[Reading]) -> Table:
    """One row for each block: what its latents read as, and what each replacement costs the tokens behind it."""
    from rich.table import Table

    from tyler.analysis.lens import REPLACEMENTS

    table = Table("block", "at", "reads as", *REPLACEMENTS, "enough", title="log p lost by the tokens behind, in nats")
    for reading in readings:
        words = " ".join(readout.likeliest[0][0].strip() or "·" for readout in reading.readouts)
        losses = [f"{reading.effects[name].loss:.2f}" for name in REPLACEMENTS]
        enough = f"{reading.enough} of {reading.num_latents}"
        table.add_row(reading.operator, str(reading.position), words, *losses, enough)
    return table


def survey_table(found: Survey) -> Table:
    """One row for each operator, with 95% intervals over problems."""
    from rich.table import Table

    from tyler.analysis.lens import REPLACEMENTS

    title = f"log p lost by the tokens behind a block, in nats, over {found.num_problems} problems, with 95% intervals"
    table = Table("operator", *REPLACEMENTS, "enough", title=title)
    for operator, effects in found.effects.items():
        table.add_row(operator, *(shown(effects[name]) for name in REPLACEMENTS), shown(found.enough[operator]))
    return table


def shown(estimate: Estimate) -> str:
    """A mean with its interval."""
    return f"{estimate.mean:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
