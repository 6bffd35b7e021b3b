"""CoT: the frozen backbone with the shared prompt, greedy. Token for token what `transformers`' `generate` decodes."""

from dataclasses import dataclass, replace

from tyler.engine.routing import Never
from tyler.model import Tyler
from tyler.reasoners.method import Method
from tyler.reasoners.tyler import TylerReasoner


@dataclass(frozen=True)
class NoSettings:
    """There is nothing to set."""


def backbone_alone(model: Tyler) -> Tyler:
    """The model's backbone alone, with the model's prompt and on its engine: no operators, no adapter."""
    if model.stage == "backbone":
        return model
    return replace(Tyler.start(model.backbone, (), prompt=model.prompt), decoder=model.decoder)


def reasoner(model: Tyler, settings: NoSettings) -> TylerReasoner:
    """CoT on a model's plain backbone."""
    return TylerReasoner("cot", backbone_alone(model), router=Never())


METHOD = Method(NoSettings, reasoner)
