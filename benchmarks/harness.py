"""What every benchmark shares: competitors timed in interleaved rounds, and a report of ratios with their spread.

A contest is one piece of work and several ways of doing it. In every round each way of every contest does the work
once, and who begins moves on from round to round, so that a machine whose speed drifts slows all of them. Ratios are
taken within rounds, against the contest's first way: 1.20 is a fifth slower than the first. A benchmark reads

    arguments = read(options(__doc__, rounds=5))
    report = Report("decoding", arguments)
    report.add(compete([Contest("decode, batch 1", {"engine": ours, "generate": theirs}, 600, "tokens")], 5))
    report.add([Figure("KV cache", "both streams", 2048, "bytes a token")])
    report.publish(arguments.json)
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from tyler.runs.environment import environment

QUICK_ROUNDS = 3

Work = Callable[[], object]
"""Does the work once. A float that it returns is the seconds that count; else the whole call is timed."""


@dataclass(frozen=True)
class Contest:
    """One piece of work, `amount` of `unit`, and the ways of doing it; the others are held against the first."""

    name: str
    ways: Mapping[str, Work]
    amount: float = 0
    unit: str = ""


@dataclass(frozen=True)
class Spread:
    """The median of some measurements, and the lowest and highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Timing:
    """How long one way of a contest took: seconds, and the ratio to the first way's, of every round."""

    work: str
    way: str
    seconds: list[float]
    ratios: list[float]
    amount: float = 0
    unit: str = ""

    @property
    def rate(self) -> Spread | None:
        """`unit` a second, where the amount is known."""
        return Spread.of([self.amount / seconds for seconds in self.seconds]) if self.amount else None


@dataclass(frozen=True)
class Figure:
    """A number that is not a time: bytes, a share, a count. `target` says what was asked for, where something was."""

    work: str
    way: str
    value: float
    unit: str
    target: str = ""


def compete(contests: Iterable[Contest], rounds: int, warmups: int = 1) -> list[Timing]:
    """Time every way of every contest, `warmups` rounds uncounted and `rounds` that count, and print each time."""
    contests = list(contests)
    ways = [(contest, way) for contest in contests for way in contest.ways]
    seconds: dict[tuple[str, str], list[float]] = {(contest.name, way): [] for contest, way in ways}
    assert len(seconds) == len(ways), "two contests have the same name"
    for turn in range(-warmups, rounds):
        for contest in contests:
            order = deque(contest.ways)
            order.rotate(-turn)  # each begins once
            for way in order:
                took = timed(contest.ways[way])
                label = f"round {turn + 1}/{rounds}" if turn >= 0 else "warm-up"
                note(f"{label}: {contest.name}, {way}: {took:.4g} s")
                if turn >= 0:
                    seconds[contest.name, way].append(took)
    timings = []
    for contest, way in ways:
        own, first = seconds[contest.name, way], seconds[contest.name, next(iter(contest.ways))]
        ratios = [mine / other for mine, other in zip(own, first, strict=True)]
        timings.append(Timing(contest.name, way, own, ratios, contest.amount, contest.unit))
    return timings


def timed(work: Work) -> float:
    """Seconds of one call, with garbage collected before and the device's queue empty at both ends."""
    gc.collect()
    synchronize()
    started = time.perf_counter()
    counted = work()
    synchronize()
    return counted if isinstance(counted, float) else time.perf_counter() - started


def on_processor(work: Callable[[], object]) -> Work:
    """By seconds of the processor where one of its threads does everything, which no neighbour disturbs."""
    alone = not torch.cuda.is_available() and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter

    def measured() -> float:
        started = clock()
        work()
        return clock() - started

    return measured


def synchronize() -> None:
    """Wait until the device has done what it was asked."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def note(line: str) -> None:
    """Progress, on stderr: stdout is for the table."""
    print(line, file=sys.stderr, flush=True)


def options(doc: str, rounds: int = 5) -> argparse.ArgumentParser:
    """The options that every benchmark has; it may add its own."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds that count, by default {rounds}")
    parser.add_argument("--quick", action="store_true", help=f"less work and at most {QUICK_ROUNDS} rounds")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    return parser


