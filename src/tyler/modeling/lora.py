"""LoRA on views of the backbone: phi (synthesizer) and eta (policy), through peft.

Training runs on a peft view. Decoding runs on a folded view, whose target weights are theta + B A: the speed of the
plain model, whatever the adapter.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, PeftType, get_peft_model
from peft.tuners.lora import Linear
from torch import Tensor, nn
from transformers import PreTrainedModel

from tyler.modeling.backbone import view
from tyler.modeling.manifest import CheckpointError, read_as, read_object
from tyler.modeling.projections import siblings
from tyler.modeling.tensor_files import read_tensors

ADAPTER = "default"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What is loaded of an adapter's folder."""


@dataclass(frozen=True)
class LoraSettings:
    """LoRA on the attention projections; the defaults are the paper's (Table of hyper-parameters)."""

    rank: int = 8
    alpha: int = 16
    dropout: float = 0.1
    target_modules: tuple[str, ...] = field(default=("q_proj", "v_proj"))


def settings_of(lora: PeftModel) -> LoraSettings:
    """What an adapter was made with; its modules in the order of their names."""
    config = cast(LoraConfig, lora.peft_config[ADAPTER])
    return LoraSettings(config.r, config.lora_alpha, config.lora_dropout, tuple(sorted(config.target_modules or ())))


def add_lora(model: PreTrainedModel, settings: LoraSettings) -> PeftModel:
    """A view of `model` with a fresh adapter: A random, B zero, so that it starts equal to the backbone.

    Adapter weights are float32 whatever the backbone's dtype. Draws from torch's global generator.
    """
    with without_peft_noise():
        return cast(PeftModel, get_peft_model(view(model), peft_config(settings)).eval())


def peft_config(settings: LoraSettings) -> LoraConfig:
    """The settings as peft has them; everything else is peft's default."""
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.target_modules),
        task_type="CAUSAL_LM",
    )


def check_adapter(model: PreTrainedModel, folder: Path) -> LoraConfig:
    """The settings of the adapter in `folder`, whose tensors are those that the model asks for.

    Raises CheckpointError naming the file, and the setting or the tensors, where `save_lora` wrote nothing like it:
    peft itself only warns of a missing tensor, and the LoRA is lost.
    """
    config_file, tensor_file = (folder / name for name in ADAPTER_FILES)
    config = peft_config(read_settings(config_file))
    read_tensors(tensor_file, expected_shapes(model, config))
    return config


def load_lora(model: PreTrainedModel, folder: Path) -> PeftModel:
    """A view of `model` with the adapter that `save_lora` wrote into `folder`. Raises as `check_adapter` does."""
    config = check_adapter(model, folder)
    with without_peft_noise():
        loaded = PeftModel.from_pretrained(view(model), str(folder), is_trainable=True, config=config)
    return loaded.eval()  # dropout only where a training loop asks for it


def save_lora(lora: PeftModel, folder: Path, backbone: str) -> None:
    """Write an ordinary peft adapter that names its backbone by id, not by where this machine keeps it."""
    cast(LoraConfig, lora.peft_config[ADAPTER]).base_model_name_or_path = backbone
    lora.save_pretrained(str(folder), save_embedding_layers=False)  # they never change, and are not looked for


def decoder_stack(lora: PeftModel) -> PreTrainedModel:
    """The adapted decoder stack: embeddings in, hidden states after the final norm out."""
    return cast(PreTrainedModel, cast(PreTrainedModel, lora.base_model.model).base_model)


@contextmanager
def without_peft_noise() -> Iterator[None]:
    """Silence a deprecation that peft itself causes in transformers and that cannot be fixed elsewhere."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        yield


def lora_layers(lora: PeftModel) -> dict[str, Linear]:
    """The adapted modules by their name in the backbone."""
    adapted = cast(nn.Module, lora.base_model.model)
    return {name: module for name, module in adapted.named_modules() if isinstance(module, Linear)}


def expected_shapes(model: PreTrainedModel, config: LoraConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor a complete adapter holds, by its peft key."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.split(".")[-1] in (config.target_modules or ()):
            shapes[f"base_model.model.{name}.lora_A.weight"] = (config.r, module.in_features)
            shapes[f"base_model.model.{name}.lora_B.weight"] = (module.out_features, config.r)
    return shapes


MAX_RANK = 2**16
"""More than any matrix of a backbone has rows."""


@dataclass(frozen=True)
class AdapterConfig:
    """What differs from one adapter_config.json of `save_lora` to another; the rest is peft's defaults."""

    r: int
    lora_alpha: int
    lora_dropout: float
    target_modules: tuple[str, ...]

    def __post_init__(self) -> None:
        if not (1 <= self.r <= MAX_RANK and 1 <= self.lora_alpha <= MAX_RANK and 0 <= self.lora_dropout < 1):
            raise ValueError(f"r and lora_alpha must be from 1 to {MAX_RANK}, and lora_dropout from 0 to below 1")


