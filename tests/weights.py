"""What training moves: the tensors of a model, noted before and compared after."""

from torch import Tensor, nn

from tyler.model import Tyler


def tensors_of(**parts: nn.Module | None) -> dict[str, Tensor]:
    """A copy of every parameter and buffer of the parts, by `part.name`."""
    return {
        f"{part}.{name}": tensor.detach().clone()
        for part, module in parts.items()
        if module is not None
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    }


def everything_of(model: Tyler) -> dict[str, Tensor]:
    """Theta (through each view), phi, Q_k, Proj_k, eta and psi."""
    return tensors_of(theta=model.backbone.model, synthesizer=model.synthesizer, policy=model.policy)


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """The names of the tensors that differ in any bit."""
    return {name for name, tensor in before.items() if not tensor.equal(after[name])}
