"""Stage 1's context against the paper's sums over full passes: no cache, no batch, no chunk, every gradient kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import tiny
from tyler.model import Tyler
from tyler.training.objectives import stage1_loss
from tyler.training.teacher_forcing import Example, Insertion, first_latent, insert, synthesize, target_logprobs

ANSWER = "Let me solve $x$ = 5.\n\nStep 2: so we buy 12 apples"


def example(prompt: str, target: str, *insertions: tuple[int, str]) -> Example:
    target_ids = [*tiny.ids(target), tiny.tokenizer().eos_token_id]
    return Example(tiny.ids(prompt), target_ids, tuple(Insertion(*pair) for pair in insertions))


SEVERAL = example(tiny.MEDIUM, ANSWER, (0, "global"), (3, "procedure"), (6, "state"), (9, "state"))
STACKED = example(tiny.SHORT, "$x$ is 12.\n\n", (2, "state"), (2, "procedure"), (2, "global"))
FIRST = example(tiny.ODD, "12", (0, "state"))
LAST = example("1", ANSWER, (len(tiny.ids(ANSWER)), "procedure"))
PLAIN = example(tiny.MEDIUM, " so 12")
RAGGED = [SEVERAL, STACKED, FIRST, PLAIN, LAST]
"""Several insertions, several at one position, at the first and at the last target, none; four prompt lengths."""


# ---------------------------------------------------------------------- the transcription: full passes


def embed(model: Tyler, tokens: Sequence[int]) -> Tensor:
    return model.backbone.model.get_input_embeddings().weight[torch.tensor(tokens)]


def full_synthesis(model: Tyler, operator: str, x: Tensor) -> Tensor:
    """z = Proj_k(Synth([x; Q_k])_query), one pass of the LoRA'd model over everything (Eqs. synth-*)."""
    head = model.heads[operator]
    out = model.synthesizer.lora(
        inputs_embeds=torch.cat([x, head.queries])[None], use_cache=False, output_hidden_states=True
    )
    return out.hidden_states[-1][0, len(x) :] @ head.proj.weight.T + head.proj.bias


def full_context(model: Tyler, one: Example) -> tuple[Tensor, list[int]]:
    """The latent-augmented sequence with all its targets, and where each target's own embedding stands."""
    x, places = embed(model, one.prompt_ids), []
    for place, token in enumerate(one.target_ids):
        for insertion in one.insertions:
            if insertion.position == place:
                x = torch.cat([x, full_synthesis(model, insertion.operator, x)])
        places.append(len(x))
        x = torch.cat([x, embed(model, [token])])
    return x, places


def full_logprobs(model: Tyler, one: Example) -> Tensor:
    """log p(y_t | everything before y_t), from one pass of the backbone over the whole sequence."""
    x, places = full_context(model, one)
    logprobs = model.backbone.model(inputs_embeds=x[None], use_cache=False).logits[0].log_softmax(-1)
    return torch.stack([logprobs[place - 1, token] for place, token in zip(places, one.target_ids, strict=True)])


def logprobs_of(model: Tyler, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    latents = synthesize(model.backbone, model.synthesizer.decoder, model.heads, examples)
    return target_logprobs(model.backbone, examples, latents)


def gradients(model: Tyler, loss: Tensor) -> dict[str, Tensor]:
    named = {name: parameter for name, parameter in model.synthesizer.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(named.items(), found, strict=True)
    }


def weights_for(examples: Sequence[Example]) -> list[Tensor]:
    """Another weight for every target, so that no error hides in a sum."""
    draw = torch.Generator().manual_seed(3)
    return [torch.rand(len(one.target_ids), generator=draw) + 0.5 for one in examples]


# ----------------------------------------------------------------------------------------------- equal


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_log_probabilities_and_every_gradient_equal_those_of_full_passes(family: str) -> None:
    model = tiny.tyler(family)
    weights = weights_for(RAGGED)
    logprobs, mask = logprobs_of(model, RAGGED)
    slow = [full_logprobs(model, one) for one in RAGGED]
    for row, expected in enumerate(slow):
        assert mask[row].sum() == len(expected)
        torch.testing.assert_close(logprobs[row][mask[row]], expected, atol=1e-5, rtol=0)
    fast_gradients = gradients(model, sum((logprobs[row][mask[row]] * weights[row]).sum() for row in range(len(slow))))
    slow_gradients = gradients(model, sum((one * weight).sum() for one, weight in zip(slow, weights, strict=True)))
    for name, expected in slow_gradients.items():
        assert expected.abs().max() > 1e-4, f"{name} must matter, or its equality says nothing"
        error = (fast_gradients[name] - expected).norm() / expected.norm()
        assert error < 1e-4, f"the gradient of {name} is off by {error:.1e} of its norm"


def test_phi_is_everything_that_gets_a_gradient() -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    logprobs, mask = logprobs_of(model, RAGGED)
    stage1_loss(logprobs, mask, int(mask.sum())).backward()
    trained = {id(parameter) for parameter in model.synthesizer.trainable()}
    everything = [*model.backbone.model.parameters(), *model.policy.parameters(), *model.synthesizer.parameters()]
    assert {id(parameter) for parameter in everything if parameter.grad is not None} == trained


def test_an_example_is_the_same_alone_and_in_a_ragged_batch() -> None:
    model = tiny.tyler("qwen3")
    together, _ = logprobs_of(model, RAGGED)
    for row, one in enumerate(RAGGED[:3]):
        alone, _ = logprobs_of(model, [one])
        torch.testing.assert_close(together[row, : len(one.target_ids)], alone[0], atol=1e-5, rtol=0)


def test_without_insertions_the_loss_is_the_cross_entropy_of_transformers() -> None:
    model = tiny.tyler("qwen3")
    plain = [PLAIN, example(tiny.SHORT, ANSWER)]
    logprobs, mask = logprobs_of(model, plain)
    assert mask.sum(dim=1).tolist() == [len(one.target_ids) for one in plain]
    for row, one in enumerate(plain):
        ids = torch.tensor([[*one.prompt_ids, *one.target_ids]])
        labels = ids.clone()
        labels[:, : len(one.prompt_ids)] = -100
        expected = model.backbone.model(input_ids=ids, labels=labels).loss
        loss = stage1_loss(logprobs[row], mask[row], len(one.target_ids))
        torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)


