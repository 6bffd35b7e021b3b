"""Autocast: the same learning in bfloat16 products, and nothing of it left behind."""

from collections.abc import Sequence
from typing import Any

import pytest
import test_stage1
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tyler.config.loops import Stage1Config
from tyler.modeling.products import LowerCopies, WidenedProducts
from tyler.training import stage1, supervised
from tyler.training.teacher_forcing import Trace


def accumulated(model: Any, examples: Sequence[Trace], recompute: bool, autocast: bool) -> float:
    """The loss of a batch, whose gradient is then in the parameters."""
    settings = Stage1Config(gradient_checkpointing=recompute, autocast=autocast, micro_batch_size=2)
    return stage1.Stage1Trainer(model, (), settings).accumulate(examples)


@pytest.fixture(params=[False, True], ids=["with instructions", "without"])
def emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this processor is one without bfloat16's instructions."""
    monkeypatch.setattr(supervised, "lacks_instructions", lambda weight: request.param)
    return bool(request.param)


def test_autocast_trains_float32_weights_in_bfloat16_with_about_the_same_gradients(emulated: bool) -> None:
    model = test_stage1.fresh()
    examples = stage1.draw_batch(test_stage1.traces_for(model), test_stage1.SMALL, 0)
    found = {}
    for autocast in (False, True):
        for recompute in (False, True):
            model.synthesizer.zero_grad()
            products = ProductDtypes()
            with products:
                loss = accumulated(model, examples, recompute, autocast)
            assert not torch.is_autocast_enabled("cpu")
            assert products.seen == ({torch.bfloat16} if autocast and not emulated else {torch.float32})
            assert products.attended == {torch.float32}, "a processor attends in float32"
            gradient = torch.cat([parameter.grad.flatten() for parameter in model.synthesizer.trainable()])
            assert gradient.dtype == torch.float32
            found[autocast, recompute] = (loss, gradient)
    for recompute in (False, True):
        (loss, gradient), (low_loss, low) = found[False, recompute], found[True, recompute]
        assert low_loss == pytest.approx(loss, rel=0.01)
        assert nn.functional.cosine_similarity(gradient, low, dim=0) > 0.995
        assert (gradient - low).norm() < 0.1 * gradient.norm()
    torch.testing.assert_close(found[True, True][1], found[True, False][1], rtol=1e-4, atol=1e-6)


class ProductDtypes(TorchDispatchMode):
    """The dtypes of the matrix products with a backbone's weights, and of queries."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()
        self.attended: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default and args[0].numel():  # of no operators there is nothing to multiply
            self.seen.add(args[0].dtype)
        if "scaled_dot_product" in str(func):
            self.attended.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def test_widened_products_are_those_of_bfloat16() -> None:
    x, weight, bias = torch.randn(30, 64).bfloat16(), torch.randn(40, 64).bfloat16(), torch.randn(40).bfloat16()
    batches = x.view(3, 10, 64), torch.randn(3, 64, 7).bfloat16()
    inputs = (x.float(), weight.float(), bias.float()), [one.float() for one in batches]
    with WidenedProducts():
        products = nn.functional.linear(x, weight), nn.functional.linear(x, weight, bias), torch.bmm(*batches)
        sums = x.float() @ weight.float().t()
    exact = nn.functional.linear(*inputs[0][:2]), nn.functional.linear(*inputs[0]), torch.bmm(*inputs[1])
    assert sums.dtype == torch.float32
    for product, full in zip(products, exact, strict=True):
        assert product.dtype == torch.bfloat16
        torch.testing.assert_close(product.float(), full, rtol=2**-8, atol=1e-4)


def test_frozen_weights_are_rounded_once_and_exact_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "lacks_instructions", lambda weight: False)
    model = test_stage1.fresh()
    examples = stage1.draw_batch(test_stage1.traces_for(model), test_stage1.SMALL, 0)
    frozen = [one for one in model.backbone.model.parameters() if one.dim() == 2]
    weights = {id(one): one.clone() for one in frozen}
    found = {}
    for kept in (True, False):
        model.synthesizer.zero_grad()
        with monkeypatch.context() as changed:
            if not kept:
                changed.setattr(supervised, "LowerCopies", lambda modules: LowerCopies([]))
            casts = Casts({one.shape for one in frozen} - {one.shape for one in model.synthesizer.trainable()})
            with casts:
                loss = accumulated(model, examples, recompute=True, autocast=True)
        found[kept] = casts.count, loss, [one.grad for one in model.synthesizer.trainable()]
    maps = [layer for layer in model.backbone.model.modules() if isinstance(layer, nn.Linear)]
    assert 0 < found[True][0] <= len(maps) < found[False][0]
    assert found[True][1] == found[False][1]
    assert all(torch.equal(*both) for both in zip(found[True][2], found[False][2], strict=True))
    assert all(torch.equal(one, weights[id(one)]) for one in model.backbone.model.parameters() if one.dim() == 2)


def test_weights_are_exact_again_after_an_error() -> None:
    layer = nn.Linear(2, 2).requires_grad_(False)
    learns, frozen = nn.Linear(2, 2), layer.weight
    copies = LowerCopies([nn.ModuleList([layer, learns]), nn.ModuleList([layer])])
    with pytest.raises(KeyError), copies:
        assert layer.weight.dtype == torch.bfloat16 and learns.weight.dtype == torch.float32
        raise KeyError
    assert layer.weight is frozen


class Casts(TorchDispatchMode):
    """How many matrices of some shapes are brought into bfloat16."""

    def __init__(self, shapes: set[torch.Size]) -> None:
        super().__init__()
        self.shapes, self.count = shapes, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") is torch.bfloat16:
            self.count += args[0].shape in self.shapes
        return func(*args, **(kwargs or {}))


def test_autocast_over_other_weights_is_refused() -> None:
    model = test_stage1.fresh()
    model.backbone.model.to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"autocast is for weights in float32, these are torch.bfloat16"):
        stage1.Stage1Trainer(model, (), Stage1Config(autocast=True))
