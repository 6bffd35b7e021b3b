"""Pass@1 of a reasoner: every problem answered once, graded, and kept; then counted."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from tyler.engine.request import PromptTooLong
from tyler.engine.trajectory import Trajectory
from tyler.evaluation.records import Key, Record, RecordStore
from tyler.evaluation.reports import Report
from tyler.reasoners.reasoner import Reasoner
from tyler.runs.progress import NoBar, bar
from tyler.runs.signals import Interrupted
from tyler.tasks import Outcome, Problem, Verdict, find_task, grade
from tyler.tasks.task import GradeOptions

GRADERS = min(4, os.cpu_count() or 1)
"""Threads that grade while the engine decodes."""


@dataclass
class Clock:
    """Which session this is of an evaluation, in which process, and since when."""

    session: int = 0
    rank: int = 0
    started: float = field(default_factory=time.perf_counter)

    def read(self) -> float:
        return time.perf_counter() - self.started


def record(problem: Problem, trajectory: Trajectory, options: GradeOptions, clock: Clock) -> Record:
    """Grade one trajectory."""
    verdict = grade(
        problem.task,
        trajectory.text,
        problem.answer,
        truncated=trajectory.truncated,
        thought_open=trajectory.thought_open,
        **dataclasses.asdict(options),
    )
    return record_of(problem, verdict, trajectory, clock)


def unasked(problem: Problem, clock: Clock) -> Record:
    """The record of a problem that is too long for the model to be asked."""
    nothing = Trajectory([], [], [], [], (), [], "", Outcome.TOO_LONG.value, vocab_size=0, offered=())
    return record_of(problem, Verdict(Outcome.TOO_LONG), nothing, clock)


def record_of(problem: Problem, verdict: Verdict, trajectory: Trajectory, clock: Clock) -> Record:
    """What is kept of one answer."""
    private = find_task(problem.task).private
    return Record(
        task=problem.task,
        id=problem.id,
        family=problem.family,
        level=problem.level,
        prompt="" if private else problem.prompt,
        completion="" if private else trajectory.text,
        gold=problem.answer,
        answer=verdict.answer,
        outcome=verdict.outcome,
        finish_reason=trajectory.finish_reason,
        invocations=tuple(trajectory.invocations),
        visible_tokens=trajectory.num_visible,
        latents=trajectory.num_latents,
        seconds=trajectory.seconds,
        synthesis_seconds=trajectory.synthesis_seconds,
        engine_seconds=trajectory.engine_seconds,
        math_verify=verdict.math_verify,
        elapsed=clock.read(),
        session=clock.session,
        rank=clock.rank,
        sample=problem.sample,
    )


def evaluate(
    reasoner: Reasoner,
    problems: Sequence[Problem],
    *,
    options: GradeOptions | None = None,
    store: RecordStore | None = None,
    name: str | None = None,
    show: bool = True,
) -> Report:
    """Answer and grade every problem, with a progress bar (`show`); the report is called `name`, or as the reasoner.

    With a `store`, answers it holds are taken from it and new ones are kept in it at once, so that a killed evaluation
    resumes where it was. Raises ValueError when there are no problems, and Interrupted where Ctrl-C stopped it.
    """
    if not problems:
        raise ValueError("there is nothing to evaluate: the set of problems is empty")
    name = name or reasoner.name
    known = {} if store is None else store.known
    pending = [problem for problem in problems if key_of(problem) not in known]
    done = {key_of(problem): known[key_of(problem)] for problem in problems if key_of(problem) in known}
    where = None if store is None else store.folder
    shown = bar(name, len(problems), len(done), unit="answer", where=where) if show else nullcontext(NoBar())
    with shown as progress:

        def graded(record: Record) -> None:
            done[record.key] = record
            if store is not None:
                store.add(record)
            progress.advance(note=f"{sum(one.correct for one in done.values())}/{len(done)} correct")

        try:
            _answer(reasoner, pending, options or GradeOptions(), _clock(store), graded)
        except KeyboardInterrupt as interrupt:
            if store is None:
                raise
            kept = f"{len(done)} of {len(problems)} answers of {name} are in {store.folder}"
            raise Interrupted(f"{kept}; the same command resumes it", signal.SIGINT) from interrupt
    return Report(name, tuple(done[key_of(problem)] for problem in problems))


def _answer(
    reasoner: Reasoner,
    problems: Sequence[Problem],
    options: GradeOptions,
    clock: Clock,
    graded: Callable[[Record], None],
) -> None:
    """Answer the problems, grading each in another thread as soon as it is answered; `graded` is called one by one."""
    if not problems:
        return
    one_by_one = threading.Lock()
    verdicts: list[Future[None]] = []
    too_long: tuple[int, ...] = ()

    def finish(problem: Problem, trajectory: Trajectory) -> None:
        answered = record(problem, trajectory, options, clock)
        with one_by_one:
            graded(answered)

    with ThreadPoolExecutor(GRADERS) as graders:

        def finished(index: int, trajectory: Trajectory) -> None:
            while verdicts and verdicts[0].done():
                verdicts.pop(0).result()  # a grader that failed stops the evaluation here, not after the last answer
            trajectory.latents = []  # no record holds them, and they would stay on the device to the end
            verdicts.append(graders.submit(partial(finish, problems[index], trajectory)))

        try:
            reasoner.solve(problems, finished)
        except PromptTooLong as error:  # before anything is decoded
            too_long = error.places
    for verdict in verdicts:
        verdict.result()
    if too_long:
        for place in too_long:
            graded(unasked(problems[place], clock))
        fitting = [problem for place, problem in enumerate(problems) if place not in too_long]
        _answer(reasoner, fitting, options, clock, graded)


def _clock(store: RecordStore | None) -> Clock:
    return Clock() if store is None else Clock(store.session, store.rank)


def key_of(problem: Problem) -> Key:
    """What names the record of a problem and a sample."""
    return problem.task, problem.id, problem.sample