def read(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse, and pin torch to the threads of OMP_NUM_THREADS, or to the machine's cores."""
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: at least 1 is needed")
    if arguments.quick:
        arguments.rounds = min(arguments.rounds, QUICK_ROUNDS)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
    torch.manual_seed(0)
    return arguments


@dataclass
class Report:
    """What one benchmark found, where, and with which options."""

    benchmark: str
    arguments: argparse.Namespace
    timings: list[Timing] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    started: float = field(default_factory=time.perf_counter)

    def add(self, results: Iterable[Timing | Figure]) -> None:
        for result in results:
            results_alike: list[Any] = self.timings if isinstance(result, Timing) else self.figures
            results_alike.append(result)

    def content(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        given = vars(self.arguments).items()
        return {
            "benchmark": self.benchmark,
            "options": {name: value for name, value in given if name != "json" and not isinstance(value, Path)},
            "machine": self.machine | {"load_at_the_end": os.getloadavg()[0]},
            "took_seconds": time.perf_counter() - self.started,
            "timings": [asdict(timing) for timing in self.timings],
            "figures": [asdict(figure) for figure in self.figures],
        }

    def publish(self, path: Path | None) -> None:
        """Print the tables; write the JSON where a path is given."""
        content = self.content()
        print(tables(content))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    facts = environment()
    kept = ("processor", "cores", "threads", "cuda", "python", "packages", "time")
    return {key: facts[key] for key in kept} | {
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load_at_the_start": os.getloadavg()[0],
    }


def tables(content: Mapping[str, Any]) -> str:
    """A report's content as Markdown: what was timed, then the other figures."""
    parts = []
    if content["timings"]:
        parts.append(timing_table([Timing(**fields) for fields in content["timings"]]))
    if content["figures"]:
        parts.append(figure_table([Figure(**fields) for fields in content["figures"]]))
    return "\n\n".join(parts)


def timing_table(timings: Sequence[Timing]) -> str:
    """Median, lowest and highest of seconds and of the ratio to the contest's first way."""
    rounds = max(len(timing.seconds) for timing in timings)
    rows = [("work", "way", "time", f"range of {rounds}", "ratio", "range", "rate")]
    last = ""
    for timing in timings:
        seconds, ratio, rate = Spread.of(timing.seconds), Spread.of(timing.ratios), timing.rate
        unit, scale = ("ms", 1e3) if seconds.median < 1 else ("s", 1.0)
        rows.append(
            (
                timing.work if timing.work != last else "",
                timing.way,
                f"{short(seconds.median * scale)} {unit}",
                f"{short(seconds.low * scale)}–{short(seconds.high * scale)}",
                f"{ratio.median:.2f}",
                f"{ratio.low:.2f}–{ratio.high:.2f}" if timing.work == last else "",
                f"{short(rate.median)} {timing.unit}/s" if rate else "",
            )
        )
        last = timing.work
    return markdown(rows, "llrrrrr")


def figure_table(figures: Sequence[Figure]) -> str:
    """Every figure with its unit, and its target where it has one."""
    rows = [("figure", "of", "value", "target")]
    for figure in figures:
        rows.append((figure.work, figure.way, f"{short(figure.value)} {figure.unit}".strip(), figure.target))
    return markdown(rows, "llrl")


def short(value: float) -> str:
    """Three digits, and no exponent where a number is large."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows as a Markdown table whose columns line up; `align` has l or r for each."""
    widths = [max(3, *(len(row[column]) for row in rows)) for column in range(len(align))]

    def line(row: Sequence[str]) -> str:
        columns = zip(row, widths, align, strict=True)
        cells = [cell.rjust(width) if side == "r" else cell.ljust(width) for cell, width, side in columns]
        return f"| {' | '.join(cells)} |"

    rule = [f"{'-' * (width - 1)}{':' if side == 'r' else '-'}" for width, side in zip(widths, align, strict=True)]
    return "\n".join([line(rows[0]), line(rule), *map(line, rows[1:])])
