"""Tiny random models with everything that can go wrong in them: LoRAs, heads and psi far from zero, ids that are half a
character, texts full of boundaries. They are built once per process; a test that changes one calls `build`.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings, lora_layers
from tyler.modeling.operators import Operator
from tyler.training import packing

FAMILIES = ("llama", "qwen2", "qwen3", "smollm3")

SEEDS = {"llama": 10, "qwen2": 8, "qwen3": 9, "smollm3": 7}
"""Seeds under which the random models invoke all three operators."""

FULLY = "qwen3"
"""The family that takes every case without `--slow`: how rows are scheduled does not depend on the family."""


def by_family(cases: Sequence[tuple[object, ...]], often: Sequence[tuple[object, ...]]) -> list[Any]:
    """(family, *case): every case for one family, those in `often` for the others, and the rest with `--slow`."""
    return [
        pytest.param(family, *case, marks=[] if family == FULLY or case in often else pytest.mark.slow)
        for family in FAMILIES
        for case in cases
    ]


OPERATORS = (
    Operator("global", num_latents=5, boundary="answer_start"),
    Operator("state", num_latents=3, boundary="step"),
    Operator("procedure", num_latents=2, boundary="structure"),
)
"""Three lengths that differ, so that a mistaken length or a swapped head shows."""

MAX_POSITIONS = 256

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
"""Under these, of the four wavelengths of a head one stays, two are stretched in part and one is stretched whole."""
SECOND_END = " total"
"""The second of the tokens that end an answer of the llama, which declares a list of them."""

STRUCTURAL = ("$", " $", "$x$", "\n\n", ".\n\n", ":\n\n", "\n\nStep 2:", "Step 1:", "Solution:", "\\(", "\\)", "2. ")
"""Pieces that are made more likely, because boundaries are at them."""
PLAIN = (
    " Step", "Let me solve", "$$", "```", "```python\n", "```json\n", "\\[", "\\]", '{"', '": ', "\\boxed{", "**",
    " and", " so", " we", " the", " is", " x", " y", " +", " =", "^2", "_1", " 5", " 12", "1.5", "3,000", ", ", ". ",
    "<<", ">>", "\n\n$", " total", "\\frac", "[asy]", "[/asy]",
)  # fmt: skip
ASCII = tuple(chr(code) for code in range(32, 127))
BYTES = tuple(dict.fromkeys("😀é→".encode()))
PADDING = 3
"""Rows of the embedding table beyond the tokenizer, as real models have them."""

SHORT = "x"
MEDIUM = "A shop sold 48 clips, then half as many. How many did it sell?"
LONG = "Let $x$ be the price. Then we pay $2x + 5$ for two, and so on: é→😀.\n\n" * 3
ODD = 'Step 1: {"a": 5}\n\n```python\nx = 1\n```'
PROMPTS = (SHORT, MEDIUM, LONG, ODD)


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose pieces are mostly the beginnings of structures; three characters are split."""
    alphabet = dict(zip(range(256), byte_characters(), strict=True))
    texts = ["\n", *ASCII, *STRUCTURAL, *PLAIN]
    pieces = ["".join(alphabet[byte] for byte in text.encode()) for text in texts] + [alphabet[byte] for byte in BYTES]
    vocabulary = [("<unk>", -100.0), ("<eos>", -100.0), *((piece, -1.0) for piece in dict.fromkeys(pieces))]
    core = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>")


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def ids(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False))


