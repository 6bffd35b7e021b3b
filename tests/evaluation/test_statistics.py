"""Intervals of counts, and paired differences."""

import itertools
import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

import tiny
from scripted import PROBLEMS, Scripted
from stored import interrupt, write_problems
from tyler.evaluation import command, comparison
from tyler.evaluation.answers import Record
from tyler.evaluation.html_report import save
from tyler.evaluation.options import Answering, EvaluationRequest, Questions
from tyler.evaluation.pass_at_1 import evaluate
from tyler.evaluation.reports import Report, majority_at_k, pass_at_k, powers, sample_rows, vote
from tyler.evaluation.statistics import Paired, clustered, holm, pass_at, sign_flips, sign_test, wilson
from tyler.evaluation.store import read_records
from tyler.tasks import Outcome


@pytest.mark.parametrize(
    "correct, count, low, high",
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
        (250, 500, 0.4563, 0.5437),
        (1, 1, 0.2065, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_the_interval_is_wilsons(correct: int, count: int, low: float, high: float) -> None:
    """From (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n); 81 of 263 is Newcombe's (1998) example."""
    assert wilson(correct, count) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("only_first, only_second", [(0, 0), (1, 0), (5, 5), (3, 9), (12, 2), (40, 61)])
def test_the_p_value_of_single_answers_is_the_exact_binomial_one(only_first: int, only_second: int) -> None:
    """The share of all ways to split the discordant problems that are at least as uneven."""
    total, uneven = only_first + only_second, abs(only_first - only_second)
    ways = sum(math.comb(total, k) for k in range(total + 1) if abs(total - 2 * k) >= uneven)
    first = (1.0,) * (7 + only_first) + (0.0,) * (only_second + 3)
    second = (1.0,) * 7 + (0.0,) * only_first + (1.0,) * only_second + (0.0,) * 3
    assert Paired(first, second).p_value() == pytest.approx(ways / 2**total)


def test_intervals_hold_their_level_on_problems_whose_seeds_are_alike() -> None:
    """The mean over problems of a beta of (0.6, 0.9) is 0.4; three seeds of one problem are far from independent."""
    source, runs = np.random.default_rng(0), 1500
    covered = naive = 0
    for _ in range(runs):
        right = source.random((300, 3)) < source.beta(0.6, 0.9, size=(300, 1))
        low, high = clustered(right.mean(axis=1).tolist(), 3)
        covered += low <= 0.4 <= high
        low, high = wilson(float(right.sum()), right.size)
        naive += low <= 0.4 <= high
    assert 0.93 <= covered / runs <= 0.97
    assert naive / runs < 0.88, "seeds that are taken as independent"


def two_alike(source: np.random.Generator) -> Paired:
    """Two methods of the same chances on 200 problems, three seeds each."""
    chances = source.beta(0.6, 0.9, size=(200, 1))
    first, second = (source.random((200, 3)) < chances for _ in range(2))
    return Paired(tuple(first.mean(axis=1)), tuple(second.mean(axis=1)))


def test_the_interval_of_a_difference_holds_its_level() -> None:
    source, runs = np.random.default_rng(2), 1200
    ends = [two_alike(source).interval(draws=600) for _ in range(runs)]
    assert 0.93 <= sum(low <= 0 <= high for low, high in ends) / runs <= 0.97


def test_the_test_of_a_difference_fits_the_interval_beside_it() -> None:
    source, agreed = np.random.default_rng(3), 0
    for _ in range(100):
        pair = two_alike(source)
        low, high = pair.interval()
        agreed += (pair.p_value() < 0.05) == (not low <= 0 <= high)
    assert agreed >= 97


def test_a_sign_flip_test_is_the_count_of_all_flips() -> None:
    values = [0.5, -1.0, 1.0, 1 / 3, 0.0]
    flips = [sum(s * v for s, v in zip(signs, values, strict=True)) for signs in product((-1, 1), repeat=5)]
    assert sign_flips(values) == pytest.approx(sum(abs(one) >= abs(sum(values)) - 1e-9 for one in flips) / 32)
    assert sign_flips([1.0, 1.0, -1.0]) == sign_test(1, 2) and sign_flips([0.0, 0.0]) == 1.0
    many = [0.5] * 30 + [1.0] * 30 + [-0.5] * 25
    assert sign_flips(many) == sign_flips(many) < 0.001


def test_holms_p_is_that_of_his_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9]) == [0.9] and holm([]) == []


