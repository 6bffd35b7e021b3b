"""LoRA on views of the backbone: phi (synthesizer) and eta (policy), through peft.

Training runs on a peft view. Decoding reads the same view: in float32 it folds the adapters into weights of its own,
theta + (alpha / rank) B A, and in half precision it adds their products by the function that training uses
(`products.py`).
"""

import copy
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear
from torch import Tensor, nn
from transformers import PreTrainedModel

from tyler.modeling.architectures import ATTENTION, FEED_FORWARD
from tyler.modeling.backbone import view
from tyler.modeling.manifest import CheckpointError, read_as, read_object
from tyler.modeling.merged_adapters import ADAPTER_FILES
from tyler.modeling.products import adapted_product, autocast_product
from tyler.modeling.tensor_files import read_tensors

ADAPTER = "default"
HALF = (torch.bfloat16, torch.float16)
MAX_RANK = 2**16
"""More than any matrix of a backbone has rows."""


@dataclass(frozen=True)
class LoraSettings:
    """LoRA on the attention projections; the defaults are the paper's (Table of hyper-parameters).

    Raises ValueError for numbers that no adapter has, and for maps that decoding would not read.
    """

    rank: int = 8
    alpha: int = 16
    dropout: float = 0.1
    target_modules: tuple[str, ...] = ("q_proj", "v_proj")

    def __post_init__(self) -> None:
        if not (1 <= self.rank <= MAX_RANK and 1 <= self.alpha <= MAX_RANK and 0 <= self.dropout < 1):
            raise ValueError(f"rank and alpha must be from 1 to {MAX_RANK}, and dropout from 0 to below 1")
        if unknown := {*self.target_modules} - {*ATTENTION, *FEED_FORWARD}:
            raise ValueError(f"no map {min(unknown)!r} for LoRA; target_modules has {ATTENTION + FEED_FORWARD}")


