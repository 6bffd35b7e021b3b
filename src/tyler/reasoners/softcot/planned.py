"""What a step of SoftCoT reads and trains. Without torch, for plans."""

from tyler.config.schema import Config
from tyler.training.planned import Shape, Step, on_traces


def softcot(shape: Shape, config: Config, section: str) -> Step:
    """The Linear learns; an assistant that is another model is not counted."""
    return on_traces(shape, config, section, None, shape.dim**2 + shape.dim)
