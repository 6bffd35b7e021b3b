"""The backbone theta: a frozen decoder-only language model and its tokenizer."""

import copy
import functools
import math
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import torch
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from tyler.modeling.architectures import check_family, located
from tyler.modeling.attention import ATTENTION
from tyler.modeling.fingerprint import fingerprint_of
from tyler.modeling.gguf import SUFFIX
from tyler.modeling.gguf_model import read_gguf
from tyler.modeling.locations import WHAT_TO_GIVE, check_location, near
from tyler.modeling.memory_errors import is_out_of_memory
from tyler.modeling.tokenizer import load_tokenizer, text_settings
from tyler.tasks.prompts import turn_end

HUB_SECONDS = 5
"""How long an answer of the Hub's address is waited for."""


@dataclass(frozen=True)
class Backbone:
    """theta and its tokenizer. The weights never change and never require gradients."""

    id: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    revision: str | None = None
    path: str | None = None
    """Where its folder or file is, if that is not the id."""
    adapters: tuple[Mapping[str, bytes], ...] = ()
    """The files, by name, of LoRAs that were merged into the weights of the id, in this order (`loading.py`)."""

    def __post_init__(self) -> None:
        check_supported(self.id, self.model.config)
        check_tokenizer(self.id, self.tokenizer, self.vocab_size)
        self.model.requires_grad_(False)
        self.model.eval()
        if self.model.config._attn_implementation == "sdpa":
            self.model.set_attn_implementation(ATTENTION)

    def __repr__(self) -> str:
        revision = "" if self.revision is None else f", revision={self.revision!r}"
        return f"Backbone({self.id!r}{revision}, dtype={dtype_name(self.dtype)}, device={self.device})"

    @classmethod
    def load(
        cls,
        id: str | Path,
        *,
        revision: str | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
        path: str | None = None,
    ) -> Self:
        """Load `mini`, a fetched model, a folder, a GGUF file or a Hub id. No pickle is read, no remote code is run.

        `dtype` is "auto" (bfloat16 on a GPU that has it, else float32), a torch dtype or its name; a GGUF file is
        dequantised to it. `path` is the folder or file of an `id` that is a path seen from elsewhere. Raises
        ValueError for an unsupported architecture, missing weights, a tokenizer that does not fit, and a dtype or
        device that cannot be had, and FileNotFoundError, with what to do, when the model cannot be found or read.
        """
        id, device = str(id), resolve_device(device)
        weights_dtype = resolve_dtype(dtype, device)
        if id.endswith(SUFFIX):
            model, tokenizer = read_gguf(path or id, weights_dtype)
        else:
            model, tokenizer = read_saved(id, path, revision, weights_dtype)
        cast(nn.Module, model).to(device)
        align(model)
        return cls(id=id, model=model, tokenizer=tokenizer, revision=revision, path=path)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def dim(self) -> int:
        return self.model.config.hidden_size

    @property
    def vocab_size(self) -> int:
        """|V|: rows of the LM head (at least the tokenizer's length; some models pad it)."""
        return self.model.config.vocab_size

    @property
    def max_positions(self) -> int:
        return self.model.config.max_position_embeddings

    @property
    def decoder(self) -> PreTrainedModel:
        """The decoder stack: embeddings in, hidden states after the final norm out."""
        return cast(PreTrainedModel, self.model.base_model)

    @property
    def final_norm_gain(self) -> Float[Tensor, " dim"]:
        return cast(Tensor, cast(nn.Module, self.decoder.norm).weight)

    @property
    def embedding(self) -> Float[Tensor, "vocab dim"]:
        return cast(nn.Embedding, self.model.get_input_embeddings()).weight

    @property
    def head(self) -> Float[Tensor, "vocab dim"]:
        return cast(nn.Linear, self.model.get_output_embeddings()).weight

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends an answer: the generation config's, the tokenizer's, the chat template's turn end."""
        declared = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ids = [declared] if isinstance(declared, int) else list(declared or [])
        return frozenset(id for id in (*ids, self.tokenizer.eos_token_id, turn_end(self.tokenizer)) if id is not None)

    @functools.cached_property
    def text_settings(self) -> dict[str, Any]:
        """What decides, besides the weights, how it is asked and where its answers end (`tokenizer.text_settings`)."""
        return text_settings(self.tokenizer, self.eos_ids)

    def text_origin(self) -> dict[str, str]:
        """The same as a run notes it, by the names that a refused resume gives."""
        settings = self.text_settings
        return {
            "the end tokens": " ".join(settings["end_tokens"]),
            "the chat template": str(settings["chat_template"]),
            "the tokenizer": settings["tokenizer"],
        }

    def embed(self, ids: Int[Tensor, "*seq"]) -> Float[Tensor, "*seq dim"]:
        return nn.functional.embedding(ids, self.embedding)

    def exported(self) -> str:
        """The folder or Hub id from which other programs read it.

        A GGUF file and a backbone with merged adapters are written out once, as safetensors, below the user's cache.
        """
        if not (self.id.endswith(SUFFIX) or self.adapters):
            return self.path or located(self.id)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cache / "tyler" / "exported" / self.fingerprint()
        if not (folder / "config.json").is_file():
            partial = folder.with_name(f"{folder.name}.{os.getpid()}")
            self.model.save_pretrained(partial)
            try:
                partial.rename(folder)
            except OSError:
                if not (folder / "config.json").is_file():
                    raise
                shutil.rmtree(partial)  # another process wrote the same meanwhile
        return str(folder)

    def fingerprint(self) -> str:
        """A short hash of every weight and every setting that changes what the model computes (`fingerprint.py`).

        It is taken once for each Backbone, whose weights never change: before layers are sharded, where they are. The
        same folder in the same dtype has the same one on every device, and so it has in float32 and bfloat16 where its
        weights fit bfloat16, as those of published models do; else they are other weights, and have another.
        """
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        return fingerprint_of(self.model)

    def rounded_to(self, dtype: torch.dtype) -> Self:
        """This backbone with its weights in another dtype, cast in place."""
        for parameter in self.model.parameters():  # and no buffer: the rotary frequencies stay in float32
            parameter.data = parameter.data.to(dtype)
        self.model.config.dtype = dtype
        return replace(self)


