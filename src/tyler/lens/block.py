"""The operator lens: what one latent block of an answer does, with a control beside every measurement.

Four questions, all teacher-forced on the answer that the model gave, so that nothing is decoded again:

1. What can be read from it? The likeliest tokens at the policy's states at the latent positions, softmax(W_U h), and
   the embeddings nearest to the injected vectors. Control: the same with another problem's block in its place.
2. Is it needed? KL(p(. | z) || p(. | do(z <- z'))), the loss of log p(y) over the tokens after the block and over the
   boxed answer, and the tokens that flip, with z' each of `interventions.REPLACEMENTS`.
3. How much of the answer does it carry into another problem? Control: noise of the same norm.
4. After how many of its latents does the answer stay? Control: so many of another problem's.

Without its control a picture says nothing: what noise or another problem's block shows is not specific to this block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tyler.engine.shared_engine import Turn
from tyler.engine.trajectory import Trajectory
from tyler.lens.interventions import REPLACEMENTS, blocks_of, exchanged, replacements
from tyler.model import Tyler
from tyler.tasks.answers.boxed import boxed_span
from tyler.training.replay import contexts_of

NUM_TOP = 5
NUM_DONORS = 2
"""Other answers whose blocks are tried in an answer, to see what they carry over."""
TOGETHER = "all blocks"
ROWS = 8
"""Answers in one pass: enough to keep a processor busy, and few beside the rows of an engine."""
POSITIONS = 2048
"""In one pass, but for an answer that has more: of long answers a pass reads fewer."""
Scored = tuple[tuple[str, float], ...]
"""Tokens with a score, the highest first."""


@dataclass(frozen=True)
class Readout:
    """What one latent can be read as: the likeliest tokens at its position, and the nearest embeddings, with scores.

    `control` is the likeliest tokens there with another problem's block in place; empty without such a block.
    """

    likeliest: Scored
    nearest: Scored
    control: Scored


@dataclass(frozen=True)
class Effect:
    """What a replacement changes of the tokens after a block.

    `divergence` is the mean KL per token in nats, `loss` the fall of their summed log-probability, `flipped` the share
    of tokens that would no longer be the likeliest. `answer_loss` and `answer_flipped` are of the tokens in the box
    alone: the fall of their log-probability, and whether any of them flips. None where no box follows the block.
    """

    divergence: float
    loss: float
    flipped: float
    answer_loss: float | None
    answer_flipped: bool | None


@dataclass(frozen=True)
class Carried:
    """How far a block of another problem moves this answer towards that problem's, in nats of a logit difference.

    Each is a sum over `donors` answers: `whole` is how far apart the two problems' own contexts are, `moved` what the
    donor's block alone moves, and `noise` what noise in its place moves.
    """

    moved: float
    noise: float
    whole: float
    donors: int


@dataclass(frozen=True)
class Reading:
    """One block of one answer; or, under the name `TOGETHER` and with effects alone, all of its blocks at once.

    `readable` is the share of its latents of which one of the likeliest tokens follows the block and in few other
    answers, `enough` the fewest of its latents, from the first, with which every token after it stays the likeliest
    one it was. `..._other` are the same of another problem's block, in this one's place; `enough_other` is None where
    all of it is too little.
    """

    operator: str
    position: int
    num_latents: int
    effects: dict[str, Effect]
    readouts: tuple[Readout, ...] = ()
    readable: float | None = None
    readable_other: float | None = None
    carried: Carried | None = None
    enough: int | None = None
    enough_other: int | None = None


def read_blocks(model: Tyler, trajectory: Trajectory, others: Sequence[Trajectory], seed: int = 0) -> list[Reading]:
    """The lens over every block of an answer. `others` are answers to other problems; noise follows from `seed`.

    What none of the others invoked has no means and no block of another problem among its replacements.
    Raises ValueError for an answer without operators or with soft steps.
    """
    if not trajectory.invocations:
        raise ValueError("the answer invoked no operator; give a router that does, such as AtBoundaries()")
    source = torch.Generator().manual_seed(seed)
    return [read_block(model, trajectory, index, others, source) for index in range(trajectory.num_invocations)]


@torch.no_grad()
def read_block(
    model: Tyler,
    trajectory: Trajectory,
    index: int,
    others: Sequence[Trajectory],
    source: torch.Generator,
    turn: Turn = nullcontext,
) -> Reading:
    """The lens over one block; the model is run within `turn`, pass by pass."""
    call = trajectory.invocations[index]
    with turn():
        placed = replacements(model, trajectory, index, blocks_of(others), source)
    gap = Gap(model, trajectory, index, turn)
    truth, *answers = gap.filled([trajectory.latents[index], *placed.values()])
    rescored, boxed = dict(zip(placed, answers, strict=True)), boxed_actions(model, trajectory)
    other, own = rescored.get("other problem"), distinctive(truth.tokens, others)
    return Reading(
        operator=call.operator,
        position=call.position,
        num_latents=call.num_latents,
        effects={name: effect(truth, each, boxed) for name, each in rescored.items()},
        readouts=readouts(model, trajectory.latents[index], truth, other),
        readable=readable(truth, own),
        readable_other=None if other is None else readable(other, own),
        carried=carried(gap, truth, rescored["noise"], others),
        enough=enough(gap, truth, trajectory.latents[index]),
        enough_other=enough(gap, truth, placed["other problem"]) if other is not None else None,
    )


@torch.no_grad()
def read_together(
    model: Tyler, trajectory: Trajectory, others: Sequence[Trajectory], source: torch.Generator
) -> Reading:
    """The effects of replacing all blocks of an answer at once: one block may stand in for another.

    They are of the tokens after the first block, by the replacements that every block has and that need no synthesis.
    """
    elsewhere, calls = blocks_of(others), zip(trajectory.invocations, trajectory.latents, strict=True)
    each = [exchanged(latents, elsewhere.get(call.operator, ()), source) for call, latents in calls]
    names = [name for name in REPLACEMENTS if all(name in replaced for replaced in each)]
    changed = [replace(trajectory, latents=[replaced[name] for replaced in each]) for name in names]
    truth, *rescored = rescore(model, [(replaced, 0) for replaced in (trajectory, *changed)])
    boxed = boxed_actions(model, trajectory)
    effects = {name: effect(truth, replaced, boxed) for name, replaced in zip(names, rescored, strict=True)}
    return Reading(TOGETHER, trajectory.invocations[0].position, trajectory.num_latents, effects)


# --------------------------------------------------------------------------------------------- what can be read from it


def readouts(
    model: Tyler, latents: Float[Tensor, "latents dim"], truth: Rescored, other: Rescored | None
) -> tuple[Readout, ...]:
    """What each latent of a block can be read as."""
    table = torch.nn.functional.normalize(model.backbone.embedding.float(), dim=-1)
    near = torch.nn.functional.normalize(latents.float().to(table.device), dim=-1) @ table.t()
    likeliest = [top(model, row.exp()) for row in truth.at_block]
    nearest = [top(model, row) for row in near]
    control: list[Scored] = [()] * len(near) if other is None else [top(model, row.exp()) for row in other.at_block]
    return tuple(Readout(*row) for row in zip(likeliest, nearest, control, strict=True))


def top(model: Tyler, scores: Float[Tensor, " vocab"]) -> Scored:
    """The tokens of the highest scores, as text."""
    values, ids = scores.topk(min(NUM_TOP, len(scores)))
    decode = model.backbone.tokenizer.decode
    return tuple((str(decode([token])), value) for token, value in zip(ids.tolist(), values.tolist(), strict=True))


def readable(shown: Rescored, own: Tensor) -> float:
    """The share of latents of which one of the likeliest tokens, as `shown`, is among an answer's own tokens."""
    likeliest = shown.at_block.topk(min(NUM_TOP, shown.at_block.shape[1])).indices
    return float(torch.isin(likeliest, own).any(dim=1).float().mean())


