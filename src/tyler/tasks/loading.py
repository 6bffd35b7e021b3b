"""Problems from official files, from the Hub, or from a generator: one function for all tasks.

Rows stream, so that a large set needs no more memory than the problems that are kept.
"""

import hashlib
import heapq
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path

from tyler.tasks.data_files import ENDINGS, Row, read_rows
from tyler.tasks.grading import find_task
from tyler.tasks.problem import Problem
from tyler.tasks.task import Generated, Source, Task

logger = logging.getLogger(__name__)

HUB = "hf://datasets/"
"""How a path begins that is a data set of the Hub: hf://datasets/OWNER/NAME, with /SUBSET where it has several."""


def load_problems(
    task: str,
    split: str | None = None,
    *,
    path: str | Path | None = None,
    count: int | None = None,
    seed: int = 0,
    revision: str | None = None,
) -> list[Problem]:
    """The problems of a task: all of a split (None: the one that is reported), or `count` of them drawn with `seed`.

    `path` is the split's file, or a folder where it has its official name; without one, the split comes from the Hub,
    at the branch, tag or commit that `revision` names (None: the newest; the commit is logged).
    For `jsonl` it may be `hf://datasets/OWNER/NAME` too; `split` is then the Hub's, by default train.
    A generated task reads nothing (mini), or what its problems are made from; `jsonl` reads any file, and `split` only
    names its ids (None: after the file, `traces-3`). A sample keeps the order of the rows, and is the `count` ids whose
    SHA-256 with the seed is smallest: it does not depend on the order of rows or files, and a smaller one is part of a
    larger one.

    Raises ValueError, saying what to do, for an unknown task or split, a missing or needless `path`, a broken row (by
    file, line and field), a split that has not its published number of problems, a `count` out of range, or a Hub that
    does not answer.
    """
    chosen = find_task(task)
    if count is not None and count < 1:
        raise ValueError(f"count must be at least 1 problem, got {count}; leave it out to load all of them")
    if revision is not None and path is not None and not str(path).startswith(HUB):
        raise ValueError(f"revision={revision!r} is of the Hub's copy, and path={str(path)!r} is a file; omit one")
    file = None if path is None else Path(path)
    if isinstance(chosen, Generated):
        return _generated(chosen, _split_of(chosen, split), file, count, seed, revision)
    if chosen.sources:
        problems = _published(chosen, _split_of(chosen, split), file, revision)
    else:
        split, rows = _given_rows(chosen, split, path, revision)
        problems = _problems(chosen, split, rows)
    return list(problems) if count is None else sample(problems, count, str(seed))


def _split_of(task: Task | Generated, split: str | None) -> str:
    """The split that is asked for, or the first. Raises ValueError for one that the task does not have."""
    split = split or next(iter(task.sources))
    if split not in task.sources:
        raise ValueError(f"task {task.name!r} has no split {split!r}; allowed: {', '.join(task.sources)}")
    return split


def _generated(
    task: Generated, split: str, path: Path | None, count: int | None, seed: int, revision: str | None
) -> list[Problem]:
    """The problems that a task makes, from the rows of the split's source where it has one."""
    source = task.sources[split]
    if source is None and path is not None:
        raise ValueError(
            f"task {task.name!r} generates its problems and reads no file, not {str(path)!r}; for problems of "
            "your own give --task jsonl (task='jsonl') beside --data (path=), or omit the file"
        )
    if source is None and revision is not None:
        raise ValueError(
            f"task {task.name!r} generates its problems: there is no revision {revision!r} of them; omit it"
        )
    rows = [] if source is None else list(_rows(task, source, path, revision))
    return [replace(problem, task=task.name) for problem in task.load(split, count, seed, rows)]


def _published(task: Task, split: str, path: Path | None, revision: str | None) -> Iterator[Problem]:
    """The problems of a published split, checked: distinct, and as many as there should be."""
    source = task.sources[split]
    origin = path or source.hub_id
    seen: set[str] = set()
    repeated = 0
    for problem in _problems(task, split, _rows(task, source, path, revision)):
        if problem.id not in seen:
            seen.add(problem.id)
            yield problem
            continue
        if source.num_rows is not None:
            raise ValueError(f"{origin}: two rows of {task.title} have the id {problem.id!r}")
        repeated += 1
    if repeated:
        logger.warning("%s: left out %d rows whose id had come before", task.title, repeated)
    if source.num_rows not in (None, len(seen)):
        raise ValueError(
            f"{origin}: read {len(seen):,} problems, but the {split} split of {task.title} has "
            f"{source.num_rows:,}; load it whole (count= draws a sample of it), or give problems of your own as "
            "task 'jsonl'"
        )


def _rows(task: Task | Generated, source: Source, path: Path | None, revision: str | None) -> Iterator[Row]:
    if path is not None:
        files = [path] if path.is_file() else _official_files(task, source, path)
        return chain.from_iterable(read_rows(file, private=task.private) for file in files)
    if source.hub_id is None:
        raise ValueError(
            f"{task.title} is not on the Hub; download {source.url} as {source.files[0]} and give path "
            "(--data, of a config data.path) its folder, or that file"
        )
    return _hub_rows(task, source, revision)


