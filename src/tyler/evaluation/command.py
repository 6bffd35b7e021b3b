"""`tyler eval`: a model on benchmarks, in one process or in several that share the problems."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from rich.console import Console

from tyler.evaluation import budget_matching, html_report
from tyler.evaluation.answers import FAILED, Record
from tyler.evaluation.budget_matching import Match
from tyler.evaluation.endpoint import Endpoint
from tyler.evaluation.options import Answering, EvaluationRequest
from tyler.evaluation.pass_at_1 import Ask, asking, collect
from tyler.evaluation.reports import Report, by_task, show
from tyler.evaluation.store import ANSWERS, AnswerStore
from tyler.reasoners import registry
from tyler.reasoners.registry import Loaded
from tyler.reasoners.tyler import TylerReasoner
from tyler.runs.environment import environment
from tyler.tasks import Problem, grade, task_name

LONGEST_WAIT = timedelta(days=30)
"""How long the processes that are done wait for the others; answers are kept as they come, so nothing is at stake."""


@dataclass(frozen=True)
class Subject:
    """Who is evaluated: a loaded model under a method, or a server, with everything that decides the answers."""

    name: str
    ask: Ask
    settings: Mapping[str, Any]
    match: Match | None = None


def run(model: str, request: EvaluationRequest = EvaluationRequest(), *, output: Path | None = None) -> list[Report]:  # noqa: B008
    """Evaluate a saved model, a plain backbone, or a model on a server (where `model` is empty) on tasks; print the
    tables and write the reports.

    Launched by `torchrun` or `accelerate launch`, each process answers its share, and the bound on memory is that of
    each. Answers are kept in `output` (by default the `default_folder` of what is asked) as they come; the same call
    resumes after a kill. Raises ValueError for what cannot be evaluated, RunError for an unusable `output` or server.
    """
    request = replace(request, questions=request.questions.of_model(model))
    if request.matching.match is not None and len(request.questions.task) > 1:
        raise ValueError(
            f"--match is for one task at a time, not for {', '.join(request.questions.task)}: their answers differ in "
            "length"
        )
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=LONGEST_WAIT)
    sets = request.questions.problems()
    for first, *_ in sets.values():  # a grader that will refuse does so before anything is loaded
        grade(first.task, "", first.answer, **asdict(request.grading))
    who = of_server(request) if request.server.endpoint else of_model(model, request, sets, state)
    settings = {**who.settings, "samples": request.answering.samples, "problems": digests(sets)}
    if request.questions.instruction is not None:
        settings["instruction"] = request.questions.instruction
    folder = output or default_folder(model or request.server.model, request)
    records = answered(who.ask, sets, settings, folder, request, state)
    return [] if records is None else published(records, who, settings, folder, facts_of(request, sets, settings))


def of_model(model: str, request: EvaluationRequest, sets: Mapping[str, list[Problem]], state: PartialState) -> Subject:
    """A model, under the setting that `--match` finds where it is asked for."""
    loaded = load(model, request.answering, device=str(state.device) if state.num_processes > 1 else None)
    matched = budget_matching.find(request.matching, loaded, next(iter(sets.values())), request.questions.data)
    matching = {}
    if matched is not None:
        loaded, matching = budget_matching.with_setting(loaded, matched), {"matching": budget_matching.summary(matched)}
    reasoner = loaded.reasoner
    return Subject(reasoner.name, asking(reasoner), model_settings(model, loaded, request) | matching, matched)


def of_server(request: EvaluationRequest) -> Subject:
    """A model behind an OpenAI-compatible server. Raises EndpointError where it cannot be used."""
    endpoint = Endpoint.of(request.server, request.answering)
    return Subject(request.server.model, endpoint.ask, endpoint.settings())


def load(model: str, answering: Answering, device: str | None = None) -> Loaded:
    """The model under the method that is asked for, as it is to answer.

    Raises ValueError as `registry.load` does, and for a plain backbone under the method "tyler": it has no operators.
    """
    sampling, slots = answering.sampling, answering.slots
    loaded = answering.load(model, answering, sampling=sampling, slots=slots, device=device)
    reasoner = loaded.reasoner
    plain = isinstance(reasoner, TylerReasoner) and reasoner.model.stage == "backbone"
    if plain and answering.method == registry.OWN and answering.routed is None:
        raise ValueError(f"{model} is a plain backbone, without trained operators; omit --method: it answers as CoT")
    return loaded


def default_folder(model: str, request: EvaluationRequest) -> Path:
    """Where an evaluation is kept: runs/MODEL-eval/, and in it a folder named by what is asked, `gsm8k-100-cot`.

    What is left at its default is not named, so that other questions have other folders, and the same one resumes.
    """
    questions, answering, match = request.questions.of_model(model), request.answering, request.matching.match
    parts = ["+".join(map(task_name, questions.task)), *(["endpoint"] if request.server.endpoint else [])]
    if questions.data is not None and questions.data.is_file():
        parts.append(questions.data.stem)
    parts += [str(value) for value in (questions.split, questions.count, questions.revision) if value is not None]
    parts += [*_named(answering, "method", "method_set", "dtype", "router", "budget")]
    parts += [*_named(answering, "temperature", "top_p", "top_k", "samples", "seed", "max_new_tokens")]
    if match is not None:
        parts += ["as-long-as", *match.parts[-2:]]
    if unnamed := [value for value in (questions.ids, questions.instruction) if value]:
        parts.append(hashlib.sha256(repr(unnamed).encode()).hexdigest()[:8])
    return Path("runs") / f"{short_name(model)}-eval" / re.sub(r"[^\w.+=-]+", "-", "-".join(parts)).strip("-")


def _named(answering: Answering, *names: str) -> Iterator[str]:
    """Options that are not at their defaults: words as they are, numbers after their names."""
    for name in names:
        value = getattr(answering, name)
        if isinstance(value, tuple):
            yield from value
        elif value != getattr(Answering, name):
            yield value if isinstance(value, str) else f"{name}{value:g}"


def short_name(model: str) -> str:
    """A model's name in a folder's. Of a local one its path from here less `runs`, so that a/stage2 is not b/stage2."""
    path = Path(model)
    if not path.exists():
        return path.name
    whole = path.resolve()
    parts = whole.relative_to(Path.cwd()).parts if whole.is_relative_to(Path.cwd()) else whole.parts[-2:]
    return "-".join(part for part in parts if part not in ("runs", whole.anchor))


def sampling_in_words(settings: Mapping[str, Any]) -> str:
    """How the answers of an evaluation were drawn, from its settings."""
    sampling, samples = settings["sampling"], settings["samples"]
    if not sampling["temperature"]:
        return "greedy, Pass@1"
    drawn = [f"temperature {sampling['temperature']:g}"]
    drawn += [f"top-p {sampling['top_p']:g}"] if sampling["top_p"] < 1 else []
    drawn += [f"top-k {sampling['top_k']}"] if sampling["top_k"] else []
    return ", ".join([*drawn, f"seed {sampling['seed']}", f"{samples} answers each" if samples > 1 else "Pass@1"])


def answered(
    ask: Ask,
    sets: Mapping[str, list[Problem]],
    settings: Mapping[str, Any],
    folder: Path,
    request: EvaluationRequest,
    state: PartialState,
) -> list[Record] | None:
    """Answer and grade this process's share; the records of all processes in the first one, None in the others."""
    rank, world, options = state.process_index, state.num_processes, request.grading
    each = range(request.answering.samples)
    sampled = {
        task: [replace(problem, sample=sample) for problem in problems for sample in each]
        for task, problems in sets.items()
    }
    with AnswerStore(folder, settings, options=options, rank=rank) as store:
        if request.server.retry_failed:
            store.forget_failed()
        state.wait_for_everyone()  # a late process would find answers of this session and begin the next
        for task, problems in sampled.items():
            if share := problems[rank::world]:
                collect(ask, share, name=task, options=options, store=store, show=rank == 0)
        state.wait_for_everyone()
        if rank > 0:
            return None
        return store.finish([problem.key for problems in sampled.values() for problem in problems])


