"""What a GGUF file holds: settings, tensors and token ids, each read whole or refused by name; without torch.

The format is llama.cpp's (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Names of settings and tensors are
read by the tables below, so that each tensor of the file is one weight of the model and the other way round:
transformers' own reader leaves out `rope_freqs.weight` and attention biases without a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader, ReaderTensor

SUFFIX = ".gguf"
"""An id that ends so is a GGUF file's path."""


@dataclass(frozen=True)
class GgufFamily:
    """How the files of one architecture are read."""

    switches: Mapping[str, str]
    """Settings of the config that a tensor's presence turns on."""
    paired: bool
    """Whether files have the two rows of q and k that a rotation mixes side by side, not half a head apart."""
    names_head_dim: bool = False
    """Whether a config names the size of a head even where the heads share the hidden size evenly."""


FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily({"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"}, paired=True),
    "qwen2": GgufFamily({}, paired=False),
    "qwen3": GgufFamily({"attention_bias": "blk.0.attn_q.bias"}, paired=False, names_head_dim=True),
}
"""By `general.architecture`: the files that can be loaded."""

PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""A part of the model: its name in transformers, and in a file."""

SETTINGS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
"""The settings that every file has, and what a config calls them."""

OPTIONAL = (
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.type", "vocab_size",
)  # fmt: skip
"""The settings that a file may have besides; one that is not known here could change the model."""

EMBEDDING, HEAD, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"

LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The scaling of rotary frequencies in every published Llama 3.1 to 3.3; only its factor differs between them."""


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file: its metadata, and its tensors, which are dequantised when asked for."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, ReaderTensor]

    @classmethod
    def open(cls, path: str | Path) -> GgufFile:
        """Read everything but the tensors' values.

        Raises FileNotFoundError for a file that is not there, and ValueError for one that is no GGUF file or is cut
        off, and where the package `gguf` is missing.
        """
        reader = open_reader(Path(path))
        metadata = {name: shortest(field.contents()) for name, field in reader.fields.items()}
        return cls(Path(path), metadata, {tensor.name: tensor for tensor in reader.tensors})

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises ValueError for one that cannot be loaded."""
        found = self.metadata.get("general.architecture")
        if found not in FAMILIES:
            raise ValueError(
                f"{self.path} is of architecture {found!r}; GGUF files of {', '.join(FAMILIES)} can be loaded. For "
                "another model give its original folder, with safetensors weights"
            )
        return cast(str, found)

    @property
    def family(self) -> GgufFamily:
        return FAMILIES[self.architecture]

    def settings(self) -> dict[str, Any]:
        """The architecture's settings, without its prefix. Raises ValueError for one that is missing or not known."""
        prefix = f"{self.architecture}."
        found = {key.removeprefix(prefix): value for key, value in self.metadata.items() if key.startswith(prefix)}
        if missing := [prefix + key for key in SETTINGS if key not in found]:
            raise ValueError(f"{self.path} lacks the settings {', '.join(missing)}")
        if unknown := [prefix + key for key in found if key not in (*SETTINGS, *OPTIONAL)]:
            raise ValueError(
                f"{self.path} has settings that are not read here: {', '.join(unknown)}. Without them it would be "
                "another model: give its original folder, with safetensors weights"
            )
        check_numbers(self.path, {prefix + key: value for key, value in found.items() if key != "rope.scaling.type"})
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, rows first (a file has it the other way round)."""
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    def dequantised(self, name: str) -> np.ndarray:
        """A tensor in float32. Raises ValueError for a quantisation that the package `gguf` cannot undo."""
        import numpy as np
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        try:
            return np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError as error:
            raise ValueError(
                f"tensor {name} of {self.path} is quantised as {tensor.tensor_type.name}, which cannot be undone here"
            ) from error


def open_reader(path: Path) -> GGUFReader:
    """The package's reader over the memory-mapped file. Raises as `GgufFile.open` does."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; backbone.id {str(path)!r} ends in {SUFFIX}, so it is a path")
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise ValueError(f"{path} needs the package gguf: pip install 'path/to/tyler[gguf]'") from error
    with path.open("rb") as file:
        if (magic := file.read(4)) != b"GGUF":
            raise ValueError(f"{path} is no GGUF file: it begins with {magic!r} instead of b'GGUF'")
    try:
        return GGUFReader(path)
    except (ValueError, LookupError, OverflowError) as error:  # whatever numpy says of a file that ends too early
        raise ValueError(f"{path} is damaged or cut off ({error}); download or copy it again") from error


def shortest(value: Any) -> Any:
    """A float of 32 bits as it was written: 1e-05, not 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value))) if isinstance(value, float) else value


def check_numbers(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting that is not a positive number: a list differs from layer to layer."""
    wrong = {key: value for key, value in settings.items() if not (isinstance(value, int | float) and value > 0)}
    if wrong:
        key, value = next(iter(wrong.items()))
        raise ValueError(f"{path} has {key} = {str(value)[:40]}; only one positive number for all layers can be read")


# ---------------------------------------------------------------------------------------------------- the config


