"""x W^T of half-precision weights with a float32 result, and the sum with a LoRA's product that is rounded once.

A product of bfloat16 or float16 matrices is summed in float32 and rounded to eight or eleven bits. What is added to the
rounded result is lost where it is below half a unit of it, and the adapter of the first hundred steps at the paper's
rate is. Rollout, replay and learner therefore add an adapter to the sum before it is rounded, all by `adapted_product`;
and logits, whose rounding would move a log-probability by an eighth, are never rounded.
"""

import platform
from collections.abc import Iterable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

WIDE = 24
"""Positions from which a half-precision product on a CPU without its instructions is faster after widening."""


def wide_product(x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"]) -> Tensor:
    """x W^T in float32 or wider, of a frozen weight: the gradient reaches x alone.

    In bfloat16 and float16 it is exact to about 1e-5 of the largest number of the result.
    """
    if x.dtype != weight.dtype or x.dtype not in (torch.bfloat16, torch.float16):
        return nn.functional.linear(x, weight)
    if x.dim() != 2:
        return wide_product(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], len(weight))
    if torch.is_grad_enabled() and x.requires_grad:
        product: Tensor = _WideProduct.apply(x, weight)
        return product
    return _in_float32(x, weight)


def rounded_product(
    x: Float[Tensor, "rows inputs"], weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"] | None
) -> Float[Tensor, "rows outputs"]:
    """x W^T + b in the dtype of both; widened where a CPU would emulate it slower."""
    if len(x) < WIDE or not lacks_instructions(weight):
        return nn.functional.linear(x, weight, bias)
    return nn.functional.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


class _WideProduct(torch.autograd.Function):
    """`wide_product`, whose gradient is computed as that of any product in half precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return _in_float32(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weight,), (gradient,) = ctx.saved_tensors, gradients
        return gradient.to(weight.dtype) @ weight, None


def _in_float32(x: Float[Tensor, "rows inputs"], weight: Float[Tensor, "outputs inputs"]) -> Tensor:
    if x.is_cuda:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    if len(x) >= WIDE and lacks_instructions(weight):
        return torch.mm(x.float(), weight.float().t())
    # No CPU kernel returns its float32 sums: a second product returns what the first one rounded away.
    rounded = torch.mm(x, weight.t())
    return torch.addmm(rounded, x, weight.t(), beta=-1).float().add_(rounded)


def adapted_product(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    dropped: Float[Tensor, "*batch inputs"],
    down: Float[Tensor, "rank inputs"],
    up: Float[Tensor, "outputs rank"],
) -> Float[Tensor, "*batch outputs"]:
    """x W^T + (x A^T) B^T + b in half precision, summed in float32 and rounded once; A reads x after dropout.

    The low-rank product is in float32; as an addend of the sum it has the precision of x, relative to itself.
    """
    low_rank = nn.functional.linear(nn.functional.linear(dropped.to(down.dtype), down), up)
    if bias is not None:
        return (wide_product(x, weight) + low_rank + bias).to(x.dtype)
    added = low_rank.to(x.dtype).view(-1, len(weight))
    return torch.addmm(added, x.reshape(-1, x.shape[-1]), weight.t()).view(*x.shape[:-1], len(weight))


def autocast_product(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    dropout: nn.Module,
    down: Float[Tensor, "rank inputs"],
    up: Float[Tensor, "outputs rank"],
) -> Float[Tensor, "*batch outputs"]:
    """x W^T + (x A^T) B^T + b of a frozen W, all products in the dtype of autocast; A reads x after dropout.

    One step of the graph, for which torch's autocast and autograd would need fifteen.
    """
    lower = torch.get_autocast_dtype(x.device.type)
    with torch.autocast(x.device.type, enabled=False):
        flat = x.reshape(-1, x.shape[-1]).to(lower)
        kept = flat if isinstance(dropout, nn.Identity) or not dropout.training else dropout(flat)
        product: Tensor = _AutocastProduct.apply(flat, kept, weight.to(lower), down, up)
        if bias is not None:
            product = product + bias.to(lower)
    return product.view(*x.shape[:-1], len(weight))


class LowerCopies:
    """Within it frozen maps of float32 are those of bfloat16: what autocast would make of them, made once.

    torch keeps what it casts only of weights that learn. It would cast each frozen one in every pass, and every graph
    would hold copies of its own until its backward pass.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.made: list[tuple[nn.Linear, nn.Parameter, nn.Parameter]] = []
        lower: dict[int, nn.Parameter] = {}  # two modules may hold one weight
        for layer in (layer for module in modules for layer in module.modules() if isinstance(layer, nn.Linear)):
            weight = cast(nn.Parameter, layer.weight)
            if weight.requires_grad or weight.dtype != torch.float32 or type(weight.data) is not Tensor:
                continue  # a share of a weight (FSDP) is cast where it is gathered
            if id(weight) not in lower:
                lower[id(weight)] = nn.Parameter(weight.detach().bfloat16(), requires_grad=False)
            self.made.append((layer, weight, lower[id(weight)]))

    def __enter__(self) -> None:
        for layer, _weight, copy in self.made:
            layer.weight = copy

    def __exit__(self, *_: object) -> None:
        for layer, weight, _copy in self.made:
            layer.weight = weight


class WidenedProducts(TorchDispatchMode):
    """Within it products of bfloat16 matrices are those of float32, rounded once.

    For a CPU without bfloat16's instructions, whose emulation makes a training step 20 times as long. It reaches what
    `rounded_product` does not: products of backward passes, and those that torch's autocast makes.
    """

    PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in self.PRODUCTS or args[-1].dtype != torch.bfloat16:
            return func(*args, **(kwargs or {}))
        return func(*(factor.float() for factor in args), **(kwargs or {})).bfloat16()


class _AutocastProduct(torch.autograd.Function):
    """`autocast_product` of rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: Tensor, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        a, b = down.to(x.dtype), up.to(x.dtype)
        low_rank = dropped @ a.t()
        ctx.save_for_backward(dropped, low_rank, weight, a, b)
        ctx.same = dropped is x
        return torch.addmm(low_rank @ b.t(), x, weight.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dropped, low_rank, weight, a, b = ctx.saved_tensors
        (gradient,) = gradients
        to_low_rank = gradient @ b
        to_down, to_up = (to_low_rank.t() @ dropped).float(), (gradient.t() @ low_rank).float()
        to_dropped = to_low_rank @ a
        if not ctx.needs_input_grad[0]:
            return None, to_dropped if ctx.needs_input_grad[1] else None, None, to_down, to_up
        if ctx.same:
            return torch.addmm(to_dropped, gradient, weight), None, None, to_down, to_up
        return gradient @ weight, to_dropped, None, to_down, to_up


def lacks_instructions(weight: Tensor) -> bool:
    """Whether products of this weight are emulated: bfloat16 on an x86 CPU that cannot multiply it."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or platform.machine() not in ("x86_64", "AMD64"):
        return False
    return not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
