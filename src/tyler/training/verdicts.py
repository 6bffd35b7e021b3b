"""The verifier on many answers at once: in parallel, with one deadline for all of them.

Graders wait for processes of their own (algebra, the sandbox), so threads are enough to keep all cores busy, and one
answer that takes its whole deadline holds up no other.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from tyler.engine.trajectory import Trajectory
from tyler.runs.threads import cores
from tyler.tasks import grade
from tyler.tasks.grading import find_task
from tyler.tasks.problem import GradeOptions, Outcome, Problem, Verdict
from tyler.tasks.sandbox.sandbox import SandboxError, require


@dataclass(frozen=True)
class Verifier:
    """Grades answers within `seconds` in all. `runs_code` lets it run the programs of tasks whose answers are code;
    they may import `packages`."""

    seconds: float = 60.0
    runs_code: bool = False
    packages: tuple[str, ...] = GradeOptions.packages

    def check(self, problems: Sequence[Problem]) -> None:
        """Raise ValueError or SandboxError where the answers to these problems could not be judged here."""
        coding = sorted({problem.task for problem in problems if find_task(problem.task).runs_code})
        if not coding:
            return
        if not self.runs_code:
            raise ValueError(
                f"judging {coding[0]} runs programs that the model wrote; allow it by naming the reward: "
                "rewards: [{name: code}]. They run in the sandbox (docs/sandbox.md)"
            )
        require(unsafe=False)

    def __call__(self, problems: Sequence[Problem], answers: Sequence[Trajectory]) -> list[Verdict | None]:
        """The verdict on one answer to each problem; None where there was no sandbox, or no time."""
        keys = [
            (problem.task, answer.text, problem.answer, answer.truncated, answer.thought_open)
            for problem, answer in zip(problems, answers, strict=True)
        ]
        pool = ThreadPoolExecutor(max(1, min(len(keys), cores())), thread_name_prefix="grading")
        graded = {key: pool.submit(self._verdict, *key) for key in dict.fromkeys(keys)}
        wait(graded.values(), timeout=self.seconds)
        pool.shutdown(wait=False, cancel_futures=True)
        in_time = {key for key, verdict in graded.items() if verdict.done() and not verdict.cancelled()}
        return [graded[key].result() if key in in_time else None for key in keys]

    def _verdict(self, task: str, text: str, gold: str, truncated: bool, thought_open: bool) -> Verdict | None:
        try:
            return grade(
                task,
                text,
                gold,
                truncated=truncated,
                thought_open=thought_open,
                allow_code_execution=self.runs_code,
                packages=self.packages,
            )
        except SandboxError:
            return None


def is_fault(problem: Problem, verdict: Verdict | None) -> bool:
    """Whether there is no verdict, or one that speaks of the grader and not of the answer.

    That is a gold answer that cannot be read, or algebra that takes too long; a program that does not end has failed.
    """
    if verdict is None:
        return True
    if verdict.outcome is Outcome.TIMEOUT:
        return not find_task(problem.task).runs_code
    return verdict.outcome is Outcome.GOLD_ERROR
