"""Architectures without their weights: what a dry run builds, and what a memory plan counts.

The settings of known models are those of the `config.json` that each publishes; any other architecture is read from a
folder with a `config.json` of its own, which needs no weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from tyler.backbone import Backbone, best_device, check_supported, check_tokenizer, explained, located, resolve_dtype

INITIAL_STD = 0.02
"""Of the random weights, as `initializer_range` of all these models."""

QWEN = {
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}

PUBLISHED: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": (
        Qwen2Config,
        {
            **QWEN,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
        },
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": (
        Qwen2Config,
        {
            **QWEN,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
        },
    ),
    "HuggingFaceTB/SmolLM3-3B": (
        SmolLM3Config,
        {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5_000_000.0},
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": 128012,
            "pad_token_id": 128004,
        },
    ),
    "Qwen/Qwen3-4B": (
        Qwen3Config,
        {
            **QWEN,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
        },
    ),
}
"""The backbones of the paper and one that runs on a small CPU, by their Hub id."""


def architecture(id: str) -> PreTrainedConfig:
    """The settings of a known model, or of the `config.json` in a folder. Raises ValueError for any other id."""
    if id in PUBLISHED:
        family, settings = PUBLISHED[id]
        return family(**settings)
    folder = Path(located(id))
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"the shape of backbone {id!r} is not known here; give a folder with its config.json (no weights needed), "
            f"or one of {', '.join(PUBLISHED)}"
        )
    with explained(id):
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    check_supported(id, config)
    return config


def skeleton(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The architecture on torch's meta device: every shape, and no memory."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder. Raises FileNotFoundError where there is none."""
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(
            f"{folder} holds no tokenizer.json; give a folder with a model's tokenizer.json and tokenizer_config.json"
        )
    with explained(str(folder)):
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)


def random_backbone(
    id: str, tokenizer: PreTrainedTokenizerBase, *, dtype: str = "auto", device: torch.device | None = None
) -> Backbone:
    """The real architecture with random weights and a real tokenizer: everything but what the model knows.

    Weights are drawn in place, in their own dtype, from torch's global generator: no second copy is ever there.
    Raises ValueError for an unknown shape, and for a tokenizer that has more tokens than it has embeddings.
    """
    place = device or best_device()
    config = architecture(id)
    check_tokenizer(id, tokenizer, config.vocab_size)
    model = skeleton(config, resolve_dtype(dtype, place))
    materialize(model, place)
    ends = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.generation_config = ends
    return Backbone(id=id, model=model, tokenizer=tokenizer)


@torch.no_grad()
def materialize(model: PreTrainedModel, device: torch.device) -> None:
    """Give a skeleton memory on `device`, and random weights: norms 1, biases 0, everything else normal."""
    model.to_empty(device=device)
    model.tie_weights()
    decoder = model.base_model
    rotary = cast(nn.Module, decoder.rotary_emb)
    decoder.rotary_emb = type(rotary)(config=model.config).to(device)  # its tables are computed, not drawn
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.fill_(1)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            parameter.normal_(std=INITIAL_STD)
