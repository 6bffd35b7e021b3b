"""AdamW over parameter groups, with one schedule for all of them, and what the next step depends on besides the model:
exact weights, optimizer, random generators."""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tyler.config.loops import OptimizationConfig
from tyler.modeling.backbone import Backbone
from tyler.runs.checkpoints import reading
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
    config: OptimizationConfig
    total_steps: int
    scaler: torch.amp.GradScaler
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
    ) -> Self:
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
        distributed.broadcast_from_rank_zero(parameter for parameters, _ in groups for parameter in parameters)
        return cls(optimizer, config, total_steps, scaler or torch.amp.GradScaler("cpu", enabled=False))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def step(self, step: int, ids: Sequence[str] = (), loss: float = 0.0) -> tuple[float, float]:
        """Add up the processes' gradients, clip, update, forget them; `step` counts from 0.

        Returns the gradient norm and the learning rate. Where the norm or the `loss` is not finite, the weights stay
        as they are. Raises FloatingPointError where that happens more than `max_skipped` times in a row; `ids` name
        the batch.
        """
        warmup = math.ceil(self.config.warmup_ratio * self.total_steps)
        factor = learning_rate_factor(self.config.scheduler, step, warmup, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group[PEAK] * factor
        distributed.sum_gradients(self.parameters)
        if any(one.grad is not None for one in self.parameters):
            self.scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm))
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
        if self.in_a_row > self.config.max_skipped:
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


# --- what the next step depends on besides the model ------------------------------------------------------------------


def save_state(folder: Path, parameters: Sequence[Tensor], optimization: Optimization, *, steps_done: int) -> None:
    """Write everything the next step depends on besides the checkpoint: exact weights, optimizer, random generators."""
    tensors = {f"parameter.{index}": tensor.detach().cpu().clone() for index, tensor in enumerate(parameters)}
    for index, state in optimization.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value.detach().cpu().clone() for name, value in state.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        tensors["random.mps"] = torch.mps.get_rng_state()
    save_file(tensors, folder / "state.safetensors")
    kept = {"steps_done": steps_done, "skipped": optimization.skipped, "in_a_row": optimization.in_a_row}
    (folder / "state.json").write_text(json.dumps(kept | {"scaler": optimization.scaler.state_dict()}))


def state_bytes(parameters: Sequence[Tensor]) -> int:
    """The size of what `save_state` writes: the exact weights and AdamW's two moments of each."""
    return 3 * sum(tensor.nbytes for tensor in parameters)


def load_state(folder: Path, parameters: Sequence[Tensor], optimization: Optimization) -> int:
    """Put back what `save_state` wrote; returns the number of steps done.

    Raises RunError for a damaged checkpoint, ValueError for one that does not fit.
    """
    with reading(folder):
        tensors = load_file(folder / "state.safetensors")
        saved = [
            tensors[f"parameter.{place}"] for place in range(sum(name.startswith("parameter.") for name in tensors))
        ]
        generator, kept = tensors["random.cpu"], json.loads((folder / "state.json").read_text())
        done, skipped, in_a_row = (int(kept.get(name, 0)) for name in ("steps_done", "skipped", "in_a_row"))
    if [one.shape for one in saved] != [one.shape for one in parameters]:  # copying would stretch them
        raise ValueError(
            f"{folder} holds {len(saved)} trained tensors of other shapes than the {len(parameters)} of this run: the "
            "config, the code or the backbone has changed"
        )
    with torch.no_grad():
        for parameter, tensor in zip(parameters, saved, strict=True):
            parameter.copy_(tensor)
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = tensor
    groups = optimization.optimizer.state_dict()["param_groups"]
    optimization.optimizer.load_state_dict({"state": state, "param_groups": groups})
    optimization.skipped, optimization.in_a_row = skipped, in_a_row
    if optimization.scaler.is_enabled():
        optimization.scaler.load_state_dict(kept["scaler"])
    torch.set_rng_state(generator)
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    if "random.mps" in tensors and torch.backends.mps.is_available():
        torch.mps.set_rng_state(tensors["random.mps"])
    return done
