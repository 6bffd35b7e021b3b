"""Products in half precision: float32 sums, adapters that are not rounded away, gradients of ordinary products."""

import pytest
import torch
from torch import Tensor, nn

import tiny
from tyler.engine.native.fused_decoder import FusedLinear
from tyler.modeling.lora import HALF, LoraSettings, OnceRounded, add_lora, lora_layers, low_rank
from tyler.modeling.products import adapted_product, wide_product

RATE, RANK, SCALE, INPUTS, OUTPUTS = 1e-5, 8, 16 / 8, 128, 512


@pytest.mark.parametrize("rows", [1, 3, 24, 65])
@pytest.mark.parametrize("dtype", HALF)
def test_a_wide_product_keeps_its_float32_sums(dtype: torch.dtype, rows: int) -> None:
    x, weight = torch.randn(rows, INPUTS).to(dtype), torch.randn(OUTPUTS, INPUTS).to(dtype)
    exact = x.double() @ weight.double().t()
    product = wide_product(x, weight)
    assert product.dtype == torch.float32
    assert float((product - exact).abs().max()) < 3e-5 * float(exact.abs().max())
    assert float(((x @ weight.t()).double() - exact).abs().max()) > 1e-4 * float(exact.abs().max())


@pytest.mark.parametrize("dtype", HALF)
def test_the_gradient_of_a_wide_product_is_that_of_the_plain_one(dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 5, 16).to(dtype).requires_grad_(), torch.randn(9, 16).to(dtype)
    gradient = torch.randn(2, 5, 9)
    (actual,) = torch.autograd.grad(wide_product(x, weight), x, gradient)
    (plain,) = torch.autograd.grad(x @ weight.t(), x, gradient.to(dtype))
    assert actual.dtype == dtype and torch.allclose(actual, plain, rtol=2**-6, atol=1e-3)


def test_a_product_in_float32_is_the_plain_one() -> None:
    x, weight = torch.randn(3, 16), torch.randn(9, 16)
    assert torch.equal(wide_product(x, weight), nn.functional.linear(x, weight))


def adapter(steps: int) -> tuple[Tensor, Tensor]:
    """A as it starts and (alpha / rank) B after some steps of Adam at the paper's rate, all in one direction."""
    draw = torch.Generator().manual_seed(steps)
    down = (torch.rand(RANK, INPUTS, generator=draw) * 2 - 1) / INPUTS**0.5
    return down, torch.randn(OUTPUTS, RANK, generator=draw).sign() * RATE * steps * SCALE


@pytest.mark.parametrize("steps", [1, 10, 100])
@pytest.mark.parametrize("dtype", HALF)
def test_the_low_rank_term_that_is_added_is_the_exact_one_within_a_percent(dtype: torch.dtype, steps: int) -> None:
    down, up = adapter(steps)
    x = torch.randn(64, INPUTS).to(dtype)
    exact = x.double() @ down.double().t() @ up.double().t()
    added = adapted_product(x, torch.zeros(OUTPUTS, INPUTS, dtype=dtype), None, x, down, up)
    assert float((added.double() - exact).norm()) < 0.01 * float(exact.norm())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("steps, lost", [(1, 0.9), (10, 0.6), (100, 0.08)])
def test_the_sum_holds_the_whole_adapter_where_folding_loses_it(steps: int, lost: float, biased: bool) -> None:
    """What of the term is in the result: the slope of (result - x W^T) over it, for a million numbers."""
    down, up = adapter(steps)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4096, INPUTS, generator=draw).bfloat16()
    theta = (torch.randn(OUTPUTS, INPUTS, generator=draw) * 0.02).bfloat16()
    bias = torch.randn(OUTPUTS, generator=draw).mul_(0.1).bfloat16() if biased else None
    term = x.double() @ down.double().t() @ up.double().t()
    base = nn.functional.linear(x.double(), theta.double(), None if bias is None else bias.double())
    result = adapted_product(x, theta, bias, x, down, up).double()
    assert float(((result - base) * term).sum() / term.square().sum()) == pytest.approx(1, abs=0.05 / steps**0.5)
    folded = (theta.float() + up @ down).bfloat16()
    assert float((folded.float() - theta.float() - up @ down).norm() / (up @ down).norm()) > lost


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", HALF)
def test_rollout_and_learner_add_an_adapter_by_the_same_function(family: str, dtype: torch.dtype) -> None:
    model = tiny.build_backbone(family).model.to(dtype)
    lora = add_lora(model, LoraSettings(rank=4, alpha=8))
    tiny.randomize_lora(lora, torch.Generator().manual_seed(1))
    attention = lora.base_model.model.base_model.layers[0].self_attn
    maps = (attention.q_proj, attention.k_proj, attention.v_proj)
    x = torch.randn(7, 32).to(dtype)
    with torch.no_grad():
        learner = torch.cat([linear(x) for linear in maps], dim=-1)
    assert torch.allclose(FusedLinear(*maps)(x), learner, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", HALF)
def test_gradients_through_an_adapted_map_are_those_of_float64(family: str, dtype: torch.dtype) -> None:
    lora = add_lora(tiny.build_backbone(family).model.to(dtype), LoraSettings(rank=4, alpha=8))
    tiny.randomize_lora(lora, torch.Generator().manual_seed(1))
    layer = next(iter(lora_layers(lora).values()))
    assert isinstance(layer, OnceRounded)
    x, gradient = torch.randn(7, 32).to(dtype).requires_grad_(), torch.randn(7, layer.out_features).to(dtype)
    weights = [layer.lora_A["default"].weight, layer.lora_B["default"].weight]
    gradients = torch.autograd.grad(layer(x), [x, *weights], gradient)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, *weights)]
    inputs, a, b = wide
    theta = layer.get_base_layer().weight.double()
    exact = torch.autograd.grad(inputs @ (theta + 2 * b @ a).t(), wide, gradient.double())
    for actual, other in zip(gradients, exact, strict=True):
        assert float((actual - other).norm()) < 2 * torch.finfo(dtype).eps * float(other.norm())
    assert gradients[1].dtype == gradients[2].dtype == torch.float32


def test_dropout_is_on_the_adapter_alone() -> None:
    lora = add_lora(tiny.build_backbone("qwen3").model.bfloat16(), LoraSettings(rank=4, alpha=8, dropout=0.5))
    tiny.randomize_lora(lora, torch.Generator().manual_seed(1))
    layer = next(iter(lora_layers(lora).values())).train()
    x = torch.randn(7, 32).bfloat16()
    torch.manual_seed(5)
    dropped = nn.functional.dropout(x.float(), 0.5)
    torch.manual_seed(5)
    expected = adapted_product(x, layer.get_base_layer().weight, None, dropped, *low_rank(layer))
    assert torch.equal(layer(x), expected)
