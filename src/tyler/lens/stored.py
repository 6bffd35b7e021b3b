"""Answers of the store under the lens: they are read again in their places, and nothing is decoded.

The store has an answer's text and where it called which operator. Its tokens are those of its text. Its latents are in
no store: they are what the operators compute anew in the same contexts.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch

from tyler.engine.routing import Router
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.evaluation.answers import Answer
from tyler.evaluation.folders import EvaluationRun
from tyler.lens.interventions import synthesized
from tyler.model import Tyler
from tyler.modeling.backbone import dtype_name
from tyler.tasks.prompts import turn_end
from tyler.training.replay import replay_context


def answers_in(
    folder: Path, model: Tyler, *, router: Router | None, max_new_tokens: int, count: int | None = None
) -> tuple[list[str], list[Trajectory]]:
    """The problems of an evaluation and the model's answers to them, of the first `count` that can be read again.

    Raises ValueError for answers of another model or under other settings, which what is decoded beside them would not
    share, and for a folder without answers that can be read again.
    """
    evaluation = EvaluationRun(folder)
    wanted = {
        "weights": model.fingerprint(),
        "method_settings": {"stage": model.stage, "router": repr(model.routed(router)), "budget": None},
        "dtype": dtype_name(model.backbone.dtype),
        "instruction": model.prompt.instruction,
        "thinking": model.prompt.thinking,
        "system": model.prompt.system or None,
        **model.backbone.text_settings,
        "sampling": asdict(Sampling()),
        "max_new_tokens": max_new_tokens,
    }
    there = {name: evaluation.settings.get(name) for name in wanted}
    if differing := [
        f"{name} {there[name]!r}, here {wanted[name]!r}" for name in wanted if there[name] != wanted[name]
    ]:
        raise ValueError(f"{folder} holds answers under other settings: {'; '.join(differing)}")
    pairs = ((answer.prompt, replayed(model, answer)) for answer in evaluation.answers[:count] if not answer.sample)
    kept = [(problem, answer) for problem, answer in pairs if answer is not None]
    if not kept:
        raise ValueError(f"{folder} holds no answer whose text was kept; omit --answers, and new ones are decoded")
    return [problem for problem, _ in kept], [answer for _, answer in kept]


@torch.no_grad()
def replayed(model: Tyler, answer: Answer) -> Trajectory | None:
    """An answer of the store as it was decoded; log-probabilities, which no store has, are 0.

    None where its text or its calls were not kept, and where the tokenizer writes the text in another number of tokens.
    """
    if not answer.prompt or answer.text is None or answer.invocations is None:
        return None
    tokenizer, prompt_ids = model.backbone.tokenizer, list(model.request(answer.prompt).prompt_ids)
    visible = list(tokenizer.encode(answer.text, add_special_tokens=False))
    if answer.finish_reason == "eos":
        end = turn_end(tokenizer)
        visible.append(tokenizer.eos_token_id if end is None else end)
    if len(visible) != answer.visible_tokens:
        return None
    actions, names = list(visible), [operator.name for operator in model.operators]
    for call in answer.invocations:  # each where it stands among tokens and earlier calls
        actions.insert(call.action, model.backbone.vocab_size + names.index(call.operator))
    again = Trajectory(
        prompt_ids=prompt_ids,
        actions=actions,
        logprobs=[0.0] * len(actions),
        is_operator=[action >= model.backbone.vocab_size for action in actions],
        invocations=answer.invocations,
        latents=[],
        text=answer.text,
        finish_reason=answer.finish_reason,
        vocab_size=model.backbone.vocab_size,
        offered=(False,) * len(names),
        thought_open=answer.thought_open,
    )
    for call in answer.invocations:  # each behind the latents of those before it
        until = replace(again, actions=actions[: call.action], is_operator=again.is_operator[: call.action])
        context, _ = replay_context(until, model.backbone.embed, model.backbone.device)
        again.latents.append(synthesized(model.synthesizer.decoder, model.heads[call.operator], context).cpu())
    return again