def config(family: str, width: int = 32) -> PreTrainedConfig:
    size = {
        "vocab_size": len(tokenizer()) + PADDING,
        "hidden_size": width,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": None,
        "eos_token_id": tokenizer().eos_token_id,
        "pad_token_id": tokenizer().eos_token_id,
    }
    if family == "llama":
        size["eos_token_id"] = [tokenizer().eos_token_id, *ids(SECOND_END)]
        biases = {"attention_bias": True, "mlp_bias": True}
        return LlamaConfig(
            num_hidden_layers=2, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=False, **biases, **size
        )
    if family == "qwen2":
        return Qwen2Config(num_hidden_layers=2, tie_word_embeddings=False, **size)
    if family == "qwen3":
        return Qwen3Config(num_hidden_layers=2, head_dim=max(16, width // 4), tie_word_embeddings=True, **size)
    return SmolLM3Config(num_hidden_layers=3, no_rope_layers=[1, 0, 1], tie_word_embeddings=True, **size)


CLASSES = {
    "llama": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
    "smollm3": SmolLM3ForCausalLM,
}


@torch.no_grad()
def randomize(model: PreTrainedModel, generator: torch.Generator) -> None:
    """Weights under which every part of the context matters and logits stay within a few units."""

    def normal(tensor: torch.Tensor, std: float, mean: float = 0.0) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std + mean)

    for name, parameter in model.named_parameters():
        if "norm" in name:
            normal(parameter, std=0.2, mean=1.0)
        elif name.endswith("bias"):
            normal(parameter, std=0.3)
        elif "embed_tokens" in name or "lm_head" in name:
            normal(parameter, std=0.28)
            likely = ids_of(STRUCTURAL)
            parameter[likely] *= 1.35
        else:
            gain = 0.8 if "q_proj" in name or "k_proj" in name else 1.0
            normal(parameter, std=gain / parameter.shape[1] ** 0.5)


def ids_of(pieces: Sequence[str]) -> list[int]:
    token_ids = [ids(piece) for piece in pieces]
    assert all(len(piece) == 1 for piece in token_ids), "each of these is one token"
    return [piece[0] for piece in token_ids]


@torch.no_grad()
def randomize_lora(lora: nn.Module, generator: torch.Generator) -> None:
    """An adapter that changes its weights by an amount of their own size."""
    for layer in lora_layers(lora).values():
        for matrix in (layer.lora_A["default"].weight, layer.lora_B["default"].weight):
            matrix.copy_(torch.randn(matrix.shape, generator=generator) * 0.16)


def build_backbone(family: str, seed: int = 0, device: str = "cpu", width: int = 32) -> Backbone:
    model = CLASSES[family](config(family, width))
    randomize(model, torch.Generator().manual_seed(seed))
    return Backbone(id=f"tiny-{family}", model=model.to(device), tokenizer=tokenizer())


def save(backbone: Backbone, folder: Path) -> Path:
    """Write a backbone and its tokenizer as a model's folder."""
    backbone.model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def build(
    family: str,
    seed: int = 0,
    operators: tuple[Operator, ...] = OPERATORS,
    psi_scale: float = 0.48,
    device: str = "cpu",
    width: int = 32,
    dtypes: Sequence[torch.dtype] = (),
) -> Tyler:
    """A model that looks trained: phi, eta, queries, projections and psi are random and all matter.

    The backbone's weights are cast to each of `dtypes` in turn; adapters stay in float32.
    """
    generator = torch.Generator().manual_seed(seed + 1)
    settings = LoraSettings(rank=4, alpha=8)
    with torch.random.fork_rng():
        backbone = build_backbone(family, seed, device, width)
        for dtype in dtypes:
            backbone = backbone.rounded_to(dtype)
        model = Tyler.start(backbone, operators, settings).at_stage("stage2")
        model.policy.add_lora(settings)
    assert model.policy.lora is not None
    for lora in (model.synthesizer.lora, model.policy.lora):
        randomize_lora(lora, generator)
    for head in model.synthesizer.heads.values():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    model.policy.psi.copy_(torch.randn(model.policy.psi.shape, generator=generator) * psi_scale)
    model.synthesizer.eval()
    model.policy.eval()
    return model


@functools.cache
def tyler(family: str, device: str = "cpu") -> Tyler:
    """The shared model of a family. Do not change it."""
    return build(family, SEEDS[family], device=device)


def count_recomputed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that gets an entry whenever a layer is run under gradient checkpointing."""
    seen: list[object] = []
    run = packing.checkpoint

    def counted(*arguments: object, **options: object) -> object:
        seen.append(arguments[1])
        return run(*arguments, **options)

    monkeypatch.setattr(packing, "checkpoint", counted)
    return seen
