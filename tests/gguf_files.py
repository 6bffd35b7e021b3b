"""Small GGUF files of random models, written as llama.cpp's converter writes them, whole or with something wrong."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

F32, F16, Q8_0, Q4_1 = (GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0", "Q4_1"))

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NORMAL, CONTROL, UNUSED = 1, 3, 5
PADDING = 2
"""Rows of the embedding table that no token uses."""
HEADS, KEY_VALUE_HEADS = 4, 2

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@functools.cache
def pieces() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens and merges of a byte-level BPE learned from one text without any rule for words, so that its merges cross
    digits, spaces and ends of lines: how a text is split shows in its tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    backend.train_from_iterator(["125 the 125\n\n1. the\n\n1. x  x\n\n\n  the's 125,125 12"] * 4, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = tuple(sorted(model["vocab"], key=model["vocab"].__getitem__))
    return tokens, tuple(" ".join(merge) for merge in model["merges"])


def random_model(family: str, **changes: Any) -> PreTrainedModel:
    """A tiny random model of a family, in float32."""
    sizes = {
        "vocab_size": len(pieces()[0]) + PADDING,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0},
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    sizes |= {"head_dim": 32} if family == "qwen3" else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(sizes | changes)))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            mean = 1.0 if parameter.dim() == 1 else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + mean)
            parameter.copy_(parameter.half().float())  # exactly what a file of F16 can hold
    return model.eval()


def tensors_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's weights by their names in a file, q and k of a Llama reordered as llama.cpp does."""
    tensors = {}
    for name, parameter in model.named_parameters():
        module, kind = name.rsplit(".", 1)
        layer, part = (
            ("", module) if "layers" not in module else (f"blk.{module.split('.')[2]}.", module.split(".", 3)[3])
        )
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KEY_VALUE_HEADS}.get(part)
        weight = parameter.detach()
        if heads and model.config.model_type == "llama":  # LlamaModel.permute of convert_hf_to_gguf.py
            weight = weight.reshape(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
        tensors[f"{layer}{NAMES[part]}.{kind}"] = weight.contiguous()
    return tensors


def metadata_of(model: PreTrainedModel) -> dict[str, Any]:
    """Settings and tokenizer as a file has them; None omits a key."""
    config, (tokens, merges) = model.config, pieces()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // HEADS
    settings = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KEY_VALUE_HEADS,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    tokenizer = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": [*tokens, *(f"[PAD{row}]" for row in range(PADDING))],
        "token_type": [CONTROL] * len(SPECIAL) + [NORMAL] * (len(tokens) - len(SPECIAL)) + [UNUSED] * PADDING,
        "merges": list(merges),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 0,
    }
    return {
        "general.architecture": config.model_type,
        **{f"{config.model_type}.{key}": value for key, value in settings.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()},
        "tokenizer.chat_template": TEMPLATE,
    }


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    kind: GGMLQuantizationType = F32,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, torch.Tensor | None] | None = None,
) -> Path:
    """A file of `model`, its matrices in `kind`; `metadata` and `tensors` change entries; None takes one away."""
    merged = metadata_of(model) | dict(metadata or {})
    writer = GGUFWriter(path, str(merged.pop("general.architecture")))
    for key, value in merged.items():
        if value is not None:
            add(writer, key, value)
    for name, tensor in (tensors_of(model) | dict(tensors or {})).items():
        if tensor is not None:
            exact = F32 if tensor.dim() == 1 else kind
            writer.add_tensor(name, quantize(tensor.numpy(), exact), raw_dtype=exact)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: GGUFWriter, key: str, value: Any) -> None:
    """One entry of the metadata, in the type that llama.cpp gives it."""
    adders = {bool: "add_bool", int: "add_uint32", float: "add_float32", str: "add_string", list: "add_array"}
    getattr(writer, adders[type(value)])(key, value)
