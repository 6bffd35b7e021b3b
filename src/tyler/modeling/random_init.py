"""Architectures without their weights: what a dry run builds."""

from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tyler.modeling.architectures import settings_of
from tyler.modeling.backbone import (
    Backbone,
    best_device,
    check_supported,
    check_tokenizer,
    resolve_dtype,
    translated_errors,
)
from tyler.modeling.tokenizer import load_tokenizer

INITIAL_STD = 0.02
"""Of the random weights, as `initializer_range` of all these models."""


def architecture(id: str) -> PreTrainedConfig:
    """The settings of a known model, of a GGUF file, or of the `config.json` in a folder. ValueError for any other."""
    settings = dict(settings_of(id))
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    check_supported(id, config)
    return config


def skeleton(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The architecture on torch's meta device: every shape, and no memory."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder. Raises FileNotFoundError for a folder without one."""
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(
            f"{folder} holds no tokenizer.json; give a folder with a model's tokenizer.json, tokenizer_config.json and "
            "its chat_template.jinja, if there is one"
        )
    with translated_errors(str(folder)):
        return load_tokenizer(str(folder))


def random_backbone(
    id: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    dtype: str = "auto",
    device: torch.device | None = None,
    layers: int | None = None,
) -> Backbone:
    """The real architecture with random weights and a real tokenizer: everything but what the model knows.

    With `layers` it has only its first so many, each of its real width.
    Weights are drawn in place, in their own dtype, from torch's global generator: no second copy is ever there.
    Raises ValueError for an unknown shape, and for a tokenizer that has more tokens than it has embeddings.
    """
    device = device or best_device()
    config = architecture(id) if layers is None else with_layers(architecture(id), layers)
    check_tokenizer(id, tokenizer, config.vocab_size)
    model = skeleton(config, resolve_dtype(dtype, device))
    materialize(model, device)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return Backbone(id=id, model=model, tokenizer=tokenizer)


def with_layers(config: PreTrainedConfig, count: int) -> PreTrainedConfig:
    """The settings with fewer layers. Raises ValueError for none, or for more than there are."""
    if not 1 <= count <= config.num_hidden_layers:
        raise ValueError(f"layers={count}; the architecture has 1 to {config.num_hidden_layers}")
    settings = config.to_dict()
    for key in ("layer_types", "no_rope_layers"):
        if isinstance(settings.get(key), list):
            settings[key] = settings[key][:count]
    return type(config).from_dict({**settings, "num_hidden_layers": count})


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
