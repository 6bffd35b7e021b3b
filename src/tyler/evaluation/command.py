"""`tyler eval`: a model on benchmarks, in one process or in several that share the problems."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from rich.console import Console

from tyler.engine.routing import Router
from tyler.evaluation import budget_matching, html_report
from tyler.evaluation.answers import FAILED, Record
from tyler.evaluation.budget_matching import Match
from tyler.evaluation.endpoint import Endpoint
from tyler.evaluation.options import Answering, Asked, Questions
from tyler.evaluation.pass_at_1 import collect, evaluate, key_of
from tyler.evaluation.reports import (
    CAPTION,
    FAILURE_COLUMNS,
    SAMPLE_CAPTION,
    Report,
    mean_accuracy,
    sample_table,
    table,
    warnings,
)
from tyler.evaluation.store import ANSWERS, AnswerStore
from tyler.reasoners import registry
from tyler.reasoners.reasoner import Reasoner
from tyler.reasoners.registry import Loaded
from tyler.reasoners.tyler import TylerReasoner
from tyler.runs.environment import environment
from tyler.tasks import Problem, find_task, grade, task_name
from tyler.tasks.task import GradeOptions

LONGEST_WAIT = timedelta(days=30)
"""How long the processes that are done wait for the others; answers are kept as they come, so nothing is at stake."""


def run(model: str, asked: Asked = Asked(), *, output: Path | None = None) -> list[Report]:  # noqa: B008
    """Evaluate a saved model, or a plain backbone, on tasks; print the tables and write the reports.

    Launched by `torchrun` or `accelerate launch`, each process answers its share, and the bound on memory is that of
    each. Answers are kept in `output` (by default the `default_folder` of what is asked) as they come; the same call
    resumes after a kill. Raises ValueError for what cannot be evaluated, RunError for an unusable `output`.
    """
    asked = replace(asked, questions=asked.questions.of_model(model))
    if asked.matching.match is not None and len(asked.questions.task) > 1:
        raise ValueError(
            f"--match is for one task at a time, not for {', '.join(asked.questions.task)}: their answers differ in "
            "length"
        )
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=LONGEST_WAIT)
    sets = asked.questions.problems()
    for problems in sets.values():
        _check_grader(problems[0], asked.grading)
    loaded = load(model, asked.answering, device=str(state.device) if state.num_processes > 1 else None)
    found = budget_matching.find(asked.matching, loaded, next(iter(sets.values())), asked.questions.data)
    loaded = loaded if found is None else budget_matching.with_setting(loaded, found)
    settings = settings_of(model, loaded, sets, asked)
    if found is not None:
        settings["matching"] = budget_matching.summary(found)
    folder = output or default_folder(model, asked)
    reasoner = loaded.reasoner
    sampled = {task: sampled_problems(problems, asked.answering.samples) for task, problems in sets.items()}
    records = answered(reasoner, sampled, settings, folder, asked.grading, state)
    if records is None:
        return []
    facts = facts_of(asked.questions, sets, settings)
    return published(records, sets, reasoner.name, settings, folder, found, facts)


def run_endpoint(asked: Asked, *, output: Path | None = None) -> list[Report]:
    """Evaluate a model behind an OpenAI-compatible server; print the tables and write the reports.

    Raises EndpointError where the server cannot be used, RunError for an unusable `output`.
    """
    asked = replace(asked, questions=asked.questions.of_model(""))
    sets = asked.questions.problems()
    for problems in sets.values():
        _check_grader(problems[0], asked.grading)
    endpoint = Endpoint.of(asked.server, asked.answering)
    settings = endpoint.settings() | {"samples": asked.answering.samples, "problems": digests(sets)}
    folder = output or default_folder(asked.server.model, asked)
    sampled = {task: sampled_problems(problems, asked.answering.samples) for task, problems in sets.items()}
    with AnswerStore(folder, settings, mode=asked.grading.mode) as store:
        if asked.server.retry_failed:
            store.forget_failed()
        for task, problems in sampled.items():
            collect(endpoint.ask, problems, name=task, options=asked.grading, store=store)
        records = store.finish([key_of(problem) for problems in sampled.values() for problem in problems])
    if failed := sum(one.finish_reason.startswith(FAILED) for one in records):
        print(f"{failed} of {len(records)} requests were refused and count as wrong; --retry-failed asks them again")
    return published(records, sets, endpoint.name, settings, folder, None, facts_of(asked.questions, sets, settings))


def sampled_problems(problems: Sequence[Problem], samples: int) -> list[Problem]:
    """Every problem as often as it is answered, the samples of one beside each other."""
    return [replace(problem, sample=sample) for problem in problems for sample in range(samples)]


def _check_grader(problem: Problem, grading: GradeOptions) -> None:
    """Raise what a grader that will refuse raises, before anything is loaded."""
    grade(problem.task, "", problem.answer, **asdict(replace(grading, math_verify=False)))


def load(model: str, answering: Answering, device: str | None = None) -> Loaded:
    """The model under the method that is asked for, as it is to answer.

    Raises ValueError as `registry.load` does, and for a plain backbone under the method "tyler": it has no operators.
    """
    found = registry.load(
        model,
        answering.method,
        answering.method_set,
        name=Path(model).name,
        backbone=answering.backbone,
        device=device or answering.device,
        dtype=answering.dtype,
        router=answering.routed,
        budget=answering.budget,
        sampling=answering.sampling,
        max_new_tokens=answering.max_new_tokens,
        slots=answering.slots,
        memory=answering.bytes,
        engine=answering.engine_choice,
    )
    reasoner = found.reasoner
    plain = isinstance(reasoner, TylerReasoner) and reasoner.model.stage == "backbone"
    if plain and answering.method == registry.OWN and answering.routed is None:
        raise ValueError(f"{model} is a plain backbone, without trained operators; omit --method: it answers as CoT")
    return found


def default_folder(model: str, asked: Asked) -> Path:
    """Where an evaluation is kept: runs/MODEL-eval/, and in it a folder named by what is asked, `gsm8k-100-cot`.

    What is left at its default is not named, so that other questions have other folders, and the same one resumes.
    """
    questions, answering, match = asked.questions.of_model(model), asked.answering, asked.matching.match
    longest = answering.max_new_tokens
    named = (
        "+".join(map(task_name, questions.task)),
        questions.data.stem if questions.data is not None and questions.data.is_file() else None,
        questions.split,
        questions.count,
        questions.revision,
        answering.method,
        "-".join(answering.method_set) or None,
        None if answering.dtype == Answering.dtype else answering.dtype,
        None if answering.routed is None else _named(answering.routed),
        None if answering.budget is None else f"budget{answering.budget}",
        *_sampling_named(answering),
        None if longest == Answering.max_new_tokens else f"{longest}tokens",
        None if match is None else "-".join(["as-long-as", *match.parts[-2:]]),
    )
    label = "-".join(str(part) for part in named if part is not None)
    return Path("runs") / f"{_short_name(model)}-eval" / re.sub(r"[^\w.+=-]+", "-", label).strip("-")


def _sampling_named(answering: Answering) -> list[str]:
    """What of the sampling is not at its default, in a folder's name."""
    named = {
        "temperature": answering.temperature,
        "top_p": answering.top_p,
        "top_k": answering.top_k,
        "samples": answering.samples,
        "seed": answering.seed,
    }
    return [f"{name}{value:g}" for name, value in named.items() if value != getattr(Answering, name)]