def _problems(task: Task, split: str, rows: Iterator[Row]) -> Iterator[Problem]:
    any_problem, row = False, None
    for row in rows:
        if (problem := task.problem(row, split)) is not None:
            any_problem = True
            yield replace(problem, task=task.name)  # a task outside of this package is named by its place
    if not any_problem:
        raise ValueError(
            f"{row.where if row else task.title}: none of the rows up to here is a problem of {task.title}"
        )


def sample(problems: Iterable[Problem], count: int, draw: str) -> list[Problem]:
    """`count` problems by a hash of their ids with `draw`, in their order. Raises ValueError where there are fewer."""

    def rank(numbered: tuple[int, Problem]) -> bytes:
        return hashlib.sha256(f"{draw} {numbered[1].id}".encode()).digest()

    chosen = heapq.nsmallest(count, enumerate(problems), key=rank)
    if len(chosen) < count:
        raise ValueError(f"count={count} problems were asked for, but there are only {len(chosen)}")
    return [problem for _, problem in sorted(chosen, key=itemgetter(0))]


# --- files ----------------------------------------------------------------------------------------------------------


def _given_rows(
    task: Task, split: str | None, path: str | Path | None, revision: str | None
) -> tuple[str, Iterator[Row]]:
    """The rows of a file, or of a data set of the Hub, for a task that reads any; and the name of their ids."""
    if isinstance(path, str) and path.startswith(HUB):
        owner, name, subset = [*path.removeprefix(HUB).split("/", 2), "", ""][:3]
        if not (owner and name):
            raise ValueError(f"{path!r} names no data set of the Hub; write {HUB}OWNER/NAME or {HUB}OWNER/NAME/SUBSET")
        split = split or "train"
        source = Source((f"{split}.jsonl",), hub_id=f"{owner}/{name}", hub_subset=subset or None, hub_split=split)
        return split, _hub_rows(task, source, revision)
    if path is None or not Path(path).is_file():
        given = "" if path is None else f", and {str(path)!r} is not a file"
        raise ValueError(
            f"task {task.name!r} reads a file{given}; name one with --data (path= in Python, data.path in a config): "
            f"{', '.join(ENDINGS)}"
        )
    return split or Path(path).name.partition(".")[0], read_rows(path, private=task.private)


def _official_files(task: Task | Generated, source: Source, folder: Path) -> list[Path]:
    """What a data folder holds of a source: the first official name, or the same with another ending."""
    if not folder.is_dir():
        raise ValueError(f"task {task.name!r}: {str(folder)!r} is neither a file nor a folder; give the split's file")
    if files := _files_in(folder, source):
        return files
    download = f"download {source.url} as {source.files[0]}"
    elsewhere = download if source.hub_id is None else f"leave out path to load {source.hub_id} from the Hub"
    raise ValueError(
        f"task {task.name!r}: the folder {str(folder)!r} has none of {', '.join(source.files)} (or with the ending "
        f"{', '.join(ENDINGS)}); give the file itself, or {elsewhere}"
    )


def has_files(task: str, folder: Path) -> bool:
    """Whether a folder holds the official files of any split of a task."""
    return any(_files_in(folder, source) for source in find_task(task).sources.values() if source is not None)


def _files_in(folder: Path, source: Source) -> list[Path]:
    """The files of the first official name that is there, with its own ending or another."""
    for name in source.files:
        stem = next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)
        for variant in (name, *(stem + ending for ending in ENDINGS)):
            if files := sorted(folder.glob(variant)):
                return files
    return []


# --- the Hub --------------------------------------------------------------------------------------------------------


def _hub_rows(task: Task | Generated, source: Source, revision: str | None) -> Iterator[Row]:
    import datasets

    try:
        rows = datasets.load_dataset(source.hub_id, source.hub_subset, split=source.hub_split, revision=revision)
    except Exception as error:  # the errors of the Hub, of HTTP and of the file system have no nearer ancestor
        raise ValueError(_hub_refusal(task, source, error)) from error
    commit = re.search(r"@([0-9a-f]{40})/", " ".join(rows.info.download_checksums or ()))  # in the files' addresses
    at = commit[1] if commit else revision or "main"
    logger.info("%s is read from the Hub (%s), at %s", task.title, source.hub_id, at)
    for number, fields in enumerate(rows, start=1):
        yield Row(fields, f"{source.hub_id} ({source.hub_split}), row {number}", number, task.private)


def _hub_refusal(task: Task | Generated, source: Source, error: Exception) -> str:
    """Why the Hub did not give the rows, and what to do."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    came = " ".join(str(error).split())
    advice = []
    if HF_HUB_OFFLINE:
        advice.append("HF_HUB_OFFLINE is set and nothing is cached: unset it")
    elif isinstance(error, ConnectionError):
        advice.append("check the connection to huggingface.co")
    if source.gated:
        page = f"https://huggingface.co/datasets/{source.hub_id}"
        advice.append(f"accept its terms at {page} and log in (`hf auth login`, once `huggingface-cli login`)")
    advice.append(f"or give path (--data, of a config data.path) a folder with {source.files[0]}, or that file")
    where = "/".join(filter(None, (source.hub_id, source.hub_subset, source.hub_split)))
    return f"cannot load {task.title} from the Hub ({where}): {type(error).__name__}: {came:.200}; {', '.join(advice)}"
