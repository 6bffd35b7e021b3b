"""A reasoner that answers from a script, for tests of evaluation and reports."""

from collections.abc import Sequence

from tyler.engine.trajectory import Invocation, Trajectory
from tyler.reasoners.reasoner import Finished, ignore
from tyler.tasks import Outcome, Problem

TEXTS = ["so \\boxed{5}", "so \\boxed{6}", "so 5", "and so", "\\boxed{5} or \\boxed{ 5 }"]
TRUNCATED = [False, False, False, True, False]
OUTCOMES = [Outcome.CORRECT, Outcome.WRONG, Outcome.NO_BOX, Outcome.TRUNCATED, Outcome.CORRECT]
FAMILIES = ["algebra", "words", "algebra", "words", "words"]
PROBLEMS = [
    Problem(f"p{index}", "jsonl", f"problem {index}", "5", family=family, level=index)
    for index, family in enumerate(FAMILIES)
]


def trajectory(index: int) -> Trajectory:
    """An answer with `index` operator calls."""
    actions = [7, 8] + [100] * index
    calls = tuple(
        Invocation("state" if number % 2 else "global", 2, 3, 2 + number, offset=1 + number) for number in range(index)
    )
    return Trajectory(
        prompt_ids=[1],
        actions=actions,
        logprobs=[0.0] * len(actions),
        is_operator=[action >= 100 for action in actions],
        invocations=calls,
        latents=[],
        text=TEXTS[index],
        finish_reason="length" if TRUNCATED[index] else "eos",
        vocab_size=100,
        offered=(True, True),
        seconds=1.0 + index,
        engine_seconds=0.5 + index,
        synthesis_seconds=0.25 * index,
    )


class Scripted:
    """Answers from the script, last problem first; `answered` says which, in order."""

    name = "Scripted Reasoner"

    def __init__(self) -> None:
        self.answered: list[str] = []

    def solve(self, problems: Sequence[Problem], finished: Finished = ignore) -> list[Trajectory]:
        indices = [int(problem.prompt.split()[1]) for problem in problems]
        for index in reversed(range(len(indices))):
            finished(index, trajectory(indices[index]))
            self.answered.append(problems[index].id)
        return [trajectory(index) for index in indices]
