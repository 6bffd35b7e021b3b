"""AdamW over parameter groups, with one schedule for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tyler.config.loops import OptimizationConfig
from tyler.training import distributed

PEAK = "peak_learning_rate"

REMEDY = (
    "Checkpoints are unharmed. Look at these examples, or start over with a lower learning rate; at the very first "
    "step look at the backbone's weights and dtype"
)


@dataclass(frozen=True)
class Optimization:
    """AdamW over parameter groups, with one schedule for all of them."""

    optimizer: torch.optim.AdamW
    scheduler: str
    warmup_steps: int
    total_steps: int
    max_grad_norm: float

    @classmethod
    def of(
        cls, config: OptimizationConfig, groups: Sequence[tuple[list[nn.Parameter], float]], total_steps: int
    ) -> Optimization:
        """`groups` pairs parameters with their peak learning rate; every process starts from the first one's values.

        Raises ValueError for a batch that has less than one example for each process.
        """
        if config.batch_size < distributed.world():
            raise ValueError(
                f"batch_size={config.batch_size} leaves some of the {distributed.world()} processes without an "
                "example; raise it or start fewer"
            )
        optimizer = torch.optim.AdamW(
            [{"params": parameters, "lr": rate, PEAK: rate} for parameters, rate in groups],
            weight_decay=config.weight_decay,
        )
        distributed.copy_from_first(parameter for parameters, _ in groups for parameter in parameters)
        warmup = math.ceil(config.warmup_ratio * total_steps)
        return cls(optimizer, config.scheduler, warmup, total_steps, config.max_grad_norm)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def step(self, step: int, ids: Sequence[str] = ()) -> tuple[float, float]:
        """Add up the processes' gradients, clip, update, forget them; `step` counts from 0.

        Returns the gradient norm and the learning rate.

        Raises FloatingPointError at a gradient that is not finite, before it reaches the weights; `ids` name the batch.
        """
        factor = learning_rate_factor(self.scheduler, step, self.warmup_steps, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group[PEAK] * factor
        distributed.sum_gradients(self.parameters)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        if not bool(norm.isfinite()):
            raise FloatingPointError(
                f"the gradient's norm is {float(norm)} at update {step + 1}; the batch was {', '.join(ids)}. {REMEDY}"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm), self.optimizer.param_groups[0]["lr"]


def learning_rate_factor(scheduler: str, step: int, warmup_steps: int, total_steps: int) -> float:
    """Linear warmup to 1, then a cosine to 0 ("cosine") or 1 for ever ("constant"); a function of the step alone."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if scheduler == "constant":
        return 1.0
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * progress))
