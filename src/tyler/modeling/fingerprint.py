"""What names a backbone: a short hash of every weight and of every setting that changes what it computes."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

FUNCTION_KEYS = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "hidden_act", "rms_norm_eps", "attention_bias", "mlp_bias",
    "rope_parameters", "no_rope_layers", "layer_types", "sliding_window", "tie_word_embeddings",
    "max_position_embeddings",
)  # fmt: skip
"""The settings of a config that change what the model computes. Those that later versions of transformers add are not
taken by themselves: an upgrade would then make every checkpoint foreign."""

CHUNK = 2**24
"""Elements that are hashed at once; threads share the chunks of all tensors."""


def fingerprint_of(model: PreTrainedModel, dtype: torch.dtype | None = None) -> str:
    """Hash every element of every tensor, and the settings in `FUNCTION_KEYS`: 16 hexadecimal digits.

    With `dtype` it is of the weights rounded to it. It is of the values, so a model whose weights fit bfloat16, as
    published ones do, has the same in bfloat16 and in float32. Reads all weights once, on as many threads as torch has:
    about 0.7 s for each GB and thread on a CPU with SHA instructions.
    """
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        pending = [
            (name, tensor, [threads.submit(_digest, chunk, dtype) for chunk in tensor.flatten().split(CHUNK)])
            for name, tensor in weights_of(model)
        ]
    config = model.config.to_dict()
    settings = _as_floats({key: config.get(key) for key in FUNCTION_KEYS})
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, tensor, chunks in pending:
        digest.update(f"{name} {list(tensor.shape)}".encode())
        for chunk in chunks:
            digest.update(chunk.result())
    return digest.hexdigest()[:16]


def fingerprint_with(backbone: str, tensors: Mapping[str, Tensor]) -> str:
    """A short hash of a model: what names its backbone, and every tensor that is trained beside it, in float32."""
    digest = hashlib.sha256(backbone.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(_bytes(tensor.detach().to("cpu", torch.float32)))
    return digest.hexdigest()[:16]


def weights_of(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a folder of the model holds, by name; a head tied to the embeddings is there once."""
    seen: set[int] = set()
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor.detach()


def _digest(chunk: Tensor, dtype: torch.dtype | None) -> bytes:
    """sha256 of the values, in bfloat16 where that holds them, else in float32 or what is wider."""
    values = chunk.cpu().to(dtype or chunk.dtype)
    narrow = values.bfloat16()
    if torch.equal(narrow.to(values.dtype), values):
        values = narrow
    elif values.dtype == torch.float16:
        values = values.float()
    return hashlib.sha256(_bytes(values)).digest()


def _bytes(values: Tensor) -> memoryview:
    return values.contiguous().view(torch.uint8).numpy().data


def _as_floats(value: Any) -> Any:
    """The value with every whole number as a float: a config that was saved again may have either."""
    if isinstance(value, dict):
        return {str(key): _as_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_floats(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
