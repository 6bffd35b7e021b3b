"""The memory model against what tensors really take: parameters to the last one, activations within a few percent."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

import tiny
from allocations import Allocations
from tyler.config.files import load_config
from tyler.config.schema import Config
from tyler.config.sections import LoraConfig
from tyler.engine.native.cache import Room, bytes_of_position
from tyler.engine.native.fused_decoder import FusedDecoder
from tyler.model import Tyler
from tyler.modeling import attention
from tyler.modeling.architectures import PUBLISHED
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.modeling.random_init import architecture, skeleton
from tyler.planning.memory import calibration_memory, kept_by_decoder, larger_peak, rollout_memory, step_memory
from tyler.reasoners.memgen.model import MemGen
from tyler.reasoners.memgen.sft import replayed_logprobs
from tyler.reasoners.memgen.weaver import INFERENCE, PROMPT
from tyler.reasoners.table import TRAININGS
from tyler.training.micro_batches import CALIBRATION_ROWS
from tyler.training.packing import read_packed
from tyler.training.planned import PROMPT as PROMPT_TOKENS
from tyler.training.planned import Read, Shape, Step, count_parameters
from tyler.training.teacher_forcing import Insertion, Trace

NUMBERS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "Qwen/Qwen3-4B": 4_022_468_096,
}
"""As the Hub counts them in their safetensors."""


@pytest.mark.parametrize("id", PUBLISHED)
def test_the_formula_and_the_architecture_have_the_published_number_of_parameters(id: str) -> None:
    config = architecture(id)
    assert skeleton(config, torch.bfloat16).num_parameters() == NUMBERS[id]
    assert count_parameters(Shape.of(config), LoraConfig(), Config().operators).backbone == NUMBERS[id]


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("k_proj", "o_proj", "down_proj")])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_parameters_are_counted_exactly(family: str, targets: tuple[str, ...]) -> None:
    backbone = tiny.build_backbone(family)
    settings = LoraSettings(rank=3, target_modules=targets)
    model = Tyler.start(backbone, tiny.OPERATORS, settings)
    model.policy.add_lora(settings)
    assert model.policy.lora is not None
    lora = LoraConfig(rank=3, target_modules=targets)
    counts = count_parameters(Shape.of(backbone.model.config), lora, tiny.OPERATORS)

    def trainable(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)

    heads = model.synthesizer.mapping().values()
    assert counts.backbone == backbone.model.num_parameters()
    assert counts.phi == trainable(model.synthesizer.lora) == counts.eta == trainable(model.policy.lora)
    assert counts.queries == sum(head.queries.numel() for head in heads)
    assert counts.projections == sum(trainable(head.proj) for head in heads)
    assert counts.psi == model.policy.psi.numel()
    assert counts.stage1 == sum(parameter.numel() for parameter in model.synthesizer.trainable())
    assert counts.stage2 == trainable(model.policy)
    layers = FusedDecoder(model.synthesizer.decoder).layers
    products = [product for layer in layers for product in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    theta = {parameter.data_ptr() for parameter in backbone.model.parameters()}
    assert counts.adapted == sum(one.weight.numel() for one in products if one.weight.data_ptr() not in theta)


# ---------------------------------------------------------------------------------------------- activations


def wide(family: str, layers: int) -> PreTrainedConfig:
    """Wide enough that what a layer keeps is not lost among small things."""
    eos = tiny.tokenizer().eos_token_id
    return AutoConfig.for_model(
        family,
        vocab_size=len(tiny.tokenizer()),
        hidden_size=128,
        intermediate_size=352,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_hidden_layers=layers,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=eos,
        **({"head_dim": 24} if family == "qwen3" else {}),
    )


def kept(family: str, layers: int, dtype: torch.dtype, read: Read, dropout: float, recompute: bool) -> int:
    """Bytes alive after a pass of the synthesizer's view."""
    model = AutoModelForCausalLM.from_config(wide(family, layers), dtype=dtype, attn_implementation="sdpa")
    synthesizer = Tyler.start(
        Backbone("wide", model, tiny.tokenizer()), tiny.OPERATORS, LoraSettings(dropout=dropout)
    ).synthesizer.train()
    decoder = synthesizer.decoder
    embeds = torch.randn(read.rows, read.length, 128, dtype=dtype)
    with Allocations() as allocations:
        out = read_packed(decoder, list(embeds), recompute=recompute)
    assert out[0].requires_grad
    return allocations.alive()


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize(
    "family, dtype",
    [("llama", torch.float32), ("qwen2", torch.bfloat16), ("qwen3", torch.bfloat16), ("smollm3", torch.float32)],
)
def test_what_layers_keep_is_predicted(
    family: str, dtype: torch.dtype, dropout: float, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as on a GPU: half precision on a CPU keeps float32 states
    monkeypatch.setattr(attention, "cache_dtype", lambda kept_in, device: kept_in)
    read = Read(2, 200, 200, masked=False)
    few, many = (kept(family, layers, dtype, read, dropout, recompute) for layers in (1, 4))
    shape, lora = Shape.of(wide(family, 3)), LoraConfig(dropout=dropout)
    assert kept_by_decoder(shape, read, dtype.itemsize, lora, recompute) == pytest.approx(many - few, rel=0.08)


# --------------------------------------------------------------------------------------- caches and phases


def test_the_caches_of_a_rollout_are_counted_to_the_byte() -> None:
    model = tiny.build("qwen3")
    config = load_config("mini", ["decoding.slots=3", "stage2.max_new_tokens=50", "grpo.budget=2"])
    room = Room(3, PROMPT_TOKENS + 50 + 2 * 8, bytes_of_position(model.backbone))
    parts = rollout_memory(Shape.of(model.backbone.model.config), config, 4)
    caches = parts["policy's KV"] + parts["synthesizer's KV"] + parts["context"]
    assert caches == room.slots * room.capacity * room.position_bytes


@pytest.mark.parametrize("name", ["qwen2.5-1.5b", "smollm3-3b", "qwen3-4b"])
def test_a_presets_steps_fit_a_gpu_of_24_gigabytes_and_checkpointing_is_why(name: str) -> None:
    config = load_config(name)
    shape, plain = (
        Shape.of(architecture(config.backbone.id)),
        {"micro_batch_size": None, "gradient_checkpointing": False},
    )

    def needed(one: Config, stage: str) -> int:
        return sum(step_memory(shape, one, TRAININGS[stage].step(shape, one), 2).values())

    for stage in ("stage1", "stage2"):
        without = config.model_copy(update={stage: getattr(config, stage).model_copy(update=plain)})
        assert needed(config, stage) < 24 * 2**30 < needed(without, stage)


def test_a_trained_parameter_has_its_gradient_and_two_moments_and_one_at_rest_only_itself() -> None:
    step = Step(((Read(1, 1, 1), None),), 1, 10, recompute=False, at_rest=5)
    parts = step_memory(Shape.of(wide("qwen3", 1)), load_config("mini"), step, 4)
    own = {"adapters and heads": 60, "gradients": 40, "optimizer": 80}
    assert {name: parts[name] for name in own} == own
    assert larger_peak(3, 4) == {"logits at work": 4}
    assert larger_peak(4, 3) == {"layer at work": 4}


def test_reading_answers_to_start_psi_holds_what_is_planned() -> None:
    config = wide("qwen3", 3)
    decoder, shape = AutoModelForCausalLM.from_config(config).eval().model, Shape.of(config)
    planned = load_config("mini", ["stage2.max_new_tokens=44", "grpo.budget=0"])
    with torch.no_grad(), Allocations() as allocations:
        embeds = torch.randn(CALIBRATION_ROWS, PROMPT_TOKENS + 44, shape.dim)
        decoder(inputs_embeds=embeds, use_cache=False)
    parts = calibration_memory(shape, planned, 4)
    assert parts["hidden states"] + parts["layer at work"] == pytest.approx(allocations.peak, rel=0.15)


def test_a_bound_on_memory_bounds_what_a_rollout_is_planned_to_hold() -> None:
    shape = Shape.of(architecture("Qwen/Qwen3-4B"))
    free = rollout_memory(shape, load_config("qwen3-4b"), 2)
    bound = rollout_memory(shape, load_config("qwen3-4b", ["decoding.memory=4GB"]), 2)
    caches = ("policy's KV", "synthesizer's KV", "context")
    assert sum(free[part] for part in caches) > 8e9
    assert 3.99e9 < sum(bound[part] for part in caches) <= 4e9
    assert {part: size for part, size in bound.items() if part not in caches} == {
        part: size for part, size in free.items() if part not in caches
    }


def weaving(layers: int, recompute: bool) -> tuple[int, int]:
    """Bytes alive after MemGen's passes over two traces, and what its planned reads keep of them."""
    model = AutoModelForCausalLM.from_config(wide("qwen3", layers), dtype=torch.float32, attn_implementation="sdpa")
    memgen = MemGen.start(Backbone("wide", model, tiny.tokenizer()), lora=LoraSettings(dropout=0.0))
    places = (Insertion(0, PROMPT), *(Insertion(30 * n, INFERENCE) for n in range(1, 6)))
    examples = [Trace("", [5] * 60, [6] * 180, insertions=places) for _ in range(2)]
    with Allocations() as allocations:
        logprobs, _ = replayed_logprobs(memgen, examples, gradient_checkpointing=recompute)
    assert logprobs.requires_grad
    shape, latents = Shape.of(wide("qwen3", layers)), 6 * 8
    reads = ((Read(2, 60 + 150 + latents, 60 + 150 + latents, chunks=6), LoraConfig(dropout=0.0)),)
    reads += ((Read(2, 180 + latents, 240 + latents), None),)
    kept = sum(kept_by_decoder(shape, read, 4, lora, recompute) for read, lora in reads)
    return allocations.alive(), kept + 2 * shape.layers * shape.key_value * 4 * 2 * 60


@pytest.mark.parametrize("recompute", [False, True])
def test_what_memgens_weaver_keeps_is_predicted(recompute: bool) -> None:
    (few, little), (many, much) = (weaving(layers, recompute) for layers in (1, 4))
    assert much - little == pytest.approx(many - few, rel=0.2)
