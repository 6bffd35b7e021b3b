"""MemGen transcribed from its description: one row, no cache, everything encoded again at every step.

From the implementation it borrows the models and the random streams (one uniform number per token, and one per answer
of the trigger, inverses of cumulative distributions in the order of ids); it shares no line with the engine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tyler.reasoners.memgen.model import MemGen


@dataclass
class Answer:
    """What one answer must be."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    blocks: list[tuple[str, int]] = field(default_factory=list)  # kind, visible tokens before it
    latents: list[Tensor] = field(default_factory=list)
    consultations: list[tuple[int, int, float]] = field(default_factory=list)  # visible tokens before, decision, log p


def embed(model: MemGen, ids: Sequence[int]) -> Tensor:
    return model.backbone.model.get_input_embeddings().weight[list(ids)]


def weave(model: MemGen, kind: str, x: Tensor) -> Tensor:
    """[r2w(X); s LayerNorm(Q)] through the LoRA'd model; w2r of the last hidden states at the queries."""
    weaver, head = model.weaver, model.weaver.heads[kind]
    mapped = x @ weaver.reasoner_to_weaver.weight.T + weaver.reasoner_to_weaver.bias
    centred = head.raw - head.raw.mean(dim=1, keepdim=True)
    normal = centred / (centred.pow(2).mean(dim=1, keepdim=True) + 1e-5).sqrt()
    queries = head.scale * (normal * head.norm.weight + head.norm.bias)
    together = torch.cat([mapped, queries])[None]
    hidden = weaver.lora(inputs_embeds=together, use_cache=False, output_hidden_states=True).hidden_states[-1][0]
    return hidden[len(x) :] @ weaver.weaver_to_reasoner.weight.T + weaver.weaver_to_reasoner.bias


def trigger_logits(model: MemGen, ids: Sequence[int]) -> Tensor:
    """Of (no, yes), from the last position over the ids alone."""
    trigger = model.trigger
    assert trigger is not None
    out = trigger.lora(input_ids=torch.tensor([list(ids)]), use_cache=False, output_hidden_states=True)
    return out.hidden_states[-1][0, -1] @ trigger.output.weight.T + trigger.output.bias


def ends_in_delimiter(model: MemGen, tokens: Sequence[int]) -> bool:
    text = model.backbone.tokenizer.decode(list(tokens), skip_special_tokens=False)
    return any(text.endswith(delimiter) for delimiter in (",", ".", "\n"))


def pick(logprobs: Tensor, temperature: float, uniforms: np.random.Generator | None) -> int:
    if temperature == 0:
        return int(logprobs.argmax())
    assert uniforms is not None
    left = uniforms.random()
    for index, logprob in enumerate(logprobs.tolist()):
        left -= math.exp(logprob)
        if left < 0:
            return index
    raise AssertionError("the uniform number is below 1")


def stream(seed: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, purpose])))


@torch.no_grad()
def decode(
    model: MemGen,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    trigger_temperature: float = 0.0,
    seed: int = 0,
) -> Answer:
    answer, x, inserted = Answer(), embed(model, prompt_ids), 0
    of_tokens, of_trigger = stream(seed, 0), stream(seed, 1)
    settings = model.settings
    for step in range(max_new_tokens):
        kind = ""
        if step == 0:
            kind = "prompt"
        elif ends_in_delimiter(model, [*prompt_ids, *answer.tokens]) and inserted < settings.max_insertions:
            kind = "inference"
        yes = bool(kind)
        if kind and model.trigger is not None and (step > 0 or settings.trigger_at_prompt):
            logits = trigger_logits(model, [*prompt_ids, *answer.tokens]).double()
            logprobs = (logits / (trigger_temperature or 1.0)).log_softmax(dim=0)
            decision = pick(logprobs, trigger_temperature, of_trigger)
            answer.consultations.append((step, decision, float(logprobs[decision])))
            yes = decision == 1
        if yes:
            answer.latents.append(weave(model, kind, x))
            answer.blocks.append((kind, step))
            x = torch.cat([x, answer.latents[-1]])
            inserted += kind == "inference"
        logits = model.backbone.model(inputs_embeds=x[None], use_cache=False).logits[0, -1].double()
        logprobs = (logits / (temperature or 1.0)).log_softmax(dim=0)
        token = pick(logprobs, temperature, of_tokens)
        answer.tokens.append(token)
        answer.logprobs.append(float(logprobs[token]))
        if token in model.backbone.eos_ids:
            break
        x = torch.cat([x, embed(model, [token])])
    return answer


def target_logprobs(
    model: MemGen, prompt_ids: Sequence[int], targets: Sequence[int], blocks: dict[int, str], temperature: float = 1.0
) -> Tensor:
    """log p of every target, one pass of the whole model for each, with gradients; `blocks` are before targets."""
    x, logprobs = embed(model, prompt_ids), []
    for position, target in enumerate(targets):
        if position in blocks:
            x = torch.cat([x, weave(model, blocks[position], x)])
        logits = model.backbone.model(inputs_embeds=x[None], use_cache=False).logits[0, -1]
        logprobs.append((logits / temperature).log_softmax(dim=0)[target])
        x = torch.cat([x, embed(model, [target])])
    return torch.stack(logprobs)


def training_blocks(model: MemGen, prompt_ids: Sequence[int], targets: Sequence[int]) -> dict[int, str]:
    """The prompt boundary and the first K places after a delimiter."""
    blocks, count = {0: "prompt"}, 0
    for position in range(1, len(targets)):
        if ends_in_delimiter(model, [*prompt_ids, *targets[:position]]) and count < model.settings.max_insertions:
            blocks[position], count = "inference", count + 1
    return blocks
