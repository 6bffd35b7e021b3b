"""Reports: what they count, and that people see it whole."""

import json
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from rich.console import Console

from page_reader import parsed
from scripted import PROBLEMS, TEXTS, Scripted
from stored import keep
from tyler.engine.trajectory import Invocation
from tyler.evaluation import comparison, html_report
from tyler.evaluation.html_report import save, style_of, traced_html, view, write
from tyler.evaluation.pass_at_1 import evaluate
from tyler.evaluation.reports import (
    ACCURACY_COLUMNS,
    COLUMNS,
    FAILURE_COLUMNS,
    Report,
    by_task,
    family_rows,
    heading,
    interval,
    mean_accuracy,
    rows,
    table,
    warnings,
)
from tyler.evaluation.statistics import holm, wilson
from tyler.evaluation.store import read_records
from tyler.tasks import Outcome, find_task


def html(
    reports: list[Report], title: str, settings: dict[str, Any] | None = None, links: dict[str, str] | None = None
) -> str:
    """The page of some reports."""
    with TemporaryDirectory() as folder:
        write(reports, Path(folder), title, settings, links=links)
        return (Path(folder) / "report.html").read_text()


@pytest.fixture
def report() -> Report:
    return evaluate(Scripted(), PROBLEMS)


def changed(report: Report, index: int, **values: object) -> Report:
    """The report with one record changed."""
    records = list(report.records)
    records[index] = replace(records[index], **values)  # type: ignore[arg-type]
    return Report(report.name, tuple(records))


# ---------------------------------------------------------------------------------------- the numbers


def test_the_numbers_of_a_report_are_those_of_its_records(report: Report) -> None:
    assert (report.num_correct, report.accuracy) == (2, 0.4)
    assert report.share(Outcome.NO_BOX) == report.share(Outcome.TRUNCATED) == 0.2
    assert report.mean(lambda one: one.latents) == 6.0
    assert report.invocations_by_operator() == {"global": 6 / 5, "state": 4 / 5}
    assert report.by_family() == {"algebra": (1, 2), "words": (1, 3)}
    assert report.synthesis_share == pytest.approx((0.25 * 10) / (0.5 * 5 + 10)), "of the engine's time, not of latency"


def test_the_synthesis_share_of_records_that_lack_the_engines_time_is_not_known(report: Report, tmp_path: Path) -> None:
    """What records cannot say is not made up."""
    keep(tmp_path, [replace(report.records[0], engine_seconds=None), *report.records[1:]])
    earlier = Report("x", tuple(read_records(tmp_path)))
    assert earlier.records[0].engine_seconds is None and earlier.records[1:] == report.records[1:]
    assert earlier.synthesis_share is None
    assert COLUMNS["synthesis"](earlier) == "–"


def test_the_wall_time_is_that_of_all_sessions(report: Report) -> None:
    ends = [(0, 3.0), (0, 7.0), (1, 2.0), (1, 1.0), (2, 4.0)]
    records = tuple(
        replace(one, session=session, elapsed=elapsed)
        for one, (session, elapsed) in zip(report.records, ends, strict=True)
    )
    assert Report("x", records).seconds == 7.0 + 2.0 + 4.0


def test_a_row_has_a_cell_for_every_column(report: Report) -> None:
    heads, line = rows([changed(report, 1, outcome=Outcome.UNPARSABLE)])
    cells = dict(zip(heads, line, strict=True))
    low, high = wilson(2, 5)
    assert heads == tuple(COLUMNS) and cells["method"] == "Scripted Reasoner"
    assert cells["correct"] == "2/5" and cells["accuracy"] == "40.0%"
    assert cells["95% CI"] == f"{100 * low:.1f}–{100 * high:.1f}" == interval(report)
    assert cells["no box"] == cells["cut off"] == cells["unparsable"] == "20.0%"
    assert (cells["timeout"], cells["synthesis"]) == ("0.0%", "20.0%")
    assert (cells["visible"], cells["latents"], cells["calls"]) == ("2.0", "6.0", "2.00")
    assert COLUMNS["calls"](changed(report, 1, invocations=None)) == "–", "a server does not say"


