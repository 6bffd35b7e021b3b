"""Rewards of answers: those that are built in, functions of one's own, and several with weights.

A reward has TRL's signature, `(prompts, completions, **columns) -> list[float | None]`, so a function written for TRL's
standard format works unchanged. It names the columns that it wants, or takes all with `**columns`:

    of the problem   id, task, answer, solution, family, level
    of the answer    completion_ids, success, truncated, invocations, num_invocations, num_visible, num_latents

None leaves an answer out of its group. Whatever else a reward does wrong ends the run by name (`RewardError`).
"""

import hashlib
import importlib.util
import logging
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tyler.config.loops import GrpoConfig, ObjectiveConfig, RewardConfig
from tyler.config.schema import Config
from tyler.engine.trajectory import Trajectory
from tyler.tasks.answers.boxed import boxed_answer
from tyler.tasks.problem import Outcome, Problem, Verdict
from tyler.training.verdicts import Verifier, is_fault

Values = list[float | None]

logger = logging.getLogger(__name__)

WORKER = Path(__file__).with_name("reward_worker.py")
START_SECONDS = 120.0
"""A function may load a model of its own before its first answer."""
STDERR = 2
"""Where what a function prints goes."""
LARGEST = 1e15
"""Of a reward, either way: the squares of larger ones, which a group's deviation needs, leave float32."""


class RewardError(ValueError):
    """A reward that cannot be used; says which, and what it did."""


class Reward(Protocol):
    """What an answer is worth, for each of many; None leaves an answer out of its group."""

    def __call__(self, *args: Any, **columns: Any) -> Sequence[float | None]: ...


def columns_of(
    problems: Sequence[Problem], answers: Sequence[Trajectory], verdicts: Sequence[Verdict | None]
) -> dict[str, list[Any]]:
    """Every column, one value for each answer, in JSON's types."""
    return {
        "prompts": [one.prompt for one in problems],
        "completions": [one.text for one in answers],
        **{key: [getattr(one, key) for one in problems] for key in OF_PROBLEMS},
        "completion_ids": [one.visible_ids for one in answers],
        "success": [
            None if one is None or is_fault(problem, one) else one.correct
            for problem, one in zip(problems, verdicts, strict=True)
        ],
        "outcome": [None if one is None else one.outcome.value for one in verdicts],
        "truncated": [one.truncated for one in answers],
        "invocations": [[call.operator for call in one.invocations] for one in answers],
        "num_invocations": [one.num_invocations for one in answers],
        "num_visible": [one.num_visible for one in answers],
        "num_latents": [one.num_latents for one in answers],
    }


OF_PROBLEMS = ("id", "task", "answer", "solution", "family", "level")
COLUMNS = tuple(columns_of([], [], []))
"""The names that a reward may ask for."""


def verifier(*, success: list[bool | None], **columns: Any) -> Values:
    """R_task: 1 for an answer that the task's grader accepts, 0 for another, None for one without a verdict."""
    return [None if one is None else float(one) for one in success]


def budget_penalty(
    success: Bool[Tensor, "*batch"], num_invocations: Int[Tensor, "*batch"], budget: int
) -> Float[Tensor, "*batch"]:
    """P_bud(tau) = s(tau) (n_op(tau) - B_O)_+, Eq. app-budget-penalty: invocations over the budget, on successes only.

    A failed trajectory pays nothing however much it spends, and a success within the budget pays nothing either.
    """
    over_budget = (num_invocations - budget).clamp(min=0).to(torch.get_default_dtype())
    return over_budget * success


def overspending(
    *, success: list[bool | None], num_invocations: list[int], allowed: int, weight: float, **columns: Any
) -> Values:
    """-lambda P_bud(tau), the second term of Eq. trajectory-reward; B_O is `allowed`, lambda `weight`."""
    right = torch.tensor([bool(one) for one in success])
    penalties = budget_penalty(right, torch.tensor(num_invocations), allowed).tolist()
    return [None if one is None else -weight * penalty for one, penalty in zip(success, penalties, strict=True)]


def answer_format(*, completions: list[str], outcome: list[str | None], **columns: Any) -> Values:
    """1 for an answer in the form that its task reads, mostly a box, right or wrong; 0 for another."""
    unreadable = (Outcome.NO_BOX, Outcome.TRUNCATED, Outcome.UNPARSABLE)
    return [
        float(boxed_answer(text) is not None if said is None else said not in unreadable)
        for text, said in zip(completions, outcome, strict=True)
    ]


