"""Evaluation: intervals, records and reports that can be recounted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

import tiny
from tyler import evaluation
from tyler.evaluation import (
    COLUMNS,
    TERMINAL_COLUMNS,
    Record,
    Report,
    evaluate,
    markdown,
    record,
    rows,
    save,
    table,
    wilson,
)
from tyler.model import Tyler
from tyler.reasoner import Finished, TylerReasoner, ignore
from tyler.routing import AtBoundaries, Never
from tyler.sampling import Sampling
from tyler.tasks.problem import Outcome, Problem
from tyler.trajectory import Invocation, Trajectory

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
    calls = tuple(Invocation("state" if place % 2 else "global", 2, 3, 2 + place) for place in range(index))
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
        synthesis_seconds=0.25 * index,
    )


class Scripted:
    """A reasoner that answers from a script, last problem first."""

    name = "Scripted Reasoner"

    def solve(self, problems: Sequence[str], finished: Finished = ignore) -> list[Trajectory]:
        places = [int(problem.split()[1]) for problem in problems]
        for place in reversed(places):
            finished(place, trajectory(place))
        return [trajectory(place) for place in places]


@pytest.fixture
def report() -> Report:
    return evaluate(Scripted(), PROBLEMS)


# ---------------------------------------------------------------------------------------- the interval


@pytest.mark.parametrize(
    "correct, count, low, high",
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
        (250, 500, 0.4563, 0.5437),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_the_interval_is_wilsons(correct: int, count: int, low: float, high: float) -> None:
    """From (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n); 81 of 263 is Newcombe's (1998) example."""
    assert wilson(correct, count) == pytest.approx((low, high), abs=5e-5)


def test_nothing_counted_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


# ------------------------------------------------------------------------------------------ the report


def test_records_keep_the_order_of_the_problems_and_everything_to_recount(report: Report) -> None:
    assert [one.id for one in report.records] == [problem.id for problem in PROBLEMS]
    assert [one.outcome for one in report.records] == OUTCOMES
    for index, (one, problem) in enumerate(zip(report.records, PROBLEMS, strict=True)):
        assert (one.family, one.level, one.prompt, one.gold) == (problem.family, index, problem.prompt, "5")
        assert (one.completion, one.visible_tokens, one.latents) == (TEXTS[index], 2, 3 * index)
        assert one.invocations == tuple(("state" if place % 2 else "global", 2, 3) for place in range(index))
        assert (one.seconds, one.synthesis_seconds) == (1.0 + index, 0.25 * index)
    assert [one.answer for one in report.records] == ["5", "6", None, None, "5"]


def test_the_numbers_of_a_report_are_those_of_its_records(report: Report) -> None:
    assert report.num_correct == 2
    assert report.share(Outcome.NO_BOX) == report.share(Outcome.TRUNCATED) == 0.2
    assert report.mean(lambda one: one.latents) == 6.0
    assert report.invocations_by_operator() == {"global": 6 / 5, "state": 4 / 5}
    assert report.by_family() == {"algebra": (1, 2), "words": (1, 3)}
    assert report.seconds < 5, "the wall time of all answers together, not the sum of theirs"


def test_a_row_has_a_cell_for_every_column(report: Report) -> None:
    (line,) = rows([report])
    cells = dict(zip(COLUMNS, line, strict=True))
    low, high = wilson(2, 5)
    assert cells["method"] == "Scripted Reasoner"
    assert cells["correct"] == "2/5" and cells["accuracy"] == "40.0%"
    assert cells["95% CI"] == f"{100 * low:.1f}–{100 * high:.1f}"
    assert cells["no box"] == cells["cut off"] == "20.0%"
    assert (cells["visible"], cells["latents"], cells["calls"]) == ("2.0", "6.0", "2.00")


def test_the_markdown_has_the_table_and_the_families(report: Report) -> None:
    lines = markdown([report, report]).splitlines()
    assert lines[0] == "| " + " | ".join(COLUMNS) + " |"
    assert lines[2] == lines[3] == "| " + " | ".join(rows([report])[0]) + " |"
    assert lines[4:] == [
        "",
        "| method | algebra | words |",
        "| --- | --- | --- |",
        *["| Scripted Reasoner | 1/2 | 1/3 |"] * 2,
    ]
    assert len({line.count("|") for line in lines[:4]}) == 1


