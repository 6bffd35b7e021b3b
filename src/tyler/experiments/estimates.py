"""What a cell costs before it is run: seconds and memory from shapes alone, as `tyler plan` has them.

Nothing is loaded. Each method is counted as what its steps are like: SFT and SoftCoT as one pass with gradients over
the traces, MemGen's weaver as Stage 1 with as many insertions, GRPO as Stage 2 without calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tyler.config.schema import Config
from tyler.experiments.cells import ALONE, UNTRAINED, Cell, Questions, Training
from tyler.experiments.scales import Scale
from tyler.modeling.architectures import settings_of
from tyler.planning import memory, plan
from tyler.planning.hardware import Device
from tyler.planning.memory import Read, Shape, Workload
from tyler.planning.plan import BYTES, dtype_on
from tyler.planning.roofline import (
    Costs,
    Lengths,
    log_probabilities,
    micro_batches,
    rollout_costs,
    total_seconds,
    training,
)
from tyler.reasoners.trainers import TRAINERS
from tyler.tasks.grading import find_task
from tyler.tasks.mini import SPLITS
from tyler.tasks.task import Generated

CALLS = 5
"""Of an answer with operators, where nothing says how many."""
UNMADE = (UNTRAINED, "merge")
"""Methods that train nothing."""
LIKE_STAGE1, ON_TRACES = ("stage1", "memgen"), ("sft", "softcot")
LOOP_KEYS = ("steps", "epochs", "batch_size", "micro_batch_size", "micro_batch_tokens", "gradient_checkpointing")
FALLBACK = 2000
"""Training problems where a config says neither steps nor how many."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of training and of answering, and the most bytes."""

    training: float
    answering: float
    memory: int

    @property
    def seconds(self) -> float:
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
        """Seconds of one training, without what it starts from."""
        method, config = training.method, training.config(preset, seed)
        if method in UNMADE:
            return 0.0
        lengths, shape, count = self.lengths(config, method), shape_of(config), config.data.examples or FALLBACK
        if method in ON_TRACES:
            dtype, loop = dtype_on(config, self.device), config.loops[method]
            costs = supervised_costs(shape, config, method, lengths, BYTES[dtype])
            return loop.num_steps(count) * total_seconds(costs, self.device, dtype)
        times = plan.times_on(shape, as_a_stage(method, config), lengths, self.device, count)
        return times.stage1_total if method in LIKE_STAGE1 else times.stage2_total

    def lengths(self, config: Config, method: str) -> Lengths:
        """Mean lengths, with calls where the method has any."""
        mean = self.scale.lengths
        found = plan.lengths_for(config, mean.prompt, mean.trace, mean.answer)
        return found if method == "stage2" else Lengths(found.prompt, found.target, found.answer, 0)

    def answering(self, cell: Cell) -> float:
        """Seconds of all answers, one by one where they are timed."""
        config = cell.training.config(cell.preset, cell.seed)
        if cell.measure in ALONE:
            config = plan.replaced(config, "decoding.slots", 1)
        mean = self.scale.lengths
        calls = CALLS if has_operators(cell) else 0
        lengths = Lengths(mean.prompt, mean.trace, min(mean.answer, cell.questions.max_new_tokens), calls)
        dtype = dtype_on(config, self.device)
        costs = rollout_costs(shape_of(config), config, lengths, number_of(cell.questions), BYTES[dtype])
        return total_seconds(costs, self.device, dtype)

    def memory(self, cell: Cell) -> int:
        """The most bytes that its trainings and answers hold at once."""
        config = cell.training.config(cell.preset, cell.seed)
        element, shape = BYTES[dtype_on(config, self.device)], shape_of(config)
        peaks = [sum(memory.rollout_memory(shape, config, Workload.of(config), element).values())]
        for one in cell.training.stages:
            if one.method not in UNMADE:
                like = as_a_stage(one.method, one.config(cell.preset, cell.seed))
                of = memory.stage1_memory if one.method in (*LIKE_STAGE1, *ON_TRACES) else memory.stage2_memory
                peaks.append(sum(of(shape, like, Workload.of(like), element).values()))
        return max(peaks)


def has_operators(cell: Cell) -> bool:
    """Whether a cell's answers invoke any."""
    decoding, method = cell.decoding, cell.training.method
    trained = method in ("stage1", "stage2") and decoding.router != "never" and decoding.budget != 0
    return decoding.method == "tyler" and (trained or decoding.router.startswith("boundaries"))


def shape_of(config: Config) -> Shape:
    """The architecture that a config's backbone has. Raises ValueError for one that is not known here."""
    return Shape.read(settings_of(config.backbone.id))


def as_a_stage(method: str, config: Config) -> Config:
    """The config with a method's loop in the place of the stage that its steps are like."""
    if method in ("stage1", "stage2", "grpo"):
        return config
    section, stage = (TRAINERS[method].loop, "stage1" if method in (*LIKE_STAGE1, *ON_TRACES) else "stage2")
    loop = config.loops[section]
    shared = {key: getattr(loop, key) for key in type(loop).model_fields if key in LOOP_KEYS}
    if method == "memgen":
        shared["insertions"] = config.stage1.insertions.model_copy(update={"max": config.memgen.max_insertions})
    return config.model_copy(update={stage: getattr(config, stage).model_copy(update=shared)})


def supervised_costs(shape: Shape, config: Config, method: str, lengths: Lengths, element: int) -> Costs:
    """One optimizer step over traces: a pass with gradients, and the log-probabilities of its targets."""
    loop, length = config.loops[method], lengths.prompt + lengths.target
    times, rows = micro_batches(loop, loop.batch_size, length)
    read = Read(rows, length, length, masked=False)
    heads = log_probabilities(shape, rows * lengths.target, element, gradients=True)
    return {
        "policy": training(shape, read, element, config.lora, loop.gradient_checkpointing) * times,
        "log-probabilities": heads * times,
    }


def number_of(asked: Questions) -> int:
    """How many problems are asked, without reading them."""
    task = find_task(asked.task)
    if asked.count is not None:
        return asked.count
    return SPLITS[asked.split].count if isinstance(task, Generated) else task.sources[asked.split].num_rows or FALLBACK
