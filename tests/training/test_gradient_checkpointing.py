"""Gradient checkpointing: the same loss and gradients to the last bits, dropout included, for less memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tiny
from allocations import Allocations
from tyler.config.loops import Stage1Config
from tyler.engine.request import Request
from tyler.engine.routing import Learned
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.lora import LoraSettings
from tyler.training.packing import read_packed
from tyler.training.replay import replay_logprobs
from tyler.training.stage1 import Stage1Trainer
from tyler.training.teacher_forcing import Insertion, Trace

ANSWER = "Let me solve $x$ = 5.\n\nStep 2: so we buy 12 apples"


def example(prompt: str, target: str, *insertions: tuple[int, str]) -> Trace:
    return Trace("", tiny.ids(prompt), tiny.ids(target), insertions=tuple(Insertion(*pair) for pair in insertions))


EXAMPLES = [
    example(tiny.MEDIUM, ANSWER, (0, "global"), (3, "procedure"), (6, "state"), (9, "state")),
    example(tiny.SHORT, "$x$ is 12.\n\n", (2, "state"), (2, "global")),
    example(tiny.ODD, ANSWER),
]
"""Several chunks, rows that end early, a row without latents."""


def gradients(module: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    loss.backward()
    found = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    return {name: gradient.clone() for name, gradient in found.items()}


def assert_equal_gradients(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 1e-6, f"{name} must matter, or its equality says nothing"
        difference = (found[name] - gradient).abs().max() / gradient.abs().max()
        assert difference <= tolerance, f"the gradient of {name} is off by {float(difference):.1e}"


def kept_bytes(compute: Callable[[], Tensor]) -> int:
    """Bytes that are alive because of the backward pass of `compute`: every storage made in it that is still there."""
    with Allocations() as allocations:
        loss = compute()
    assert loss.requires_grad
    return allocations.alive()


def batch_loss(model: Tyler, examples: list[Trace], num_targets: int, gradient_checkpointing: bool) -> Tensor:
    config = Stage1Config(gradient_checkpointing=gradient_checkpointing)
    return Stage1Trainer(model, (), config).batch_loss(examples, num_targets)


def stage1_gradients(model: Tyler, gradient_checkpointing: bool) -> tuple[float, dict[str, Tensor]]:
    torch.manual_seed(5)
    loss = batch_loss(model, EXAMPLES, 30, gradient_checkpointing)
    return float(loss.detach()), gradients(model.synthesizer, loss)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_loss_and_gradients_are_those_of_the_plain_pass_and_dropout_drops_the_same(family: str) -> None:
    model = tiny.build(family, tiny.SEEDS[family])
    without_loss, without = stage1_gradients(model, False)
    loss, found = stage1_gradients(model, True)
    assert loss == pytest.approx(without_loss, rel=1e-6) and len(found) > 6
    assert_equal_gradients(found, without)
    for module in model.synthesizer.lora.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    model.synthesizer.train()
    plain = stage1_gradients(model, False)[1]
    assert any(not torch.allclose(plain[name], without[name], rtol=1e-2) for name in plain), "dropout must act"
    assert_equal_gradients(stage1_gradients(model, True)[1], plain)


def rollouts(model: Tyler) -> list[Trajectory]:
    requests = [
        Request(prompt_ids=tiny.ids(text), router=Learned(), sampling=Sampling(1.0, seed=1), max_new_tokens=20)
        for text in tiny.PROMPTS
    ]
    return model.engine(slots=4).run(requests)


@pytest.mark.parametrize("stage", ["stage 1", "stage 2"])
def test_the_memory_saved_is_real(stage: str) -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    long = example(tiny.LONG, ANSWER * 6, (0, "global"), (20, "state"))
    embeds = torch.randn(2, 200, model.backbone.dim)

    def stage1(gradient_checkpointing: bool) -> Tensor:
        return batch_loss(model, [long, long], 100, gradient_checkpointing)

    def stage2(gradient_checkpointing: bool) -> Tensor:
        read = read_packed(model.policy.decoder, list(embeds), recompute=gradient_checkpointing)
        return torch.cat(read).sum()

    compute = stage1 if stage == "stage 1" else stage2
    plain, saved = kept_bytes(lambda: compute(False)), kept_bytes(lambda: compute(True))
    assert saved < 0.3 * plain, f"{saved:,} bytes are kept, against {plain:,}"


def test_bfloat16_trains_float32_adapters_in_both_stages_and_decodes() -> None:
    backbone = tiny.build_backbone("qwen3", tiny.SEEDS["qwen3"])
    backbone.model.to(torch.bfloat16)
    model = Tyler.start(backbone, tiny.OPERATORS, LoraSettings(rank=4, alpha=8))
    model.policy.add_lora(LoraSettings(rank=4, alpha=8))
    assert model.policy.lora is not None
    trained = [*model.synthesizer.trainable(), *(one for one in model.policy.parameters() if one.requires_grad)]
    assert {parameter.dtype for parameter in trained} == {torch.float32}
    for gradient_checkpointing in (False, True):
        for parameter in trained:
            parameter.grad = None
        batch_loss(model, EXAMPLES, 30, gradient_checkpointing).backward()
        decoder, psi, answers = model.policy.decoder, model.policy.psi, rollouts(model)
        replay_logprobs(backbone, decoder, psi, answers, recompute=gradient_checkpointing)[0].sum().backward()
        gradient_dtypes = {parameter.grad.dtype for parameter in trained if parameter.grad is not None}
        assert gradient_dtypes == {torch.float32}
        assert all(bool(parameter.grad.isfinite().all()) for parameter in trained if parameter.grad is not None)
