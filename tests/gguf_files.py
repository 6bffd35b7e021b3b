"""A small GGUF file like that of SmolLM2, written as llama.cpp's converter writes it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

Q4_1 = GGMLQuantizationType.Q4_1

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NORMAL, CONTROL = 1, 3
HEADS, KEY_VALUE_HEADS = 4, 2

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
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


def settings() -> dict[str, Any]:
    """What the model's `config.json` says."""
    return {
        "model_type": "llama",
        "vocab_size": len(pieces()[0]),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def random_model() -> PreTrainedModel:
    """A tiny random Llama in float32."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings()))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            mean = 1.0 if parameter.dim() == 1 else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + mean)
    return model.eval()


def metadata() -> dict[str, Any]:
    """The tokenizer as a file has it."""
    tokens, merges = pieces()
    entries = {
        "tokens": list(tokens),
        "token_type": [CONTROL] * len(SPECIAL) + [NORMAL] * (len(tokens) - len(SPECIAL)),
        "merges": list(merges),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 0,
    }
    return {**{f"tokenizer.ggml.{key}": value for key, value in entries.items()}, "tokenizer.chat_template": TEMPLATE}


def write_gguf(path: Path, model: PreTrainedModel) -> Path:
    """A file of `model`, its matrices in 4 bits; q and k are reordered as llama.cpp does."""
    writer = GGUFWriter(path, "llama")
    adders = {int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
    for key, value in metadata().items():
        adders[type(value)](key, value)
    for name, parameter in model.named_parameters():
        module, weight = name.removesuffix(".weight"), parameter.detach()
        inside = module.removeprefix("model.layers.")
        layer, part = (f"blk.{inside[0]}.", inside[2:]) if inside != module else ("", module)
        if heads := {"self_attn.q_proj": HEADS, "self_attn.k_proj": KEY_VALUE_HEADS}.get(part):
            weight = weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        kind = GGMLQuantizationType.F32 if weight.dim() == 1 else Q4_1
        writer.add_tensor(f"{layer}{NAMES[part]}.weight", quantize(weight.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
