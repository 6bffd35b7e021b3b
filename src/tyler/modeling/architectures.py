"""What is known of backbones without torch: supported families, where they are, and the settings of published ones."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from tyler.modeling.gguf import SUFFIX, GgufFile, config_settings

MINI = "mini"
"""The id of the backbone that ships inside the package."""

FETCHABLE: Mapping[str, str] = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""The ids of backbones that `tyler fetch` brings into the user's cache, and what each is on the Hub."""

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
PRODUCTS = (ATTENTION[:3], FEED_FORWARD[:2])
"""Maps of a decoder layer that read the same input: decoding multiplies with each group at once."""


@dataclass(frozen=True)
class Family:
    """What a family's model code says of its layers beyond a `config.json`; all else is read from the config."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings that a `config.json` of this family may leave out, where they differ from `DEFAULTS`."""
    biased: tuple[str, ...] = ()
    """Linear maps that always have a bias."""
    bias_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Boolean settings, and the linear maps that each of them gives a bias."""
    qk_norm: bool = False
    """Whether queries and keys are normalized, each head by itself."""
    end_of_thought: str = "\n\n</think>\n\n"
    """How its thinking models leave a thought, by the release of SwiReasoning."""


DEFAULTS: Mapping[str, Any] = {"head_dim": None, "tie_word_embeddings": False}
"""What every family does with a setting that is left out. Without a `head_dim` the heads share the hidden size."""

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        defaults={"num_key_value_heads": None}, bias_flags={"attention_bias": ATTENTION, "mlp_bias": FEED_FORWARD}
    ),
    "qwen2": Family(biased=("q_proj", "k_proj", "v_proj"), end_of_thought="</think>"),
    "qwen3": Family(
        defaults={"head_dim": 128}, bias_flags={"attention_bias": ATTENTION}, qk_norm=True, end_of_thought="</think>"
    ),
    "smollm3": Family(
        defaults={"tie_word_embeddings": True}, bias_flags={"attention_bias": ATTENTION, "mlp_bias": FEED_FORWARD}
    ),
}
"""By model type: the families whose decoding is proved equal to the paper's transcription in the tests."""

ASSETS = Path(str(files("tyler"))) / "assets"

PUBLISHED: dict[str, dict[str, Any]] = json.loads((ASSETS / "published.json").read_text(encoding="utf-8"))
"""The backbones of the paper and one that runs on a small CPU, by their Hub id: what their `config.json` says."""


SHIPPED = {"mini-tyler": "mini", "smollm2-tyler": "smollm2"}
"""Trained Tylers that ship inside the package, each with its backbone."""


def shipped(name: str) -> Path | None:
    """The folder of a trained Tyler that ships inside the package; None for any other name."""
    return ASSETS / name if name in SHIPPED else None


def located(id: str) -> str:
    """Where a backbone is: the package's own folder for `mini`, the cache's for one that was fetched, else the id.

    Raises FileNotFoundError for one that has not been fetched yet.
    """
    if id == MINI:
        return str(ASSETS / "mini")
    if id not in FETCHABLE:
        return id
    folder = fetched_folder(id)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"backbone {id!r} is not on this machine yet (looked in {folder}): run `tyler fetch {id}`"
        )
    return str(folder)


def fetched_folder(name: str) -> Path:
    """Where `tyler fetch` puts a backbone: under `$TYLER_HOME`, else under tyler in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TYLER_HOME") or cache / "tyler").expanduser() / "backbones" / name


def settings_of(id: str) -> dict[str, Any]:
    """The settings of a known model, fetched or not, or those in a folder's `config.json` or a GGUF file.

    Raises ValueError for any other id, for a family that is not supported, and for a file that cannot be read.
    """
    if (published := FETCHABLE.get(id, id)) in PUBLISHED:
        return PUBLISHED[published]
    if id.endswith(SUFFIX):
        return config_settings(GgufFile.open(id))
    path = Path(located(id)) / "config.json"
    if not path.is_file():
        raise ValueError(
            f"the shape of backbone {id!r} is not known here; give a folder with its config.json (no weights needed), "
            f"a GGUF file, or one of {', '.join((*FETCHABLE, *PUBLISHED))}"
        )
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    check_family(id, settings.get("model_type") if isinstance(settings, dict) else None)
    return settings


def biased_maps(settings: Mapping[str, Any]) -> frozenset[str]:
    """The linear maps of a layer that have a bias, by the name that they have in transformers."""
    family = FAMILIES[settings["model_type"]]
    return frozenset(family.biased).union(*(maps for flag, maps in family.bias_flags.items() if settings.get(flag)))


def siblings(name: str) -> list[str]:
    """The maps that read the same input as the one of this name, itself included."""
    prefix, own = name[: name.rfind(".") + 1], name.rpartition(".")[2]
    return next(([prefix + sibling for sibling in group] for group in PRODUCTS if own in group), [name])


def head_dim(config: Any) -> int:
    """The width of one attention head; Qwen2's configs leave it to follow from the others."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def check_family(id: str, family: object) -> None:
    """Raise ValueError when the model type is not one that the engine is proved on."""
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(
            f"backbone {id!r} is of type {family!r}; supported are causal language models of type {', '.join(FAMILIES)}"
        )