def test_a_difference_of_nothing_is_known_as_far_as_its_problems_resolve_it() -> None:
    upper = wilson(0, 500)[1]
    assert Paired((0.5,) * 500, (0.5,) * 500).interval() == (-upper, upper)
    assert 0.005 < upper < 0.01


RIGHT, WRONG = Outcome.CORRECT, Outcome.WRONG


@pytest.fixture(scope="module")
def one() -> Record:
    return evaluate(Scripted(), PROBLEMS[:1]).records[0]


def answers(one: Record, problem: str, *given: str | None) -> list[Record]:
    """Answers to one problem whose gold answer is 5."""
    return [
        replace(one, id=problem, sample=place, answer=text, outcome=RIGHT if text in ("5", "5.0") else WRONG)
        for place, text in enumerate(given)
    ]


# ----------------------------------------------------------------------------------------- counting


def test_pass_at_k_is_the_mean_over_all_choices_of_k_answers() -> None:
    for count, correct in itertools.product(range(1, 7), range(7)):
        if correct <= count:
            outcomes = [True] * correct + [False] * (count - correct)
            for k in range(1, count + 1):
                chosen = [any(some) for some in itertools.combinations(outcomes, k)]
                assert pass_at(k, correct, count) == pytest.approx(fmean(chosen))
    with pytest.raises(ValueError, match="pass@3 cannot be counted from 2 answers"):
        pass_at(3, 1, 2)


