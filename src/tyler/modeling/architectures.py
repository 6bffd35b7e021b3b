"""What is known of backbones without torch: supported families, where they are, and the settings of published ones."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

MINI = "mini"
"""The id of the backbone that ships inside the package."""

FAMILIES = ("qwen2", "qwen3", "smollm3")
"""Model types whose decoding is proved equal to the paper's transcription in the tests."""

QWEN = {
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}

PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": {
        **QWEN,
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
    },
    "Qwen/Qwen2.5-1.5B-Instruct": {
        **QWEN,
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
    },
    "HuggingFaceTB/SmolLM3-3B": {
        "model_type": "smollm3",
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
    "Qwen/Qwen3-4B": {
        **QWEN,
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    },
}
"""The backbones of the paper and one that runs on a small CPU, by their Hub id: what their `config.json` says."""


def located(id: str) -> str:
    """Where a backbone is: the package's own folder for `mini`, else the id itself."""
    return str(files("tyler") / "assets" / "mini") if id == MINI else id


def config_file(id: str) -> Path:
    """The `config.json` of a folder. Raises ValueError for an id that is neither known here nor such a folder."""
    path = Path(located(id)) / "config.json"
    if not path.is_file():
        raise ValueError(
            f"the shape of backbone {id!r} is not known here; give a folder with its config.json (no weights needed), "
            f"or one of {', '.join(PUBLISHED)}"
        )
    return path


def settings_of(id: str) -> dict[str, Any]:
    """The settings of a known model, or those in a folder's `config.json`, as they stand there.

    Raises ValueError for any other id, for a family that is not supported, and for a file that is no JSON object.
    """
    if id in PUBLISHED:
        return PUBLISHED[id]
    path = config_file(id)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    check_family(id, settings.get("model_type") if isinstance(settings, dict) else None)
    return settings


def check_family(id: str, family: object) -> None:
    """Raise ValueError when the model type is not one that the engine is proved on."""
    if family not in FAMILIES:
        raise ValueError(
            f"backbone {id!r} is of type {family!r}; supported are causal language models of type {', '.join(FAMILIES)}"
        )
