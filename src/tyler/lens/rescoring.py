"""Teacher forcing around one latent block: what the policy thinks of an answer's tokens when the block is another.

Nothing is decoded again. All passes read an answer as it was given, with other latents in one block's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.engine.routing import Never, Router
from tyler.engine.shared_engine import Turn
from tyler.engine.trajectory import Trajectory
from tyler.lens.interventions import NAMED, blocks_of
from tyler.model import Tyler
from tyler.tasks.answers.boxed import boxed_answer, boxed_span
from tyler.training.replay import pack

ROWS = 8
"""Answers in one pass: enough to keep a processor busy, and few beside the rows of an engine."""
POSITIONS = 2048
"""In one pass, but for an answer that has more: of long answers a pass reads fewer."""


@dataclass(frozen=True)
class Rescored:
    """One answer under the policy, from one of its blocks on.

    `logprobs` are log p over V where each visible token after the block was decided, `tokens` those tokens, and
    `actions` which of the answer's they are; `at_block` is log p over V at the positions of the block's latents.
    """

    logprobs: Float[Tensor, "tokens vocab"]
    tokens: Tensor
    actions: tuple[int, ...]
    at_block: Float[Tensor, "latents vocab"]

    @classmethod
    def of(cls, model: Tyler, trajectory: Trajectory, index: int, turn: Turn = nullcontext) -> Rescored:
        """One pass over an answer; `index` names the block."""
        return rescore(model, [(trajectory, index)], turn)[0]

    def of_action(self, action: int) -> Float[Tensor, " vocab"]:
        """log p over V where an action after the block was decided."""
        return self.logprobs[self.actions.index(action)]


@dataclass(frozen=True)
class Gap:
    """An answer without one of its blocks, which `index` names: what fills it may be anything."""

    model: Tyler
    trajectory: Trajectory
    index: int
    turn: Turn = nullcontext

    def filled(self, blocks: Sequence[Float[Tensor, "latents dim"]]) -> list[Rescored]:
        """The answer from the gap on, with each of some blocks in it; a block of 0 latents removes it."""
        answers = [with_block(self.trajectory, self.index, block) for block in blocks]
        return rescore(self.model, [(answer, self.index) for answer in answers], self.turn)


@torch.no_grad()
def rescore(model: Tyler, answers: Sequence[tuple[Trajectory, int]], turn: Turn = nullcontext) -> list[Rescored]:
    """Each answer from its block on, some answers in one pass, each pass within `turn`."""
    lengths = (len(answer.prompt_ids) + answer.num_visible + answer.num_latents for answer, _ in answers)
    longest = max(lengths, default=1)
    rows, scored = min(ROWS, max(1, POSITIONS // longest)), list[Rescored]()
    for start in range(0, len(answers), rows):
        part = answers[start : start + rows]
        with turn():
            packed = pack(model.backbone, [trajectory for trajectory, _ in part])
            hidden = model.policy.decoder(inputs_embeds=packed.embeds, use_cache=False).last_hidden_state
            for row, (trajectory, index) in enumerate(part):
                scored.append(_read(model, trajectory, index, packed.decided_at[row], hidden[row]))
    return scored


def _read(model: Tyler, trajectory: Trajectory, index: int, decided_at: Tensor, hidden: Tensor) -> Rescored:
    action, size = trajectory.invocations[index].action, len(trajectory.latents[index])
    behind = tuple(later for later in range(action + 1, len(trajectory.actions)) if not trajectory.is_operator[later])
    start = int(decided_at[action]) + 1
    tokens = torch.tensor([trajectory.actions[later] for later in behind], device=hidden.device)
    states = torch.cat([hidden[decided_at[list(behind)]], hidden[start : start + size]])
    logprobs = model.policy.token_logits(states).log_softmax(dim=-1)
    return Rescored(logprobs[: len(behind)], tokens, behind, logprobs[len(behind) :])


def with_block(trajectory: Trajectory, index: int, latents: Float[Tensor, "latents dim"]) -> Trajectory:
    """The same answer with other latents in one block's place; their number may differ, and 0 removes the block."""
    blocks = [*trajectory.latents[:index], latents, *trajectory.latents[index + 1 :]]
    return replace(trajectory, latents=blocks)


def boxed_actions(model: Tyler, trajectory: Trajectory) -> tuple[int, ...]:
    r"""The actions that write what stands in the answer's last \boxed; none where there is no box."""
    span = boxed_span(trajectory.text)
    if span is None:
        return ()
    visible = [action for action, is_operator in enumerate(trajectory.is_operator) if not is_operator]
    ids = [trajectory.actions[action] for action in visible]
    decode = model.backbone.tokenizer.decode
    ends = [len(str(decode(ids[: count + 1], skip_special_tokens=True))) for count in range(len(ids))]
    spans = zip(visible, [0, *ends], ends, strict=False)
    return tuple(action for action, begin, end in spans if begin < span[1] and end > span[0])


INTERVENTIONS = {"zeros": "zeros", "means": "means", "noise": "noise", "other problem": "shuffled"}
"""The interventions by the names of the lens's replacements; "no block" is the model that may not call."""


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

    These are decoded: what a replacement makes of an answer is in no store. `answers` are the model's own to the
    problems, under the same settings. Means and other problems' latents are those of the other half of the answers, so
    that no problem is answered with its own; of an operator that the other half does not invoke, they are of all.
    """
    boxes = [boxed_answer(answer.text) for answer in answers]
    boxed = [index for index, box in enumerate(boxes) if box is not None]

    def kept(changed: Tyler, indices: Sequence[int], routed: Router | None) -> dict[int, float]:
        solved = changed.solve(
            [problems[index] for index in indices], router=routed, max_new_tokens=max_new_tokens, memory=memory
        )
        return {
            index: float(boxed_answer(answer.text) == boxes[index])
            for index, answer in zip(indices, solved, strict=True)
        }

    shares: dict[str, list[float]] = {}
    for name, intervention in INTERVENTIONS.items():
        kept_by_index: dict[int, float] = {}
        for half in (0, 1):
            blocks = blocks_of(answers) | blocks_of(
                [answer for index, answer in enumerate(answers) if index % 2 != half]
            )
            changed = model.with_heads(NAMED[intervention](model, blocks))
            kept_by_index |= kept(changed, [index for index in boxed if index % 2 == half], router)
        shares[name] = [kept_by_index[index] for index in boxed]
    return shares | {"no block": [*kept(model, boxed, Never()).values()]}
