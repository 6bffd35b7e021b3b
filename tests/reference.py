"""Section 3 of the paper transcribed from the page: no cache, no batch, no folding, no attention to speed.

x_t is a matrix that grows. Each decision is one full pass of the LoRA'd policy over x_t, each operator call one full
pass of the LoRA'd synthesizer over [x_t; Q_k]. From the implementation it borrows the models, the random streams (one
uniform number per decision, inverse of the cumulative distribution in action order) and, for `AtBoundaries`, the text
rule; it shares no line with the engine.
"""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tyler.boundaries.scanner import RULES, BoundaryScanner
from tyler.engine.request import Request
from tyler.engine.routing import AtBoundaries, Forced, Never
from tyler.model import Tyler
from tyler.modeling.synthesis import ConstantHead


@dataclass
class Answer:
    """What one answer must be: the engine's Trajectory, as far as the paper determines it."""

    actions: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    invocations: list[tuple[str, int, int, int]] = field(
        default_factory=list
    )  # operator, position, num_latents, action
    latents: list[Tensor] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    held: list[int] = field(default_factory=list)  # tokens that were committed again after each call's latents


def decode(model: Tyler, request: Request) -> Answer:
    """The answer to `request`."""
    return learned(model, request) if request.router.learned else scheduled(model, request)


# -------------------------------------------------------------------------------- the model, in passes


@torch.no_grad()
def action_logprobs(model: Tyler, x: Tensor, allowed: list[bool], temperature: float) -> Tensor:
    """log p_{theta,eta,psi}(. | x_1..t) over V' after every position t of x [seq, dim]: [seq, V + K], float64.

    V' = V and U: three more rows psi in the LM head; operators that may not be invoked have probability 0.
    """
    policy = model.backbone.model if model.policy.lora is None else model.policy.lora
    out = policy(inputs_embeds=x[None], use_cache=False, output_hidden_states=True)
    hidden = out.hidden_states[-1][0]
    logits = torch.cat([out.logits[0], hidden @ model.policy.psi.T], dim=1).double() / temperature
    for k, may in enumerate(allowed):
        if not may:
            logits[:, model.backbone.vocab_size + k] = -math.inf
    return logits.log_softmax(dim=1)


@torch.no_grad()
def synthesize(model: Tyler, operator: str, x: Tensor) -> Tensor:
    """z_t^k = Proj_k(Synth_{theta,phi}([x_t; Q_k])_query), Eqs. synth-intermediate and synth-final."""
    head = model.heads[operator]
    if isinstance(head, ConstantHead):  # an intervention
        return head.latents.detach()
    queries = head.queries
    together = torch.cat([x, queries])[None]
    hidden = model.synthesizer.lora(inputs_embeds=together, use_cache=False, output_hidden_states=True).hidden_states[
        -1
    ]
    return hidden[0, len(x) :] @ head.proj.weight.T + head.proj.bias


def embed(model: Tyler, tokens: list[int]) -> Tensor:
    return model.backbone.model.get_input_embeddings().weight.detach()[tokens]


# ---------------------------------------------------------------------------------------- one decision


def pick(logprobs: Tensor, request: Request, uniform: float) -> int:
    """a_t ~ p(. | x_t): the likeliest action, or the one where the cumulative distribution passes `uniform`."""
    sampling = request.sampling
    weights = logprobs.exp().tolist()
    if sampling.temperature == 0:
        return max(range(len(weights)), key=weights.__getitem__)
    ranked = sorted(range(len(weights)), key=lambda action: -weights[action])
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    total, before, kept = sum(weights[action] for action in ranked), 0.0, []
    for action in ranked:
        if not kept or before < sampling.top_p:
            kept.append(action)
        before += weights[action] / total
    left = uniform * sum(weights[action] for action in kept)
    for action in sorted(kept):
        left -= weights[action]
        if left < 0:
            return action
    raise AssertionError("the uniform number is below 1")


def numbers(request: Request, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([request.sampling.seed, purpose])))


