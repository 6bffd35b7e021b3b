"""Runs that lose their process after a step, and what they resume to."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from tyler.runs.run import Run

Model = TypeVar("Model")


@contextmanager
def killed_after(step: int) -> Iterator[None]:
    """Within it a run ends as soon as it has logged a step, with what its newest checkpoint holds."""
    log = Run.log

    def stop(run: Run, number: int, metrics: Mapping[str, Any]) -> None:
        log(run, number, metrics)
        if number == step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "log", stop)
        yield


def whole_and_resumed(
    folder: Path, after: int, fresh: Callable[[], Model], train: Callable[[Model, Run], None]
) -> tuple[Model, Model]:
    """Two equal models as their runs end: of `folder`/whole, and of `folder`/cut, whose first process died.

    Checkpoints are written every second step, and hold the state of the random generator.
    """
    whole, cut, resumed = (fresh() for _ in range(3))
    torch.manual_seed(7)
    with Run.create(folder / "whole", "run: {}\n") as run:
        train(whole, run)
    torch.manual_seed(7)
    with killed_after(after), Run.create(folder / "cut", "run: {}\n") as run:
        train(cut, run)
    torch.manual_seed(7 if after < 2 else 1234)
    with Run.resume(folder / "cut", "run: {}\n") as run:
        train(resumed, run)
    return whole, resumed
