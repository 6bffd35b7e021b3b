r"""MATH-500, https://huggingface.co/datasets/HuggingFaceH4/MATH-500: the 500 problems of MATH (Hendrycks et al., 2021)
that PRM800K (Lightman et al., 2023) holds out.

A line as published:

    {"problem": "What is the smallest positive perfect cube that can be written as the sum of three consecutive integers?", "solution": "The sum of three consecutive integers takes the form $(k-1)+(k)+(k+1)=3k$ and hence is a multiple of 3.  Conversely, if a number $n$ is a multiple of 3, then $n/3-1$, $n/3$, and $n/3+1$ are three consecutive integers that sum to give $n$.  Therefore, a number is a sum of three consecutive integers if and only if it is a multiple of 3.  The smallest positive perfect cube that is a multiple of 3 is $3^3=\\boxed{27}$.", "answer": "27", "subject": "Number Theory", "level": 3, "unique_id": "test/number_theory/515.json"}
"""  # noqa: E501

from tyler.tasks.answers import mathematics
from tyler.tasks.data_files import Row
from tyler.tasks.problem import Problem
from tyler.tasks.task import Source, Task, mathematical


def problem(row: Row, split: str) -> Problem:
    """A published row as a problem, with the source's own id. Raises ValueError by file, line and field."""
    level = row.get("level", int, "an integer")
    return Problem(
        id=row.text("unique_id"),
        task="math500",
        prompt=row.text("problem"),
        answer=row.text("answer"),
        solution=row.text("solution"),
        family=row.text("subject"),
        level=level,
    )


TASK = Task(
    name="math500",
    title="MATH-500",
    sources={"test": Source(files=("math500_test.jsonl", "test.jsonl"), hub_id="HuggingFaceH4/MATH-500", num_rows=500)},
    problem=problem,
    **mathematical(mathematics.equal),
)
