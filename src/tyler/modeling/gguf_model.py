"""A GGUF file as an ordinary model of transformers: dequantised once, with its own tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tyler.modeling.gguf import GgufFile, check_tensors, config_settings, end_ids, tensor_name
from tyler.modeling.gguf_tokenizer import build_tokenizer


def read_gguf(path: str | Path, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in `dtype` on the CPU, and its tokenizer.

    Every tensor of the file is used. Raises FileNotFoundError for a file that is not there, and ValueError, by name,
    for an architecture, a setting, a tensor or a tokenizer that cannot be read exactly.
    """
    file = GgufFile.open(path)
    config = AutoConfig.for_model(**config_settings(file))
    tokenizer = build_tokenizer(file.metadata, source=str(path), max_length=config.max_position_embeddings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    fill(model, file)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=end_ids(file.metadata), pad_token_id=config.pad_token_id
    )
    return model, tokenizer


def fill(model: PreTrainedModel, file: GgufFile) -> None:
    """Give a model on the meta device the file's weights. Raises ValueError unless each tensor is one of them."""
    empty = dict(cast(nn.Module, model).named_parameters())  # a tied head is there once, as the embedding table
    check_tensors(file, {tensor_name(name): tuple(parameter.shape) for name, parameter in empty.items()})
    weights = {name: dequantised(file, tensor_name(name)).to(model.dtype) for name in empty}
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    rotary = cast(nn.Module, model.base_model.rotary_emb)
    model.base_model.rotary_emb = type(rotary)(config=model.config)  # its tables are computed, not read


def dequantised(file: GgufFile, name: str) -> Tensor:
    """A tensor in float32, with the rows of q and k in the order of a config's rotation."""
    weight = torch.from_numpy(file.dequantised(name))
    counts = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
    part = name.split(".")[-2]
    if not file.family.paired or part not in counts:
        return weight
    settings = file.settings()
    heads = settings.get(counts[part], settings["attention.head_count"])
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()
