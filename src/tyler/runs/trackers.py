"""Where metrics are shown during a run: TensorBoard, trackio or Weights & Biases, behind one small interface.

metrics.jsonl is the record; a tracker is a view of it, and no run stops because its view is gone. The packages are
extras (`pip install tyler-reasoning[wandb]`) and imported only where a config names them (`tracking.tool`).
"""

from __future__ import annotations

import importlib
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tyler.config.sections import TrackingConfig
from tyler.runs.atomic_files import atomic_write
from tyler.runs.run import TRACKING, resume_hint

logger = logging.getLogger(__name__)

MODULES = {"tensorboard": "torch.utils.tensorboard", "trackio": "trackio", "wandb": "wandb"}
"""What has to be importable for a tool; the packages are called like the tools."""


class TrackerError(ValueError):
    """A tracker that is not installed or cannot start; says what to do."""


class Tracker(Protocol):
    """A place where metrics go besides metrics.jsonl."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show the metrics of a step."""

    def finish(self) -> None:
        """Send what is still under way."""


@dataclass(frozen=True)
class Start:
    """What a tracker gets when a run starts or resumes after `steps_done` steps; `folder` is its own in the run."""

    project: str
    name: str
    config: dict[str, Any]
    folder: Path
    steps_done: int

    def kept(self, file: str) -> str | None:
        """What an earlier start of this run kept in `folder`."""
        path = self.folder / file
        return path.read_text(encoding="utf-8") if path.exists() else None


class NoTracker:
    """The file is enough."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Nothing to show."""

    def finish(self) -> None:
        """Nothing to send."""


class TensorBoard:
    """Event files in the run's `tracking` folder. A resumed run hides what was shown of the steps that it redoes."""

    def __init__(self, start: Start) -> None:
        from torch.utils.tensorboard import SummaryWriter

        first = start.steps_done + 1 if start.steps_done else 0
        self._writer = SummaryWriter(log_dir=str(start.folder), purge_step=first)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name, value in numbers(metrics).items():
            self._writer.add_scalar(name, value, global_step=step)

    def finish(self) -> None:
        self._writer.close()


class Trackio:
    """A trackio run, found again by the name it was given. A resumed run shows the steps that it redoes twice."""

    def __init__(self, start: Start) -> None:
        import trackio

        known = start.kept("trackio-name")
        self._run = trackio.init(
            project=start.project,
            name=known or start.name,
            config=start.config,
            resume="allow" if known else "never",
        )
        # trackio gives a new name where the one asked for is taken
        atomic_write(start.folder / "trackio-name", str(self._run.name))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(numbers(metrics), step=step)

    def finish(self) -> None:
        self._run.finish()


class Wandb:
    """A Weights & Biases run, found again by its id. It keeps the first line of a step that a resumed run redoes."""

    def __init__(self, start: Start) -> None:
        import wandb

        identity = start.kept("wandb-id") or secrets.token_hex(4)
        atomic_write(start.folder / "wandb-id", identity)
        self._run = wandb.init(
            project=start.project,
            name=start.name,
            config=start.config,
            dir=str(start.folder),
            id=identity,
            resume="allow",
        )

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(numbers(metrics), step=step)

    def finish(self) -> None:
        self._run.finish()


TOOLS: dict[str, Callable[[Start], Tracker]] = {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": Wandb}


class FailSafeTracker:
    """A tracker that fails is reported once and not used again; the run continues."""

    def __init__(self, tracker: Tracker, name: str) -> None:
        self._tracker, self._name = tracker, name
        self._failed = False

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._failed:
            return
        try:
            self._tracker.log(step, metrics)
        except Exception as error:
            self._give_up(error)

    def finish(self) -> None:
        if self._failed:
            return
        try:
            self._tracker.finish()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        told = f"{type(error).__name__}: {error}"
        logger.warning("%s fails (%s); the run continues without it, metrics.jsonl has all", self._name, told)


def check_tracker(settings: TrackingConfig) -> None:
    """Raise TrackerError where the tool's package is missing: before a model is loaded, not after."""
    if settings.tool == "none":
        return
    try:
        importlib.import_module(MODULES[settings.tool])
    except ImportError as error:
        raise TrackerError(
            f"tracking.tool={settings.tool} needs a package that is not here ({error}); "
            f"`pip install {settings.tool}`, or set tracking.tool=none"
        ) from error


def open_tracker(settings: TrackingConfig, run: Path, config: dict[str, Any], *, steps_done: int) -> Tracker:
    """The tracker that a config names, for the run in `run`, which stands after `steps_done` steps.

    Raises TrackerError where it is missing or cannot start, for example without a login.
    """
    if settings.tool == "none":
        return NoTracker()
    check_tracker(settings)
    start = Start(settings.project, settings.name or run.resolve().name, config, run / TRACKING, steps_done)
    start.folder.mkdir(exist_ok=True)
    try:
        return FailSafeTracker(TOOLS[settings.tool](start), settings.tool)
    except Exception as error:
        raise TrackerError(
            f"{settings.tool} cannot start: {error}; fix that, or do without it (tracking.tool=none), and resume with "
            f"{resume_hint(run)}"
        ) from error


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that can be drawn."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
