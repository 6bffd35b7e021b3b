"""What every test starts from: one thread (or TYLER_TEST_THREADS), fixed seeds, no network."""

import os

THREADS = os.environ.get("TYLER_TEST_THREADS", "1")
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = THREADS
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # threads of several test processes that spin would wait for each other
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import gc
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.documents import documented_metrics

from tyler.runs.run import Run

torch.set_num_threads(int(THREADS))

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_collection_finish() -> None:
    """What was imported and collected stays: a collection of garbage, which many tests cause, need not visit it."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skips = {}
    if not config.getoption("--slow"):
        skips["slow"] = pytest.mark.skip(reason="slow; give --slow to run it")
    if not torch.cuda.is_available():
        skips["gpu"] = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        for name, skip in skips.items():
            if item.get_closest_marker(name):
                item.add_marker(skip)


OUTSIDE = ("toy/", "focal/")
"""Metrics of methods that tests and tutorials declare in files of their own."""


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _switches_of_the_process_stay() -> Iterator[None]:
    """One that a test leaves behind changes the numbers of all that come after it."""
    before = switches()
    yield
    assert switches() == before


def switches() -> tuple[object, ...]:
    """What decides how torch computes, wherever it is called."""
    return torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_default_dtype()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For tests that fork: a child cannot use the threads of its parent, and what both compute is compared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def metric_names() -> re.Pattern[str]:
    """What the page of metrics has a row for."""
    return re.compile("|".join(re.sub(r"\\\{\w+\\\}", r"\\w+", re.escape(key)) for key in documented_metrics()))


@pytest.fixture(autouse=True)
def _what_a_loop_logs_is_documented(monkeypatch: pytest.MonkeyPatch, metric_names: re.Pattern[str]) -> None:
    """Whatever loop a test runs, and however that makes its keys (`section/name`): each has a meaning."""
    log = Run.log

    def checked(run: Run, step: int, metrics: Mapping[str, Any]) -> None:
        ours = [key for key in metrics if "/" in key and not key.startswith(OUTSIDE)]
        unknown = [key for key in ours if not metric_names.fullmatch(key)]
        assert not unknown, f"METRICS of no training has a meaning of {', '.join(unknown)}"
        log(run, step, metrics)

    monkeypatch.setattr(Run, "log", checked)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the benchmarks' real files and the real tokenizers, which the repository does not carry."""
    folder = Path(os.environ.get("TYLER_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; set TYLER_DATA to the folder that holds it")
    return folder
