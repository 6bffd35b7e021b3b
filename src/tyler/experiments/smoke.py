"""`tyler reproduce --dry-run --smoke`: everything once, before a GPU is rented.

Each backbone is built with two layers of its real width and random weights, around its real tokenizer, in a folder that
is removed at the end. Then the experiments run as they are, with one optimizer step in every training and one problem
of every task. What shows is whether all of it runs, not how well.
"""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from rich.console import Console

from tyler.config.files import load_config
from tyler.experiments.cells import Questions, Sources
from tyler.experiments.reproduction import Reproduction
from tyler.experiments.scales import Domain, Scale
from tyler.modeling.architectures import MINI, located
from tyler.modeling.random_init import random_backbone, read_tokenizer
from tyler.tasks.grading import find_task
from tyler.tasks.problem import GradeOptions
from tyler.tasks.task import Generated

LAYERS = 2
LONGEST = 6
"""Actions of an answer."""
ONE_STEP: Mapping[str, object] = {"steps": 1, "epochs": None, "batch_size": 1, "micro_batch_size": None}
ROLLOUTS: Mapping[str, object] = {"max_new_tokens": LONGEST, "group_size": 2}


def run(reproduction: Reproduction, data: Path | None, options: GradeOptions) -> None:
    """Rehearse, and say of every experiment how many cells ran. Raises ValueError where no backbone has a tokenizer.

    Those are in the folder `tokenizers` of the data.
    """
    console = Console(highlight=False, soft_wrap=True)
    tokenizers = None if data is None else data / "tokenizers"
    with tempfile.TemporaryDirectory(prefix="tyler-smoke-") as folder:
        scale = shrunk(reproduction.scale, Path(folder), tokenizers, reproduction.sources, options)
        for left_out in reproduction.scale.backbones.keys() - scale.backbones.keys():
            console.print(f"{left_out} is left out: {tokenizers} has no folder for its tokenizer")
        for name in reproduction.names:
            rehearsal = Reproduction([name], scale, Path(folder) / "runs", reproduction.sources)
            started, cells = time.perf_counter(), len(rehearsal.cells())
            rehearsal.run(options)
            console.print(f"{name}: {cells} cells, all of them ran; {time.perf_counter() - started:.0f} s")
    console.print("Random weights and one step: the numbers mean that it runs, nothing else. All of it is removed.")


def shrunk(scale: Scale, folder: Path, tokenizers: Path | None, sources: Sources, options: GradeOptions) -> Scale:
    """The scale on small random backbones, with one problem of every task."""
    backbones = {}
    for title, preset in scale.backbones.items():
        if (tokenizer := tokenizer_of(preset, tokenizers)) is not None:
            backbones[title] = str(small_preset(preset, tokenizer, folder / title))
    if not backbones:
        raise ValueError(
            f"no backbone of scale {scale.name!r} has a tokenizer here; in --data give a folder tokenizers with one "
            "folder for each family, such as qwen3, that holds its tokenizer.json"
        )
    first = next(iter(backbones))
    return replace(
        scale,
        backbones=backbones,
        studied=scale.studied if scale.studied in backbones else first,
        sequential=scale.sequential if scale.sequential in backbones else first,
        tasks={column: one_problem(questions, sources, options) for column, questions in scale.tasks.items()},
        domains=tuple(small_domain(domain, sources, options) for domain in scale.domains),
        seeds=scale.seeds[:1],
        timed=1,
        seen=1,
    )


def tokenizer_of(preset: str, tokenizers: Path | None) -> Path | None:
    """The folder of a preset's tokenizer: that of `mini` itself, or the one whose name its model's name begins with."""
    id = load_config(preset).backbone.id
    if id == MINI:
        return Path(located(id))
    model = id.rpartition("/")[2].lower()
    folders = [] if tokenizers is None else [file.parent for file in tokenizers.glob("*/tokenizer.json")]
    fitting = [folder for folder in folders if model.startswith(folder.name.lower())]
    return max(fitting, key=lambda folder: len(folder.name), default=None)


def small_preset(preset: str, tokenizer: Path, folder: Path) -> Path:
    """A config that extends the preset, on a small random backbone, with a step in every loop."""
    torch.manual_seed(0)
    config = load_config(preset)
    small = random_backbone(config.backbone.id, read_tokenizer(tokenizer), dtype="bfloat16", layers=LAYERS)
    small.model.save_pretrained(folder / "backbone")
    small.tokenizer.save_pretrained(folder / "backbone")
    loops = {name: dict(ONE_STEP) for name in ("stage1", "stage2", "sft", "softcot")}
    loops["stage2"] |= {"max_new_tokens": LONGEST, "calibration": {"num_problems": 1}}
    settings = {
        "extends": preset,
        "backbone": {"id": str(folder / "backbone"), "dtype": "bfloat16"},
        "data": {"task": "mini", "split": "train", "path": None, "count": 8, "held_out": [], "development": None},
        "evaluation": {"task": "mini", "split": "eval", "path": None},
        **loops,
        "grpo": {"group_size": 2},
        "memgen": {
            "weaver": dict(ONE_STEP),
            "weaver_grpo": {**ONE_STEP, **ROLLOUTS},
            "trigger": {**ONE_STEP, **ROLLOUTS},
        },
    }
    file = folder / f"{preset}-small.yaml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return file


def one_problem(questions: Questions, sources: Sources, options: GradeOptions) -> Questions:
    """One problem of a task; of `mini` where its files are not here, or its answers may not be run."""
    task = find_task(questions.task)
    here = isinstance(task, Generated) or questions.task in sources.data
    if here and (options.allow_code_execution or not task.runs_code):
        return replace(questions, count=1, max_new_tokens=LONGEST)
    return Questions("mini", "eval", 1, LONGEST)


def small_domain(domain: Domain, sources: Sources, options: GradeOptions) -> Domain:
    """A step of sequential adaptation on generated problems."""
    questions = one_problem(domain.questions, sources, options)
    splits = {"code": "programs", "mathematics": "mathematics", "science": "science", "theorems": "theorems"}
    learned = (f"data.split=train-{splits[domain.title]}", "data.count=8")
    return replace(domain, learned=learned, questions=questions, families=())