def test_without_families_there_is_no_table_of_them() -> None:
    plain = evaluate(Scripted(), [Problem("a", "jsonl", "problem 0", "5")])
    assert len(markdown([plain]).splitlines()) == 3


def test_what_is_saved_recounts_the_report(report: Report, tmp_path: Path) -> None:
    save([report], tmp_path / "evaluation")
    assert (tmp_path / "evaluation" / "report.md").read_text() == markdown([report])
    lines = (tmp_path / "evaluation" / "scripted-reasoner.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 5
    assert sum(one["outcome"] == "correct" for one in records) == report.num_correct
    assert [one["completion"] for one in records] == TEXTS
    assert set(records[0]) == set(Record.__dataclass_fields__)


def test_the_table_is_whole_on_a_terminal_of_eighty_columns(capsys) -> None:
    record_of = evaluate(Scripted(), PROBLEMS).records[0]
    report = Report("Tyler Stage 2", (record_of,) * 600, 1234.5)
    Console(width=80).print(table([report], "mini, eval problems, greedy decoding"))
    shown = capsys.readouterr().out
    cells = dict(zip(COLUMNS, rows([report])[0], strict=True))
    assert "mini, eval problems, greedy decoding" in shown and "…" not in shown
    for column in TERMINAL_COLUMNS:
        assert column in shown and cells[column] in shown
    assert {"method", "correct", "accuracy", "95% CI", "visible", "latents", "calls", "seconds"} <= set(
        TERMINAL_COLUMNS
    )


def test_nothing_to_evaluate_is_refused() -> None:
    with pytest.raises(ValueError, match="the set of problems is empty"):
        evaluate(Scripted(), [])


def test_a_truncated_answer_with_a_box_counts() -> None:
    boxed = trajectory(0)
    boxed.finish_reason = "length"
    assert record(PROBLEMS[0], boxed).correct


# --------------------------------------------------------------------------------------- Tyler answers


def test_a_reasoner_answers_as_its_model_does_and_tells_each_when_it_is_done() -> None:
    model = tiny.tyler("qwen3")
    for router, budget in ((None, 1), (AtBoundaries(), None), (Never(), None)):
        reasoner = TylerReasoner("tyler", model, router, budget, Sampling(1.0, seed=3), max_new_tokens=12, slots=2)
        seen: dict[int, Trajectory] = {}
        found = reasoner.solve(tiny.PROMPTS, seen.__setitem__)
        expected = model.solve(
            list(tiny.PROMPTS), router=router, budget=budget, sampling=Sampling(1.0, seed=3), max_new_tokens=12
        )
        assert [one.actions for one in found] == [one.actions for one in expected]
        assert [seen[index].actions for index in range(len(found))] == [one.actions for one in expected]


def test_the_command_evaluates_a_saved_model_and_writes_its_report(tmp_path: Path, capsys) -> None:
    model = tiny.tyler("qwen3")
    model.backbone.model.save_pretrained(tmp_path / "backbone")
    tiny.tokenizer().save_pretrained(tmp_path / "backbone")
    rows = [{"problem": f"How many {i} x?", "solution": "\\boxed{5}", "answer": "5"} for i in range(3)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = evaluation.run(
        str(tmp_path / "backbone"),
        task="jsonl",
        split="test",
        path=str(tmp_path / "test.jsonl"),
        count=2,
        max_new_tokens=6,
        output=tmp_path / "report",
    )
    assert len(found.records) == 2
    assert all(not one.invocations for one in found.records), "a plain backbone answers without operators"
    answers = Tyler.from_pretrained(str(tmp_path / "backbone")).solve(
        [one.prompt for one in found.records], max_new_tokens=6
    )
    assert [one.completion for one in found.records] == [answer.text for answer in answers]
    assert "0/2" in capsys.readouterr().out
    assert (tmp_path / "report" / "report.md").is_file()
