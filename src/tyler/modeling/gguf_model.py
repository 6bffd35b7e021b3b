"""A GGUF file as an ordinary model of transformers: dequantised once, with its own tokenizer."""

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tyler.modeling.gguf import GgufFile, check_tensors, config_settings, end_ids
from tyler.modeling.gguf_tokenizer import build_tokenizer

PAIRED = ("llama",)
"""Families whose files have the two rows of q and k that a rotation mixes side by side, not half a head apart."""


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
    from gguf import MODEL_ARCH, get_tensor_name_map

    empty = dict(cast(nn.Module, model).named_parameters())  # a tied head is there once, as the embedding table
    known = get_tensor_name_map(MODEL_ARCH[file.family.upper()], model.config.num_hidden_layers)
    names = {weight: cast(str, known.get_name(weight, (".weight", ".bias"))) for weight in empty}
    check_tensors(file, {names[weight]: tuple(parameter.shape) for weight, parameter in empty.items()})
    weights = {weight: dequantised(file, name, model.config.head_dim).to(model.dtype) for weight, name in names.items()}
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    rotary = cast(nn.Module, model.base_model.rotary_emb)
    model.base_model.rotary_emb = type(rotary)(config=model.config)  # its tables are computed, not read


def dequantised(file: GgufFile, name: str, head_dim: int) -> Tensor:
    """A tensor in float32, with the rows of q and k in the order of a config's rotation."""
    weight = torch.from_numpy(file.dequantised(name))
    if file.family not in PAIRED or name.split(".")[-2] not in ("attn_q", "attn_k"):
        return weight
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2).contiguous()
