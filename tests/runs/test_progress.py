import logging
from pathlib import Path

import pytest

from tyler.runs import progress
from tyler.runs.progress import Bar, LogLines, RichBar, bar, clock_time, hidden


class Clock:
    """Seconds that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="tyler")
    return caplog


def test_a_log_has_a_line_at_the_start_after_a_step_every_half_minute_and_at_the_end(logged) -> None:
    clock = Clock()
    shown = LogLines("Stage 1", total=100, where=Path("runs/a"), clock=clock)
    for number in range(1, 101):
        clock.now += 1
        shown.advance(note=f"loss {1 / number:.2f}")
    assert logged.messages == [
        "Stage 1: 100 steps, in runs/a",
        "Stage 1: step 1 of 100, loss 1.00, 1 s per step, 0:01 elapsed, 1:39 left",
        "Stage 1: step 31 of 100, loss 0.03, 1 s per step, 0:31 elapsed, 1:09 left",
        "Stage 1: step 61 of 100, loss 0.02, 1 s per step, 1:01 elapsed, 0:39 left",
        "Stage 1: step 91 of 100, loss 0.01, 1 s per step, 1:31 elapsed, 0:09 left",
        "Stage 1: step 100 of 100, loss 0.01, 1 s per step, 1:40 elapsed",
    ]


def test_each_step_that_takes_longer_than_half_a_minute_has_its_line(logged) -> None:
    clock = Clock()
    shown = LogLines("Stage 2", total=3, clock=clock)
    for _ in range(3):
        clock.now += 400
        shown.advance()
    assert [message.split(",")[0] for message in logged.messages[1:]] == [f"Stage 2: step {n} of 3" for n in (1, 2, 3)]


def test_steps_that_were_done_before_do_not_count_towards_the_time_left(logged) -> None:
    clock = Clock()
    shown = LogLines("mini", total=600, done=590, unit="answer", clock=clock)
    clock.now = 2.0
    shown.advance(note="300/591 correct")
    assert logged.messages == [
        "mini: 600 answers, 590 of them done before",
        "mini: answer 591 of 600, 300/591 correct, 2 s per answer, 0:02 elapsed, 0:18 left",
    ]


def test_a_terminal_has_a_bar_and_a_log_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with bar("Stage 1", 3) as shown:
        assert isinstance(shown, LogLines)
    made = progress.Console
    monkeypatch.setattr(progress, "Console", lambda **settings: made(**settings, force_terminal=True))
    with bar("Stage 1", 3) as shown:
        assert isinstance(shown, RichBar)


def test_nothing_is_shown_where_progress_is_hidden(logged) -> None:
    with hidden(), bar("Stage 1", 3) as shown:
        shown.advance(note="loss 1")
    assert type(shown) is Bar
    assert logged.messages == []
    with bar("Stage 1", 3) as shown:
        assert isinstance(shown, LogLines)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (36061, "10:01:01")])
def test_times_are_read_as_on_a_clock(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


def test_a_log_names_the_folder_unless_it_is_this_one(logged) -> None:
    for where, end in ((Path("runs/a"), "2 answers, in runs/a"), (Path(), "2 answers"), (None, "2 answers")):
        logged.clear()
        LogLines("a.jsonl", 2, unit="answer", where=where)
        assert logged.messages == [f"a.jsonl: {end}"]
