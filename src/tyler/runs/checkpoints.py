"""Checkpoints of a run: whole or not there, the newest, and the best on development problems."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from tyler.modeling.digests import changed_files, digests_of
from tyler.runs.atomic_files import sync

CHECKPOINTS = "checkpoints"
BEST = "best"
BEST_NOTE = "best.json"
"""The link to the best checkpoint, and in each checkpoint: which step was the best when it was written."""
DIGESTS = "digests.json"
"""In each checkpoint: sha256 of every file in it but the model card."""


class RunError(ValueError):
    """A run directory that cannot be used as asked; says why and what to do."""


@dataclass(frozen=True)
class Best:
    """The step with the best development metric so far; of equal ones the earliest."""

    step: int
    metric: str
    value: float


def latest_checkpoint(path: str | Path) -> Path | None:
    """The newest whole checkpoint of the run in `path`, without opening the run."""
    return next(reversed(whole_checkpoints(Path(path))), None)


def best_checkpoint(path: str | Path) -> Path | None:
    """The checkpoint of the run in `path` that was best on development problems, or None where nothing was judged."""
    link = Path(path) / CHECKPOINTS / BEST
    return link.with_name(os.readlink(link)) if link.is_symlink() else None


def checkpoint_step(checkpoint: Path) -> int:
    """N of `checkpoints/step-N`."""
    return int(checkpoint.name.removeprefix("step-"))


@contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Errors while reading a checkpoint are raised as RunError, which names the file and what to do."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, RecursionError, SafetensorError) as error:
        earlier = [other for other in whole_checkpoints(checkpoint.parent.parent) if other.name != checkpoint.name]
        where = f"resumes from {earlier[-1].name}" if earlier else "starts from the beginning"
        raise RunError(
            f"{checkpoint} is damaged ({error}); restore it, or move that folder away and the run {where}"
        ) from error


def write_digests(checkpoint: Path) -> None:
    """Note the digests of all that is in a checkpoint; a model card may be edited later."""
    names = [str(path.relative_to(checkpoint)) for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    kept = [name for name in names if not name.endswith(".md")]
    (checkpoint / DIGESTS).write_text(json.dumps(digests_of(checkpoint, kept), indent=2) + "\n")


def check_digests(checkpoint: Path) -> None:
    """Raise RunError where a checkpoint is not as it was written."""
    with reading(checkpoint):
        digests = json.loads((checkpoint / DIGESTS).read_text())
        if not isinstance(digests, dict):
            raise ValueError(f"{DIGESTS} is no JSON object")
        if changed := changed_files(checkpoint, digests):
            raise ValueError(f"{', '.join(changed)} changed since it was written")


def whole_checkpoints(path: Path) -> list[Path]:
    """The whole checkpoints of the run in `path`, oldest first."""
    named = (path / CHECKPOINTS).glob("step-*")  # a user's copy such as step-4-old does not count
    return sorted((folder for folder in named if folder.name.removeprefix("step-").isdecimal()), key=checkpoint_step)


def drop_half_written(checkpoints: Path) -> None:
    """Remove what a kill left of a checkpoint that was being written."""
    for leftover in checkpoints.glob(".step-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for link in checkpoints.glob(f".{BEST}.*"):
        link.unlink()


def read_best(checkpoint: Path | None) -> Best | None:
    """The best step when a checkpoint was written."""
    if checkpoint is None or not (checkpoint / BEST_NOTE).exists():
        return None
    with reading(checkpoint):
        return Best(**json.loads((checkpoint / BEST_NOTE).read_text()))


def best_so_far(path: Path) -> Best | None:
    """The best step of the run in `path`; none where its checkpoint is gone, so that later ones can be the best."""
    best = read_best(latest_checkpoint(path))
    return best if best is not None and (path / CHECKPOINTS / f"step-{best.step}").is_dir() else None


def link_best(path: Path, best: Best | None) -> None:
    """Let `checkpoints/best` stand for the best step's checkpoint, from one moment to the next; for none, remove it.

    A kill may fall between a checkpoint and its link: resuming calls this again.
    """
    link = path / CHECKPOINTS / BEST
    if best is None or not link.with_name(f"step-{best.step}").is_dir():
        link.unlink(missing_ok=True)
        return
    new = link.with_name(f".{BEST}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(f"step-{best.step}", target_is_directory=True)
    os.replace(new, link)
    sync(link.parent)


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint so that no half of it is ever visible under its name."""
    hidden = checkpoint.with_name(f".{checkpoint.name}.removed")
    os.rename(checkpoint, hidden)
    shutil.rmtree(hidden, ignore_errors=True)
