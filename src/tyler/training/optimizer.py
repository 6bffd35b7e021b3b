"""AdamW over parameter groups, with one schedule for all of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from tyler.config.loops import OptimizationConfig
from tyler.modeling.backbone import Backbone
from tyler.training import distributed

logger = logging.getLogger(__name__)

PEAK = "peak_learning_rate"

REMEDY = (
    "Checkpoints are unharmed. Look at these examples, or start over with a lower learning rate; at the very first "
    "step look at the backbone's weights and dtype"
)


def scaler_of(backbone: Backbone) -> torch.amp.GradScaler:
    """What keeps gradients of float16 products from vanishing; for other weights it does nothing."""
    return torch.amp.GradScaler(backbone.device.type, enabled=backbone.dtype == torch.float16)


@dataclass
class Optimization:
    """AdamW over parameter groups, with one schedule for all of them.

    An update whose loss or gradient is not finite is skipped and counted; more than `max_skipped` in a row end the run.
    """

    optimizer: torch.optim.AdamW
    scheduler: str
    warmup_steps: int
    total_steps: int
    max_grad_norm: float
    max_skipped: int = 0
    scaler: torch.amp.GradScaler = field(default_factory=lambda: torch.amp.GradScaler("cpu", enabled=False))
    skipped: int = 0
    """Updates that were skipped so far."""
    in_a_row: int = 0
    """How many of them since the last that was made."""

    @classmethod
    def of(
        cls,
        config: OptimizationConfig,
        groups: Sequence[tuple[list[nn.Parameter], float]],
        total_steps: int,
        scaler: torch.amp.GradScaler | None = None,
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
        found = cls(optimizer, config.scheduler, warmup, total_steps, config.max_grad_norm, config.max_skipped)
        return found if scaler is None else replace(found, scaler=scaler)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a part of the loss."""
        self.scaler.scale(loss).backward()

    def step(self, step: int, ids: Sequence[str] = (), loss: float = 0.0) -> tuple[float, float]:
        """Add up the processes' gradients, clip, update, forget them; `step` counts from 0.

        Returns the gradient norm and the learning rate. Where the norm or the `loss` is not finite, the weights stay
        as they are. Raises FloatingPointError where that happens more than `max_skipped` times in a row; `ids` name
        the batch.
        """
        factor = learning_rate_factor(self.scheduler, step, self.warmup_steps, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group[PEAK] * factor
        distributed.sum_gradients(self.parameters)
        if any(one.grad is not None for one in self.parameters):
            self.scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm))
        if math.isfinite(norm) and math.isfinite(loss):
            self.scaler.step(self.optimizer)
            self.in_a_row = 0
        else:
            self._skip(step, norm, loss, ids)
        if any(one.grad is not None for one in self.parameters):
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm, self.optimizer.param_groups[0]["lr"]

    def _skip(self, step: int, norm: float, loss: float, ids: Sequence[str]) -> None:
        """Count an update that is not made. Raises FloatingPointError at the limit."""
        self.skipped += 1
        self.in_a_row += 1
        what = f"the gradient's norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
        where = f"{what} at update {step + 1}; the batch was {', '.join(ids)}"
        if self.in_a_row > self.max_skipped:
            raise FloatingPointError(f"{where}. {REMEDY} ({self.in_a_row} in a row)")
        logger.warning("skipped an update: %s", where)


def learning_rate_factor(scheduler: str, step: int, warmup_steps: int, total_steps: int) -> float:
    """Linear warmup to 1, then a cosine to 0 ("cosine") or 1 for ever ("constant"); a function of the step alone."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if scheduler == "constant":
        return 1.0
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * progress))
