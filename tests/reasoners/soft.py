"""Tiny models that think, and the soft methods transcribed from the page: one row, no cache, one full pass a step."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from tests import tiny
from tests.reference import known_text, numbers, pick
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tyler.engine.request import Request
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.reasoners import soft_thinking, swireasoning
from tyler.tasks.prompts import Prompt

SIGNALS = ("<think>", "</think>", "\\n")


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """tiny's, with the tokens of thinking models."""
    thinking = PreTrainedTokenizerFast(
        tokenizer_object=type(tiny.tokenizer().backend_tokenizer).from_str(tiny.tokenizer().backend_tokenizer.to_str()),
        unk_token="<unk>",
        eos_token="<eos>",
        pad_token="<eos>",
    )
    thinking.add_tokens(list(SIGNALS))
    return thinking


@functools.cache
def model(family: str, thinks: bool = True, end_gain: float = 1.6) -> Tyler:
    """A random backbone; `end_gain` makes `</think>` likelier."""
    seed = tiny.SEEDS[family]
    if not thinks:
        return Tyler.start(tiny.build_backbone(family, seed), (), prompt=Prompt(instruction=""))
    config = tiny.config(family)
    config.vocab_size = len(tokenizer()) + tiny.PADDING
    network = tiny.CLASSES[family](config)
    tiny.randomize(network, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        network.get_output_embeddings().weight[tokenizer().get_vocab()["</think>"]] *= end_gain
    backbone = Backbone(id=f"thinking-{family}", model=network, tokenizer=tokenizer())
    return Tyler.start(backbone, (), prompt=Prompt(instruction=""))


@dataclass
class Answer:
    """What one answer must be, and what happened in it."""

    actions: list[int] = field(default_factory=list)
    is_soft: list[bool] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    happened: list[str] = field(default_factory=list)
    margin: float = math.inf  # how close any decision was: comparisons of entropies, gaps between the two best tokens


Step = Callable[[Tensor, Answer, int], tuple[int, Tensor, bool, bool]]
"""(logits, answer so far, t) -> (token, what is read, soft, ended)."""


@torch.no_grad()
def decode(tyler: Tyler, request: Request, step: Step) -> Answer:
    """Full passes over a growing matrix of embeddings."""
    network = tyler.backbone.model
    x = network.get_input_embeddings().weight[list(request.prompt_ids)]
    answer = Answer()
    while not answer.finish_reason:
        logits = network(inputs_embeds=x[None], use_cache=False).logits[0, -1].double()
        token, read, soft, ended = step(logits, answer, len(answer.actions))
        answer.actions.append(token)
        if token in tyler.backbone.eos_ids:
            answer.is_soft.append(False)
            answer.finish_reason = "eos"
            break
        answer.is_soft.append(soft)
        x = torch.cat([x, read[None].to(x)])
        if ended:
            answer.finish_reason = "stop"
        elif len(answer.actions) >= request.max_new_tokens or len(x) + 1 > tiny.MAX_POSITIONS:
            answer.finish_reason = "length"
    shown = answer.actions[:-1] if answer.finish_reason == "eos" else answer.actions
    answer.text = known_text(tyler, shown)
    return answer


def softmax(logits: Tensor) -> list[float]:
    return logits.softmax(dim=0).tolist()


def surprise(p: list[float]) -> float:
    """The entropy of p in nats."""
    return -sum(value * math.log(value) for value in p if value > 0)


def plain_token(logits: Tensor, request: Request, uniform: float) -> int:
    return pick((logits / request.sampling.scale).log_softmax(dim=0), request, uniform)


# --------------------------------------------------------------------------------------- Soft-Thinking


def soft_thinking_answer(tyler: Tyler, request: Request, s: soft_thinking.SoftThinkingSettings) -> Answer:
    table = tyler.backbone.model.get_input_embeddings().weight.detach().double()
    end = tyler.backbone.tokenizer.get_vocab().get("</think>")
    if end in request.prompt_ids:
        end = None
    uniforms, noise = numbers(request, purpose=0), numbers(request, purpose=2)
    thinking, cold = True, 0

    def step(logits: Tensor, answer: Answer, t: int) -> tuple[int, Tensor, bool, bool]:
        nonlocal thinking, cold
        uniform = uniforms.random()
        if not thinking:
            token = plain_token(logits, request, uniform)
            return token, table[token], False, False
        p = softmax(logits / s.temperature)
        entropy = surprise(p)
        answer.margin = min(answer.margin, abs(entropy - s.cold_stop_entropy))
        weights = mixture(p, s, noise)
        top = max(weights, key=weights.__getitem__)
        cold = cold + 1 if entropy < s.cold_stop_entropy else 0
        cap = s.soft_steps is not None and t >= s.soft_steps
        if cold >= s.cold_stop_steps or cap:
            thinking = False
            answer.happened.append("cold stop" if cold >= s.cold_stop_steps else "cap")
            token = top if end is None or top in tyler.backbone.eos_ids else end
            return token, table[token], False, False
        ends = top == end
        if end is None:
            ends = s.answer_marker in known_text(tyler, [*answer.actions, top])
        if ends:
            thinking = False
            answer.happened.append("end")
            return top, table[top], False, False
        return top, sum(weight * table[id] for id, weight in weights.items()), True, False  # type: ignore[return-value]

    return decode(tyler, request, step)


def mixture(p: list[float], s: soft_thinking.SoftThinkingSettings, noise) -> dict[int, float]:
    """The weights by token, after the three filters, the cut and the noise."""
    ranked = sorted(range(len(p)), key=lambda id: -p[id])
    kept = normalized({id: p[id] for id in (ranked[: s.top_k] if s.top_k else ranked)})
    passed, nucleus = 0.0, {}
    for id, weight in kept.items():
        if not nucleus or passed < s.top_p:
            nucleus[id] = weight
        passed += weight
    nucleus = normalized(nucleus)
    floor = s.min_p * max(nucleus.values())
    kept = normalized({id: weight for id, weight in nucleus.items() if weight >= floor})
    kept = normalized(dict(list(kept.items())[: s.max_topk]))
    if not s.gumbel:
        return kept
    draws = noise.random(min(s.max_topk, s.top_k or len(p)))
    raised = {
        id: math.exp((math.log(weight) - math.log(-math.log(u))) / s.gumbel_temperature)
        for (id, weight), u in zip(kept.items(), draws, strict=False)
    }
    return normalized(raised)


def normalized(weights: dict[int, float]) -> dict[int, float]:
    total = sum(weights.values())
    return {id: weight / total for id, weight in weights.items()}


# ---------------------------------------------------------------------------------------- SwiReasoning


def swireasoning_answer(tyler: Tyler, request: Request, s: swireasoning.SwiReasoningSettings) -> Answer:
    table = tyler.backbone.model.get_input_embeddings().weight.detach().double()
    words = tyler.backbone.tokenizer
    vocabulary = words.get_vocab()
    begin, end, line_break = (vocabulary.get(one) for one in SIGNALS)
    symbols = {id for one in swireasoning.SYMBOLS for id in words.encode(one, add_special_tokens=False)}
    close = s.close or ("</think>" if "qwen" in tyler.backbone.id else "\n\n</think>\n\n")
    closing = words.encode(close, add_special_tokens=False) if end is not None else []
    opening = ("</think>" if end is not None else "") + "\n\nThe final answer is"
    uniforms = numbers(request, purpose=0)
    mode, locked, stay, count, reference = "soft", False, 0, 0, 0.0
    forced: list[int] = []
    budget = -1

    def step(logits: Tensor, answer: Answer, t: int) -> tuple[int, Tensor, bool, bool]:
        nonlocal mode, locked, stay, count, reference, forced, budget
        p = softmax(logits)
        entropy = surprise(p)
        y = plain_token(logits, request, uniforms.random())
        if y == end and not locked:
            locked = True
            answer.happened.append(f"locked while {mode}")
        if forced:
            y, forced = forced[0], forced[1:]
            answer.happened.append("forced")
        to_normal = to_soft = False
        if t == 0:
            reference = entropy
        else:
            stay += 1
            answer.margin = min(answer.margin, abs(entropy - reference))
            to_normal = mode == "soft" and entropy < reference
            wants = mode == "normal" and entropy > reference
            if wants and (stay < s.window or locked):
                answer.happened.append("locked out" if stay >= s.window else "too early")
            to_soft = wants and stay >= s.window and not locked
            if to_normal or to_soft:
                mode = "normal" if to_normal else "soft"
                stay, reference = 0, entropy
                answer.happened.append(f"to {mode}")
            count += to_normal
        explicit = mode == "normal" or locked or y in symbols
        if explicit and mode == "soft" and not locked:
            answer.happened.append("symbol")
        expected = torch.tensor(p, dtype=torch.double) @ table
        read = table[y] if explicit else expected
        if t == 0 and not explicit and line_break is not None:
            read = 0.9 * expected + 0.1 * table[line_break]
        share = t / request.max_new_tokens
        if to_soft and not explicit and begin is not None:
            a = s.a0 + (1 - s.a0) * share
            read = a * expected + (1 - a) * table[begin]
        if to_normal and end is not None:
            b = s.b0 + (1 - s.b0) * share
            read = b * (table[y] if s.exit_mix == "token" else expected) + (1 - b) * table[end]
        if s.max_switches is not None:
            if to_normal and count > 2 * s.max_switches:
                forced = words.encode(opening, add_special_tokens=False)
                budget = s.answer_tokens
                answer.happened.append("opening")
            elif to_normal and count >= s.max_switches:
                forced = list(closing)
                answer.happened.append("closing")
            if budget >= 0:
                budget -= 1
        return y, read, not explicit, budget == 0

    return decode(tyler, request, step)
