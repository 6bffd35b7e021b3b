"""Packed weights give the products of plain ones, follow every write, and are held once."""

import gc

import pytest
import torch
from tests import tiny

from tyler.engine.native import packing
from tyler.engine.native.fused_decoder import FusedDecoder, FusedLinear
from tyler.engine.native.packing import PackedWeight, can_pack, packed_weight
from tyler.engine.request import Request
from tyler.engine.routing import AtBoundaries
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.lora import LoraSettings

pytestmark = pytest.mark.skipif(not can_pack(torch.float32), reason="no packed weights on this processor or torch")


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of any size are packed."""
    monkeypatch.setattr(packing, "SMALLEST", 1)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7, 32, 300])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_packed_product_is_the_plain_one(rows: int, with_bias: bool) -> None:
    weight, bias = torch.randn(70, 50), torch.randn(70) if with_bias else None
    packed = PackedWeight(weight, [weight])
    for x in (torch.randn(rows, 50), torch.randn(rows, 3, 50)[:, 1], torch.randn(50, rows).t()):
        expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
        product = packed.product(x, bias)
        assert product.shape == (rows, 70) and torch.allclose(product.double(), expected, atol=1e-4)


@pytest.mark.usefixtures("everything")
def test_a_written_weight_is_packed_anew_whichever_of_its_parts_it_was() -> None:
    maps = [torch.nn.Linear(6, 4) for _ in range(3)]
    product, x = FusedLinear(*maps, twice=True), torch.randn(5, 6)
    assert product.packed is not None
    for written in maps:
        with torch.no_grad():
            written.weight.copy_(torch.randn(4, 6))
        assert torch.allclose(product(x), torch.cat([linear(x) for linear in maps], dim=1), atol=1e-5)
        residual = torch.ones(5, 12)
        product.add_to(residual, x)
        assert torch.allclose(residual, 1 + product(x), atol=1e-5)


@pytest.mark.usefixtures("everything")
def test_what_shares_a_weight_shares_its_copy_which_goes_with_the_weight() -> None:
    before = len(packing._made)
    backbone = tiny.build_backbone("llama")
    first, second = FusedDecoder(backbone.decoder), FusedDecoder(backbone.decoder)
    assert all(
        layer.down.packed is other.down.packed is not None
        for layer, other in zip(first.layers, second.layers, strict=True)
    )
    assert len(packing._made) > before
    del backbone, first, second
    gc.collect()
    assert len(packing._made) == before


def test_small_and_large_weights_and_float64_are_read_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.zeros(512, 512)
    assert packed_weight(weight, [weight]) is not None
    assert packed_weight(weight[:511], [weight]) is None
    assert packed_weight(weight.double(), [weight]) is None
    assert FusedLinear(torch.nn.Linear(512, 512)).packed is None
    assert packing.fits_twice([weight])
    monkeypatch.setattr(packing, "LARGEST", weight.nbytes - 1)
    assert not packing.fits_twice([weight])


def test_a_torch_that_cannot_pack_multiplies_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.zeros(512, 512)
    for product in (failing, lambda *_: torch.ones(2, 3)):
        can_pack.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(PackedWeight, "product", product)
            assert packed_weight(weight, [weight]) is None
    can_pack.cache_clear()
    assert can_pack(torch.float32)


def failing(*_: object) -> torch.Tensor:
    raise RuntimeError("no such operator")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_answers_with_packed_weights_are_those_without(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = answers(tiny.tyler(family), packed=False)
    monkeypatch.setattr(packing, "SMALLEST", 1)
    packed = answers(tiny.tyler(family), packed=True)
    for first, other in zip(plain, packed, strict=True):
        assert first.actions == other.actions and first.num_invocations > 0
        assert first.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def answers(model: Tyler, packed: bool) -> list[Trajectory]:
    requests = [Request(tiny.ids(text), router=AtBoundaries(), max_new_tokens=24) for text in tiny.PROMPTS]
    engine = model.engine(slots=2)
    answers = engine.run(requests)
    for reader in engine.readers:
        assert all((layer.qkv.packed is not None) == packed for layer in reader.fused.layers)
    return answers


@pytest.mark.usefixtures("everything")
def test_a_folded_policy_is_packed_again_after_an_optimizer_step() -> None:
    model = tiny.tyler("llama")
    model.policy.add_lora(LoraSettings(rank=2, alpha=4))
    engine = model.engine(slots=1)
    request = [Request(tiny.ids(tiny.MEDIUM), max_new_tokens=12)]
    first = engine.run(request)[0]
    tiny.randomize_lora(model.policy.lora, torch.Generator().manual_seed(1))
    assert engine.refresh()
    second, fresh = engine.run(request)[0], model.engine(slots=1).run(request)[0]
    assert first.logprobs != second.logprobs
    assert second.actions == fresh.actions and second.logprobs == fresh.logprobs
