"""What a cell costs before it is run: tokens that are learned and decoded, and bytes, from shapes alone.

Nothing is loaded. Bytes are those of `tyler plan`, for every method's own step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tyler.config.schema import Config
from tyler.experiments.cells import UNTRAINED, Cell, Questions, Training
from tyler.experiments.scales import Scale
from tyler.modeling.architectures import settings_of
from tyler.planning.memory import Shape
from tyler.planning.plan import BYTES, PHASES, Device, dtype_on
from tyler.reasoners.table import TRAININGS
from tyler.tasks.grading import find_task
from tyler.tasks.mini import SPLITS
from tyler.tasks.task import Generated

UNMADE = (UNTRAINED, "merge")
"""Methods that train nothing."""
FALLBACK = 2000
"""Training problems where a config says neither steps nor how many."""


@dataclass(frozen=True)
class Estimate:
    """Tokens of training and of answering, and the most bytes."""

    training: float
    answering: float
    memory: int

    @property
    def tokens(self) -> float:
        """Of both."""
        return self.training + self.answering


@dataclass(frozen=True)
class Estimator:
    """Estimates for one scale on one device; a training that several cells share is counted once."""

    scale: Scale
    device: Device

    def in_order(self, cells: Sequence[Cell]) -> list[Estimate]:
        """One estimate for each cell; a training is the first cell's that needs it, and costs the others nothing."""
        found, made = [], set[tuple[Training, str, int]]()
        for cell in cells:
            needed = [(one, cell.preset, cell.seed) for one in cell.training.stages]
            spent = sum(self.training(*one) for one in needed if one not in made)
            made.update(needed)
            found.append(Estimate(spent, self.answering(cell), self.memory(cell)))
        return found

    def training(self, training: Training, preset: str, seed: int) -> float:
        """Tokens that one training reads or samples, without what it starts from."""
        method, config = training.method, training.config(preset, seed)
        if method in UNMADE:
            return 0.0
        section = TRAININGS[method].loop if method in TRAININGS else method
        loop, mean = config.loops[section], self.scale.lengths
        rewarded = hasattr(loop, "max_new_tokens")
        length = mean.prompt + (mean.answer if rewarded else mean.trace)
        return loop.num_steps(config.data.examples or FALLBACK) * config.rows(section) * length

    def answering(self, cell: Cell) -> float:
        """Tokens of all answers."""
        longest = min(self.scale.lengths.answer, cell.questions.max_new_tokens)
        return number_of(cell.questions) * (self.scale.lengths.prompt + longest)

    def memory(self, cell: Cell) -> int:
        """The most bytes that its trainings and answers hold at once."""
        config = cell.training.config(cell.preset, cell.seed)
        element, shape = BYTES[dtype_on(config, self.device)], shape_of(config)
        peaks = [sum(PHASES["rollout"](shape, config, element).values())]
        for one in cell.training.stages:
            if one.method not in UNMADE:
                made = one.config(cell.preset, cell.seed)
                peaks.append(sum(PHASES[f"{one.method} step"](shape, made, element).values()))
        return max(peaks)


def shape_of(config: Config) -> Shape:
    """The architecture that a config's backbone has. Raises ValueError for one that is not known here."""
    return Shape.read(settings_of(config.backbone.id))


def number_of(asked: Questions) -> int:
    """How many problems are asked, without reading them."""
    task = find_task(asked.task)
    if asked.count is not None:
        return asked.count
    return SPLITS[asked.split].count if isinstance(task, Generated) else task.sources[asked.split].num_rows or FALLBACK
