"""Pass@1 of a reasoner: every problem answered once, graded, and kept; then counted."""

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

from tyler.engine.request import PromptTooLong
from tyler.engine.trajectory import Trajectory
from tyler.evaluation.answers import Answer, three_digits
from tyler.evaluation.reports import Report
from tyler.evaluation.store import GRADERS, AnswerStore, verdict_on
from tyler.reasoners.reasoner import Reasoner
from tyler.runs.progress import Bar, bar
from tyler.runs.signals import Interrupted
from tyler.tasks import Outcome, Problem
from tyler.tasks.problem import GradeOptions

Ask = Callable[[Sequence[Problem], Callable[[Answer], None]], None]
"""Gets answers to problems, and calls with each as soon as it is there."""


def answer_of(problem: Problem, trajectory: Trajectory) -> Answer:
    """The row of one trajectory."""
    return Answer.to(
        problem,
        seed=trajectory.sampling.seed,
        text=trajectory.text,
        finish_reason=trajectory.finish_reason,
        thought_open=trajectory.thought_open,
        visible_tokens=trajectory.num_visible,
        latents=trajectory.num_latents,
        invocations=tuple(trajectory.invocations),
        seconds=trajectory.seconds,
        synthesis_seconds=trajectory.synthesis_seconds,
        engine_seconds=trajectory.engine_seconds,
    )


def asking(reasoner: Reasoner) -> Ask:
    """A reasoner asked. What is too long for the model is answered with nothing."""

    def ask(problems: Sequence[Problem], answered: Callable[[Answer], None]) -> None:
        def finished(index: int, trajectory: Trajectory) -> None:
            trajectory.latents = []  # no row holds them, and they would stay on the device to the end
            answered(answer_of(problems[index], trajectory))

        if not problems:
            return
        try:
            reasoner.solve(problems, finished)
            return
        except PromptTooLong as error:  # before anything is decoded
            too_long = error.places
        for position in too_long:
            answered(Answer.to(problems[position], text="", finish_reason=Outcome.TOO_LONG.value, engine_seconds=0.0))
        ask([problem for position, problem in enumerate(problems) if position not in too_long], answered)

    return ask


def evaluate(
    reasoner: Reasoner,
    problems: Sequence[Problem],
    *,
    options: GradeOptions | None = None,
    store: AnswerStore | None = None,
    show: bool = True,
) -> Report:
    """Answer and grade every problem, with a progress bar (`show`); the report is called as the reasoner.

    With a `store`, answers it holds are taken from it and new ones are kept in it at once, so that a killed evaluation
    resumes where it was. Raises ValueError when there are no problems, and Interrupted where Ctrl-C stopped it.
    """
    return collect(asking(reasoner), problems, name=reasoner.name, options=options, store=store, show=show)


def collect(
    ask: Ask,
    problems: Sequence[Problem],
    *,
    name: str,
    options: GradeOptions | None = None,
    store: AnswerStore | None = None,
    show: bool = True,
) -> Report:
    """The same of whatever answers: a reasoner, or a server. Answers are graded in other threads while others come."""
    if not problems:
        raise ValueError("there is nothing to evaluate: the set of problems is empty")
    options, started, one_by_one = options or GradeOptions(), time.perf_counter(), threading.Lock()
    order = [problem.key for problem in problems]
    done = {} if store is None else {key: store.records[key] for key in order if key in store.records}
    waiting = [] if store is None else [store.answers[k] for k in order if k in store.answers and k not in done]
    answered = {*done, *(answer.key for answer in waiting)}
    where = None if store is None else store.folder
    shown = bar(name, len(problems), len(done), unit="answer", where=where) if show else nullcontext(Bar())
    with shown as progress, ThreadPoolExecutor(GRADERS) as graders:

        def grade(answer: Answer) -> None:
            record = answer.graded(verdict_on(answer, options))
            with one_by_one:
                done[record.key] = record
                if store is not None:
                    store.records[record.key] = record
                progress.advance(note=f"{sum(graded.correct for graded in done.values())}/{len(done)} correct")

        def keep(answer: Answer) -> None:
            answer = replace(answer, elapsed=three_digits(time.perf_counter() - started))
            if store is not None:
                answer = replace(answer, session=store.session, rank=store.rank)
                store.add_answer(answer)
            while verdicts and verdicts[0].done():
                verdicts.popleft().result()  # a grader that failed stops the evaluation here, not after the last answer
            verdicts.append(graders.submit(grade, answer))

        verdicts = deque(graders.submit(grade, answer) for answer in waiting)
        try:
            ask([problem for problem in problems if problem.key not in answered], keep)
            for verdict in verdicts:
                verdict.result()  # raises what a grader raised
        except BaseException as error:
            graders.shutdown(cancel_futures=True)
            if store is None or not isinstance(error, KeyboardInterrupt):
                raise
            kept = (
                f"{sum(key in store.answers for key in order)} of {len(order)} answers of {name} are in {store.folder}"
            )
            raise Interrupted(f"{kept}; the same command resumes it", signal.SIGINT) from error
    return Report(name, tuple(done[key] for key in order))
