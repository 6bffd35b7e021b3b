"""Where metrics are shown during a run, by accelerate's trackers, and how a resumed run is found again.

metrics.jsonl is the record; a tracker is a view of it, and no run stops because its view is gone. The packages are
extras (`pip install 'path/to/tyler[wandb]'`) and imported only where a config names them (`tracking.tool`).
"""

from __future__ import annotations

import importlib
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyler.config.files import flatten
from tyler.config.sections import TrackingConfig
from tyler.runs.atomic_files import atomic_write
from tyler.runs.run import TRACKING, resume_hint

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

logger = logging.getLogger(__name__)


class TrackerError(ValueError):
    """A tracker that is not installed or cannot start; says what to do."""


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


@dataclass(frozen=True)
class Tool:
    """One of accelerate's trackers: what has to be importable, and how it is opened."""

    module: str
    package: str
    open: Callable[[Start], GeneralTracker]


def tensorboard(start: Start) -> GeneralTracker:
    """Event files in the run's `tracking` folder. A resumed run hides what was shown of the steps that it redoes."""
    from accelerate.tracking import TensorBoardTracker

    first = start.steps_done + 1 if start.steps_done else 0
    return _started(TensorBoardTracker(start.folder.name, start.folder.parent, purge_step=first))


def trackio(start: Start) -> GeneralTracker:
    """A trackio run, found again by the name it was given. A resumed run shows the steps that it redoes twice."""
    from accelerate.tracking import TrackioTracker

    known = start.kept("trackio-name")
    resume = "allow" if known else "never"
    opened = _started(TrackioTracker(start.project, name=known or start.name, config=start.config, resume=resume))
    # trackio gives a new name where the one asked for is taken
    atomic_write(start.folder / "trackio-name", str(opened.tracker.name))
    return opened


def wandb(start: Start) -> GeneralTracker:
    """A Weights & Biases run, found again by its id. It keeps the first line of a step that a resumed run redoes."""
    from accelerate.tracking import WandBTracker

    own, folder = start.kept("wandb-id") or secrets.token_hex(4), str(start.folder)
    atomic_write(start.folder / "wandb-id", own)
    return _started(
        WandBTracker(start.project, name=start.name, config=start.config, dir=folder, id=own, resume="allow")
    )


def mlflow(start: Start) -> GeneralTracker:
    """An MLflow run, found again by its id; MLFLOW_TRACKING_URI says where. Steps that are redone are there twice."""
    from accelerate.tracking import MLflowTracker

    known = start.kept("mlflow-id")
    opened = _started(MLflowTracker(start.project, run_id=known, run_name=None if known else start.name))
    if known is None:
        opened.store_init_configuration({key: str(value)[:500] for key, value in flatten(start.config).items()})
    atomic_write(start.folder / "mlflow-id", str(opened.tracker.info.run_id))
    return opened


TOOLS: dict[str, Tool] = {
    "tensorboard": Tool("torch.utils.tensorboard", "tensorboard", tensorboard),
    "trackio": Tool("trackio", "trackio", trackio),
    "wandb": Tool("wandb", "wandb", wandb),
    "mlflow": Tool("mlflow", "mlflow-skinny", mlflow),
}
"""By their names in `tracking.tool`."""


def _started(tracker: GeneralTracker) -> GeneralTracker:
    from accelerate import PartialState

    PartialState()  # accelerate's logger asks for it
    tracker.start()
    return tracker


class FailSafeTracker:
    """A tracker that fails is reported once and not used again; the run continues."""

    def __init__(self, tracker: GeneralTracker, name: str) -> None:
        self._tracker, self._name = tracker, name
        self._failed = False

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        self._try(lambda: self._tracker.log(numbers, step=step))

    def finish(self) -> None:
        self._try(self._tracker.finish)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            if not self._failed:
                action()
        except Exception as error:
            self._failed = True
            reason = f"{type(error).__name__}: {error}"
            logger.warning("%s fails (%s); the run continues without it, metrics.jsonl has all", self._name, reason)


def check_tracker(settings: TrackingConfig) -> None:
    """Raise TrackerError where the tool's package is missing: before a model is loaded, not after."""
    if settings.tool == "none":
        return
    try:
        importlib.import_module(TOOLS[settings.tool].module)
    except ImportError as error:
        raise TrackerError(
            f"tracking.tool={settings.tool} needs a package that is not here ({error}); "
            f"`pip install {TOOLS[settings.tool].package}`, or set tracking.tool=none"
        ) from error


def open_tracker(
    settings: TrackingConfig, run: Path, config: dict[str, Any], *, steps_done: int
) -> FailSafeTracker | None:
    """The tracker that a config names, if any, for the run in `run`, which stands after `steps_done` steps.

    Raises TrackerError where it is missing or cannot start, for example without a login.
    """
    if settings.tool == "none":
        return None
    check_tracker(settings)
    start = Start(settings.project, settings.name or run.resolve().name, config, run / TRACKING, steps_done)
    start.folder.mkdir(exist_ok=True)
    try:
        return FailSafeTracker(TOOLS[settings.tool].open(start), settings.tool)
    except Exception as error:
        raise TrackerError(
            f"{settings.tool} cannot start: {error}; fix that, or do without it (tracking.tool=none), and resume with "
            f"{resume_hint(run)}"
        ) from error
