"""Whether the weights that an engine decodes with are still those it was brought up to date with.

Decoding runs on copies: adapters folded into the weights of a view. torch counts the writes to every tensor
(`Tensor._version`): an optimizer's step, `copy_` or `load_state_dict` shows there, and looking takes 0.1 us a tensor.
A write through `.data`, past that counter, does not: drop the engine after one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from tyler.modeling.lora import Adapted
from tyler.modeling.policy import Policy

Adaptable = Policy | Adapted
"""A module that may carry a LoRA, and the decoder that is made of it."""


class WeightWatch:
    """The tensors that an engine reads, and how often each had been written when it was brought up to date.

    `theta` is the frozen backbone; `adapted` are the modules that may carry a LoRA (None before there is one).
    """

    def __init__(self, theta: nn.Module, adapted: Sequence[Adaptable]) -> None:
        self._adapted, self._loras = adapted, [module.lora for module in adapted]
        self._frozen = list(theta.parameters())
        known = set(map(id, self._frozen))
        self._trained = [one for module in adapted for one in module.parameters() if id(one) not in known]
        self._writes = writes(self._frozen), writes(self._trained)

    @property
    def theta_changed(self) -> bool:
        """Whether the backbone itself was written."""
        return writes(self._frozen) != self._writes[0]

    @property
    def changed(self) -> bool:
        """Whether anything was written, or a LoRA has come or gone."""
        moved = any(module.lora is not lora for module, lora in zip(self._adapted, self._loras, strict=True))
        return moved or writes(self._trained) != self._writes[1] or self.theta_changed


def writes(tensors: Sequence[Tensor]) -> list[int]:
    """How often each tensor was written in place."""
    return [tensor._version for tensor in tensors]