def read_saved(
    id: str, path: str | None, revision: str | None, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of any id that is no GGUF file, on the CPU, and its tokenizer. Raises as `Backbone.load` does."""
    location = path or located(id)
    check_location(location)
    check_one_set_of_weights(id, Path(location))
    cached = not Path(location).is_dir() and hub_is_out_of_reach()
    arguments = {"revision": revision, "trust_remote_code": False, "local_files_only": cached}
    with translated_errors(id):
        config = AutoConfig.from_pretrained(location, **arguments)
    check_supported(id, config)
    with translated_errors(id), no_progress_bar():
        loaded = AutoModelForCausalLM.from_pretrained(
            location,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
            **arguments,
        )
    model, loading_info = cast(tuple[PreTrainedModel, dict[str, set[str]]], loaded)
    if loading_info["missing_keys"]:  # transformers only warns, and draws them at random
        raise ValueError(
            f"backbone {id!r} lacks {len(loading_info['missing_keys'])} of its weights, such as "
            f"{min(loading_info['missing_keys'])}; download or save it again"
        )
    with translated_errors(id):
        return model, load_tokenizer(location, revision, local_files_only=cached)


def hub_is_out_of_reach() -> bool:
    """Whether nothing answers at the Hub's address: its library would ask again for half a minute before it says so."""
    if constants.HF_HUB_OFFLINE:
        return True
    try:
        with urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=HUB_SECONDS):
            return False
    except urllib.error.HTTPError:
        return False
    except (OSError, ValueError):  # the latter of an address that is not one
        return True


def check_one_set_of_weights(id: str, folder: Path) -> None:
    """Raise ValueError for a folder with whole weights beside an index of shards: one of them would be ignored."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() and index.is_file():
        raise ValueError(
            f"backbone {id!r} has two sets of weights, {whole.name} and the shards of {index.name}; remove or move "
            "away the one that is not meant"
        )


def check_supported(id: str, config: PreTrainedConfig) -> None:
    """Raise ValueError when the architecture is not one the engine is proved on."""
    check_family(id, config.model_type)
    if "sliding_attention" in (getattr(config, "layer_types", None) or []):
        raise ValueError(
            f"backbone {id!r} uses sliding-window attention, which the caches here do not implement; "
            "turn it off in its config"
        )
    if (kind := (getattr(config, "rope_parameters", None) or {}).get("rope_type")) in ("dynamic", "longrope"):
        raise ValueError(
            f"backbone {id!r} has rope_type {kind!r}, which turns a position by how long its context is: what was read "
            "would change as it grows. Set a fixed one in its config: default, linear, llama3 or yarn"
        )


def check_tokenizer(id: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Raise ValueError unless the tokenizer has pieces, and a row of the embedding table for each of its tokens."""
    if len(tokenizer) <= len(tokenizer.added_tokens_decoder):  # what transformers makes of a folder without a tokenizer
        raise ValueError(
            f"backbone {id!r} has no tokenizer; put its tokenizer.json, tokenizer_config.json and, where it has one, "
            "chat_template.jinja there"
        )
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"the tokenizer of backbone {id!r} has {len(tokenizer):,} tokens and the model only {vocab_size:,} rows of "
            "embeddings: they do not belong together"
        )


