"""The lean forward against transformers' own, which training keeps."""

import pytest
import torch
from tests import tiny
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

from tyler.engine.native.attention import Span
from tyler.engine.native.cache import Context, Room
from tyler.engine.native.fused_decoder import FusedDecoder, FusedLinear, Norm, adjoin, are_neighbours
from tyler.engine.native.reader import Reader
from tyler.modeling import products
from tyler.modeling.backbone import check_supported
from tyler.modeling.lora import LoraSettings, add_lora, decoder_stack

LENGTH = 40


def embeds(length: int = LENGTH, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(length, 32, generator=torch.Generator().manual_seed(3)) * 0.4).to(dtype)


@torch.no_grad()
def by_transformers(decoder: nn.Module, inputs: Tensor) -> Tensor:
    return decoder(inputs_embeds=inputs[None], use_cache=False).last_hidden_state[0]


def by_reader(decoder: nn.Module, inputs: Tensor, pieces: int = 1) -> Tensor:
    """The same hidden states, read in so many pieces."""
    context = Context(Room(1, len(inputs), 1), inputs.shape[1], inputs.dtype, inputs.device)
    reader = Reader(decoder, context)
    context.write(0, 0, inputs)
    size = len(inputs) // pieces
    return torch.cat([reader.read([Span(0, start, start + size)]) for start in range(0, len(inputs), size)])


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("k_proj", "o_proj", "up_proj", "down_proj")])
def test_an_adapted_stack_is_folded(family: str, targets: tuple[str, ...]) -> None:
    model = tiny.build_backbone(family).model
    lora = add_lora(model, LoraSettings(rank=4, alpha=8, target_modules=targets))
    tiny.randomize_lora(lora, torch.Generator().manual_seed(1))
    adapted = decoder_stack(lora)
    expected = by_transformers(adapted, embeds())
    assert float((expected - by_transformers(model.base_model, embeds())).abs().max()) > 0.1
    assert torch.allclose(by_reader(adapted, embeds()), expected, atol=2e-5)


LLAMAS: dict[str, dict[str, object]] = {
    "as SmolLM2": {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True, "rope_parameters": None},
    "biases in attention alone": {"mlp_bias": False},
    "biases in the feed-forward part alone": {"attention_bias": False},
    "wide heads": {"head_dim": 12},
    "as many keys as queries": {"num_key_value_heads": 4},
    "one key for all queries": {"num_key_value_heads": 1},
}


@pytest.mark.parametrize("pieces", [1, LENGTH])
@pytest.mark.parametrize("variant", LLAMAS)
def test_every_llama_is_read_as_transformers_reads_it(variant: str, pieces: int) -> None:
    model = tiny.CLASSES["llama"](LlamaConfig(**{**tiny.config("llama").to_dict(), **LLAMAS[variant]}))
    tiny.randomize(model, torch.Generator().manual_seed(0))
    expected = by_transformers(model.base_model, embeds())
    assert torch.allclose(by_reader(model.base_model, embeds(), pieces), expected, atol=1e-5)


ORIGINAL = {"original_max_position_embeddings": LENGTH // 2}
ROPES: list[dict[str, object]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, **ORIGINAL},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
]


def rotated(family: str, rope: dict[str, object]) -> PreTrainedModel:
    config = tiny.config(family)
    config.rope_parameters = {"rope_theta": 100.0, **rope}
    config.max_position_embeddings = LENGTH // 2
    return tiny.CLASSES[family](config)


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_scaled_rotary_positions_are_those_of_the_model(family: str, rope: dict[str, object]) -> None:
    model, plain = rotated(family, rope), rotated(family, {"rope_type": "default"})
    tiny.randomize(model, torch.Generator().manual_seed(0))
    plain.load_state_dict(model.state_dict())
    expected = by_transformers(model.base_model, embeds())
    assert float((by_transformers(plain.base_model, embeds()) - expected).abs().max()) > 0.01, "the scaling must matter"
    assert torch.allclose(by_reader(model.base_model, embeds()), expected, atol=1e-5)
    assert torch.allclose(by_reader(model.base_model, embeds(), LENGTH), expected, atol=1e-5)