def _short_name(model: str) -> str:
    """A model's name in a folder's. Of a local one its path from here less `runs`, so that a/stage2 is not b/stage2."""
    path = Path(model)
    if not path.exists():
        return path.name
    whole = path.resolve()
    parts = whole.relative_to(Path.cwd()).parts if whole.is_relative_to(Path.cwd()) else whole.parts[-2:]
    return "-".join(part for part in parts if part not in ("runs", whole.anchor))


def _named(router: Router) -> str:
    """A router, a dataclass, in a word, with what is not at its default."""
    settings = fields(cast(Any, router))
    changed = [f"{one.name}={value}" for one in settings if (value := getattr(router, one.name)) != one.default]
    return "-".join([type(router).__name__, *changed])


def sampling_in_words(settings: Mapping[str, Any]) -> str:
    """How the answers of an evaluation were drawn, from its settings."""
    asked, samples = settings["sampling"], settings["samples"]
    if not asked["temperature"]:
        return "greedy, Pass@1"
    drawn = [f"temperature {asked['temperature']:g}"]
    drawn += [f"top-p {asked['top_p']:g}"] if asked["top_p"] < 1 else []
    drawn += [f"top-k {asked['top_k']}"] if asked["top_k"] else []
    return ", ".join([*drawn, f"seed {asked['seed']}", f"{samples} answers each" if samples > 1 else "Pass@1"])