class OnceRounded(Linear):
    """peft's LoRA layer, whose sum in half precision is rounded once; peft rounds the frozen product first."""

    def forward(self, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        theta = cast(nn.Linear, self.get_base_layer())
        autocast = torch.is_autocast_enabled(x.device.type)
        in_half = x.dtype in HALF and x.dtype == theta.weight.dtype
        if self.disable_adapters or self.merged or not (autocast or in_half):
            return super().forward(x, *arguments, **options)
        dropout, (down, up) = self.lora_dropout[ADAPTER], low_rank(self)
        if autocast:
            return autocast_product(x, theta.weight, theta.bias, dropout, down, up)
        return adapted_product(x, theta.weight, theta.bias, dropout(x.to(down.dtype)), down, up)


def low_rank(layer: Linear) -> tuple[Float[Tensor, "rank inputs"], Float[Tensor, "outputs rank"]]:
    """A and (alpha / rank) B of a layer."""
    a, b = (cast(nn.Linear, maps[ADAPTER]).weight for maps in (layer.lora_A, layer.lora_B))
    return a, b * layer.scaling[ADAPTER]


@torch.no_grad()
def folded_weight(layer: Linear, precision: torch.dtype = torch.float32) -> Float[Tensor, "outputs inputs"]:
    """theta + (alpha / rank) B A in `precision`.

    In float64 the products of an adapter in half precision are exact, and so are their sums: all processors compute the
    same weights, which a checkpoint on them can name.
    """
    down, up = low_rank(layer)
    return cast(nn.Linear, layer.get_base_layer()).weight.to(precision) + up.to(precision) @ down.to(precision)


def merged(lora: PeftModel, backbone: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The backbone in `dtype` with the adapter folded in, rounded once; what keeps its dtype shares its memory."""
    rounded = {
        id(theta): nn.Parameter(theta.detach().to(dtype), requires_grad=False) for theta in backbone.parameters()
    }
    plain = copy.deepcopy(backbone, rounded | {id(buffer): buffer for buffer in backbone.buffers()})
    for name, layer in lora_layers(lora).items():
        folded = folded_weight(layer, torch.float64).to(dtype)
        cast(nn.Linear, plain.get_submodule(name)).weight = nn.Parameter(folded, requires_grad=False)
    plain.config.dtype = dtype
    return plain


def lost_to_rounding(lora: PeftModel, dtype: torch.dtype) -> float:
    """How far rounding theta + (alpha / rank) B A to `dtype` moves it, as a share of how far the adapter does."""
    rounding = adapter = 0.0
    for layer in lora_layers(lora).values():
        exact = folded_weight(layer, torch.float64)
        rounding += float((exact.to(dtype).double() - exact).square().sum())
        adapter += float((exact - cast(nn.Linear, layer.get_base_layer()).weight.double()).square().sum())
    return (rounding / adapter) ** 0.5 if adapter else 0.0


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
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.target_modules),
        task_type="CAUSAL_LM",
    )
    config._register_custom_module({nn.Linear: OnceRounded})
    return config


def read_adapter(model: PreTrainedModel, folder: Path) -> tuple[LoraConfig, dict[str, Tensor]]:
    """The settings and, in float32, the tensors of the adapter in `folder`: those that the model asks for.

    Raises CheckpointError naming the file, and the setting or the tensors, where `save_lora` wrote nothing like it:
    peft itself only warns of a missing tensor, and the LoRA is lost.
    """
    config_file, tensor_file = (folder / name for name in ADAPTER_FILES)
    config = peft_config(read_settings(config_file))
    return config, read_tensors(tensor_file, expected_shapes(model, config))


@torch.no_grad()
def merge_folder(model: PreTrainedModel, folder: Path) -> None:
    """Add the adapter in `folder` to the model's own weights, in float64 as `folded_weight` does.

    Raises CheckpointError, and changes nothing, as `read_adapter` does.
    """
    config, tensors = read_adapter(model, folder)
    for key, down in tensors.items():
        if not key.endswith("lora_A.weight"):
            continue
        up = tensors[key.replace("lora_A", "lora_B")].double() * (config.lora_alpha / config.r)
        name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        theta = cast(nn.Linear, model.get_submodule(name)).weight
        theta.copy_(theta.double() + (up @ down.double()).to(theta.device))


def load_lora(model: PreTrainedModel, folder: Path) -> PeftModel:
    """A view of `model` with the adapter that `save_lora` wrote into `folder`. Raises as `read_adapter` does."""
    config, _ = read_adapter(model, folder)
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


KEYS = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "target_modules": "target_modules"}
"""What adapter_config.json calls the settings; the rest of it is peft's defaults."""
NOTES = ("base_model_name_or_path", "inference_mode", "peft_version", "revision")
"""Keys of adapter_config.json that change nothing."""


def read_settings(path: Path) -> LoraSettings:
    """What an adapter_config.json says. Raises CheckpointError naming each setting that `save_lora` never writes."""
    content = read_object(path)
    given = {name: content.pop(key, None) for name, key in KEYS.items()}
    settings: LoraSettings = read_as(LoraSettings, given, path)
    written = {
        key: json.dumps(value, sort_keys=True, default=sorted) for key, value in peft_config(settings).to_dict().items()
    }
    faults = [
        f"{key} = {value!r:.80}, expected {written.get(key)}"
        for key, value in content.items()
        if key not in NOTES
        and json.dumps(value, sort_keys=True) != written.get(key, "null")  # where 1 is not 1.0 or true
    ]
    if "peft_type" not in content:
        faults.append("peft_type is missing")
    if faults:
        raise CheckpointError(f"{path} is no LoRA that tyler wrote: {'; '.join(faults)}")
    return settings


class Adapted(nn.Module):
    """A LoRA on the frozen backbone; what else is trained with it, a subclass adds."""

    def __init__(self, lora: PeftModel) -> None:
        super().__init__()
        self.lora = lora

    @property
    def decoder(self) -> PreTrainedModel:
        """The peft view's decoder stack: embeddings in, hidden states after the final norm out, the LoRA trainable."""
        return decoder_stack(self.lora)

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training moves, in a fixed order."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("lora.")}