LONGROPE = {"factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0], **ORIGINAL}


@pytest.mark.parametrize("rope", [{"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "longrope", **LONGROPE}])
def test_angles_that_follow_the_length_of_the_context_are_refused_by_name(rope: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{rope['rope_type']}.*default, linear, llama3 or yarn"):
        check_supported("a", rotated("llama", rope).config)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3])
def test_a_norm_is_that_of_transformers_however_small_its_input(scale: float) -> None:
    module = tiny.build_backbone("qwen3").model.base_model.norm
    x = embeds() * scale
    with torch.no_grad():
        assert torch.allclose(Norm.of(module)(x), module(x), rtol=1e-5, atol=1e-7)


def test_another_activation_is_refused() -> None:
    config = tiny.config("qwen2")
    config.hidden_act = "gelu"
    with pytest.raises(ValueError, match="'gelu'"):
        FusedDecoder(tiny.CLASSES["qwen2"](config).base_model)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_bfloat16_is_as_near_to_float32_as_with_transformers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build_backbone(family).model
    exact = by_transformers(model.base_model, embeds())
    half = model.to(torch.bfloat16).base_model
    theirs = (by_transformers(half, embeds(dtype=torch.bfloat16)).float() - exact).abs().mean()
    for wide in (1, LENGTH + 1):  # every product widened, none
        monkeypatch.setattr(products, "WIDE", wide)
        monkeypatch.setattr(products, "lacks_instructions", lambda weight: True)
        ours = (by_reader(half, embeds(dtype=torch.bfloat16)).float() - exact).abs().mean()
        assert ours < 1.2 * theirs


def test_a_widened_product_keeps_type_and_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "lacks_instructions", lambda weight: True)
    linear = nn.Linear(5, 6).bfloat16()
    weight, bias = linear.weight.detach(), linear.bias.detach()
    x = torch.randn(products.WIDE, 5).bfloat16()
    wide = FusedLinear(linear)(x)
    assert wide.dtype == torch.bfloat16
    exact = x.double() @ weight.double().t() + bias.double()
    assert torch.allclose(wide.double(), exact, rtol=2**-7, atol=1e-5), "rounded once, to eight bits"


def test_only_bfloat16_on_a_cpu_without_it_is_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    for able in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda able=able: able)
        assert products.lacks_instructions(torch.zeros(1, dtype=torch.bfloat16)) is not able
        assert not products.lacks_instructions(torch.zeros(1))
    monkeypatch.setattr(products.platform, "machine", lambda: "arm64")
    assert not products.lacks_instructions(torch.zeros(1, dtype=torch.bfloat16))


# ---------------------------------------------------------------------------------------------- weights


def test_weights_of_one_product_are_moved_together_in_place() -> None:
    weights = [nn.Parameter(torch.randn(rows, 4)) for rows in (3, 2, 5)]
    before = [weight.detach().clone() for weight in weights]
    together = adjoin(weights)
    assert are_neighbours(weights) and torch.equal(together, torch.cat(before))
    assert all(torch.equal(weight, earlier) for weight, earlier in zip(weights, before, strict=True))
    assert adjoin(weights).data_ptr() == together.data_ptr() == weights[0].data_ptr(), "a second time moves nothing"
    with torch.no_grad():
        weights[1].fill_(7)
    assert bool((together[3:5] == 7).all()), "the product sees what is written into a part"


def test_weights_in_another_order_are_no_neighbours() -> None:
    weights = [nn.Parameter(torch.randn(2, 4)) for _ in range(3)]
    adjoin(weights)
    assert not are_neighbours([weights[1], weights[0], weights[2]])
    assert not are_neighbours([weights[0], weights[2]])


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_two_views_read_without_taking_weights_from_each_other(family: str) -> None:
    model = tiny.build(family, seed=3)
    decoders = [model.policy.decoder, model.synthesizer.decoder, model.backbone.decoder]
    for decoder in decoders:
        FusedDecoder(decoder)
    addresses = [parameter.data_ptr() for decoder in decoders for parameter in decoder.parameters()]
    for decoder in decoders:
        FusedDecoder(decoder)
    assert addresses == [parameter.data_ptr() for decoder in decoders for parameter in decoder.parameters()]
