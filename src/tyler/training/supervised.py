"""The trainer of everything that learns from solution traces: Stage 1, SFT, SoftCoT and MemGen's weaver."""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import lt
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from tyler.config.loops import TracesConfig
from tyler.modeling.backbone import Backbone
from tyler.modeling.products import LowerCopies, WidenedProducts, lacks_instructions
from tyler.runs.run import TrainedRun
from tyler.training import distributed
from tyler.training.loop import Step, Trainable, Trainer, batch_at
from tyler.training.micro_batches import MicroBatches
from tyler.training.objectives import token_logprobs
from tyler.training.optimizer import Optimization
from tyler.training.packing import read_packed
from tyler.training.teacher_forcing import Trace

Item = TypeVar("Item", bound=Trace)
Model = TypeVar("Model", bound=Trainable)


class SupervisedTrainer(Trainer, Generic[Model, Item]):
    """Descends on the loss of batches of examples. A method overrides what is abstract here."""

    better = staticmethod(lt)

    def __init__(
        self, model: Model, examples: Sequence[Item], config: TracesConfig, development: Sequence[Item] = ()
    ) -> None:
        super().__init__(model, config, len(examples), development)
        self.model, self.examples = model, examples
        self.micro_batches = MicroBatches.of(config, model.backbone).or_rows(config.batch_size)
        self.products = autocast(model.backbone, config.autocast)
        self.copies = LowerCopies([model.backbone.model, self.module] if config.autocast else [])
        emulated = config.autocast and lacks_instructions(model.backbone.head[:1].bfloat16())
        self.widened: AbstractContextManager[object] = WidenedProducts() if emulated else nullcontext()

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """What learns."""

    @abstractmethod
    def batch_loss(self, part: Sequence[Item], num_targets: int) -> Tensor:
        """The loss of some examples of a batch that has `num_targets` targets in all."""

    def logprobs(
        self, decoder: PreTrainedModel, rows: Sequence[Tensor], part: Sequence[Item]
    ) -> Float[Tensor, " targets"]:
        """log p of every target of examples whose embedded tokens, without the last, are `rows`."""
        hidden = read_packed(decoder, rows, recompute=self.recomputed)
        states = [row[-len(one.target_ids) :] for row, one in zip(hidden, part, strict=True)]
        targets = torch.tensor([token for one in part for token in one.target_ids], device=self.backbone.device)
        return token_logprobs(torch.cat(states), self.backbone.head, targets)

    def num_positions(self, example: Item) -> int:
        return len(example)

    def describe(self, batch: Sequence[Item], seconds: float) -> dict[str, float]:
        """Metrics of a batch and of the seconds it took, without a prefix."""
        return {"tokens_per_second": sum(map(self.num_positions, batch)) / seconds}

    def batch(self, step: int) -> list[Item]:
        """The examples of a step, counted from 0: a function of the seed and the step."""
        loop = self.loop
        return [self.examples[index] for _, index in batch_at(step, loop.batch_size, len(self.examples), loop.seed)]

    @property
    def recomputed(self) -> bool:
        """Whether activations are computed again in the backward pass, where there is one."""
        return self.loop.gradient_checkpointing and torch.is_grad_enabled()

    @property
    def best(self) -> str:  # type: ignore[override]
        return f"{self.metrics.prefix}/development_loss"

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """All of the module that wants a gradient."""
        learned = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        return [(learned, self.loop.learning_rate)]

    def train(self, run: TrainedRun) -> None:
        self.module.train()
        super().train(run)
        self.module.eval()

    def step(self, step: Step, optimization: Optimization) -> tuple[dict[str, float], str]:
        started = time.perf_counter()
        batch = self.batch(step.number)
        loss = self.accumulate(batch, optimization.backward)
        norm, rate = optimization.step(step.number, [example.id for example in batch], loss=loss)
        seconds = time.perf_counter() - started
        metrics = {"loss": loss, "gradient_norm": norm, "learning_rate": rate, "seconds": seconds}
        metrics["skipped_updates"] = float(optimization.skipped)
        return metrics | self.describe(batch, seconds), f"loss {loss:.3f}"

    def accumulate(self, batch: Sequence[Item], backward: Callable[[Tensor], None] = Tensor.backward) -> float:
        """Add up the gradient of a batch's loss over the micro-batches of this process's share; returns the batch's
        loss."""
        count, total = sum(len(one.target_ids) for one in batch), 0.0
        mine = distributed.share(batch)
        with self.copies, self.widened:
            for places in self.micro_batches.split([self.num_positions(one) for one in mine]):
                with self.products:
                    loss = self.batch_loss([mine[place] for place in places], count)
                backward(loss)
                total += float(loss.detach())
        return sum(distributed.gather(total))

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """The loss of the development examples, without dropout."""
        training = self.module.training
        self.module.eval()
        loss = self.accumulate(self.development, lambda part: None)
        self.module.train(training)
        return {self.best: loss}


def autocast(backbone: Backbone, enabled: bool) -> torch.autocast:
    """Products in bfloat16 over float32 weights, around a forward pass; sums, norms and softmax stay float32.

    Raises ValueError for weights that are not float32, whose products are in their own dtype, and on an Apple GPU, on
    which no gradient of autocast has been compared.
    """
    if enabled and backbone.device.type == "mps":
        raise ValueError("autocast is for CPUs and CUDA devices; on an Apple GPU set autocast to false")
    if enabled and backbone.dtype != torch.float32:
        raise ValueError(f"autocast is for weights in float32, these are {backbone.dtype}; set autocast to false")
    return torch.autocast(backbone.device.type, torch.bfloat16, enabled=enabled)
