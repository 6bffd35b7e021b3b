"""The verifier: one completion against one gold answer. Stage 2's task reward and success are this function too."""

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, get_args

from tyler.tasks import benchmarks
from tyler.tasks.answers.boxed import UnreadableGoldError, boxed_answer
from tyler.tasks.problem import GradeOptions, Mode, Outcome, Verdict, after_thought
from tyler.tasks.task import Generated, Task


def _benchmarks() -> dict[str, str]:
    """The modules of `tyler.tasks.benchmarks` by name; none is loaded."""
    return {module.name: f"{benchmarks.__name__}.{module.name}" for module in iter_modules(benchmarks.__path__)}


TASKS = _benchmarks()
"""Where each task is: every module has a TASK."""
Gold = str | bool | int | float | list[int] | list[float]


def _plain(name: str) -> str:
    return re.sub(r"[-_\s]", "", name).casefold()


def task_name(name: str) -> str:
    """A task's name in TASKS, however it is written (`MATH-500`, `gpqa_diamond`), or where it is (`my_task.py:TASK`).

    Raises ValueError if it is unknown or not there.
    """
    if ":" in name:
        return outside(name).name
    plain = _plain(name)
    if plain not in TASKS:
        plain = _other_names().get(plain, plain)
    if plain in TASKS:
        return plain
    close = get_close_matches(plain, TASKS, n=1, cutoff=0.7)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    raise ValueError(
        f"unknown task {name!r}{hint} known tasks are {', '.join(TASKS)}. A file of your own is "
        "--task jsonl --data FILE (in a config `task: jsonl` and `path: FILE`)"
    )


def find_task(name: str) -> Task | Generated:
    """What a task says of itself; its module loads here. Raises ValueError for an unknown name."""
    return outside(name) if ":" in name else _load(task_name(name))


def _load(name: str) -> Task | Generated:
    """The task of a module in TASKS."""
    return importlib.import_module(TASKS[name]).TASK


@cache
def outside(location: str) -> Task | Generated:
    """The task at `FILE.py:TASK` or `package.module:TASK`, whose problems carry that place as their task.

    Raises ValueError for a place without one, with what kept it from being loaded.
    """
    try:
        task = object_at(location)
    except Exception as error:
        raise ValueError(f"there is no task {location!r}: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task | Generated):
        raise ValueError(f"{location!r} is not a tyler.tasks.task.Task, but a {type(task).__name__}")
    return replace(task, name=location)


def object_at(location: str) -> Any:
    """What is at `FILE.py:NAME` or `package.module:NAME`."""
    source, _, name = location.rpartition(":")
    return getattr(_module_in(Path(source)) if source.endswith(".py") else importlib.import_module(source), name)


def _module_in(file: Path) -> ModuleType:
    """The module of a source file."""
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    assert spec is not None and spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@cache
def _other_names() -> dict[str, str]:
    """The task of each title, and of a module's name without its underscores.

    All benchmarks load for that, so names that are modules are looked up before.
    """
    return {_plain(alias): name for name in TASKS for alias in (name, _load(name).title)}


def grade(
    task: str,
    completion: str,
    gold: Gold,
    *,
    truncated: bool = False,
    thought_open: bool = False,
    mode: Mode = "official",
    deadline: float = 5.0,
    allow_code_execution: bool = False,
    allow_unsafe_code_execution: bool = False,
    packages: Sequence[str] = GradeOptions.packages,
) -> Verdict:
    """The verdict on one completion, by the task's own rule: mostly, its last boxed answer against `gold`.

    `gold` is what `Problem.answer` holds; a task with typed gold answers (TheoremQA) takes a value too. `truncated`
    says that the generation stopped at its length limit: without an answer it is then TRUNCATED, otherwise NO_BOX.
    `thought_open` says that the prompt ends in an open `<think>`: the answer is what follows its end, if it has one.
    `mode` is TheoremQA's, `deadline` the seconds that one answer may take. HumanEval runs the completion: only where
    `allow_code_execution` says so, and without a sandbox only where `allow_unsafe_code_execution` does; `packages` are
    those of this environment that it may import.

    No completion raises. A wrong call does: ValueError for an unknown task or mode or a deadline that is not positive,
    TypeError for a gold answer of the wrong type, PermissionError where code may not be executed, and SandboxError (an
    OSError) where there is no sandbox for it or it could not be started.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode {mode!r} is not one of {', '.join(get_args(Mode))}")
    if not deadline > 0:
        raise ValueError(f"deadline must be a positive number of seconds, got {deadline}")
    options = GradeOptions(mode, deadline, allow_code_execution, allow_unsafe_code_execution, tuple(packages))
    chosen = find_task(task)
    text = _gold_text(chosen, gold)
    completion = after_thought(completion, opened=thought_open)
    verdict = _verdict(chosen, completion, text, options)
    if truncated and verdict.outcome is Outcome.NO_BOX:
        return replace(verdict, outcome=Outcome.TRUNCATED)
    return verdict


def _verdict(task: Task | Generated, completion: str, gold: str, options: GradeOptions) -> Verdict:
    """The task's own verdict; where reading the completion fails in a way the task did not foresee, UNPARSABLE."""
    try:
        return task.verdict(completion, gold, options)
    except UnreadableGoldError:
        return Verdict(Outcome.GOLD_ERROR, boxed_answer(completion))
    except (ArithmeticError, MemoryError, RecursionError, ValueError):
        return Verdict(Outcome.UNPARSABLE, boxed_answer(completion))


def _gold_text(task: Task | Generated, gold: Gold) -> str:
    if isinstance(gold, str):
        return gold
    if task.typed_gold and isinstance(gold, bool | int | float | list):
        return json.dumps(gold)
    raise TypeError(
        f"task {task.name!r}: the gold answer must be text, as in Problem.answer; got {type(gold).__name__}"
    )


def ballots(task: str, answers: Sequence[str]) -> list[list[int]]:
    """The indices of equal answers, one list a ballot, in the order of first answers. The gold answer has no say.

    An answer goes to the first ballot whose first answer it equals: equality is not transitive where a grader lets a
    unit be omitted (`5 cm`, `5`, `5 m`). Raises ValueError for an unknown task.
    """
    cast: dict[int, list[int]] = {}
    for index, answer in enumerate(answers):
        first = next((earlier for earlier in cast if _same(task, answers[earlier], answer)), index)
        cast.setdefault(first, []).append(index)
    return list(cast.values())


@lru_cache(maxsize=65_536)
def _same(task: str, answer: str, other: str) -> bool:
    return answer == other or find_task(task).same(answer, other)


REVISION = 6
"""Of the graders in this package: raised with every change that may change a verdict."""
_LIBRARIES = ("sympy", "latex2sympy2_extended")


def grader_version(options: GradeOptions = GradeOptions(), tasks: Iterable[str] = ()) -> dict[str, str]:  # noqa: B008
    """What decides the verdicts on answers to some tasks: the grader's revision, its mode and the libraries that read
    formulas, which are not loaded; where a task runs programs, also Python, the packages they may import and their
    deadline."""
    from importlib.metadata import version

    decides = {"revision": str(REVISION), "mode": options.mode, **{name: version(name) for name in _LIBRARIES}}
    if any(find_task(task).runs_code for task in tasks):
        decides["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
        decides["packages"] = " ".join(sorted(options.packages)) or "none"
        decides["deadline"] = f"{options.deadline:g} s"
    return decides