def test_the_mean_over_benchmarks_is_unweighted(report: Report) -> None:
    assert mean_accuracy([report]) is mean_accuracy([report, report]) is None, "two methods are not two benchmarks"
    gsm8k = tuple(replace(one, task="gsm8k") for one in report.records[:1])
    tasks = by_task(report.records + gsm8k)
    assert [task.name for task in tasks] == [find_task("jsonl").title, "GSM8K"]
    assert mean_accuracy(tasks) == pytest.approx(0.7)
    assert "mean accuracy of 2, unweighted: 70.0%" in html(tasks, "x")


@pytest.mark.parametrize(
    ("outcome", "told", "badge"),
    [
        (Outcome.GOLD_ERROR, "gold answers that could not be read: 2 (p1, p2); these cannot be solved", "! gold"),
        (
            Outcome.TOO_LONG,
            "problems that leave no room for an answer in the model's context: 2 (p1, p2); they count as wrong",
            "↔ too long",
        ),
    ],
)
def test_what_could_not_be_solved_is_told(outcome: Outcome, told: str, badge: str, report: Report) -> None:
    assert warnings([report]) == []
    broken = changed(changed(report, 1, outcome=outcome), 2, outcome=outcome)
    assert warnings([broken]) == [f"Scripted Reasoner: {told}"]
    page = html([broken], "x").replace("&#39;", "'")
    assert told in page and badge in page


def test_samples_that_are_all_alike_are_told(report: Report) -> None:
    first = report.records[0]
    samples = [replace(first, id=f"p{i}", sample=k, text="same") for i in range(3) for k in range(4)]
    (line,) = warnings([Report("m", tuple(samples))])
    assert "the 4 answers to 3 of 3 problems are one text each" in line and "gumbel=true" in line
    varied = [replace(one, text=f"{one.sample}") for one in samples]
    assert warnings([Report("m", tuple(varied))]) == []


def test_reports_with_other_families_have_a_table_of_their_own(report: Report) -> None:
    other = Report("other", tuple(replace(one, family="") for one in report.records))
    third = Report("third", tuple(replace(one, family="physics") for one in report.records))
    assert family_rows([report, other, third, report]) == [
        [("method", "algebra", "words"), *[("Scripted Reasoner", "1/2 (50%)", "1/3 (33%)")] * 2],
        [("method", "physics"), ("third", "2/5 (40%)")],
    ]


# ---------------------------------------------------------------------------------------- the terminal


@pytest.mark.parametrize("columns", [ACCURACY_COLUMNS, FAILURE_COLUMNS])
def test_the_table_is_whole_on_a_terminal_of_eighty_columns(report: Report, columns: tuple[str, ...], capsys) -> None:
    many = Report("Tyler Stage 2", tuple(replace(report.records[0], elapsed=1234.5) for _ in range(600)))
    Console(width=80).print(table([many], "mini, eval problems, greedy decoding", columns))
    shown = capsys.readouterr().out
    assert "mini, eval problems, greedy decoding" in shown and "…" not in shown
    for column in columns:
        assert column in shown and COLUMNS[column](many) in shown
    assert {*ACCURACY_COLUMNS, *FAILURE_COLUMNS} == {*COLUMNS}


# -------------------------------------------------------------------------------------------- the page


def test_the_page_has_every_number_and_every_answer(report: Report) -> None:
    page = parsed(html([report], "Scripted: words", {"budget": 3}))
    for cell in rows([report])[1]:
        assert cell in page.text
    for text in TEXTS:
        assert text in page.text.replace("global ×3", "").replace("state ×3", "")
    assert page.tags.count("details") == 5 and "budget" in page.text and "1/2" in page.text


def test_what_a_model_wrote_cannot_become_a_part_of_the_page(report: Report) -> None:
    hostile = "<script>alert(1)</script>&amp;"
    changed_report = changed(report, 1, text=hostile, prompt=hostile, answer=hostile, gold=hostile, id=hostile)
    page = parsed(html([Report(hostile, changed_report.records)], hostile, {hostile: hostile}))
    assert page.tags.count("script") == 1, "the page's own"
    assert page.text.count(hostile) >= 6


