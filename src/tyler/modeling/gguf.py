"""What a GGUF file holds: settings, tensors and token ids, each used or refused by name; without torch.

The format is llama.cpp's (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). transformers reads such files
too, but it leaves out rotary factors and biases without a word, splits SmolLM2's text by GPT-2's rule, and gives the
epsilon of the norms another last bit, hence the model another fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader, ReaderTensor

SUFFIX = ".gguf"
"""An id that ends so is a GGUF file's path."""

FAMILIES = ("llama", "qwen2", "qwen3")
"""What `general.architecture` may be."""

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
    "rope.freq_base", "vocab_size",
)  # fmt: skip
"""The settings that a file may have besides; one that is not known here could change the model."""

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
INSTEAD = "give its original folder, with safetensors weights"


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
        try:
            metadata = {name: shortest(field.contents()) for name, field in reader.fields.items()}
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is damaged ({error}); download or copy it again") from error
        return cls(Path(path), metadata, {tensor.name: tensor for tensor in reader.tensors})

    @property
    def family(self) -> str:
        """`general.architecture`. Raises ValueError for one that cannot be loaded."""
        family = self.metadata.get("general.architecture")
        if family not in FAMILIES:
            raise ValueError(
                f"{self.path} is of architecture {family!r}; GGUF files of {', '.join(FAMILIES)} can be loaded. For "
                f"another model {INSTEAD}"
            )
        return cast(str, family)

    def settings(self) -> dict[str, Any]:
        """The family's settings, without its prefix. Raises ValueError for one that is missing, not known, or not a
        positive number: a list differs from layer to layer."""
        prefix = f"{self.family}."
        settings = {key.removeprefix(prefix): value for key, value in self.metadata.items() if key.startswith(prefix)}
        if missing := [prefix + key for key in SETTINGS if key not in settings]:
            raise ValueError(f"{self.path} lacks the settings {', '.join(missing)}")
        if unknown := [prefix + key for key in settings if key not in (*SETTINGS, *OPTIONAL)]:
            raise ValueError(
                f"{self.path} has settings that are not read here: {', '.join(unknown)}. Without them it would be "
                f"another model: {INSTEAD}"
            )
        for key, value in settings.items():
            if not (isinstance(value, int | float) and value > 0):
                raise ValueError(
                    f"{self.path} has {prefix}{key} = {str(value)[:40]}; only one positive number for all layers can "
                    "be read"
                )
        return settings

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


def config_settings(file: GgufFile) -> dict[str, Any]:
    """What the model's `config.json` would say. Raises ValueError for a model that no config of its family describes:
    without an embedding table, with other layers than it says, or with heads that are rotated in part."""
    settings = file.settings()
    heads, layers = settings["attention.head_count"], {name.split(".")[1] for name in file.tensors if "blk." in name}
    head_dim = settings.get("attention.key_length", settings["embedding_length"] // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if settings.get(key, head_dim) != head_dim:
            raise ValueError(
                f"{file.path} has {key} = {settings[key]} and heads of {head_dim}; only equal ones can be read"
            )
    if len(layers) != settings["block_count"]:
        raise ValueError(
            f"{file.path} says it has {settings['block_count']} layers, but it holds tensors of {len(layers)}"
        )
    if EMBEDDING not in file.tensors:
        raise ValueError(f"{file.path} lacks tensors of its model, 1 of them: {EMBEDDING}")
    ids = special_ids(file.metadata)
    return {
        "model_type": file.family,
        **{name: settings[key] for key, name in SETTINGS.items()},
        "num_key_value_heads": settings.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": file.shape(EMBEDDING)[0],
        "rope_parameters": {"rope_type": "default", "rope_theta": float(settings.get("rope.freq_base", 10_000.0))},
        "tie_word_embeddings": HEAD not in file.tensors,
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "pad_token_id": ids["pad"],
    }


def check_tensors(file: GgufFile, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless the file's tensors are just those of the model, whose shapes are given by their names."""
    if unused := [name for name in file.tensors if name not in shapes]:
        raise ValueError(
            f"{file.path} has tensors that its model would not use, {len(unused)} of them: {some(unused)}. Without "
            f"them it would be another model: {INSTEAD}"
        )
    if missing := [name for name in shapes if name not in file.tensors]:
        raise ValueError(f"{file.path} lacks tensors of its model, {len(missing)} of them: {some(missing)}")
    for name, shape in shapes.items():
        if (actual := file.shape(name)) != shape:
            raise ValueError(f"tensor {name} of {file.path} is {actual}, but its settings ask for {shape}")


def some(names: Sequence[str]) -> str:
    """The first three names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""A special token's role, and what a file calls it."""


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int | None]:
    """The id of each special token, None for one that the file does not name."""
    return {role: metadata.get(f"tokenizer.ggml.{name}_token_id") for role, name in ROLES.items()}


def end_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Every token that ends an answer: the end of the text, of a turn and of a message."""
    ids = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return sorted({id for id in ids if id is not None})
