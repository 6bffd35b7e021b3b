"""Answers decoded again with all latents replaced: what the lens, which decodes nothing, cannot see.

Teacher forcing keeps an answer's own words in front of the model, and they hold it on its way. Decoded again, an answer
may go another way from its first token, and its calls with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tyler.engine.routing import Never, Router
from tyler.engine.trajectory import Trajectory
from tyler.lens.interventions import NAMED, blocks_of
from tyler.model import Tyler
from tyler.tasks.answers.boxed import boxed_answer

INTERVENTIONS = {"zeros": "zeros", "means": "means", "noise": "noise", "other problem": "shuffled"}
"""The interventions by the names of the lens's replacements; "no block" is the model that may not call."""
DIFFERENCES = {
    "Are zeros worse than no block?": ("no block", "zeros"),
    "Do means do more than no block?": ("means", "no block"),
    "Do its own latents do more than their means?": ("", "means"),
    "Do latents of another problem do less than the means?": ("means", "other problem"),
}
"""What is tested: of two replacements the first keeps more answers than the second; "" is no replacement."""


def kept_answers(
    model: Tyler,
    problems: Sequence[str],
    answers: Sequence[Trajectory],
    *,
    router: Router | None = None,
    max_new_tokens: int = 256,
    memory: int | None = None,
) -> dict[str, list[float]]:
    """Of each replacement, for every answer with a box: 1 where the same stands in the box of the new one, else 0.

    `answers` are the model's own to the problems, under the same settings. Means and other problems' latents are those
    of the other half of the answers, so that no problem is answered with its own; of an operator that the other half
    does not invoke, they are of all.
    """
    boxes = [boxed_answer(answer.text) for answer in answers]
    asked = [place for place, box in enumerate(boxes) if box is not None]

    def kept(changed: Tyler, places: Sequence[int], routed: Router | None) -> dict[int, float]:
        found = changed.solve(
            [problems[place] for place in places], router=routed, max_new_tokens=max_new_tokens, memory=memory
        )
        return {place: float(boxed_answer(one.text) == boxes[place]) for place, one in zip(places, found, strict=True)}

    told: dict[str, list[float]] = {}
    for name, intervention in INTERVENTIONS.items():
        found: dict[int, float] = {}
        for half in (0, 1):
            blocks = blocks_of(answers) | blocks_of([one for place, one in enumerate(answers) if place % 2 != half])
            changed = model.with_heads(NAMED[intervention](model, blocks))
            found |= kept(changed, [place for place in asked if place % 2 == half], router)
        told[name] = [found[place] for place in asked]
    return told | {"no block": [*kept(model, asked, Never()).values()]}


def differences(kept: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """What `DIFFERENCES` asks, answer by answer."""
    whole = {**kept, "": [1.0] * len(next(iter(kept.values())))}
    return {
        question: [one - other for one, other in zip(whole[first], whole[second], strict=True)]
        for question, (first, second) in DIFFERENCES.items()
    }