# ---------------------------------------------------------------------- latents and the no-grad prefix


def test_latents_are_never_targets_and_every_visible_target_is_one() -> None:
    model = tiny.tyler("qwen3")
    logprobs, mask = logprobs_of(model, RAGGED)
    assert mask.sum(dim=1).tolist() == [len(one.target_ids) for one in RAGGED]
    longest = max(len(one.target_ids) for one in RAGGED)
    assert logprobs.shape == mask.shape == (len(RAGGED), longest)
    for row, one in enumerate(RAGGED):
        assert mask[row].tolist() == [place < len(one.target_ids) for place in range(longest)]


def test_latents_act_on_what_follows_them_and_on_nothing_before() -> None:
    model = tiny.tyler("qwen3")
    latents = [
        [
            torch.randn(model.heads[insertion.operator].num_latents, model.backbone.dim).mul(0.3).requires_grad_()
            for insertion in SEVERAL.insertions
        ]
    ]
    logprobs, _ = target_logprobs(model.backbone, [SEVERAL], latents)
    for place in range(len(SEVERAL.target_ids)):
        found = torch.autograd.grad(logprobs[0, place], latents[0], retain_graph=True, allow_unused=True)
        for insertion, gradient in zip(SEVERAL.insertions, found, strict=True):
            moved = 0.0 if gradient is None else gradient.abs().sum(dim=-1)
            if insertion.position > place:
                assert not torch.as_tensor(moved).any(), f"target {place} sees latents that come after it"
            else:
                assert (torch.as_tensor(moved) > 0).all(), f"target {place} misses latents before it"


def test_the_token_after_a_block_is_predicted_from_its_last_latent() -> None:
    model = tiny.tyler("qwen3")
    blocks = [
        torch.full((model.heads[insertion.operator].num_latents, model.backbone.dim), float(index + 1))
        for index, insertion in enumerate(SEVERAL.insertions)
    ]
    blocks = [block + torch.arange(len(block))[:, None] / 10 for block in blocks]
    context, decided_at = insert(model.backbone, SEVERAL, blocks)
    assert len(decided_at) == len(SEVERAL.target_ids)
    for insertion, block in zip(SEVERAL.insertions, blocks, strict=True):
        torch.testing.assert_close(context[decided_at[insertion.position]], block[-1], rtol=0, atol=0)
    undisturbed = [
        place for place in range(1, len(decided_at)) if place not in {one.position for one in SEVERAL.insertions}
    ]
    for place in undisturbed:
        before = model.backbone.embed(torch.tensor(SEVERAL.target_ids[place - 1]))
        torch.testing.assert_close(context[decided_at[place]], before, rtol=0, atol=0)
    num_latents = sum(len(block) for block in blocks)
    assert len(context) == len(SEVERAL.prompt_ids) + len(SEVERAL.target_ids) - 1 + num_latents


def test_the_policy_reads_what_precedes_the_first_latents_without_gradient() -> None:
    model = tiny.tyler("qwen3")
    examples = [SEVERAL, LAST]
    passes = []

    def note(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        passes.append((torch.is_grad_enabled(), args[0].shape[1]))

    hook = model.backbone.model.base_model.layers[0].register_forward_pre_hook(note, with_kwargs=True)
    try:
        logprobs_of(model, examples)
    finally:
        hook.remove()
    contexts = [len(full_context(model, one)[0]) - 1 for one in examples]
    prefixes = [len(SEVERAL.prompt_ids), len(LAST.prompt_ids) + len(LAST.target_ids) - 1]
    assert [first_latent(one) for one in examples] == prefixes
    suffixes = [context - prefix for context, prefix in zip(contexts, prefixes, strict=True)]
    assert passes == [(False, sum(prefixes)), (True, sum(suffixes))]


def test_the_synthesizer_reads_a_trace_once_whatever_the_number_of_insertions() -> None:
    model = tiny.tyler("qwen3")
    read = []
    hook = model.synthesizer.decoder.layers[0].register_forward_pre_hook(
        lambda module, args: read.append(args[0].shape[1])
    )
    try:
        synthesize(model.backbone, model.synthesizer.decoder, model.heads, [SEVERAL])
    finally:
        hook.remove()
    lengths = {name: head.num_latents for name, head in model.heads.items()}
    queries = sum(lengths[insertion.operator] for insertion in SEVERAL.insertions)
    latents = queries - lengths[SEVERAL.insertions[-1].operator]
    assert len(read) == len(SEVERAL.insertions)
    assert sum(read) == len(SEVERAL.prompt_ids) + SEVERAL.insertions[-1].position + latents + queries
