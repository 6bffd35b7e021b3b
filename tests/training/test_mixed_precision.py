"""Autocast: the same learning in bfloat16 products, and nothing of it left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import test_stage1
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tyler.config.loops import Stage1Config
from tyler.training import stage1
from tyler.training.micro_batches import MicroBatches
from tyler.training.mixed_precision import MixedPrecision
from tyler.training.teacher_forcing import Example


def accumulated(
    model: Any, examples: Sequence[Example], passes: tuple[MicroBatches, MixedPrecision], recompute: bool = False
) -> float:
    """The loss of a batch under a precision, whose gradient is then in the parameters."""
    trainer = stage1.Stage1Trainer(model, (), Stage1Config(gradient_checkpointing=recompute))
    trainer.micro_batches, trainer.precision = passes
    return trainer.accumulate([("x", example) for example in examples])


def test_autocast_trains_float32_weights_in_bfloat16_with_about_the_same_gradients() -> None:
    model = test_stage1.fresh()
    examples = [example for _, example in stage1.draw_batch(test_stage1.traces_for(model), test_stage1.SMALL, 0)]
    found = {}
    for autocast in (False, True):
        passes = MicroBatches(2), MixedPrecision.of(model.backbone, model.synthesizer, autocast)
        for recompute in (False, True):
            model.synthesizer.zero_grad()
            products = ProductDtypes()
            with products:
                loss = accumulated(model, examples, passes, recompute)
            assert products.seen == ({torch.bfloat16} if autocast else {torch.float32})
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
    """The dtypes of the matrix products with a backbone's weights: the large ones."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default:
            self.seen.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def test_inside_a_step_frozen_weights_are_bfloat16_and_attention_is_not_and_afterwards_all_is_as_before() -> None:
    model = test_stage1.fresh()
    backbone, learner = model.backbone, model.synthesizer
    before = {name: id(one) for tree in (backbone.model, learner) for name, one in tree.named_parameters()}
    trained = {id(one) for one in learner.trainable()}
    precision = MixedPrecision.of(backbone, learner, True)
    with pytest.raises(RuntimeError, match="stops here"), precision.weights():
        maps = [one for tree in (backbone.model, learner) for one in tree.modules() if isinstance(one, nn.Linear)]
        assert {one.weight.dtype for one in maps if id(one.weight) not in trained} == {torch.bfloat16}
        assert {one.weight.dtype for one in maps if id(one.weight) in trained} == {torch.float32}
        assert backbone.head.dtype == torch.bfloat16 and backbone.embedding.dtype == torch.float32
        attention = AttentionDtypes()
        with attention, precision.products():
            backbone.decoder(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
        assert attention.seen == {torch.float32}
        raise RuntimeError("stops here")
    assert before == {name: id(one) for tree in (backbone.model, learner) for name, one in tree.named_parameters()}
    assert len({id(low) for _, _, low in precision.maps}) == len({id(full) for _, full, _ in precision.maps})


class AttentionDtypes(TorchDispatchMode):
    """The dtypes of queries that attention is computed of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in str(func):
            self.seen.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def test_the_copies_have_the_bits_of_plain_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    model = test_stage1.fresh()
    examples = [example for _, example in stage1.draw_batch(test_stage1.traces_for(model), test_stage1.SMALL, 0)]
    ours = MixedPrecision.of(model.backbone, model.synthesizer, True)
    found = []
    for precision in (ours, MixedPrecision(autocast=True)):
        model.synthesizer.zero_grad()
        loss = accumulated(model, examples, (MicroBatches(2), precision))
        found.append((loss, [parameter.grad for parameter in model.synthesizer.trainable()]))
    assert found[0][0] == found[1][0]
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(one, other)


def test_without_autocast_nothing_is_changed() -> None:
    model = test_stage1.fresh()
    precision = MixedPrecision.of(model.backbone, model.synthesizer, False)
    with precision.weights(), precision.products():
        assert not torch.is_autocast_enabled("cpu")
        assert model.backbone.head.dtype == torch.float32


def test_autocast_over_other_weights_is_refused() -> None:
    model = test_stage1.fresh()
    model.backbone.model.to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"autocast is for weights in float32, these are torch.bfloat16"):
        MixedPrecision.of(model.backbone, model.synthesizer, True)
