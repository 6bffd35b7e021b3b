"""Soft-Thinking (Zhang et al., 2025), without training: the thought is read as mixtures of token embeddings.

While a row thinks, each step

1. p = softmax(logits / T) over V, and its entropy H, before any filter;
2. keeps the top k of p, then the top p of these, then those with at least `min_p` times the largest probability,
   renormalising after each; of what is left the `max_topk` largest, renormalised, are the weights w;
3. records the token of largest weight and reads sum_k w_k E[id_k].

The thought ends with the recorded token `</think>`, which is read as itself. Cold Stop: after `cold_stop_steps` steps
in a row with H < `cold_stop_entropy`, `</think>` is recorded whatever the model says, unless it says that the answer
ends. Then decoding is ordinary.
With `gumbel`, w becomes softmax((log w + g) / `gumbel_temperature`), sorted anew, with g from the request's own stream.

# Deviation: under greedy evaluation the thought is deterministic as above and what follows it is argmax; the release
cannot run greedily. Deviation: where the tokenizer has no `</think>`, or the prompt has closed its thought already, the
thought ends with the step that completes `answer_marker` in the recorded text, or where `soft_steps` or Cold Stop say
so, and the step that ends it records its top-1 token and reads it as itself. The release tests for the last sub-token
of `</think>` instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor

from tyler.config.sections import Count, NonNegative, PositiveShare, Rate, Share, Weight
from tyler.engine.routing import Never
from tyler.engine.sampling import Choice, Sampling
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.reasoners.cot import backbone_alone
from tyler.reasoners.method import LengthSetting, Method
from tyler.reasoners.tyler import TylerReasoner

END = "</think>"


@pydantic_dataclass(frozen=True)
class SoftThinkingSettings:
    """The defaults of the release's scripts for its paper.

    `temperature` is that of the thought; what follows has the request's own sampling. `top_k` 0 keeps all tokens,
    `cold_stop_entropy` 0 never stops. `soft_steps` caps the soft steps of a thought (None: no cap). The release's
    Gumbel runs have `max_topk` 5.
    """

    temperature: Rate = 0.6
    top_p: PositiveShare = 0.95
    top_k: NonNegative = 30
    min_p: Share = 0.001
    max_topk: Count = 10
    cold_stop_entropy: Weight = 0.01
    cold_stop_steps: Count = 256
    gumbel: bool = False
    gumbel_temperature: Rate = 0.5
    soft_steps: NonNegative | None = None
    answer_marker: Annotated[str, Field(min_length=1)] = "\\boxed"


@dataclass
class Memory:
    """One request's thought so far."""

    noise: np.random.Generator
    end: int | None  # the token that ends the thought; None: the answer marker does
    thinking: bool = True
    cold_steps: int = 0
    recorded: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class SoftThinking:
    """The rule, on one backbone: a `Sampler`."""

    backbone: Backbone
    settings: SoftThinkingSettings

    def start(self, prompt_ids: Sequence[int], sampling: Sampling, max_new_tokens: int) -> Memory:
        end = self.backbone.tokenizer.get_vocab().get(END)
        return Memory(sampling.stream(purpose=2), None if end in prompt_ids else end)

    def choose(
        self, logits: Float[Tensor, "rows vocab"], memories: Sequence[Memory], drawn: Sequence[int]
    ) -> list[Choice]:
        tokens, mixtures = list(drawn), dict[int, Tensor]()
        if thinking := [row for row, memory in enumerate(memories) if memory.thinking]:
            p = (logits[thinking] / self.settings.temperature).softmax(dim=-1)
            weights, ids = self._weights(p, [memories[row] for row in thinking])
            mixed = torch.einsum("rk,rkd->rd", weights.to(self.backbone.dtype), self.backbone.embed(ids))
            entropy = torch.special.entr(p).sum(dim=-1)
            steps = zip(thinking, ids[:, 0].tolist(), entropy.tolist(), mixed, strict=True)
            for row, top, uncertainty, mixture in steps:
                tokens[row] = self._think(memories[row], top, uncertainty)
                if memories[row].thinking:
                    mixtures[row] = mixture
        embeds = self.backbone.embed(torch.tensor(tokens, device=logits.device))
        for row, mixture in mixtures.items():
            embeds[row] = mixture
        soft = [row in mixtures for row in range(len(tokens))]
        return list(map(Choice, tokens, soft, [False] * len(tokens), embeds))

    def _weights(
        self, p: Float[Tensor, "rows vocab"], memories: Sequence[Memory]
    ) -> tuple[Float[Tensor, "rows kept"], Int[Tensor, "rows kept"]]:
        """The weights w of each row, largest first, and their tokens."""
        s = self.settings
        w, ids = p.topk(min(s.top_k or p.shape[-1], p.shape[-1]), dim=-1)
        w = w / w.sum(dim=-1, keepdim=True)
        before = w.cumsum(dim=-1) - w
        w = renormalized(w, before < s.top_p)
        w = renormalized(w, w >= s.min_p * w[:, :1])
        w, ids = w[:, : s.max_topk], ids[:, : s.max_topk]
        w = w / w.sum(dim=-1, keepdim=True)
        if s.gumbel:
            uniforms = torch.tensor(np.stack([memory.noise.random(w.shape[-1]) for memory in memories]))
            noise = -(-uniforms.log()).log()
            w = ((w.log() + noise.to(w)) / s.gumbel_temperature).softmax(dim=-1)
            w, order = w.sort(dim=-1, descending=True, stable=True)
            ids = ids.gather(-1, order)
        return w, ids

    def _think(self, memory: Memory, top: int, uncertainty: float) -> int:
        """One step of a thought: the token that is recorded. Afterwards `memory.thinking` says whether it was soft."""
        s = self.settings
        memory.cold_steps = memory.cold_steps + 1 if uncertainty < s.cold_stop_entropy else 0
        capped = s.soft_steps is not None and len(memory.recorded) >= s.soft_steps
        forced = capped or memory.cold_steps >= s.cold_stop_steps
        ends_answer = top in self.backbone.eos_ids  # the release looks for that before it looks at Cold Stop
        token = memory.end if forced and memory.end is not None and not ends_answer else top
        memory.recorded.append(token)
        memory.thinking = not (forced or (token == memory.end if memory.end is not None else self._marked(memory)))
        return token

    def _marked(self, memory: Memory) -> bool:
        """Whether the last token has completed the answer marker."""
        recent = memory.recorded[-len(self.settings.answer_marker) - 4 :]  # it is at most as many tokens as characters
        return self.settings.answer_marker in self.backbone.tokenizer.decode(recent)


def renormalized(w: Float[Tensor, "rows kept"], keep: Tensor) -> Float[Tensor, "rows kept"]:
    """The weights that are kept, over their sum; the largest always is."""
    keep[:, 0] = True
    w = w.masked_fill(~keep, 0.0)
    return w / w.sum(dim=-1, keepdim=True)


def reasoner(model: Tyler, settings: SoftThinkingSettings) -> TylerReasoner:
    """Soft-Thinking on a model's plain backbone."""
    return TylerReasoner(
        "soft-thinking", backbone_alone(model), router=Never(), sampler=SoftThinking(model.backbone, settings)
    )


METHOD = Method(SoftThinkingSettings, reasoner, (LengthSetting("soft_steps", only_shortens=True),))
