"""Stage 1's context against the paper's sums over full passes: no cache, no batch, no chunk, every gradient kept."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import tiny
from tyler.model import Tyler
from tyler.training.teacher_forcing import Insertion, Trace, first_latent, synthesize, target_logprobs

ANSWER = "Let me solve $x$ = 5.\n\nStep 2: so we buy 12 apples"


def example(prompt: str, target: str, *insertions: tuple[int, str]) -> Trace:
    target_ids = [*tiny.ids(target), tiny.tokenizer().eos_token_id]
    return Trace("", tiny.ids(prompt), target_ids, insertions=tuple(Insertion(*pair) for pair in insertions))


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


def full_context(model: Tyler, one: Trace) -> tuple[Tensor, list[int]]:
    """The latent-augmented sequence with all its targets, and where each target's own embedding stands."""
    x, places = embed(model, one.prompt_ids), []
    for place, token in enumerate(one.target_ids):
        for insertion in one.insertions:
            if insertion.position == place:
                x = torch.cat([x, full_synthesis(model, insertion.operator, x)])
        places.append(len(x))
        x = torch.cat([x, embed(model, [token])])
    return x, places


def full_logprobs(model: Tyler, one: Trace) -> Tensor:
    """log p(y_t | everything before y_t), from one pass of the backbone over the whole sequence."""
    x, places = full_context(model, one)
    logprobs = model.backbone.model(inputs_embeds=x[None], use_cache=False).logits[0].log_softmax(-1)
    return torch.stack([logprobs[place - 1, token] for place, token in zip(places, one.target_ids, strict=True)])


def logprobs_of(model: Tyler, examples: Sequence[Trace]) -> tuple[Tensor, Tensor]:
    latents = synthesize(model.backbone, model.synthesizer.decoder, model.heads, examples)
    return target_logprobs(model.backbone, examples, latents)


def gradients(model: Tyler, loss: Tensor) -> dict[str, Tensor]:
    named = {name: parameter for name, parameter in model.synthesizer.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(named.items(), found, strict=True)
    }


def weights_for(examples: Sequence[Trace]) -> list[Tensor]:
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


# ---------------------------------------------------------------------- latents and the no-grad prefix


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_constant_latents_read_nothing(dtype: torch.dtype) -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"]).at_stage("stage1")
    model.synthesizer.make_constant([operator.name for operator in model.operators], 1.0)
    heads = model.synthesizer.mapping()
    model.backbone.model.to(dtype)
    model.synthesizer.decoder.layers[0].register_forward_pre_hook(lambda *_: pytest.fail("the synthesizer reads"))
    latents = synthesize(model.backbone, model.synthesizer.decoder, heads, RAGGED)
    for one, blocks in zip(RAGGED, latents, strict=True):
        for insertion, block in zip(one.insertions, blocks, strict=True):
            assert torch.equal(block, heads[insertion.operator].latents.to(dtype))
    target_logprobs(model.backbone, RAGGED, latents)[0].sum().backward()
    assert all(head.latents.grad.any() for head in heads.values())
