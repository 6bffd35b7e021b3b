"""How much memory a computation holds, to the byte: every storage that its operations made, while it lives."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Counts what is allocated inside a `with`, saved activations and the inputs of checkpointed functions alike."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        """The most bytes that were alive at once, after an operation."""
        self._at_most = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        before = {
            tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)
        }
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in before:
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                self._at_most += storage.nbytes()
                if self._at_most > self.peak:  # else counting what lives would find no new peak
                    self._at_most = self.alive()
                    self.peak = max(self.peak, self._at_most)
        return result

    def alive(self) -> int:
        """Bytes of the storages made so far that something still holds."""
        self._made = {address: storage for address, storage in self._made.items() if not storage[0].expired()}
        return sum(size for _, size in self._made.values())