def test_the_ks_that_are_told_are_powers_of_two_and_all() -> None:
    assert [powers(count) for count in (1, 2, 5, 8)] == [[1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]


def test_a_tie_counts_in_part_and_numbers_are_compared_as_numbers(one: Record) -> None:
    assert vote(answers(one, "a", "5", "6", "5.0")) == 1.0
    assert vote(answers(one, "a", "5", "6", "6")) == 0.0
    assert vote(answers(one, "a", "5", "6")) == 0.5
    assert vote(answers(one, "a", None, None)) == 0.0
    assert vote(answers(one, "a", None, None, "5")) == 1.0, "who says nothing has no vote"


def test_a_majority_is_of_groups_in_their_order(one: Record) -> None:
    records = answers(one, "a", "5", "5", "6", "6", "6") + answers(one, "b", "5", "5", "5", "5", "6")
    found = majority_at_k(records)
    assert {k: estimate.value for k, estimate in found.items()} == {
        1: pytest.approx((2 / 5 + 4 / 5) / 2),
        2: pytest.approx((1 / 2 + 1) / 2),
        4: pytest.approx((0.5 + 1) / 2),
        5: 0.5,
    }


# ---------------------------------------------------------------------------------------- intervals


def test_with_one_answer_each_the_interval_is_wilsons() -> None:
    for correct, count in ((0, 7), (3, 7), (7, 7), (1, 1), (250, 500)):
        shares = [1.0] * correct + [0.0] * (count - correct)
        assert clustered(shares) == pytest.approx(wilson(correct, count))


def test_answers_that_are_alike_say_no_more_than_one() -> None:
    shares = [1.0, 1.0, 0.0, 1.0, 0.0]
    assert clustered(shares, 8) == pytest.approx(wilson(3, 5))
    assert clustered([0.5] * 5, 8) == pytest.approx(wilson(20, 40)), "problems that are all alike: answers count"
    low, high = clustered([0.0] * 5, 8)
    assert (low, high) == pytest.approx(wilson(0, 5)), "eight zeros of a problem are not eight problems"


def test_a_difference_lies_in_its_interval_which_is_the_same_at_every_call() -> None:
    shares = Paired((1.0, 1.0, 0.0, 0.0, 1.0), (1.0, 0.0, 1.0, 1.0, 1.0))
    assert (shares.only_first, shares.only_second) == (1, 2)
    assert shares.difference == pytest.approx(0.2)
    low, high = shares.interval()
    assert low < 0.2 < high and shares.interval() == (low, high)


# ------------------------------------------------------------------------------- of an evaluation


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain backbone and three problems."""
    folder = tmp_path_factory.mktemp("samples")
    tiny.save(tiny.build_backbone("qwen3", tiny.SEEDS["qwen3"]), folder / "backbone")
    write_problems(folder / "test.jsonl", range(3))
    return folder


def run(place: Path, name: str, **answering: object) -> list[Record]:
    asked = EvaluationRequest(
        Questions(("jsonl",), data=place / "test.jsonl"), Answering(max_new_tokens=8, **answering)
    )  # type: ignore[arg-type]
    asked.check()
    command.run(str(place / "backbone"), asked, output=place / name)
    return read_records(place / name)


def texts(records: list[Record]) -> dict[tuple[str, str, int], str | None]:
    return {record.key: record.text for record in records}


def test_samples_differ_are_reproducible_and_survive_a_kill(place: Path) -> None:
    whole = run(place, "whole", temperature=1.0, samples=3, seed=7)
    assert [(one.id, one.sample) for one in whole] == [(f"test-{n}", s) for n in (1, 2, 3) for s in range(3)]
    assert all(len({one.text for one in group}) == 3 for group in (whole[:3], whole[3:6], whole[6:]))
    assert texts(run(place, "again", temperature=1.0, samples=3, seed=7, slots=2)) == texts(whole)
    assert texts(run(place, "other", temperature=1.0, samples=3, seed=8)) != texts(whole)
    single = run(place, "single", temperature=1.0, seed=7)
    assert texts(single) == {key: text for key, text in texts(whole).items() if key[2] == 0}
    interrupt(place / "whole", 4)
    resumed = run(place, "whole", temperature=1.0, samples=3, seed=7)
    assert texts(resumed) == texts(whole) and [one.session for one in resumed] == [0] * 4 + [1] * 5


def test_sampling_is_a_setting(place: Path) -> None:
    run(place, "greedy")
    with pytest.raises(ValueError, match=r"sampling.temperature was 0.0, is 0.5"):
        run(place, "greedy", temperature=0.5)
    for wrong, message in (({"samples": 2}, "greedy answers would all be the same"), ({"samples": 0}, "at least 1")):
        with pytest.raises(ValueError, match=message):
            run(place, "x", **wrong)


def test_reports_tell_pass_at_k_and_majority_at_k(one: Record, tmp_path: Path, capsys) -> None:
    records = tuple(answers(one, "a", "5", "6", "6", "6") + answers(one, "b", "5", "5", "5", "6"))
    report = Report("Sampled", records)
    assert (report.samples, report.accuracy) == (4, 0.5)
    assert report.interval == pytest.approx(clustered([0.25, 0.75], 4))
    found = {(line[1], line[2]) for line in sample_rows([report])[1:]}
    assert found == {
        *(("pass@1", "50.0%"), ("pass@2", "75.0%"), ("pass@4", "100.0%"), ("maj@2", "50.0%"), ("maj@4", "50.0%"))
    }
    save([report], tmp_path, "both")
    numbers = json.loads((tmp_path / "report.json").read_text())
    (row,) = numbers["reports"]
    assert (numbers["format"], row["problems"], row["samples"], row["correct"]) == (1, 2, 4, 4)
    assert row["pass_at"]["2"]["value"] == pass_at_k(records)[2].value
    assert row["majority_at"]["4"]["value"] == 0.5 and row["verdicts"] == {"correct": 4, "wrong": 4}
    assert {"date", "version", "machine", "command"} == set(numbers["made"])


def test_evaluations_with_samples_are_compared_by_problem(one: Record, capsys) -> None:
    first = answers(one, "a", "5", "6", "6") + answers(one, "b", "5", "5", "6")
    second = answers(one, "a", "5", "5", "6") + answers(one, "b", "5", "5", "6")
    (pair,) = comparison.pair(first, second)
    assert (pair.counts.count, pair.counts.only_first, pair.counts.only_second) == (2, 0, 1)
    assert comparison.rows([pair])[1][2:5] == ("50.0%", "66.7%", "+16.7")