def test_operators_stand_where_they_were_invoked(report: Report) -> None:
    calls = (Invocation("global", 0, 8, 0, 0), Invocation("state", 2, 4, 3, 3), Invocation("x<y", 2, 4, 4, 3))
    one = replace(report.records[0], text="ab<cd", invocations=calls)
    assert str(traced_html(one)) == (
        '<span class="op" style="background:#007abf">global ×8</span>ab&lt;'
        '<span class="op" style="background:#c15500">state ×4</span>'
        '<span class="op" style="background:#6e7682">x&lt;y ×4</span>cd'
    )


def test_a_page_holds_as_many_problems_as_it_has_room_for_and_says_so(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = Report("many", tuple(replace(report.records[0], id=f"n{index}") for index in range(50)))
    assert parsed(html([many], "many")).tags.count("details") == 50
    one = len(many.records[0].prompt) + len(many.records[0].text or "")
    monkeypatch.setattr(html_report, "MOST_CHARACTERS", 7 * one)
    page = parsed(html([many], "many", links={"answers.parquet": "answers.parquet"}))
    assert (
        page.tags.count("details") == 7 and "The first 7 of 50 problems" in page.text and "answers.parquet" in page.text
    )


def test_methods_are_side_by_side_and_what_changed_can_be_picked(report: Report) -> None:
    first = changed(report, 0, outcome=Outcome.WRONG)
    found = view([Report("A", first.records), Report("B", changed(report, 4, outcome=Outcome.NO_BOX).records)])
    assert [problem["change"] for problem in found["problems"]] == [
        *("gained", "wrong in both", "wrong in both", "wrong in both", "lost")
    ]
    assert found["changes"] == {"gained": 1, "lost": 1, "wrong in both": 3}
    assert list(found["problems"][0]["answers"]) == ["A", "B"]
    page = html([Report("A", first.records), report], "both")
    assert "A → Scripted Reasoner" in page and 'data-change="gained"' in page
    assert view([report])["changes"] == {}


def test_rows_are_headed_by_what_they_are(report: Report) -> None:
    titled = [Report("GSM8K", tuple(replace(one, task="gsm8k") for one in report.records))]
    assert heading([report]) == "method" and heading(titled) == "task"
    assert "<th>task</th>" in html(titled, "x")


def test_every_verdict_has_its_own_word_sign_colour_and_pattern(report: Report) -> None:
    styles = [style_of(outcome) for outcome in Outcome]
    for part in ("word", "sign", "colour"):
        assert len({getattr(style, part) for style in styles}) == len(Outcome)
    page = html([report], "x")
    patterns = re.findall(r"\.as-(\w+) \{ (.*) \}", page)
    assert [key for key, _ in patterns] == [style.key for style in styles[1:]], "correct is plain"
    assert len({pattern for _, pattern in patterns}) == len(patterns)


@pytest.mark.parametrize(
    ("name", "folder"),
    [("Tyler Stage 1", "tyler-stage-1"), ("../../x", "x"), ("a/b", "a-b"), ("..", "report"), ("/etc", "etc")],
)
def test_a_reports_folder_is_one_name_beside_the_others(name: str, folder: str, report: Report, tmp_path: Path) -> None:
    save([Report(name, report.records)], tmp_path / "deep" / "evaluation", "a title")
    assert [path.parent for path in tmp_path.rglob("answers.parquet")] == [tmp_path / "deep" / "evaluation" / folder]
    with pytest.raises(ValueError, match="would share a directory"):
        save([Report(name, report.records), Report(f"{name}!", report.records)], tmp_path, "both")


def test_what_is_saved_recounts_the_report(report: Report, tmp_path: Path) -> None:
    save([report], tmp_path, "words", {"budget": None})
    page = (tmp_path / "report.html").read_text()
    assert "<dt>problems</dt><dd>5</dd>" in page and "<dt>machine</dt>" in page
    assert 'href="scripted-reasoner/answers.parquet"' in page
    assert read_records(tmp_path / "scripted-reasoner") == list(report.records)
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert numbers["settings"] == {"budget": None} and numbers["reports"][0]["correct"] == 2
    assert numbers["reports"][0]["families"]["words"] == {"correct": 1, "answers": 3}


# ------------------------------------------------------------------------------------------- the pairs


def test_pairs_are_matched_by_task_and_problem(report: Report) -> None:
    second = changed(changed(report, 0, outcome=Outcome.WRONG), 2, outcome=Outcome.CORRECT).records
    shuffled = [second[index] for index in (4, 2, 0, 1)]  # p3 is missing
    (one,) = comparison.pair(report.records, shuffled)
    assert one.task == "jsonl"
    assert (one.counts.count, one.counts.only_first, one.counts.only_second) == (4, 1, 1)


def test_tasks_are_compared_one_by_one(report: Report) -> None:
    other = tuple(replace(one, task="gsm8k") for one in report.records)
    pairs = comparison.pair(report.records + other, other + report.records)
    assert [(one.task, one.counts.count, one.counts.difference) for one in pairs] == [("jsonl", 5, 0), ("gsm8k", 5, 0)]


def test_a_task_that_only_one_of_them_has_is_said(report: Report, tmp_path: Path, capsys) -> None:
    other = tuple(replace(one, task="gsm8k") for one in report.records)
    save([report, Report("Both", report.records + other)], tmp_path, "both")
    comparison.run(tmp_path / "scripted-reasoner", tmp_path / "both")
    assert "left out: 5 problems that only one of them answered" in capsys.readouterr().out


def test_evaluations_that_cannot_be_compared_are_refused(report: Report) -> None:
    with pytest.raises(ValueError, match="no problem in common"):
        comparison.pair(report.records[:2], report.records[2:])
    with pytest.raises(ValueError, match=r"problem \('jsonl', 'p1'\) is not the same in both"):
        comparison.pair(report.records, changed(report, 1, gold="6").records)


def test_the_comparison_is_printed_whole(report: Report, tmp_path: Path, capsys) -> None:
    better = changed(report, 1, outcome=Outcome.CORRECT)
    save([report, Report("Better", better.records)], tmp_path, "both")
    comparison.run(tmp_path / "scripted-reasoner", tmp_path / "better")
    shown = capsys.readouterr().out
    for cell in comparison.rows(comparison.pair(report.records, better.records))[1]:
        assert cell in shown
    assert "+20.0" in shown and "…" not in shown and "Holm" not in shown


def test_several_comparisons_are_a_family_with_adjusted_p_values(report: Report, tmp_path: Path, capsys) -> None:
    """Over folders and over tasks alike."""
    all_wrong = Report("wrong", tuple(replace(one, outcome=Outcome.WRONG) for one in report.records))
    all_right = Report("right", tuple(replace(one, outcome=Outcome.CORRECT) for one in report.records))
    save([report, all_wrong, all_right], tmp_path, "three")
    family = comparison.run(tmp_path / "wrong", tmp_path / "right", tmp_path / "scripted-reasoner")
    ps = [one.counts.p_value() for one in family]
    assert ps == [0.0625, 0.5] and holm(ps) == [0.125, 0.5]
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("Holm's p is of the 2 comparisons made here") == 2 and "0.12" in shown
    lines = comparison.rows(family, holm(ps))
    assert lines[0][-1] == "Holm's p" and [line[-1] for line in lines[1:]] == ["0.12", "0.5"]
    both = tuple(replace(one, task="gsm8k") for one in all_right.records) + all_right.records
    save([Report("two tasks", both)], tmp_path / "more", "both")
    keep(tmp_path / "same", both)
    assert len(comparison.run(tmp_path / "same", tmp_path / "more" / "two-tasks")) == 2
    assert "of the 2 comparisons made here" in " ".join(capsys.readouterr().out.split())