NOTES = ("base_model_name_or_path", "inference_mode", "peft_version", "revision")
"""Keys of adapter_config.json that change nothing."""


def read_settings(path: Path) -> LoraSettings:
    """What an adapter_config.json says. Raises CheckpointError naming each setting that `save_lora` never writes."""
    content = read_object(path)
    given = {field.name: content.pop(field.name, None) for field in fields(AdapterConfig)}
    read = read_as(AdapterConfig, given, str(path))
    settings = LoraSettings(read.r, read.lora_alpha, read.lora_dropout, read.target_modules)
    written = peft_config(settings).to_dict()
    faults = [
        f"{key} = {value!r:.80}, expected {as_json(written.get(key))!r}"
        for key, value in content.items()
        if key not in NOTES and not same_json(value, as_json(written.get(key)))
    ]
    if "peft_type" not in content:
        faults.append("peft_type is missing")
    if faults:
        raise CheckpointError(f"{path} is no LoRA that tyler wrote: {'; '.join(faults)}")
    return settings


def as_json(value: Any) -> Any:
    """A value of a LoraConfig as its file has it."""
    return value.value if isinstance(value, PeftType) else value


def same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON, where 1, 1.0 and true differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def folded_view(lora: PeftModel, backbone: PreTrainedModel) -> PreTrainedModel:
    """A view of the backbone whose adapted weights are its own; `fold` fills them.

    So are the weights that are multiplied together with them (`projections.py`): the view would take them from theta.
    """
    decoder = view(backbone)
    names = {sibling for name in lora_layers(lora) for sibling in siblings(name)}
    for name in sorted(names):
        module = cast(nn.Linear, decoder.get_submodule(name))
        module.weight = nn.Parameter(module.weight.detach().clone(), requires_grad=False)
    return decoder


@torch.no_grad()
def fold(lora: PeftModel, decoder: PreTrainedModel, precision: torch.dtype = torch.float32) -> None:
    """Write theta + (alpha / rank) B A into the folded view. Always from theta, so folding twice changes nothing.

    It is computed in `precision` and rounded once. In float64 the products of an adapter in half precision are exact,
    and so are their sums: all processors write the same weights, which a checkpoint on them can name.
    """
    for name, layer in lora_layers(lora).items():
        theta = cast(nn.Linear, layer.get_base_layer()).weight
        a, b = (cast(nn.Linear, maps[ADAPTER]).weight.to(precision) for maps in (layer.lora_A, layer.lora_B))
        folded = theta.to(precision) + (b @ a) * layer.scaling[ADAPTER]
        cast(nn.Linear, decoder.get_submodule(name)).weight.copy_(folded.to(theta.dtype))


class Folded:
    """The folded view of one adapter: made when it is first asked for, brought up to date each time.

    It is no torch module, so that theta is no part of what whoever holds it trains or saves.
    """

    def __init__(self, backbone: PreTrainedModel) -> None:
        self.backbone = backbone
        self._view: PreTrainedModel | None = None

    def decoder(self, lora: PeftModel) -> PreTrainedModel:
        """The decoder stack with the adapter's present weights."""
        if self._view is None:
            self._view = folded_view(lora, self.backbone)
        fold(lora, self._view)
        return cast(PreTrainedModel, self._view.base_model)


class Adapted(nn.Module):
    """A LoRA on the frozen backbone; what else is trained with it, a subclass adds."""

    def __init__(self, backbone: PreTrainedModel, lora: PeftModel) -> None:
        super().__init__()
        self.lora = lora
        self._folded = Folded(backbone)

    @property
    def training_decoder(self) -> PreTrainedModel:
        """The peft view's decoder stack: embeddings in, hidden states after the final norm out, the LoRA trainable."""
        return decoder_stack(self.lora)

    def decoder(self) -> PreTrainedModel:
        """The folded decoder stack, brought up to date with the LoRA."""
        return self._folded.decoder(self.lora)

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training moves, in a fixed order."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the LoRA, by name."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("lora.")}