@contextmanager
def translated_errors(id: str) -> Iterator[None]:
    """Whatever keeps a model from being loaded comes out as FileNotFoundError that says what to do about it."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):  # nothing is wrong with the model
            raise
        raise FileNotFoundError(
            f"backbone {id!r} could not be loaded: {first_line(error)}\n{remedy(id, error)}"
        ) from error


def remedy(id: str, error: Exception) -> str:
    """What to do when a model could not be loaded."""
    cause, meant = error.__cause__ or error, near(Path(id))
    hint = f" Or was the folder {meant} meant?" if meant and not Path(id).exists() else ""
    if isinstance(cause, GatedRepoError):
        return (
            f"Its authors ask for consent: accept the terms on https://huggingface.co/{id}, then run `hf auth login`."
        )
    if isinstance(cause, RepositoryNotFoundError):
        return f"Check the id; for a private model run `hf auth login` with an account that may read it.{hint}"
    if isinstance(cause, RevisionNotFoundError):
        return "Check backbone.revision: the Hub knows no such branch, tag or commit of this model."
    if isinstance(cause, LocalEntryNotFoundError | OfflineModeIsEnabled):
        return (
            "The Hub cannot be reached, or HF_HUB_OFFLINE forbids it, and there is no copy in the cache. With network "
            f"run `hf download {id}`, or set backbone.id to the folder of a downloaded copy.{hint}"
        )
    folder = Path(id)
    if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        return (
            "Only safetensors are read, because a pickled checkpoint can run any code. Convert a copy that you trust: "
            "load it in transformers and call `save_pretrained`."
        )
    if isinstance(error, RuntimeError):  # transformers prints which of them
        return "The weights do not fit its config.json, for they have other shapes; download or save both again."
    if isinstance(cause, SafetensorError):
        return "A weights file is damaged or cut off; download or copy it again."
    if isinstance(cause, HFValidationError):
        return f"There is no folder {id!r}, and no Hub id looks like this. {WHAT_TO_GIVE}"
    return WHAT_TO_GIVE


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """transformers draws no bar for weights that it reads or writes inside; downloads keep theirs."""
    enabled, downloads = is_progress_bar_enabled(), not are_progress_bars_disabled()
    disable_progress_bar()
    if downloads:
        enable_progress_bars()
    try:
        yield
    finally:
        if enabled:
            enable_progress_bar()


def align(model: PreTrainedModel) -> None:
    """Give every weight its own memory: over a mapped file, products differ in the last bit by where it lies."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def view(model: PreTrainedModel) -> PreTrainedModel:
    """A second module tree over the same tensors: each view can carry its own LoRA, and no memory is spent twice.

    Switching adapters inside one tree gives wrong gradients under activation checkpointing; two trees cannot.
    """
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def best_device() -> torch.device:
    """The first CUDA device where there is one, else the CPU; an Apple GPU is taken only where it is named."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device that is asked for, by default the best one. Raises ValueError for one that torch does not find."""
    if device is None:
        return best_device()
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device {device!r} is not known; use 'cpu', 'cuda', 'cuda:1' or 'mps'") from error
    apple = int(torch.backends.mps.is_available())
    counts = {"cuda": (torch.cuda.device_count(), "CUDA device"), "mps": (apple, "Apple GPU")}
    count, kind = counts.get(resolved.type, (math.inf, "device"))
    if (resolved.index or 0) >= count:
        raise ValueError(
            f"device {str(resolved)!r} was asked for, and torch finds {count or 'no'} {kind}{'s' * (count > 1)} here; "
            "`tyler doctor` says what there is, and where no device is named the best one is taken"
        )
    return resolved


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """A torch dtype by its name, or as it is. Raises ValueError for one that weights cannot be in."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    resolved = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if resolved == torch.float64 and device.type == "mps":
        raise ValueError("dtype 'float64' was asked for, and an Apple GPU has none; use 'float32', or device 'cpu'")
    if resolved not in DTYPES.values():
        raise ValueError(f"dtype {dtype!r} is not known; use 'auto', {', '.join(map(repr, DTYPES))}, or torch's own")
    return cast(torch.dtype, resolved)


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32", as configs have it."""
    return str(dtype).removeprefix("torch.")


def first_line(error: Exception) -> str:
    """The first line of an error's message; libraries append pages."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