def config_settings(file: GgufFile) -> dict[str, Any]:
    """What the model's `config.json` would say, from the file's settings and from which tensors there are.

    Raises ValueError for a model that no config of its family describes.
    """
    settings = file.settings()
    heads, dim = settings["attention.head_count"], settings["embedding_length"]
    head_dim = settings.get("attention.key_length", dim // heads)
    check_heads(file.path, settings, head_dim)
    check_layers(file, settings["block_count"])
    even = head_dim * heads == dim and not file.family.names_head_dim
    ids = special_ids(file.metadata)
    return {
        "model_type": file.architecture,
        **{name: settings[key] for key, name in SETTINGS.items()},
        **{name: tensor in file.tensors for name, tensor in file.family.switches.items()},
        "num_key_value_heads": settings.get("attention.head_count_kv", heads),
        **({} if even else {"head_dim": head_dim}),
        "vocab_size": file.shape(EMBEDDING)[0],
        "rope_parameters": rope_parameters(file, settings, head_dim),
        "tie_word_embeddings": HEAD not in file.tensors,
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "pad_token_id": ids["pad"],
    }


def check_heads(path: Path, settings: Mapping[str, Any], head_dim: int) -> None:
    """Raise ValueError for heads whose values have another size than their keys, or that are rotated in part."""
    for key in ("attention.value_length", "rope.dimension_count"):
        if settings.get(key, head_dim) != head_dim:
            raise ValueError(f"{path} has {key} = {settings[key]} and heads of {head_dim}; only equal ones can be read")


def check_layers(file: GgufFile, count: int) -> None:
    """Raise ValueError unless the file has an embedding table, and tensors of just so many layers."""
    if EMBEDDING not in file.tensors:
        raise ValueError(f"{file.path} lacks tensors of its model, 1 of them: {EMBEDDING}")
    layers = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    if len(layers) != count:
        raise ValueError(f"{file.path} says it has {count} layers, but it holds tensors of {len(layers)}")


def rope_parameters(file: GgufFile, settings: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """The rotary embedding's settings. Raises ValueError for a scaling that cannot be told from the file exactly."""
    if (kind := settings.get("rope.scaling.type", "none")) != "none":
        raise ValueError(
            f"{file.path} scales its positions by {kind!r}, which is not read from GGUF files; give the original folder"
        )
    theta = float(settings.get("rope.freq_base", 10_000.0))
    if ROPE_FACTORS not in file.tensors:
        return {"rope_type": "default", "rope_theta": theta}
    factor = llama3_factor(file.dequantised(ROPE_FACTORS).tolist(), theta, head_dim)
    if factor is None:
        raise ValueError(
            f"{file.path} scales its rotary frequencies ({ROPE_FACTORS}) as no published Llama 3 does, and a config "
            "cannot be told from them; give the original folder"
        )
    return {"rope_type": "llama3", "rope_theta": theta, "factor": factor, **LLAMA3_SCALING}


def llama3_factor(factors: Sequence[float], theta: float, head_dim: int) -> float | None:
    """By how much Llama 3.x slows its long waves, from the factors of all; None where they are another model's."""
    factor = round(max(factors, default=0.0), 3) if all(map(math.isfinite, factors)) else 0.0
    if factor < 1:
        return None
    expected = llama3_factors(theta, head_dim, factor)
    same = len(factors) == len(expected) and all(map(close, factors, expected))
    return factor if same else None


def llama3_factors(theta: float, head_dim: int, factor: float) -> list[float]:
    """What Llama 3.x divides each rotary frequency by, [head_dim / 2]: 1 for short waves, `factor` for long ones.

    Source: `convert_hf_to_gguf.py` of llama.cpp, which writes these numbers as `rope_freqs.weight`.
    """
    low, high, length = LLAMA3_SCALING.values()
    factors = []
    for dim in range(0, head_dim, 2):
        waves = length / (2 * math.pi * theta ** (dim / head_dim))
        share = min(max((waves - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - share) / factor + share))
    return factors


def close(found: float, expected: float) -> bool:
    """Equal within the rounding of floats of 32 bits, which others computed."""
    return math.isclose(found, expected, rel_tol=1e-4)


# --------------------------------------------------------------------------------------------------- the tensors


def tensor_name(weight: str) -> str:
    """A file's name of a weight such as `model.layers.3.self_attn.q_proj.bias`: `blk.3.attn_q.bias`."""
    module, kind = weight.rsplit(".", 1)
    layer = re.match(r"model\.layers\.(\d+)\.", module)
    return f"blk.{layer[1]}.{PARTS[module[layer.end() :]]}.{kind}" if layer else f"{PARTS[module]}.{kind}"


def check_tensors(file: GgufFile, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless the file's tensors are just those of the model, whose shapes are given by their names."""
    unused = [name for name in file.tensors if name not in shapes and name != ROPE_FACTORS]  # that is in the config
    if unused:
        raise ValueError(
            f"{file.path} has tensors that its model would not use, {len(unused)} of them: {some(unused)}. Without "
            "them it would be another model: give its original folder, with safetensors weights"
        )
    if missing := [name for name in shapes if name not in file.tensors]:
        raise ValueError(f"{file.path} lacks tensors of its model, {len(missing)} of them: {some(missing)}")
    for name, shape in shapes.items():
        if (found := file.shape(name)) != shape:
            raise ValueError(f"tensor {name} of {file.path} is {found}, but its settings ask for {shape}")


def some(names: Sequence[str]) -> str:
    """The first three names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


# -------------------------------------------------------------------------------------------------- special tokens

ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""A special token's role, and what a file calls it."""


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int | None]:
    """The id of each special token, None for one that the file does not name."""
    return {role: metadata.get(f"tokenizer.ggml.{name}_token_id") for role, name in ROLES.items()}


def end_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Every token that ends an answer: the end of the text, of a turn and of a message."""
    ids = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return sorted({id for id in ids if id is not None})