def stop_position(text: str, request: Request) -> int | None:
    stops = [text.index(stop) for stop in request.stop if stop in text]
    return min(stops) if stops else None


def is_full(model: Tyler, request: Request, num_actions: int, length: int) -> bool:
    """No action is left, or the longest operator would no longer fit the model's positions."""
    longest = max((head.queries.shape[0] for head in model.heads.values()), default=1)
    return (
        num_actions >= request.max_new_tokens or length + longest > model.backbone.model.config.max_position_embeddings
    )


# ----------------------------------------------------------------------------------- the policy routes


def learned(model: Tyler, request: Request) -> Answer:
    """Eq. lcf-transition with a_t ~ p_{theta,eta,psi}, under a hard budget."""
    names = [operator.name for operator in model.operators]
    vocab = model.backbone.vocab_size
    temperature = request.sampling.temperature or 1.0
    uniforms = numbers(request, purpose=0)
    answer, x, visible = Answer(), embed(model, list(request.prompt_ids)), []
    while not answer.finish_reason:
        spent = request.budget is not None and len(answer.invocations) >= request.budget
        allowed = [name in model.heads and not spent for name in names]
        logprobs = action_logprobs(model, x, allowed, temperature)[-1]
        action = pick(logprobs, request, uniforms.random())
        answer.logprobs.append(logprobs[action].item())
        if action >= vocab:
            name = names[action - vocab]
            z = synthesize(model, name, x)
            answer.invocations.append((name, len(visible), len(z), len(answer.actions)))
            answer.latents.append(z)
            x = torch.cat([x, z])
        elif action in model.backbone.eos_ids:
            answer.finish_reason = "eos"
        else:
            visible.append(action)
            x = torch.cat([x, embed(model, [action])])
        answer.actions.append(action)
        end_of_step(model, request, answer, visible, len(x))
    return answer


def end_of_step(model: Tyler, request: Request, answer: Answer, visible: list[int], length: int) -> None:
    answer.text = known_text(model, visible)
    cut = stop_position(answer.text, request)
    if cut is not None:
        answer.text, answer.finish_reason = answer.text[:cut], "stop"
    elif not answer.finish_reason and is_full(model, request, len(answer.actions), length):
        answer.finish_reason = "length"


def known_text(model: Tyler, tokens: list[int]) -> str:
    """The characters that are complete."""
    return model.backbone.tokenizer.decode(tokens, skip_special_tokens=True).rstrip("\ufffd")


# ----------------------------------------------------------------------------------- a schedule routes


@dataclass
class Entry:
    """A piece of the context after the prompt: a visible token, or the latents of an operator."""

    embeds: Tensor
    token: int | None = None
    operator: str = ""


def scheduled(model: Tyler, request: Request) -> Answer:
    """Tokens from the policy over V, operators where the schedule wants them; p is scored in the final context.

    A call at visible position b puts the latents, synthesized from the context before token b, in front of token b.
    When b was sampled before the call was certain (O_p is invoked for a structure, and only what follows its opening
    token tells whether it is one), b and what came after it are held, and committed again after the latents.
    """
    prompt = embed(model, list(request.prompt_ids))
    none = [False] * len(model.operators)
    temperature = request.sampling.temperature or 1.0
    uniforms = numbers(request, purpose=0)
    entries: list[Entry] = []
    considered = 0
    progress, visible = Answer(), []
    while not progress.finish_reason:
        for position, name in planned(model, request, visible)[considered:]:
            considered += 1
            used = sum(entry.token is None for entry in entries)
            if name in model.heads and (request.budget is None or used < request.budget):
                progress.held.append(insert(model, prompt, entries, position, name))
                length = len(context(prompt, entries))
                if is_full(model, request, len(entries), length):
                    progress.finish_reason = "length"
                    break
        if progress.finish_reason:
            break
        logprobs = action_logprobs(model, context(prompt, entries), none, temperature)[-1]
        action = pick(logprobs, request, uniforms.random())
        if action in model.backbone.eos_ids:
            progress.finish_reason = "eos"
            break
        entries.append(Entry(embed(model, [action]), token=action))
        visible.append(action)
        progress.actions = [0] * len(entries)
        end_of_step(model, request, progress, visible, len(context(prompt, entries)))
    return score(model, request, prompt, entries, progress)


