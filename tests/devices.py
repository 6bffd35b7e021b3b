"""The devices that oracles are held on besides the CPU: a GPU where there is one, and a stand-in for Apple's elsewhere.

The stand-in has what breaks programs on MPS: it refuses float64, a tensor on it and one on the CPU do not meet in one
operation, and `device.type` is "mps". What is asked of it the CPU computes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

MPS, CPU = torch.device("mps", 0), torch.device("cpu")

ACROSS = {"copy_", "to", "__set__", "__getitem__", "index_select"}
"""What takes tensors of two devices: copies, and indices from the host."""


class OnStandIn(Tensor):
    """A tensor that is on the stand-in."""


class StandIn(TorchFunctionMode):
    """While active, `mps` is a device, on which the CPU computes."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], arguments: Any = (), named: Any = None
    ) -> Any:
        named = named or {}
        if function is torch._has_compatible_shallow_copy_type:  # asked by Module.to, whether .data = can move a weight
            return False
        if function is torch.device or function.__name__ == "_parse_to":  # the latter reads the arguments of Module.to
            return function(*arguments, **named)
        there = OnStandIn in types
        if there and getattr(function, "__self__", None) is Tensor.device:
            return MPS
        check_meeting(function, arguments, named)
        moves = {device for argument in (*arguments, *named.values()) if (device := device_named(argument))}
        if MPS in moves:
            arguments = [CPU if device_named(argument) == MPS else argument for argument in arguments]
            named = {key: CPU if device_named(argument) == MPS else argument for key, argument in named.items()}
        with torch._C.DisableTorchFunctionSubclass():
            value = function(*arguments, **named)
            if MPS in moves or (there and CPU not in moves and function is not Tensor.cpu):
                return each(value, to_stand_in)
            return each(value, to_cpu)


def check_meeting(function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise RuntimeError where tensors of two devices meet; gradients come from torch's engine without a device."""
    if function.__name__ in ACROSS:
        return
    if function.__name__ == "__setitem__":  # values go anywhere by slices, and by indices on their own device
        target, index, value = arguments
        arguments = (target, value) if index_of_tensors(index) else ()
    by_device: dict[bool, Any] = {}
    for argument in (*arguments, *named.values()):
        each(
            argument,
            lambda tensor: by_device.setdefault(isinstance(tensor, OnStandIn), tensor) if tensor.dim() else None,
        )
    if len(by_device) > 1 and torch._C._current_graph_task_id() == -1:
        raise RuntimeError(f"{function.__name__}: tensors are on two devices, mps and cpu")


def index_of_tensors(index: object) -> bool:
    return any(isinstance(item, Tensor) for item in (index if isinstance(index, tuple) else (index,)))


def each(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The value with every tensor of it changed."""
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return change(value)
    if type(value) in (list, tuple):
        return type(value)(each(item, change) for item in value)
    if isinstance(value, tuple) and hasattr(value, "n_fields"):  # what torch returns under names, as of max or topk
        return type(value)([each(item, change) for item in value])
    return value


def device_named(argument: object) -> torch.device | None:
    """The device that an argument names."""
    if isinstance(argument, str) and argument in ("mps", "mps:0", "cpu"):
        argument = torch.device(argument)
    if not isinstance(argument, torch.device):
        return None
    return MPS if argument.type == "mps" else argument


def to_stand_in(tensor: Tensor) -> Tensor:
    if tensor.dtype in (torch.float64, torch.complex128):
        raise TypeError("the MPS framework doesn't support float64")
    if tensor.is_leaf and tensor.requires_grad and not isinstance(tensor, Parameter):  # made there: it stays a leaf
        return tensor.detach().as_subclass(OnStandIn).requires_grad_()
    return tensor if isinstance(tensor, OnStandIn) else tensor.as_subclass(OnStandIn)


def to_cpu(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Tensor) if isinstance(tensor, OnStandIn) else tensor


@contextmanager
def ready(name: str, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """The device by its name in torch, ready for use; skips the test where this machine does not have it."""
    apple = torch.backends.mps.is_available()
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if name == "mps" and not apple:
        pytest.skip("needs an Apple GPU; its stand-in is tried instead")
    if name == "stand-in" and apple:
        pytest.skip("stands in for the Apple GPU that is here")
    if name != "stand-in":
        yield name
        return
    patch.setattr(torch.backends.mps, "is_available", lambda: True)
    move = PreTrainedModel.to
    # Weights move one by one here, and tied ones part on the way.
    patch.setattr(PreTrainedModel, "to", lambda model, *where: (move(model, *where), model.tie_weights())[0])
    patch.setattr(torch.mps, "synchronize", lambda: None)
    patch.setattr(torch.mps, "get_rng_state", torch.get_rng_state)
    patch.setattr(torch.mps, "set_rng_state", torch.set_rng_state)
    patch.setattr(torch.mps, "recommended_max_memory", lambda: 2**30)
    patch.setattr(torch.mps, "driver_allocated_memory", lambda: 0)
    with StandIn():
        yield "mps"