def published(
    records: Sequence[Record], who: Subject, settings: Mapping[str, Any], folder: Path, facts: Mapping[str, str]
) -> list[Report]:
    """One report for each task, written and printed, with what came of a match."""
    reports = by_task(records)
    matched = {} if who.match is None else {"matched": budget_matching.verdict(who.match, records)}
    title = f"{who.name} on {', '.join(report.name for report in reports)}"
    html_report.write(reports, folder, title, {**settings, **matched}, facts, {ANSWERS: ANSWERS})
    show(reports, f"{who.name}, {sampling_in_words(settings)}")
    Console().print(f"\nEverything is in {folder}: report.html, report.json, {ANSWERS}", highlight=False)
    for verdict in matched.values():
        Console().print(verdict, highlight=False)
    if failed := sum(record.finish_reason.startswith(FAILED) for record in records):
        print(f"{failed} of {len(records)} requests were refused and count as wrong; --retry-failed asks them again")
    return reports


def facts_of(
    request: EvaluationRequest, sets: Mapping[str, Sequence[Problem]], settings: Mapping[str, Any]
) -> dict[str, str]:
    """What a reader must know first: which problems, of how many, and how they are answered."""
    longest = f"at most {settings['max_new_tokens']:,} actions each"
    return {
        "problems": request.questions.description(sets),
        "answers": f"{sampling_in_words(settings)}, {longest}",
        "model": f"{settings['model']}, weights {settings['weights'][:16]}",
    }


def model_settings(model: str, loaded: Loaded, request: EvaluationRequest) -> dict[str, Any]:
    """Everything about a model that decides its answers; an evaluation resumes only under the same."""
    prompt, answering = loaded.model.prompt, request.answering
    return {
        "model": model,
        "weights": loaded.weights,
        "method": loaded.method,
        "method_settings": asdict(loaded.settings),
        "max_new_tokens": loaded.max_new_tokens,
        "sampling": asdict(answering.sampling),
        "dtype": loaded.dtype,
        **answering.engine_choice.settings(),
        "instruction": prompt.instruction,
        "thinking": prompt.thinking,
        **({"system": prompt.system} if prompt.system else {}),
        **loaded.text,
        "versions": environment()["packages"],
    }


def digests(sets: Mapping[str, Sequence[Problem]]) -> dict[str, str]:
    """The number of problems of each task and their hash."""
    return {task: f"{len(problems)}, sha256 {digest(problems)}" for task, problems in sets.items()}


def digest(problems: Sequence[Problem]) -> str:
    """A short hash of the problems' ids, prompts and answers, in order."""
    joined = "\0".join(part for problem in problems for part in (problem.id, problem.prompt, problem.answer))
    return hashlib.sha256(joined.encode()).hexdigest()[:16]