def brevity(*, num_visible: list[int], free: int, longest: int, **columns: Any) -> Values:
    """0 for up to `free` visible tokens, and down to -1 at `longest` (DAPO's soft punishment, arXiv 2503.14476)."""
    room = max(1, longest - free)
    return [-min(1.0, max(0, count - free) / room) for count in num_visible]


class RewardFunction:
    """A function `FILE.py:NAME` or `package.module:NAME` in a process that answers one call within `seconds`.

    Raises RewardError for a source or a function that is not there.
    """

    def __init__(self, path: str, seconds: float) -> None:
        self.path, self.seconds = path, seconds
        source_of(path)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER), *path.rpartition(":")[::2], str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=STDERR,
                env=environment,
            )
        try:
            self.parameters = self._reply(START_SECONDS)
        except BaseException:
            self.close()
            raise

    def __call__(self, **columns: list[Any]) -> list[Any]:
        """What the function gives for these columns. Raises RewardError where it fails or takes too long."""
        with suppress(OSError):  # the process has ended, which its reply says
            self._pipe.send(columns)
        values = self._reply(self.seconds)
        if not isinstance(values, Iterable) or isinstance(values, str | Mapping):
            raise RewardError(f"the reward {self.path} gave {values!r:.80}; it must give a list, a number an answer")
        return list(values)

    def _reply(self, seconds: float) -> Any:
        """What the process sends. Raises RewardError."""
        if not self._pipe.poll(seconds):
            self._process.kill()
            raise RewardError(
                f"the reward {self.path} took more than {seconds:g} seconds and was ended; make it faster, or raise "
                "reward_seconds"
            )
        try:
            value, fault = self._pipe.recv()
        except (EOFError, OSError):
            raise RewardError(
                f"the process of the reward {self.path} ended (exit code {self._process.wait()})"
            ) from None
        if fault is not None:
            raise RewardError(f"the reward {self.path} failed: {fault}")
        return value

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()


def source_of(path: str) -> Path:
    """The file that holds the function at `path`. Raises RewardError if it is not found."""
    module, _, _ = path.rpartition(":")
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise RewardError(f"the reward {path}: there is no file {module!r} (from {Path.cwd()})")
        return Path(module)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise RewardError(f"the reward {path}: {error}") from error
    if spec is None or spec.origin is None:
        raise RewardError(f"the reward {path}: there is no module {module!r}; a file ends in .py")
    return Path(spec.origin)


@dataclass(frozen=True)
class Weighted:
    """One reward of several: its name in metrics, its weight, and the columns that it takes (None: all)."""

    title: str
    weight: float
    reward: Reward
    wanted: tuple[str, ...] | None = None

    def values(self, columns: Mapping[str, list[Any]]) -> list[float]:
        """The value of each answer, NaN for None. Raises RewardError for anything but a finite number or None."""
        given = columns if self.wanted is None else {name: columns[name] for name in self.wanted}
        try:
            values = list(self.reward(**given))
        except RewardError:
            raise
        except Exception as error:
            raise RewardError(f"the reward {self.title!r} failed with {type(error).__name__}: {error}") from error
        return checked(self.title, values, len(columns["completions"]))


def checked(title: str, values: list[Any], count: int) -> list[float]:
    """Rewards as floats, NaN for None. Raises RewardError for too many or too few, and where one is not finite."""
    if len(values) != count:
        raise RewardError(f"the reward {title!r} gave {len(values)} values for {count} answers; give one for each")
    found = []
    for place, value in enumerate(values):
        try:
            number = math.nan if value is None or isinstance(value, str) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if value is not None and not abs(number) < LARGEST:
            raise RewardError(
                f"the reward {title!r} gave {value!r:.80} for answer {place + 1} of {count}; give a number below "
                f"{LARGEST:.0e}, or None to leave the answer out of its group"
            )
        found.append(number)
    return found