def distinctive(tokens: Tensor, others: Sequence[Trajectory]) -> Tensor:
    """Those of some tokens that fewer than half of the other answers have: what all say tells nothing of one."""
    seen = Counter(token for answer in others for token in set(answer.actions))
    return tokens[[2 * seen[token] < len(others) for token in tokens.tolist()]]


# --------------------------------------------------------------------------------------------------------- is it needed


def effect(truth: Rescored, other: Rescored, boxed: Sequence[int] = ()) -> Effect:
    """How far another distribution over the same tokens is from the true one. `boxed` are the answer's actions."""
    if not truth.actions:
        return Effect(0.0, 0.0, 0.0, None, None)
    divergence = (truth.logprobs.exp() * (truth.logprobs - other.logprobs)).sum(dim=-1).mean()
    own, theirs = (each.logprobs.gather(1, truth.tokens[:, None])[:, 0] for each in (truth, other))
    flips = truth.logprobs.argmax(dim=-1) != other.logprobs.argmax(dim=-1)
    rows = [row for row, action in enumerate(truth.actions) if action in boxed]
    return Effect(
        divergence=float(divergence),
        loss=float((own - theirs).sum()),
        flipped=float(flips.float().mean()),
        answer_loss=float((own - theirs)[rows].sum()) if rows else None,
        answer_flipped=bool(flips[rows].any()) if rows else None,
    )