def context(prompt: Tensor, entries: list[Entry]) -> Tensor:
    return torch.cat([prompt, *(entry.embeds for entry in entries)])


def insert(model: Tyler, prompt: Tensor, entries: list[Entry], position: int, name: str) -> int:
    """Put the operator's latents directly in front of visible token `position`; return how many tokens it holds."""
    tokens = [index for index, entry in enumerate(entries) if entry.token is not None]
    index = tokens[position] if position < len(tokens) else len(entries)
    assert all(entry.token is not None for entry in entries[index:]), "calls come in the order of their positions"
    z = synthesize(model, name, context(prompt, entries[:index]))
    entries.insert(index, Entry(z, operator=name))
    return len(entries) - index - 1


def score(model: Tyler, request: Request, prompt: Tensor, entries: list[Entry], progress: Answer) -> Answer:
    """log p(a_t | x_t) of the visible tokens in the context as it ended up; 0 for operators, which p did not choose."""
    names = [operator.name for operator in model.operators]
    logprobs = action_logprobs(
        model, context(prompt, entries), [False] * len(names), request.sampling.temperature or 1.0
    )
    answer = Answer(text=progress.text, finish_reason=progress.finish_reason, held=progress.held)
    length, num_visible = len(prompt), 0
    for entry in entries:
        if entry.token is None:
            answer.invocations.append((entry.operator, num_visible, len(entry.embeds), len(answer.actions)))
            answer.latents.append(entry.embeds)
            answer.actions.append(model.backbone.vocab_size + names.index(entry.operator))
            answer.logprobs.append(0.0)
        else:
            answer.actions.append(entry.token)
            answer.logprobs.append(logprobs[length - 1, entry.token].item())
            num_visible += 1
        length += len(entry.embeds)
    if progress.finish_reason == "eos":
        eos = max(model.backbone.eos_ids, key=lambda token: logprobs[-1, token].item())
        answer.actions.append(eos)
        answer.logprobs.append(logprobs[-1, eos].item())
    return answer


def planned(model: Tyler, request: Request, visible: list[int]) -> list[tuple[int, str]]:
    """The calls (visible position, operator) that are certain once these tokens are seen, found anew each time.

    In the order of positions and operators: a call waits while another may still turn out to come before it.
    """
    router = request.router
    if isinstance(router, Never):
        return []
    if isinstance(router, Forced):
        due = sorted(position for position in router.calls if position <= len(visible))
        return [(position, name) for position in due for name in router.calls[position]]
    assert isinstance(router, AtBoundaries)
    texts = [known_text(model, visible[:count]) for count in range(len(visible) + 1)]
    lengths = [len(text) for text in texts]
    spans = list(itertools.pairwise(lengths))
    scanner = BoundaryScanner({operator.boundary for operator in model.operators})
    candidates_by_position = {
        (token_at(boundary.position, RULES[boundary.rule].side, spans), k)
        for boundary in scanner.feed(texts[-1])
        for k, operator in enumerate(model.operators)
        if operator.boundary == boundary.rule and (router.only is None or operator.name in router.only)
    }
    first_open = min(token_at(scanner.settled, side, spans) for side in ("after", "before"))
    draws = numbers(request, purpose=1)
    certain = [
        (position, model.operators[k].name) for position, k in sorted(candidates_by_position) if position <= first_open
    ]
    return [call for call in certain if draws.random() < router.rate]


def token_at(position: int, side: str, spans: list[tuple[int, int]]) -> int:
    """After something: the first token that starts there or later. Before something: the token that holds it."""
    for token, (start, end) in enumerate(spans):
        if (side == "after" and start >= position) or (side == "before" and position < end):
            return token
    return len(spans)
