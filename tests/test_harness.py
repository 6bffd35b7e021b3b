"""The benchmarks' harness: interleaved rounds, ratios within rounds, and nothing lost on the way to disk."""

import json
from pathlib import Path

import pytest
import torch

import harness
from harness import Contest, Figure, Report, Spread, Timing, compete, options, read, tables


def test_every_way_takes_part_in_every_round_and_who_begins_moves_on() -> None:
    order: list[str] = []
    ways = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}
    timings = compete([Contest("work", ways)], rounds=3, warmups=1)
    assert order == [*"cab", *"abc", *"bca", *"cab"], "the warm-up, then three rounds"
    assert [(timing.way, timing.seconds) for timing in timings] == [(name, [1.0] * 3) for name in "abc"]


def test_ratios_are_taken_within_rounds_against_the_first_way() -> None:
    ours, theirs = iter([9.0, 1.0, 2.0, 4.0]), iter([9.0, 2.0, 6.0, 4.0])
    first, second = compete([Contest("work", {"ours": lambda: next(ours), "theirs": lambda: next(theirs)})], rounds=3)
    assert first.ratios == [1.0] * 3
    assert second.ratios == [2.0, 3.0, 1.0]
    assert Spread.of(second.ratios) == Spread(median=2.0, low=1.0, high=3.0)


def test_a_way_that_measures_nothing_itself_is_timed_and_the_rate_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 4.0, 10.0, 12.0, 20.0, 25.0])
    monkeypatch.setattr(harness.time, "perf_counter", lambda: next(clock))
    (timing,) = compete([Contest("work", {"it": lambda: None}, amount=100, unit="tokens")], rounds=2)
    assert timing.seconds == [2.0, 5.0], "the warm-up's 4 seconds are not counted"
    assert timing.rate == Spread(median=35.0, low=20.0, high=50.0)


def test_contests_of_one_name_are_refused() -> None:
    with pytest.raises(AssertionError, match="the same name"):
        compete([Contest("work", {"a": lambda: 1.0})] * 2, rounds=1)


def test_quick_means_few_rounds_and_a_round_at_least_is_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    assert read(options("doc", rounds=7), []).rounds == 7
    assert read(options("doc", rounds=7), ["--quick"]).rounds == harness.QUICK_ROUNDS
    assert read(options("doc"), ["--quick", "--rounds", "1"]).rounds == 1
    with pytest.raises(SystemExit):
        read(options("doc"), ["--rounds", "0"])
    assert "at least 1" in capsys.readouterr().err


def test_a_report_has_the_same_tables_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = options("doc")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+")
    path = tmp_path / "deep" / "out.json"
    arguments = read(parser, ["--json", str(path), "--data-dir", str(tmp_path), "--lengths", "1", "2"])
    report = Report("decoding", arguments)
    report.add([Timing("decode", "engine", [1.0, 3.0], [1.0, 1.0], 600, "tokens")])
    report.add([Timing("decode", "generate", [2.0, 3.0], [2.0, 1.0]), Figure("cache", "row", 2048, "bytes", "few")])
    report.publish(arguments.json)
    content = json.loads(arguments.json.read_text())
    assert tables(content) == capsys.readouterr().out.strip()
    assert content["options"] == {"rounds": 5, "quick": False, "lengths": [1, 2]}, "and no folders"
    lines = tables(content).splitlines()
    assert [cell.strip() for cell in cells(lines[3])] == ["", "generate", "2.5 s", "2–3", "1.50", "1.00–2.00", ""]
    assert [cell.strip() for cell in cells(lines[-1])] == ["cache", "row", "2,048 bytes", "few"]


def cells(line: str) -> list[str]:
    return [cell[1:-1] for cell in line.split("|")[1:-1]]