@dataclass(frozen=True)
class Rewards:
    """R(tau), Eq. trajectory-reward: the sum of several rewards, each times its weight."""

    parts: tuple[Weighted, ...]
    verifier: Verifier = field(default_factory=Verifier)

    @classmethod
    def of(
        cls,
        config: GrpoConfig,
        settings: Sequence[RewardConfig],
        objective: ObjectiveConfig,
        longest: int,
        *,
        operators: bool,
    ) -> Self:
        """The rewards that a config names and that count (`counting`).

        Raises RewardError for a function that cannot be found or asks for a column that does not exist.
        """
        named = counting(settings, operators=operators)
        runs_code = any(one.name == "code" for one in settings)
        verifier = Verifier(objective.reward_seconds, runs_code, objective.packages)
        return cls(tuple(_weighted(one, config, objective, longest) for one in named), verifier)

    def close(self) -> None:
        """End the processes of functions."""
        for part in self.parts:
            if isinstance(part.reward, RewardFunction):
                part.reward.close()

    def __call__(
        self, problems: Sequence[Problem], answers: Sequence[Trajectory]
    ) -> tuple[Float[Tensor, " answers"], dict[str, Float[Tensor, " answers"]], list[Verdict | None]]:
        """Of one answer to each problem: the sum, NaN where it has none, which leaves it out of its group; the value of
        each reward, before its weight; and the verdict. Raises RewardError."""
        verdicts = self.verifier(problems, answers)
        columns = columns_of(problems, answers, verdicts)
        values = {part.title: torch.tensor(part.values(columns), dtype=torch.float32) for part in self.parts}
        total = torch.stack([part.weight * values[part.title] for part in self.parts if part.weight]).sum(dim=0)
        return total, values, verdicts


def _weighted(one: RewardConfig, config: GrpoConfig, objective: ObjectiveConfig, longest: int) -> Weighted:
    """One reward of a config, ready to be called."""
    built_in: dict[str, Reward] = {
        "verifier": verifier,
        "code": verifier,
        "budget": partial(overspending, allowed=config.budget, weight=config.budget_weight),
        "format": answer_format,
        "length": partial(brevity, free=one.free, longest=longest),
    }
    if one.name is not None:
        return Weighted(one.title, one.weight, built_in[one.name])
    assert one.path is not None, "a reward has a name or a path"
    function = RewardFunction(one.path, objective.reward_seconds)
    return Weighted(one.title, one.weight, function, wanted_columns(one.title, *function.parameters))


def wanted_columns(title: str, parameters: Sequence[tuple[str, bool]], takes_any: bool) -> tuple[str, ...] | None:
    """The columns that a reward takes; None for all. Raises RewardError for an unknown parameter."""
    if missing := [name for name, needed in parameters if needed and name not in COLUMNS]:
        raise RewardError(
            f"the reward {title!r} asks for the column {missing[0]!r}, which does not exist; there are "
            f"{', '.join(COLUMNS)}"
        )
    return None if takes_any else tuple(name for name, _ in parameters if name in COLUMNS)


def counting(settings: Sequence[RewardConfig], *, operators: bool) -> list[RewardConfig]:
    """The rewards that can be earned: the penalty of the budget is on `operators` alone.

    Raises RewardError where nothing is left to learn from.
    """
    kept = [one for one in settings if operators or one.name != "budget"]
    if all(one.weight == 0 for one in kept):
        raise RewardError(
            "nothing would be learned: the reward 'budget' is on operators, which this training has not, and no other "
            "has a weight; add one, as rewards: [{name: verifier}]"
        )
    return kept


def with_sources(config: Config, *, operators: bool = False) -> Config:
    """The config with the hashes of its rewards' sources, as a run keeps it; says which rewards have no effect.

    Raises RewardError for a function that cannot be loaded or asks for a column that does not exist, and as `counting`.
    """
    if len(counting(config.rewards, operators=operators)) < len(config.rewards):
        logger.info("the reward 'budget' has no effect: this training has no operators")
    return config.model_copy(update={"rewards": tuple(map(_with_source, config.rewards))})


def _with_source(one: RewardConfig) -> RewardConfig:
    if one.path is None:
        return one
    with closing(RewardFunction(one.path, START_SECONDS)) as function:
        wanted_columns(one.title, *function.parameters)
    return one.model_copy(update={"sha256": hashlib.sha256(source_of(one.path).read_bytes()).hexdigest()})


def origins(settings: Sequence[RewardConfig]) -> dict[str, str]:
    """What a run notes of the functions that it learns from, which `with_sources` has hashed."""
    return {f"the reward {one.path}": one.sha256 for one in settings if one.sha256 is not None}
