"""The section `memgen` of a config. Without torch."""

from tyler.config.loops import ObjectiveConfig, OptimizationConfig, TracesConfig
from tyler.config.sections import Count, LoraConfig, MethodConfig, NonNegative, Weight


class MemGenLoraConfig(LoraConfig):
    """The shape of MemGen's LoRAs, of weaver and trigger. Dropout acts in supervised training only."""

    rank: Count = 16
    alpha: Count = 32


class MemGenGrpoConfig(OptimizationConfig, ObjectiveConfig):
    """GRPO of the weaver: G rollouts a problem, advantages over std + epsilon, no KL term (beta is 0)."""

    max_new_tokens: Count = 2048
    """Visible tokens an answer may have."""


class MemGenTriggerConfig(MemGenGrpoConfig):
    """GRPO of the trigger: the weaver is frozen, the loss is at consulted positions only."""

    token_temperature: Weight = 0.0
    """Of the visible tokens, which are not learned; 0 is greedy, as in the release."""


class MemGenConfig(MethodConfig):
    """The baseline MemGen: latents after the prompt, and after delimiters where the trigger agrees."""

    prompt_latents: Count = 8
    """Latents of the block after the prompt."""
    inference_latents: Count = 8
    """Latents of every block after a delimiter."""
    max_insertions: NonNegative = 5
    """K: at most this many blocks after delimiters; the block after the prompt is not counted."""
    trigger_at_prompt: bool = False
    """Whether an active trigger decides on the prompt block too, as in the release; else that is always there."""
    lora: MemGenLoraConfig = MemGenLoraConfig()
    weaver: TracesConfig = TracesConfig()
    """Supervised training of the weaver, on the traces of Stage 1 in the same order."""
    weaver_grpo: MemGenGrpoConfig = MemGenGrpoConfig()
    trigger: MemGenTriggerConfig = MemGenTriggerConfig()

    @property
    def most_latents(self) -> int:
        return max(self.prompt_latents + self.max_insertions * self.inference_latents, self.inference_latents)
