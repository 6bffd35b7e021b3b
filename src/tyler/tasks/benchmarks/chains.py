r"""Chains of arithmetic without end: many equations a text, for a model that has the steps right and the sums wrong.

"Start with 48. Subtract 19. Multiply by 3. What is the result?"
"""

import random
from collections.abc import Sequence
from fractions import Fraction

from tyler.tasks.benchmarks import mawps
from tyler.tasks.benchmarks.gsm8k import equal
from tyler.tasks.benchmarks.mawps import Step
from tyler.tasks.data_files import Row
from tyler.tasks.problem import Problem
from tyler.tasks.task import Generated, mathematical
from tyler.tasks.word_problems import written

COUNT = 20_000
"""Problems of the split, where no count is given."""
STEPS = (5, 9)
"""The fewest and the most equations of a chain."""
LIMITS = {100: 0.6, 1_000: 0.3, 10_000: 0.1}
"""What the results of a chain stay below, and how often."""
OPERATIONS = {"-": 0.45, "+": 0.25, "*": 0.15, "/": 0.15}
"""How often each operation is, where the result so far allows all."""
_ORDER = {"+": "Add {}.", "-": "Subtract {}.", "*": "Multiply by {}.", "/": "Divide by {}."}


def problems(split: str, count: int | None, seed: int, rows: Sequence[Row]) -> list[Problem]:
    """`count` different chains drawn with `seed`; a smaller number begins a larger one."""
    rng = random.Random(seed)
    chains: dict[str, Problem] = {}
    while len(chains) < (COUNT if count is None else count):
        problem = _problem(f"chain-{len(chains)}", _chain(rng))
        chains.setdefault(problem.prompt, problem)
    return list(chains.values())


def _chain(rng: random.Random) -> list[Step]:
    limit = rng.choices(list(LIMITS), list(LIMITS.values()))[0]
    value, steps = Fraction(rng.randint(limit // 10, limit - 1)), list[Step]()
    for _ in range(rng.randint(*STEPS)):
        numbers = _numbers(int(value), limit)
        operation = rng.choices(list(numbers), [OPERATIONS[operation] for operation in numbers])[0]
        steps.append(mawps.step(value, operation, Fraction(rng.choice(numbers[operation]))))
        value = steps[-1].result
    return steps


def _numbers(value: int, limit: int) -> dict[str, Sequence[int]]:
    """What may come next: by operation, the numbers that keep the result whole, above zero and below the limit."""
    allowed: dict[str, Sequence[int]] = {
        "-": range(2, value),
        "+": range(2, limit - value),
        "*": [number for number in range(2, 10) if value * number < limit],
        "/": [number for number in range(2, 13) if value % number == 0 and number < value],
    }
    return {operation: numbers for operation, numbers in allowed.items() if numbers}


def _problem(name: str, steps: Sequence[Step]) -> Problem:
    orders = [_ORDER[step.operation].format(written(step.right)) for step in steps]
    prompt = " ".join([f"Start with {written(steps[0].left)}.", *orders, "What is the result?"])
    return mawps.solved(name, "chains", prompt, steps, steps[-1].result, worked=True)


TASK = Generated(
    name="chains", title="Chains of arithmetic", sources={"train": None}, load=problems, **mathematical(equal)
)
