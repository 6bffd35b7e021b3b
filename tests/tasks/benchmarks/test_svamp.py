"""SVAMP: body and question as one text, exact numbers, one misspelt type."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tyler.tasks import Outcome, Problem, grade, load_problems
from tyler.tasks.benchmarks.svamp import problem
from tyler.tasks.data_files import Row

DVDS = {
    "ID": "chal-1",
    "Body": "Each pack of dvds costs 76 dollars. If there is a discount of $ 25 on each pack",
    "Question": "How much do you have to pay to buy each pack?",
    "Equation": "( 76.0 - 25.0 )",
    "Answer": 51.0,
    "Type": "Subtraction",
}


def read(**changes: Any) -> Problem:
    return problem(Row({**DVDS, **changes}, "svamp.json, line 2", 1), "test")


def test_a_body_that_stops_in_a_sentence_goes_on_with_the_question():
    assert read() == Problem(
        id="chal-1",
        task="svamp",
        prompt="Each pack of dvds costs 76 dollars. If there is a discount of $25 on each pack, how much do you have "
        "to pay to buy each pack?",
        answer="51",
        family="Subtraction",
        level=1,
    )


@pytest.mark.parametrize(
    ("body", "question", "prompt"),
    [
        ("Tom has 3 t - shirts.", "How many?", "Tom has 3 t-shirts. How many?"),
        ("She saw ' skee ball ' 8 times.", "How many?", "She saw 'skee ball' 8 times. How many?"),
        ("He had 4 games.", "How many games do they have 3", "He had 4 games. How many games do they have?"),
    ],
)
def test_texts_are_written_as_people_write_them(body, question, prompt):
    assert read(Body=body, Question=question).prompt == prompt


@pytest.mark.parametrize(("answer", "gold"), [(51.0, "51"), (51, "51"), (0.5, "0.5"), ("2.50", "2.5")])
def test_answers_are_numbers_without_needless_zeros(answer, gold):
    assert read(Answer=answer).answer == gold


def test_the_misspelt_type_is_read_as_it_was_meant():
    assert read(Type="Common-Divison").family == read(Type="Common-Division").family == "Common-Division"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Type": "Division"}, "'Type' must be one of Addition, .*, got 'Division'"),
        ({"Answer": None}, "'Answer' must be a number, got NoneType"),
        ({"Answer": "ten"}, "'Answer' must hold decimal numbers, got 'ten'"),
        ({"Body": ""}, "'Body' is empty"),
    ],
)
def test_a_broken_row_is_named_with_its_file_and_field(changes, message):
    with pytest.raises(ValueError, match=rf"svamp\.json, line 2: field {message}"):
        read(**changes)


def test_there_is_no_split_to_train_on():
    with pytest.raises(ValueError, match="task 'svamp' has no split 'train'; allowed: test"):
        load_problems("svamp", "train")


def test_every_published_gold_is_correct_and_its_neighbour_is_not(data_dir):
    problems = load_problems("SVAMP", path=data_dir)
    assert len(problems) == 1000
    types = {"Subtraction": 531, "Addition": 195, "Common-Division": 166, "Multiplication": 108}
    assert Counter(one.family for one in problems) == types
    for one in problems:
        assert one.prompt.endswith("?") and one.level <= 2 and one.solution is None
        assert grade("svamp", f"So $\\boxed{{{one.answer}}}$.", one.answer).correct
        assert grade("svamp", f"\\boxed{{{int(one.answer) + 1}}}", one.answer).outcome is Outcome.WRONG
