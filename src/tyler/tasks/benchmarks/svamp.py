r"""SVAMP (Patel et al., 2021), https://github.com/arkilpatel/SVAMP: 1,000 word problems of one or two operations,
varied so that a solver has to read them. They are for testing; `mawps` has those to train on.

A row as published:

    {"ID": "chal-1", "Body": "Each pack of dvds costs 76 dollars. If there is a discount of 25 dollars on each pack",
     "Question": "How much do you have to pay to buy each pack?", "Equation": "( 76.0 - 25.0 )", "Answer": 51.0,
     "Type": "Subtraction"}
"""

import re

from tyler.tasks.benchmarks.gsm8k import equal
from tyler.tasks.data_files import Row
from tyler.tasks.problem import Problem
from tyler.tasks.task import Source, Task, mathematical
from tyler.tasks.word_problems import published_number, readable, written

TYPES = ("Addition", "Subtraction", "Multiplication", "Common-Division")
_MISSPELT = {"Common-Divison": "Common-Division"}


def problem(row: Row, split: str) -> Problem:
    """A published row as a problem, with the source's id, its type as family, and the number of operations as level.

    Raises ValueError by file, line and field.
    """
    family = _MISSPELT.get(row.text("Type"), row.text("Type"))
    if family not in TYPES:
        raise row.error("Type", f"must be one of {', '.join(TYPES)}, got{row.shown(family)}")
    answer = row.get("Answer", (int, float, str), "a number")
    return Problem(
        id=row.text("ID"),
        task="svamp",
        prompt=question(row.text("Body"), row.text("Question")),
        answer=written(published_number(row, "Answer", str(answer))),
        family=family,
        level=len(re.findall(r"[-+*/]", row.text("Equation"))),
    )


def question(body: str, sentence: str) -> str:
    """Body and question as one text. Where the body has no full stop, the question ends its last sentence.

    A question without its mark, or with a number in place of it, as one has, gets the mark.
    """
    if not sentence.endswith("?"):
        sentence = re.sub(r" ?[0-9]*$", "?", sentence, count=1)
    if body.endswith((".", "?", "!")):
        return readable(f"{body} {sentence}")
    return readable(f"{body}, {sentence[0].lower()}{sentence[1:]}")


TASK = Task(
    name="svamp",
    title="SVAMP",
    sources={"test": Source(files=("svamp.json", "SVAMP.json"), hub_id="tongyx361/svamp", num_rows=1000)},
    problem=problem,
    **mathematical(equal),
)
