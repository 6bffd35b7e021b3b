"""The section `softcot` of a config. Without torch."""

from pydantic import field_validator

from tyler.config.loops import TracesConfig
from tyler.config.sections import BatchSize, Count, MethodConfig, Rate


class SoftCotConfig(TracesConfig, MethodConfig):
    """SoftCoT: a Linear learns to carry an assistant's soft thoughts to the backbone, on the traces of Stage 1."""

    epochs: Rate | None = 10.0
    batch_size: BatchSize = 4
    learning_rate: Rate = 2e-5
    assistant: str | None = None
    """The frozen model that thinks; null for the backbone itself."""
    num_thoughts: Count = 32
    """N in training."""
    eval_thoughts: Count = 4
    """N at evaluation."""
    request: str = (
        "Another model has to solve the problem below. Answer with {n} tokens that help it most.\n\nProblem: {problem}"
    )
    """What the assistant is asked."""
    learn_header: bool = True
    """Whether the header of the assistant's turn is learned too, as in the release; decoding has it in the prompt."""
    hint: str = (
        "An assistant left the following tokens as help. Use them where they are right, and do not rely on them."
    )
    """What the backbone reads in front of the thoughts; empty for nothing."""

    @field_validator("request")
    @classmethod
    def _request_has_the_problem(cls, request: str) -> str:
        if "{problem}" not in request:
            raise ValueError("the text has no {problem}, the place of the problem")
        return request

    @property
    def most_latents(self) -> int:
        return self.num_thoughts
