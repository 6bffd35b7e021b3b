"""Answers of the store under the lens: the engine repeats them, action by action, and draws no more than their end.

The store has an answer's text and where it called which operator. Its tokens are those of its text. Its latents are in
no store: they are what the operators compute anew in the same contexts.
"""

from dataclasses import asdict, replace
from pathlib import Path

from tyler.engine.request import Request
from tyler.engine.routing import Router
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.evaluation.answers import Answer
from tyler.evaluation.folders import EvaluationRun
from tyler.model import Tyler
from tyler.modeling.backbone import dtype_name


def answers_in(
    folder: Path,
    model: Tyler,
    *,
    router: Router | None,
    max_new_tokens: int,
    count: int | None = None,
    memory: int | None = None,
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
    settings = ((name, evaluation.settings.get(name), here) for name, here in wanted.items())
    if differing := [f"{name} {there!r}, here {here!r}" for name, there, here in settings if there != here]:
        raise ValueError(f"{folder} holds answers under other settings: {'; '.join(differing)}")
    stored = [answer for answer in evaluation.answers[:count] if not answer.sample]
    kept = [(answer.prompt, request) for answer in stored if (request := repeating(model, answer, router))]
    if not kept:
        raise ValueError(f"{folder} holds no answer whose text was kept; omit --answers, and new ones are decoded")
    return [problem for problem, _ in kept], model.shared_engine.run([request for _, request in kept], memory=memory)


def repeating(model: Tyler, answer: Answer, router: Router | None) -> Request | None:
    """The request whose answer is one of the store again.

    None where its text or its calls were not kept, and where the tokenizer writes the text in another number of tokens.
    """
    if not answer.prompt or answer.text is None or answer.invocations is None:
        return None
    actions: list[int] = list(model.backbone.tokenizer.encode(answer.text, add_special_tokens=False))
    end = int(answer.finish_reason == "eos")
    if len(actions) + end != answer.visible_tokens:
        return None
    names = [operator.name for operator in model.operators]
    for call in answer.invocations:  # each where it stands among tokens and earlier calls
        actions.insert(call.action, model.backbone.vocab_size + names.index(call.operator))
    return replace(model.request(answer.prompt, router=router, max_new_tokens=len(actions) + end), branch=actions)
