"""LoRA on views of the backbone: phi (synthesizer) and eta (policy), through peft.

Training runs on a peft view. Decoding runs on a folded view, whose target weights are theta + B A: the speed of the
plain model, whatever the adapter.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import JSONDecodeError
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from tyler.modeling.backbone import view
from tyler.modeling.projections import siblings

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


def add_lora(model: PreTrainedModel, settings: LoraSettings) -> PeftModel:
    """A view of `model` with a fresh adapter: A random, B zero, so that it starts equal to the backbone.

    Adapter weights are float32 whatever the backbone's dtype. Draws from torch's global generator.
    """
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.target_modules),
        task_type="CAUSAL_LM",
    )
    with without_peft_noise():
        return cast(PeftModel, get_peft_model(view(model), config).eval())


def load_lora(model: PreTrainedModel, folder: Path) -> PeftModel:
    """A view of `model` with the adapter saved in `folder` by peft. Raises FileNotFoundError naming what is missing."""
    for name in ADAPTER_FILES:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing: the folder is not a complete peft adapter")
    check_adapter_keys(model, folder)
    with without_peft_noise():
        loaded = PeftModel.from_pretrained(view(model), str(folder), is_trainable=True)
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


def check_adapter_keys(model: PreTrainedModel, folder: Path) -> None:
    """ValueError naming every missing, extra or misshapen tensor: peft itself only warns, and the LoRA is lost."""
    path = folder / "adapter_model.safetensors"
    try:
        config = LoraConfig.from_pretrained(str(folder))
        with safe_open(path, framework="pt") as tensors:
            found = {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}; copy the checkpoint again") from error
    except JSONDecodeError as error:
        raise ValueError(f"{folder / 'adapter_config.json'} is not valid JSON: {error}") from error
    check_shapes(path, found, expected_shapes(model, config))


def check_shapes(path: Path, found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless the file holds exactly the expected tensors in the expected shapes."""
    faults = [f"missing {key}" for key in sorted(expected.keys() - found.keys())]
    faults += [f"extra {key}" for key in sorted(found.keys() - expected.keys())]
    faults += [
        f"misshapen {key}: {list(found[key])}, expected {list(expected[key])}"
        for key in sorted(expected.keys() & found.keys())
        if found[key] != expected[key]
    ]
    if faults:
        more = [f"and {len(faults) - 6} more"] if len(faults) > 6 else []
        raise ValueError(f"{path} does not fit this model: {'; '.join(faults[:6] + more)}")


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
def fold(lora: PeftModel, decoder: PreTrainedModel) -> None:
    """Write theta + (alpha / rank) B A into the folded view. Always from theta, so folding twice changes nothing."""
    for name, layer in lora_layers(lora).items():
        theta = cast(nn.Linear, layer.get_base_layer()).weight
        folded = theta.float() + layer.get_delta_weight(ADAPTER).float()
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
