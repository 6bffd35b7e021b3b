r"""OpenR1-Math-220k (open-r1, 2025), https://huggingface.co/datasets/open-r1/OpenR1-Math-220k, for training.

Problems of NuminaMath 1.5 with two to four generations of DeepSeek-R1 each; the config `default` has 93,733 rows.

A row as published, shortened; a generation is a long thought and then the solution as written for a reader:

    {"problem": "...", "solution": "...", "answer": "\\frac{1}{2}", "uuid": "...",
     "generations": ["<think> ... </think>\n\n... the answer is \\boxed{\\frac{1}{2}}."],
     "is_reasoning_complete": [true], "correctness_math_verify": [true]}
"""

from tyler.tasks.benchmarks.jsonl import boxed_solution, equal
from tyler.tasks.data_files import Row
from tyler.tasks.problem import Problem, after_thought
from tyler.tasks.task import Source, Task, mathematical

_COLUMNS = ("generations", "is_reasoning_complete", "correctness_math_verify")


def problem(row: Row, split: str) -> Problem | None:
    """A published row as a problem with its first complete and verified generation as trace; None where it has none.

    Raises ValueError by file, row and field.
    """
    written = _verified_solution(row)
    if written is None:
        return None
    answer = row.text("answer")
    return Problem(row.text("uuid"), "openr1", row.text("problem"), answer, solution=boxed_solution(written, answer))


def _verified_solution(row: Row) -> str | None:
    """What the first complete generation that math-verify found correct writes after its thought."""
    # Deviation: the paper trains on "problem-solution traces" and does not say which part. The thoughts run to many
    # thousand tokens, over its 2,048 of decoding; what follows `</think>` is a solution in paragraphs with a box.
    columns = (row.get(column, (list, type(None)), "a list") for column in _COLUMNS)
    generations, complete, correct = (column or [] for column in columns)
    for column, flags in zip(_COLUMNS[1:], (complete, correct), strict=True):
        if flags and len(flags) != len(generations):
            raise row.error(column, f"has {len(flags)} entries for {len(generations)} generations")
    for generation, *flags in zip(generations, complete, correct, strict=False):
        if flags == [True, True]:
            if not isinstance(generation, str):
                raise row.error("generations", f"must hold strings, got {type(generation).__name__}")
            if written := after_thought(generation).strip():
                return written
    return None


TASK = Task(
    name="openr1",
    title="OpenR1-Math",
    sources={
        "train": Source(
            files=("openr1_math.jsonl", "OpenR1-Math-220k.jsonl", "data/train-*.parquet", "train-*.parquet"),
            hub_id="open-r1/OpenR1-Math-220k",
            hub_subset="default",
            hub_split="train",
        )
    },
    problem=problem,
    **mathematical(equal),
)