def answered(
    reasoner: Reasoner,
    sets: dict[str, list[Problem]],
    settings: dict[str, Any],
    folder: Path,
    options: GradeOptions,
    state: PartialState,
) -> list[Record] | None:
    """Answer and grade this process's share; the records of all processes in the first one, None in the others."""
    rank, world = state.process_index, state.num_processes
    with AnswerStore(folder, settings, mode=options.mode, rank=rank) as store:
        state.wait_for_everyone()  # a late process would find answers of this session and begin the next
        for task, problems in sets.items():
            if share := problems[rank::world]:
                evaluate(reasoner, share, options=options, store=store, name=task, show=rank == 0)
        state.wait_for_everyone()
        if rank > 0:
            return None
        return store.finish([key_of(problem) for problems in sets.values() for problem in problems])


def published(
    records: Sequence[Record],
    tasks: Iterable[str],
    name: str,
    settings: dict[str, Any],
    folder: Path,
    found: Match | None,
    facts: Mapping[str, str],
) -> list[Report]:
    """One report for each task, written and printed, with what came of a match."""
    reports = [Report(find_task(task).title, tuple(one for one in records if one.task == task)) for task in tasks]
    matched = {} if found is None else {"matched": budget_matching.verdict(found, records)}
    title = f"{name} on {', '.join(report.name for report in reports)}"
    html_report.write(reports, folder, title, settings | matched, facts, {ANSWERS: ANSWERS})
    show(reports, name, folder, settings)
    for verdict in matched.values():
        Console().print(verdict, highlight=False)
    return reports


def facts_of(
    questions: Questions, sets: Mapping[str, Sequence[Problem]], settings: Mapping[str, Any]
) -> dict[str, str]:
    """What a reader must know first: which problems, of how many, and how they are answered."""
    longest = f"at most {settings['max_new_tokens']:,} actions each"
    return {
        "problems": questions.told(sets),
        "answers": f"{sampling_in_words(settings)}, {longest}",
        "model": f"{settings['model']}, weights {settings['weights'][:16]}",
    }


def settings_of(model: str, loaded: Loaded, sets: dict[str, list[Problem]], asked: Asked) -> dict[str, Any]:
    """Everything that decides the answers; an evaluation resumes only under the same."""
    prompt, answering = loaded.model.prompt, asked.answering
    return {
        "model": model,
        "weights": loaded.weights,
        "method": loaded.method,
        "method_settings": asdict(loaded.settings),
        "max_new_tokens": loaded.max_new_tokens,
        "sampling": asdict(answering.sampling),
        "samples": answering.samples,
        "dtype": loaded.dtype,
        **answering.engine_choice.settings(),
        "instruction": prompt.instruction,
        "thinking": prompt.thinking,
        **({"system": prompt.system} if prompt.system else {}),
        **loaded.text,
        "problems": digests(sets),
        "versions": environment()["packages"],
    }


def digests(sets: Mapping[str, Sequence[Problem]]) -> dict[str, str]:
    """The number of problems of each task and their hash."""
    return {task: f"{len(problems)}, sha256 {digest(problems)}" for task, problems in sets.items()}


def digest(problems: Sequence[Problem]) -> str:
    """A short hash of the problems' ids, prompts and answers, in order."""
    joined = "\0".join(part for problem in problems for part in (problem.id, problem.prompt, problem.answer))
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def show(reports: Sequence[Report], name: str, folder: Path, settings: Mapping[str, Any]) -> None:
    """The tables, and where everything is."""
    console = Console()
    console.print(table(reports, f"{name}, {sampling_in_words(settings)}"))
    if sampled := sample_table(reports):
        console.print()
        console.print(sampled)
        console.print(SAMPLE_CAPTION, style="dim", highlight=False)
    console.print()
    console.print(table(reports, "answers that could not be counted, and the cost of operators", FAILURE_COLUMNS))
    for line in (mean_accuracy(reports), *warnings(reports), CAPTION):
        if line:
            console.print(line, style="dim", highlight=False)
    console.print(f"\nEverything is in {folder}: report.html, report.md, report.json, {ANSWERS}", highlight=False)
