"""log p(a_t | x_t) of finished trajectories: the stored latents are replayed, so the synthesizer never runs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, compress

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from tyler.engine.trajectory import Trajectory
from tyler.modeling.backbone import Backbone
from tyler.training.objectives import chosen_logprobs
from tyler.training.packing import PackedReader, interleaved

Ids = tuple[int, ...]


def replay_context(
    trajectory: Trajectory, embed: Callable[[Tensor], Tensor], device: torch.device
) -> tuple[Float[Tensor, "seq dim"], list[int]]:
    """x_t of the whole trajectory, with its stored latents, and for each action the position that decided it."""
    tokens = embed(torch.tensor([*trajectory.prompt_ids, *trajectory.visible_ids], device=device))
    first, latents = len(trajectory.prompt_ids), [block.to(tokens) for block in trajectory.latents]
    places = (first + one.position for one in trajectory.invocations)
    context = interleaved(tokens, zip(places, latents, strict=True))
    sizes = iter(map(len, latents))
    lengths = [next(sizes) if is_operator else 1 for is_operator in trajectory.is_operator]
    return context, list(accumulate(lengths, initial=first - 1))[:-1]


def contexts_of(
    backbone: Backbone, trajectories: Sequence[Trajectory]
) -> tuple[list[Float[Tensor, "seq dim"]], list[Int[Tensor, " actions"]]]:
    """x_t of each trajectory, and the positions that decided its actions (`replay_context`)."""
    pairs = [replay_context(one, backbone.embed, backbone.device) for one in trajectories]
    return [context for context, _ in pairs], [torch.tensor(places, dtype=torch.long) for _, places in pairs]


def replay_logprobs(
    backbone: Backbone,
    decoder: PreTrainedModel,
    psi: Tensor,
    trajectories: Sequence[Trajectory],
    *,
    recompute: bool = False,
    share_prompts: bool = True,
) -> tuple[Float[Tensor, "batch actions"], Float[Tensor, "batch actions"]]:
    """log p of every drawn action under the rollout's masks and temperature, and the entropy; 0 elsewhere.

    Trajectories were sampled at one temperature. `decoder` reads them without padding, and a prompt that several of
    them begin with once; without `share_prompts` each by itself, all in one pass.
    """
    drawn = [torch.tensor(one.drawn(), dtype=torch.bool) for one in trajectories]
    contexts, decided = contexts_of(backbone, trajectories)
    chosen_at = [places[each] for places, each in zip(decided, drawn, strict=True)]
    ends = [int(places.max()) + 1 if len(places) else 1 for places in chosen_at]
    prompts = [tuple(one.prompt_ids) for one in trajectories]
    shared = prompts_shared(prompts) if share_prompts else dict.fromkeys(prompts, 0)
    hidden, starts = read_behind(decoder, prompts, shared, contexts, ends, recompute=recompute)
    states = torch.cat([read[places - start] for read, places, start in zip(hidden, chosen_at, starts, strict=True)])
    taken = [action for one in trajectories for action in compress(one.actions, one.drawn())]
    allowed = torch.cat([one.allowed()[each] for one, each in zip(trajectories, drawn, strict=True)])
    device, scale = backbone.device, trajectories[0].sampling.scale
    actions = torch.tensor(taken, dtype=torch.long, device=device)
    logprobs, entropy = chosen_logprobs(states, backbone.head, psi, actions, allowed.to(device), temperature=scale)
    mask = pad_sequence(drawn, batch_first=True).to(device)
    empty = torch.zeros(mask.shape, device=device)
    return empty.masked_scatter(mask, logprobs), empty.masked_scatter(mask, entropy)


def prompts_shared(prompts: Sequence[Ids]) -> dict[Ids, int]:
    """Of each prompt, how many positions are read once for all answers to it: all but the last, where there are more
    than one."""
    return {prompt: len(prompt) - 1 if count > 1 else 0 for prompt, count in Counter(prompts).items()}


def read_behind(
    decoder: PreTrainedModel,
    prompts: Sequence[Ids],
    shared: Mapping[Ids, int],
    contexts: Sequence[Float[Tensor, "seq dim"]],
    ends: Sequence[int],
    *,
    recompute: bool = False,
) -> tuple[list[Float[Tensor, "seq dim"]], list[int]]:
    """The last hidden states of each context behind the `shared` positions of its prompt, up to its end; and where they
    begin."""
    reader = PackedReader(decoder, len(shared), recompute=recompute)
    if any(shared.values()):
        beginnings = dict(zip(prompts, contexts, strict=True))
        reader.read([beginnings[prompt][:end] for prompt, end in shared.items()])
    numbers, starts = list(shared), [shared[prompt] for prompt in prompts]
    chunks = [context[start:end] for context, start, end in zip(contexts, starts, ends, strict=True)]
    return reader.branched([numbers.index(prompt) for prompt in prompts]).read(chunks), starts


def padded(rows: Sequence[Sequence[float]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ragged rows as a right-padded float32 tensor [rows, longest], and the mask of what is real."""
    values = pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    return values.to(device), (torch.arange(values.shape[1]) < lengths).to(device)
