"""A Tyler checkpoint on disk: safetensors, two plain peft adapters, one JSON file, a model card.

tyler.json                 format, backbone, operators, prompt, stage, versions, digests of the files (`manifest.py`)
synthesizer/  policy/      LoRA phi and eta as ordinary peft adapter folders (policy only after Stage 2)
operators.safetensors      {name}.queries, {name}.proj.weight, {name}.proj.bias of every operator, {name}.latents of one
                           whose latents are constant; psi
merged_adapters/           peft adapter folders that are merged into the backbone before anything else, where it has any
README.md                  the generated model card
"""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Self, get_args

import torch
from safetensors.torch import save_file
from torch import nn

from tyler.modeling.architectures import MINI
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import load_lora, read_adapter, save_lora
from tyler.modeling.manifest import BackboneRecord, CheckpointError, check_files, read_manifest, write_manifest
from tyler.modeling.merged_adapters import ADAPTER_FILES
from tyler.modeling.operators import Operator, check_operators
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import ConstantHead, Head, Synthesizer, check_heads
from tyler.modeling.tensor_files import check_half, read_tensors, round_file, tensor_names
from tyler.tasks.prompts import Prompt

MANIFEST, TENSORS = "tyler.json", "operators.safetensors"
Stage = Literal["backbone", "stage1", "stage2", "sft", "grpo"]
STAGES = get_args(Stage)
STAGES_OF_POLICY = ("stage2", "sft", "grpo")
"""Those that train eta."""


@dataclass(frozen=True)
class Manifest:
    """tyler.json; `digests` are those that were read from it."""

    backbone: BackboneRecord
    operators: tuple[Operator, ...]
    prompt: Prompt
    stage: str
    digests: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_operators(self.operators)

    @property
    def adapters(self) -> list[str]:
        """The folders of its LoRAs: phi, and eta where it was trained."""
        return ["synthesizer", "policy"] if self.stage in STAGES_OF_POLICY else ["synthesizer"]

    @property
    def files(self) -> list[str]:
        """The files beside it that are loaded."""
        own = [f"{adapter}/{name}" for adapter in self.adapters for name in ADAPTER_FILES]
        return [*own, TENSORS, *self.backbone.files]

    def write(self, folder: Path) -> None:
        """Write tyler.json beside its files, all of which must be there."""
        content = {key: value for key, value in asdict(self).items() if key in KINDS}
        write_manifest(folder / MANIFEST, content, self.files)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises CheckpointError naming what is wrong with tyler.json."""
        fields = read_manifest(folder / MANIFEST, KINDS)
        try:
            return cls(**fields)
        except ValueError as error:
            raise CheckpointError(f"{folder / MANIFEST}: operators: {error}") from error


KINDS = {"backbone": BackboneRecord, "operators": tuple[Operator, ...], "prompt": Prompt, "stage": Stage}
"""The keys of tyler.json, besides those of every manifest."""


def is_checkpoint(folder: Path) -> bool:
    """Whether the folder claims to be a checkpoint."""
    return (folder / MANIFEST).is_file()


def save(folder: Path, manifest: Manifest, synthesizer: Synthesizer, policy: Policy, *, half: bool = False) -> None:
    """Write a complete checkpoint into `folder`, which is created; existing files of a checkpoint are replaced.

    `half` rounds every tensor to float16. Eta is written where the stage has trained it. Raises ValueError where a
    number is too large for float16, and where a stage that trains eta has none; nothing is written then.
    """
    has_policy = "policy" in manifest.adapters
    if has_policy and policy.lora is None:
        raise ValueError(
            f"the policy has no LoRA, and a model of stage {manifest.stage!r} has trained one; give it the stage it is "
            "of (at_stage)"
        )
    if half:
        check_half(trained_tensors(synthesizer, policy))
    folder.mkdir(parents=True, exist_ok=True)
    save_lora(synthesizer.lora, folder / "synthesizer", manifest.backbone.id)
    if has_policy and policy.lora is not None:
        save_lora(policy.lora, folder / "policy", manifest.backbone.id)
    else:
        shutil.rmtree(folder / "policy", ignore_errors=True)
    save_file(operator_tensors(synthesizer, policy), folder / TENSORS)
    for name in [f"{adapter}/{ADAPTER_FILES[-1]}" for adapter in manifest.adapters] + [TENSORS] if half else ():
        round_file(folder / name)
    (folder / "README.md").write_text(model_card(manifest), encoding="utf-8")
    manifest.write(folder)


def operator_tensors(synthesizer: Synthesizer, policy: Policy) -> dict[str, torch.Tensor]:
    """The content of operators.safetensors."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in synthesizer.heads.state_dict().items()}
    return {**tensors, "psi": policy.psi.detach().cpu().contiguous()}


