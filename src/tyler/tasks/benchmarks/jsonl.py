r"""Your own problems, for training and for grading (the task `jsonl`): one row a problem, as in

    {"problem": "What is 2 + 3?", "solution": "We add.\n\n2 + 3 = 5, so the answer is $\\boxed{5}$.", "answer": "5"}

The answer may be a number. A row without a solution can be graded, and not learned from. Other keys are ignored. A
target has to teach the model to box its answer: where the solution has no box, the paragraph "The answer is
$\boxed{...}$." is appended; where its last box contradicts the answer, the row is refused.

Rows of chats are read too: `messages` with one question of a user and the assistant's answer, or `prompt` and
`completion`, each a text or such a list. A system message stands before the question. Their gold answer is `answer`, or
the last box of what the assistant says; where there is neither, the row can be learned from, and not graded.
"""

import math
from decimal import Decimal

from tyler.tasks.answers import mathematics
from tyler.tasks.answers.boxed import UnreadableAnswerError, UnreadableGoldError, boxed_answer, plain
from tyler.tasks.data_files import Row
from tyler.tasks.problem import GradeOptions, Problem
from tyler.tasks.task import Task, mathematical


def problem(row: Row, split: str) -> Problem:
    """A row as a problem, with id `{split}-{line}`. Raises ValueError by file, line and field."""
    if "problem" not in row.fields and ("messages" in row.fields or "prompt" in row.fields):
        return _of_chat(row, split)
    answer = _answer(row)
    return Problem(
        id=f"{split}-{row.number}",
        task="jsonl",
        prompt=row.text("problem"),
        answer=answer,
        solution=_agreeing_solution(row, answer),
    )


def _of_chat(row: Row, split: str) -> Problem:
    """A row of `messages`, or of `prompt` and `completion`, as a problem."""
    field = "messages" if "messages" in row.fields else "prompt"
    turns = _turns(row, field)
    answered = _turns(row, "completion") if field == "prompt" and "completion" in row.fields else []
    if field == "messages" and turns[-1][0] == "assistant":
        turns, answered = turns[:-1], turns[-1:]
    roles = [role for role, _ in (*turns, *answered)]
    both = roles in (["user", "assistant"], ["system", "user", "assistant"])
    if not (both or ("answer" in row.fields and roles in (["user"], ["system", "user"]))):
        raise row.error(field, f"has the turns {', '.join(roles)}; a row is one question of a user with an answer")
    question, solution = "\n\n".join(text for _, text in turns), answered[0][1] if answered else None
    if "answer" in row.fields:
        gold = _answer(row)
        solution = None if solution is None else boxed_solution(solution, gold)
    else:
        gold = boxed_answer(solution or "") or ""
    return Problem(id=f"{split}-{row.number}", task="jsonl", prompt=question, answer=gold, solution=solution)


def _turns(row: Row, field: str) -> list[tuple[str, str]]:
    """The messages of a field as pairs of role and text; a text alone is the user's, or of `completion` the
    assistant's."""
    value = row.get(field, (str, list), "a text or a list of messages")
    if isinstance(value, str):
        return [("assistant" if field == "completion" else "user", row.text(field))]
    turns = []
    for message in value:
        role, text = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if isinstance(role, str) and isinstance(text, str) and text.strip():
            turns.append((role, text.strip()))
    if not value or len(turns) < len(value):
        raise row.error(field, "must be messages with a role and a text as content")
    return turns


def equal(answer: str, gold: str, options: GradeOptions) -> bool:
    """Whether two answers are the same text, or the same mathematics; raises what `mathematics.equal` raises."""
    return plain(answer) == plain(gold) or mathematics.equal(answer, gold, options)


def final_paragraph(answer: str) -> str:
    r"""How a trace ends that has no box of its own: "The answer is $\boxed{...}$."."""
    return f"The answer is $\\boxed{{{answer}}}$."


def boxed_solution(solution: str, answer: str) -> str:
    """The solution as a target: ending in a box where it had none."""
    return solution if boxed_answer(solution) is not None else f"{solution}\n\n{final_paragraph(answer)}"


def _answer(row: Row) -> str:
    """The answer as text; of a number its digits, without an exponent."""
    value: object = row.get("answer", (str, int, float, Decimal), "a string or a number")
    if isinstance(value, str):
        return row.text("answer")
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise row.error("answer", f"must be a string or a number, got{row.shown(value)}")
    return format(Decimal(str(value)), "f")


def _agreeing_solution(row: Row, answer: str) -> str | None:
    """The solution as a target, or None where the row has none."""
    if row.fields.get("solution") in (None, ""):  # a CSV has no other way to leave it out
        return None
    solution = boxed_solution(row.text("solution"), answer)
    given = boxed_answer(solution)
    if given is not None and _contradicts(given, answer):
        raise row.error(
            "solution",
            f"ends in the box {given!r:.80}, but field 'answer' is {answer!r:.80}; correct one of them or drop the row",
        )
    return solution


def _contradicts(answer: str, gold: str) -> bool:
    """Whether two answers are known to differ; where the gold one cannot be read, or in time, nothing is known."""
    try:
        return not equal(answer, gold, GradeOptions())
    except UnreadableAnswerError:
        return True
    except (UnreadableGoldError, TimeoutError):
        return False


TASK = Task(name="jsonl", title="your own problems", sources={}, problem=problem, **mathematical(equal))
