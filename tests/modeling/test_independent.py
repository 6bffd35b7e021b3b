"""Models as a user holds them: copied, hashed, compared, and not pickled."""

import copy
import pickle
from typing import Any

import pytest
import torch

import kinds
import tiny
from tyler.engine.sampling import Sampling
from tyler.modeling.synthesis import ConstantHead, Head


def model_of(kind: str) -> Any:
    if kind == "tyler":
        return tiny.build("qwen3", tiny.SEEDS["qwen3"], psi_scale=1.0)
    return kinds.new(kind, tiny.build_backbone("qwen3"))


def trained(model: Any) -> list[torch.nn.Parameter]:
    """What training moves, by the attributes of every kind of model."""
    parts = [value for name, value in vars(model).items() if isinstance(value, torch.nn.Module)]
    return [parameter for part in parts for parameter in part.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("kind", ["tyler", "memgen", "softcot"])
def test_a_deep_copy_shares_the_backbone_and_nothing_that_is_trained(kind: str) -> None:
    model = model_of(kind)
    other = copy.deepcopy(model)
    assert other.backbone is model.backbone and other.shared_engine is not model.shared_engine
    assert other.fingerprint() == (before := model.fingerprint())
    theta = {parameter.data_ptr() for parameter in model.backbone.model.parameters()}
    for part in (value for value in vars(other).values() if isinstance(value, torch.nn.Module)):
        frozen = [parameter for parameter in part.parameters() if not parameter.requires_grad]
        assert {parameter.data_ptr() for parameter in frozen} <= theta
    with torch.no_grad():
        for parameter in trained(other):
            parameter.add_(1)
    assert trained(other) and model.fingerprint() == before != other.fingerprint()


def test_a_copy_answers_as_the_model_does_and_goes_its_own_way() -> None:
    model = model_of("tyler")
    ask = {"sampling": Sampling(1.0, seed=3), "max_new_tokens": 16}
    expected = model.solve(tiny.MEDIUM, **ask)
    other = copy.deepcopy(model)
    assert other.solve(tiny.MEDIUM, **ask).logprobs == expected.logprobs
    assert all(other.heads[name] is other.synthesizer.mapping()[name] for name in other.heads)
    with torch.no_grad():
        other.policy.psi.add_(1)
    assert other.solve(tiny.MEDIUM, **ask).logprobs != model.solve(tiny.MEDIUM, **ask).logprobs == expected.logprobs


@pytest.mark.parametrize("kind", ["tyler", "memgen", "softcot"])
def test_a_model_is_equal_to_itself_alone_can_be_a_key_and_is_not_pickled(kind: str) -> None:
    model = model_of(kind)
    assert {model: 1}[model] == 1 and model == model and model != copy.deepcopy(model)
    with pytest.raises(TypeError, match=r"is not pickled; write it with save_pretrained"):
        pickle.dumps(model)


@pytest.mark.parametrize("head", [Head(2, 8), ConstantHead(torch.randn(2, 8))])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_latents_are_no_view_of_a_parameter(head: torch.nn.Module, batch: tuple[int, ...]) -> None:
    latents = head(torch.randn(*batch, 2, 8)).detach()
    owned = {tensor.untyped_storage().data_ptr() for tensor in (*head.parameters(), *head.buffers())}
    assert latents.untyped_storage().data_ptr() not in owned
    kept = latents.clone()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(1)
    assert torch.equal(latents, kept)
