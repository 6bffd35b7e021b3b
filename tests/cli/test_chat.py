"""A conversation in a terminal remembers what was said and does what it is told."""

import io
import sys
from collections.abc import Iterator

import pytest
from tests import tiny

from tyler.cli import main
from tyler.cli.chat import HELP, Conversation, run
from tyler.engine import shared_engine
from tyler.engine.request import Event
from tyler.engine.routing import AtBoundaries, Never
from tyler.model import Tyler
from tyler.reasoners.reasoner import AnswerSettings
from tyler.reasoners.tyler import TylerReasoner

ACTIONS = 16


@pytest.fixture(scope="module")
def model() -> Tyler:
    return tiny.build("qwen3", tiny.SEEDS["qwen3"], psi_scale=0.7)


@pytest.fixture()
def conversation(model: Tyler) -> Conversation:
    return Conversation(TylerReasoner("tiny", model), AnswerSettings(max_new_tokens=ACTIONS))


def test_a_conversation_is_answered_with_all_that_was_said(model: Tyler, conversation: Conversation) -> None:
    turns = []
    for question in (tiny.SHORT, tiny.ODD):
        conversation.take(question)
        turns.append({"role": "user", "content": question})
        turns.append({"role": "assistant", "content": model.solve(turns, max_new_tokens=ACTIONS).text})
        assert conversation.turns == turns
    conversation.take("/new")
    conversation.take(tiny.SHORT)
    assert conversation.turns == turns[:2]


def test_operators_are_shown_where_they_are_invoked(
    model: Tyler, conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation.take("/router boundaries")
    conversation.take(tiny.ODD)
    answer = model.solve(tiny.ODD, max_new_tokens=ACTIONS, router=AtBoundaries())
    assert capsys.readouterr().out.startswith("⟨global ×5⟩") and answer.invocations[0].offset == 0


def test_commands_change_how_the_next_answer_is_decoded(model: Tyler, conversation: Conversation) -> None:
    assert conversation.take("/budget 2") == "budget: 2" and conversation.settings.budget == 2
    assert conversation.take("/budget") == "budget: as started" and conversation.settings.budget is None
    conversation.take("/router never")
    assert conversation.settings.router == Never()
    assert conversation.take("/temperature 0.5") == "temperature: 0.5"
    conversation.take("/temperature 0")
    conversation.take("/system Box it.")
    conversation.take("x")
    turns = [{"role": "system", "content": "Box it."}, {"role": "user", "content": "x"}]
    assert conversation.turns[-1]["content"] == model.solve(turns, max_new_tokens=ACTIONS, router=Never()).text
    assert conversation.take("/help") == HELP and conversation.take("  ") == ""


def test_a_conversation_keeps_to_the_bound_on_memory(model: Tyler) -> None:
    talks = [
        Conversation(TylerReasoner("tiny", model), AnswerSettings(max_new_tokens=ACTIONS), memory=memory)
        for memory in (None, 2**30, 1)
    ]
    for talk in talks[:2]:
        talk.take(tiny.ODD)
    assert talks[0].turns == talks[1].turns
    with pytest.raises(ValueError, match="memory"):
        talks[2].take(tiny.ODD)


@pytest.mark.parametrize(
    "line, fault",
    [
        ("/nothing", "there is no /nothing; /help lists"),
        ("/budget many", "a whole number"),
        ("/router sideways", "choose from learned, never"),
        ("/temperature hot", "a number, 0 or more"),
        ("/temperature -1", "temperature"),
        ("x " * 300, "shorten the prompt"),
    ],
)
def test_what_cannot_be_done_is_said_and_the_conversation_goes_on(
    line: str, fault: str, conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter([line, "x", "/quit", "never read"])
    run(conversation, lambda: next(lines))
    assert fault in capsys.readouterr().out and next(lines) == "never read"
    assert [turn["content"] for turn in conversation.turns[:1]] == ["x"]


def test_an_interrupted_answer_is_forgotten_and_frees_its_row(
    model: Tyler, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(events: list[Event]) -> Iterator[Event]:
        raise KeyboardInterrupt  # as Ctrl-C, in the thread that waits for the answer

    with monkeypatch.context() as patch:
        patch.setattr(shared_engine, "checked", interrupted)
        assert conversation.take("x") == "\ninterrupted"
    model.shared_engine.between_steps(lambda engine: None).result()
    assert conversation.turns == [] and model.shared_engine.load().running == 0
    conversation.take("x")
    assert len(conversation.turns) == 2


def test_lines_may_come_from_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("1 + 1\n/budget 3\n"))
    assert main.main(["chat", "mini", "--max-new-tokens", "4"]) == 0
    assert "budget: 3" in capsys.readouterr().out
