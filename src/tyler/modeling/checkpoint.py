"""A Tyler checkpoint on disk: safetensors, two plain peft adapters, one JSON file, a model card.

tyler.json                 format version, backbone, operators, prompt, stage, versions
synthesizer/  policy/      LoRA phi and eta as ordinary peft adapter folders (policy only after Stage 2)
operators.safetensors      {name}.queries, {name}.proj.weight, {name}.proj.bias of every operator; psi
README.md                  the generated model card
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import check_shapes, load_lora, save_lora
from tyler.modeling.operators import Operator, check_operators
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import Synthesizer
from tyler.tasks.prompts import Prompt

FORMAT = 1
STAGES = ("backbone", "stage1", "stage2", "sft", "grpo")
STAGES_OF_POLICY = ("stage2", "sft", "grpo")
"""Those that train eta."""


class CheckpointError(ValueError):
    """A checkpoint that is incomplete, foreign or newer than this version of tyler."""


@dataclass(frozen=True)
class Manifest:
    """tyler.json."""

    backbone: str
    revision: str | None
    fingerprint: str
    operators: tuple[Operator, ...]
    prompt: Prompt
    stage: str

    def to_json(self) -> str:
        content = {
            "format": FORMAT,
            "backbone": {"id": self.backbone, "revision": self.revision, "fingerprint": self.fingerprint},
            "operators": [asdict(operator) for operator in self.operators],
            "prompt": asdict(self.prompt),
            "stage": self.stage,
            "versions": {name: version(name) for name in ("torch", "transformers", "peft")},
        }
        return json.dumps(content, indent=2) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises CheckpointError naming what is wrong with tyler.json."""
        path = folder / "tyler.json"
        try:
            content = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise CheckpointError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(content, dict):
            raise CheckpointError(f"{path} holds a {type(content).__name__}; it must be a JSON object")
        found = content.get("format")
        if not isinstance(found, int) or not 1 <= found <= FORMAT:
            raise CheckpointError(
                f"{path} has format {found!r}, and this version of tyler reads up to {FORMAT}; "
                "upgrade with `pip install -U tyler-reasoning`"
            )
        try:
            operators = check_operators(Operator(**operator) for operator in content["operators"])
            manifest = cls(
                backbone=content["backbone"]["id"],
                revision=content["backbone"]["revision"],
                fingerprint=content["backbone"]["fingerprint"],
                operators=operators,
                prompt=Prompt(**content["prompt"]),
                stage=content["stage"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is incomplete or has a wrong field: {error}") from error
        if manifest.stage not in STAGES:
            raise CheckpointError(f"{path} has stage {manifest.stage!r}; known are {', '.join(STAGES)}")
        return manifest


def is_checkpoint(folder: Path) -> bool:
    """Whether the folder claims to be a checkpoint."""
    return (folder / "tyler.json").is_file()


def save(folder: Path, manifest: Manifest, synthesizer: Synthesizer, policy: Policy) -> None:
    """Write a complete checkpoint into `folder`, which is created; existing files of a checkpoint are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    save_lora(synthesizer.lora, folder / "synthesizer", manifest.backbone)
    if policy.lora is not None:
        save_lora(policy.lora, folder / "policy", manifest.backbone)
    else:
        shutil.rmtree(folder / "policy", ignore_errors=True)
    save_file(operator_tensors(synthesizer, policy), folder / "operators.safetensors")
    (folder / "README.md").write_text(model_card(manifest))
    (folder / "tyler.json").write_text(manifest.to_json())


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


def load(folder: Path, manifest: Manifest, backbone: Backbone) -> tuple[Synthesizer, Policy]:
    """Phi and {eta, psi} as saved. CheckpointError for a wrong backbone or a missing, extra or misshapen tensor."""
    if backbone.fingerprint() != manifest.fingerprint:
        raise CheckpointError(
            f"{folder} was trained on backbone {manifest.backbone!r} with fingerprint {manifest.fingerprint}, but "
            f"{backbone.id!r} has {backbone.fingerprint()}: load it with the backbone it was trained on"
        )
    try:
        synthesizer = Synthesizer(backbone, manifest.operators, load_lora(backbone.model, folder / "synthesizer"))
        eta = load_lora(backbone.model, folder / "policy") if manifest.stage in STAGES_OF_POLICY else None
        policy = Policy(backbone, len(manifest.operators), eta)
        path = folder / "operators.safetensors"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing")
        expected = {name: tuple(tensor.shape) for name, tensor in operator_tensors(synthesizer, policy).items()}
        found = read_tensors(path)
        check_shapes(path, {key: tuple(tensor.shape) for key, tensor in found.items()}, expected)
    except (FileNotFoundError, ValueError) as error:
        raise CheckpointError(str(error)) from error
    psi = found.pop("psi")
    synthesizer.heads.load_state_dict(found)
    policy.psi.data.copy_(psi)
    return synthesizer.eval(), policy.eval()


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a safetensors file. Raises ValueError for a damaged one."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}; copy the checkpoint again") from error


def model_card(manifest: Manifest) -> str:
    """The README of a checkpoint, as the Hub shows it."""
    operators = "\n".join(f"| {op.name} | {op.num_latents} | {op.boundary} |" for op in manifest.operators)
    library = "" if manifest.backbone == "mini" else f"base_model: {manifest.backbone}\n"
    return f"""---
library_name: tyler-reasoning
{library}tags: [latent-reasoning, tyler, peft, lora]
---

# Tyler on {manifest.backbone} ({manifest.stage})

Typed latent reasoning: at every step the model emits a token or invokes a typed latent operator, whose latents join the
context unseen by the user.

| operator | latents | boundary rule |
|---|---|---|
{operators}

```python
from tyler import Tyler

model = Tyler.from_pretrained("path/to/this/folder")
trajectory = model.solve("What is 12 + 30?")
print(trajectory.text, trajectory.invocations)
```

`synthesizer/` and `policy/` are ordinary peft adapters of the backbone. Operators run silently: log
`trajectory.invocations` where answers must be auditable.
"""