def enough(gap: Gap, truth: Rescored, latents: Float[Tensor, "latents dim"]) -> int | None:
    """The fewest of some latents in a block's place with which every token after stays the likeliest; None if none."""
    parts = [latents[:count] for count in range(len(latents) + 1)]
    for count, rescored in enumerate(gap.filled(parts)):
        if effect(truth, rescored).flipped == 0:
            return count
    return None


# ---------------------------------------------------------------------------------------------- what does it carry over


def carried(gap: Gap, truth: Rescored, noise: Rescored, others: Sequence[Trajectory]) -> Carried | None:
    """What the first blocks of the same operator carry from other answers into this one.

    m is the logit difference of the first tokens in which two boxed answers differ, each where its answer has it:
    m(A, z_B) - m(A) is `moved`, and m(B) - m(A) is `whole`. None where no other answer has another number in its box
    and a block of this operator in front of it.
    """
    donors = ((donor, indices) for donor in others if (indices := places_of(gap, donor)))
    moves = [_moves(gap, truth, noise, donor, *indices) for donor, indices in islice(donors, NUM_DONORS)]
    if not moves:
        return None
    moved, by_noise, whole = (sum(values) for values in zip(*moves, strict=True))
    return Carried(moved, by_noise, whole, len(moves))


def places_of(gap: Gap, donor: Trajectory) -> tuple[int, int, int] | None:
    """The actions of the two boxes that differ first, the answer's and the donor's, and the donor's first block of the
    operator; None unless the blocks stand before them."""
    receiver, call = gap.trajectory, gap.trajectory.invocations[gap.index]
    calls = [other.operator for other in donor.invocations]
    if call.operator not in calls or donor.prompt_ids == receiver.prompt_ids:
        return None
    block = calls.index(call.operator)
    for own, foreign in zip(boxed_actions(gap.model, receiver), boxed_actions(gap.model, donor), strict=False):
        if receiver.actions[own] != donor.actions[foreign]:
            behind = own > call.action and foreign > donor.invocations[block].action
            return (own, foreign, block) if behind else None
    return None


def _moves(
    gap: Gap, truth: Rescored, noise: Rescored, donor: Trajectory, own: int, foreign: int, block: int
) -> tuple[float, float, float]:
    def margin(rescored: Rescored, action: int) -> float:
        logprobs = rescored.logprobs[rescored.actions.index(action)]
        return float(logprobs[donor.actions[foreign]] - logprobs[gap.trajectory.actions[own]])

    (patched,), (whole,) = gap.filled([donor.latents[block]]), rescore(gap.model, [(donor, block)], gap.turn)
    start = margin(truth, own)
    return margin(patched, own) - start, margin(noise, own) - start, margin(whole, foreign) - start


# ----------------------------------------------------------------------------------------------------- teacher forcing


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
    rows, scored = min(ROWS, max(1, POSITIONS // max(lengths, default=1))), list[Rescored]()
    for start in range(0, len(answers), rows):
        part = answers[start : start + rows]
        with turn():
            contexts, decided_at = contexts_of(model.backbone, [trajectory for trajectory, _ in part])
            embeds = pad_sequence(contexts, batch_first=True)
            hidden = model.policy.decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state
            for row, (trajectory, index) in enumerate(part):
                scored.append(_read(model, trajectory, index, decided_at[row], hidden[row]))
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
    return replace(trajectory, latents=[*trajectory.latents[:index], latents, *trajectory.latents[index + 1 :]])


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