def trained_tensors(synthesizer: Synthesizer, policy: Policy) -> dict[str, torch.Tensor]:
    """Everything that training moves, by name: heads, psi and both adapters."""
    adapters = {"synthesizer": synthesizer.lora} | ({"policy": policy.lora} if policy.lora is not None else {})
    weights = {
        f"{which}.{name}": tensor.detach()
        for which, lora in adapters.items()
        for name, tensor in lora.named_parameters()
        if "lora_" in name
    }
    return operator_tensors(synthesizer, policy) | weights


def head_of(operator: Operator, dim: int, names: Collection[str]) -> Head | ConstantHead:
    """An empty head of the kind whose tensors are among `names`."""
    if f"{operator.name}.latents" in names:
        return ConstantHead(torch.zeros(operator.num_latents, dim))
    return Head(operator.num_latents, dim)


def load(folder: Path, manifest: Manifest, backbone: Backbone) -> tuple[Synthesizer, Policy]:
    """Phi and {eta, psi} as saved; everything is checked before anything is made of it.

    `backbone` is the one that `manifest.backbone` names. CheckpointError for operators that it cannot have, for a
    tensor that is missing, extra, misshapen or not finite, for a LoRA of another kind, and for a file that was changed.
    """
    try:
        check_heads(manifest.operators, backbone)
    except ValueError as error:
        raise CheckpointError(f"{folder / MANIFEST}: {error}") from error
    for adapter in manifest.adapters:
        read_adapter(backbone.model, folder / adapter)
    names = tensor_names(folder / TENSORS)
    with torch.device("meta"):  # draws nothing
        heads = nn.ModuleDict(
            {operator.name: head_of(operator, backbone.dim, names) for operator in manifest.operators}
        )
    shapes = {name: list(tensor.shape) for name, tensor in heads.state_dict().items()}
    tensors = read_tensors(folder / TENSORS, {**shapes, "psi": [len(manifest.operators), backbone.dim]})
    check_files(folder / MANIFEST, manifest.digests, manifest.files)
    phi, *eta = (load_lora(backbone.model, folder / adapter) for adapter in manifest.adapters)
    synthesizer = Synthesizer(backbone, manifest.operators, phi)
    policy = Policy(backbone, len(manifest.operators), *eta)
    policy.psi.data.copy_(tensors.pop("psi"))
    synthesizer.heads = heads.to_empty(device=backbone.device)
    synthesizer.heads.load_state_dict(tensors)
    return synthesizer.eval(), policy.eval()


def model_card(manifest: Manifest) -> str:
    """The README of a checkpoint; `tyler push` writes a longer one."""
    backbone = manifest.backbone.id
    base = "" if backbone == MINI else f"base_model: {backbone}\n"
    return f"""---
library_name: tyler-reasoning
{base}tags: [latent-reasoning, tyler, peft, lora]
---

# Tyler on {backbone} ({manifest.stage})

```python
from tyler import Tyler

model = Tyler.from_pretrained("path/to/this/folder")
trajectory = model.solve("YOUR QUESTION")
print(trajectory.text, trajectory.invocations)
```

`{MANIFEST}` names the operators, which run silently: log `trajectory.invocations` where answers must be auditable.
"""
