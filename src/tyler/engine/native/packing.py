"""Weights laid out once for products with few rows, where a CPU decodes.

torch lays a weight out anew for every product, which with the rows of a decoding step takes as long as the
product itself. oneDNN, which comes with torch, multiplies by a weight that was laid out before: one to two and a half
times as fast for 1 to 32 rows, and never slower from SMALLEST numbers on. The price is a second copy of the weights.
"""

import functools
import platform
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from tyler.modeling.products import lacks_instructions

SMALLEST = 2**18
"""Numbers of a weight from which it is packed: a call takes 10 us longer than a plain product."""
LARGEST = 2**31
"""Bytes of the weights of a stack up to which they are packed: what is larger is not held twice."""
ROWS = 32
"""Rows that the layout is made for. It is as fast with fewer, and still ahead of a plain product with 2,000."""
FEWEST = 4
"""Rows that a product has at least, empty ones among them: weights that come from memory are read a quarter to a half
faster with four rows than with one, two or three, for which oneDNN has other code."""


_linear = torch.ops.mkldnn._linear_pointwise


class PackedWeight:
    """The packed copy of a weight, made again when what it was made of has been written since (`Tensor._version`).

    `parts` are the tensors whose writes count: those that lie one after another in `weight`.
    """

    def __init__(self, weight: Float[Tensor, "outputs inputs"], parts: Sequence[Tensor]) -> None:
        self._weight = weight.detach()  # shares the count of writes, and keeps no parameter alive
        self._parts = [part.detach() for part in parts]
        self._writes: list[int] = []
        self._packed = self._weight

    @torch.no_grad()
    def product(self, x: Float[Tensor, "rows inputs"], bias: Tensor | None = None) -> Float[Tensor, "rows outputs"]:
        """x W^T + b, without gradient."""
        return _linear(_padded(x), self._present(), bias, "none", [], "")[: len(x)]

    @torch.no_grad()
    def wide_product(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        """x W^T in float32, without gradient: a second product returns what the first one rounded away."""
        if x.dtype == torch.float32:
            return self.product(x)
        rows, packed = _padded(x), self._present()
        rounded = _linear(rows, packed, None, "none", [], "")
        return _linear.binary(rows, rounded.neg(), packed, None, "add").float().add_(rounded)[: len(x)]

    def _present(self) -> Tensor:
        writes = [part._version for part in self._parts]
        if writes != self._writes:
            self._packed, self._writes = torch.ops.mkldnn._reorder_linear_weight(self._weight, ROWS), writes
        return self._packed


def _padded(x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "more inputs"]:
    """At least FEWEST rows, of any but zero."""
    return torch.nn.functional.pad(x, (0, 0, 0, FEWEST - len(x))) if 0 < len(x) < FEWEST else x


_made: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""By the first part: both stacks of an engine, and all engines of a model, share the copies of what they share."""


def packed_weight(weight: Float[Tensor, "outputs inputs"], parts: Sequence[Tensor]) -> PackedWeight | None:
    """The packed copy of a weight; None where a plain product is as fast, or there is no other."""
    if weight.device.type != "cpu" or weight.numel() < SMALLEST or not can_pack(weight.dtype):
        return None
    known = _made.get(parts[0])
    if known is None or known._weight.shape != weight.shape or known._weight.data_ptr() != weight.data_ptr():
        _made[parts[0]] = known = PackedWeight(weight, parts)
    return known


def fits_twice(weights: Sequence[Tensor]) -> bool:
    """Whether a stack of these weights is small enough to be held twice."""
    return sum(weight.nbytes for weight in weights) <= LARGEST


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch, on this processor, multiplies by packed weights, and rightly: the interface is not public."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    weight, x = torch.arange(6.0, dtype=dtype).view(3, 2), torch.arange(4.0, dtype=dtype).view(2, 2)
    if dtype == torch.float64 or lacks_instructions(weight):
        return False
    expected, packed = x.float() @ weight.float().t(), PackedWeight(weight, [weight])
    try:
        return torch.equal(packed.product(x).float(), expected) and torch.equal(packed.wide_product(x), expected)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
