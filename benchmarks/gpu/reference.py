"""What training on a GPU is compared with: Stage 1 in one graph on random traces, and the gradients of a step."""

from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor

from tyler.model import Tyler
from tyler.modeling.operators import PAPER_OPERATORS
from tyler.training.teacher_forcing import Insertion, Trace


def gradients(parameters: Sequence[Tensor], step: Callable[[], object]) -> Tensor:
    """The gradients that a step leaves, in one vector."""
    for parameter in parameters:
        parameter.grad = None
    step()
    parts = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in parameters]
    return torch.cat([part.flatten() for part in parts])


def traces(count: int, length: int, blocks: int, vocab: int, random: Random) -> list[Trace]:
    """Random ids: prompts a quarter of the length, lengths from half to all, blocks at random places."""
    examples = []
    for _ in range(count):
        total = random.randint(length // 2, length)
        ids = [random.randrange(vocab) for _ in range(total)]
        prompt = total // 4
        positions = sorted(random.sample(range(total - prompt), blocks))
        insertions = tuple(Insertion(position, random.choice(PAPER_OPERATORS).name) for position in positions)
        examples.append(Trace("", ids[:prompt], ids[prompt:], insertions=insertions))
    return examples


def full_graph(model: Tyler, examples: Sequence[Trace], num_targets: int | None = None) -> Tensor:
    """Stage 1 as the equations are written, in one graph: every block reads its whole context, every logit exists.

    Returns the loss, divided by `num_targets`, by default the examples' own.
    """
    backbone, synthesizer = model.backbone, model.synthesizer.decoder
    num_targets = num_targets or sum(len(example.target_ids) for example in examples)
    total = torch.zeros((), device=backbone.device)
    for example in examples:
        ids = torch.tensor([*example.prompt_ids, *example.target_ids], device=backbone.device)
        embeds, start = backbone.embed(ids), len(example.prompt_ids)
        x, done, decided = embeds[:start], 0, []
        insertions = {insertion.position: insertion.operator for insertion in example.insertions}
        for target in range(len(example.target_ids)):
            if target in insertions:
                x = torch.cat([x, embeds[start + done : start + target]])
                head, done = model.heads[insertions[target]], target
                read = torch.cat([x, head.queries.to(x.dtype)])[None]
                hidden = synthesizer(inputs_embeds=read, use_cache=False).last_hidden_state[0, -head.num_latents :]
                x = torch.cat([x, head(hidden).to(x.dtype)])
            decided.append(len(x) + target - done - 1)
        x = torch.cat([x, embeds[start + done :]])
        logits = backbone.model(inputs_embeds=x[None], use_cache=False).logits[0, decided]
        targets = torch.tensor(example.target_ids, device=backbone.device)
        total = total + torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum") / num_targets
    total.backward()
    return total
