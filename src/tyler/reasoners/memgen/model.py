"""MemGen as one object, and on disk.

memgen.json           format, backbone, settings, prompt, whether there is a trigger, versions, digests of the files
weaver/  trigger/     LoRAs as ordinary peft adapter folders (trigger only where it was trained)
heads.safetensors     weaver.*: maps, queries, norms, scales; trigger.*: its output layer
"""

import shutil
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from pydantic.dataclasses import dataclass as pydantic_dataclass
from safetensors.torch import save_file
from torch import Tensor

from tyler.config.engine_choice import NATIVE, EngineChoice, EngineName
from tyler.config.sections import NonNegative
from tyler.engine.request import Request
from tyler.engine.sampling import Sampling
from tyler.engine.shared_engine import Build, SharedEngine
from tyler.engine.trajectory import Trajectory
from tyler.modeling.backbone import Backbone
from tyler.modeling.fingerprint import fingerprint_with
from tyler.modeling.independent import Independent
from tyler.modeling.loading import load_recorded
from tyler.modeling.lora import Adapted, LoraSettings, add_lora, load_lora, lora_layers, save_lora
from tyler.modeling.manifest import DIGESTS, BackboneRecord, check_files, read_manifest, write_manifest
from tyler.modeling.merged_adapters import ADAPTER_FILES
from tyler.modeling.operators import Operator, check_operators
from tyler.modeling.tensor_files import read_tensors
from tyler.reasoners.memgen.decoding import MemGenEngine
from tyler.reasoners.memgen.routing import AtDelimiters
from tyler.reasoners.memgen.weaver import INFERENCE, PROMPT, Trigger, Weaver
from tyler.reasoners.method import LengthSetting, Method
from tyler.reasoners.reasoner import AnswerSettings, Servable
from tyler.runs.checkpoints import latest_checkpoint
from tyler.tasks.prompts import Prompt, Question, prompt_ids

MANIFEST, TENSORS = "memgen.json", "heads.safetensors"
PAPER_LORA = LoraSettings(rank=16, alpha=32, dropout=0.1)


@dataclass(frozen=True)
class Settings:  # its name is in fingerprints
    """How many latents, how many blocks (K), and whether an active trigger decides about the prompt's block too."""

    prompt_latents: int = 8
    inference_latents: int = 8
    max_insertions: int = 5
    trigger_at_prompt: bool = False

    def __post_init__(self) -> None:
        check_operators(self.operators)
        if self.max_insertions < 0:
            raise ValueError(f"max_insertions={self.max_insertions}; it must be 0 or more")

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Both kinds of blocks, which a schedule places; their boundary rules are not used."""
        inference = Operator(INFERENCE, self.inference_latents, "delimiter")
        return Operator(PROMPT, self.prompt_latents, "answer_start"), inference


KINDS = {"backbone": BackboneRecord, "settings": Settings, "prompt": Prompt, "trigger": bool}
"""What memgen.json holds."""


@dataclass(frozen=True, eq=False)
class MemGen(Independent):
    """A frozen backbone with a weaver. Without a trigger, every delimiter inserts a block until K are there."""

    backbone: Backbone
    weaver: Weaver
    trigger: Trigger | None = None
    settings: Settings = field(default_factory=Settings)
    prompt: Prompt = field(default_factory=Prompt)
    decoder: EngineChoice = NATIVE
    """Which engine answers; a trigger runs on the native one alone."""
    shared_engine: SharedEngine = field(init=False, repr=False, compare=False)
    """The engine that this object's calls share and that lives as long as it does."""
    manifest: ClassVar[str] = MANIFEST

    def __repr__(self) -> str:
        trigger = "untrained" if self.trigger is None else "trained"
        return f"MemGen({self.backbone!r}, {self.settings!r}, trigger {trigger})"

    def __post_init__(self) -> None:
        parts = (self.backbone, self.settings.operators, self.weaver)
        build: Build = partial(MemGenEngine, *parts, self.trigger)
        if self.decoder.name == "vllm":
            if self.trigger is not None:
                raise ValueError("a MemGen with a trigger runs on the native engine alone; use engine 'native'")
            from tyler.reasoners.memgen.on_vllm import MemGenOnVllm

            build = partial(MemGenOnVllm, *parts, arguments=self.decoder.arguments)
        object.__setattr__(self, "shared_engine", SharedEngine(build))

    @classmethod
    def start(
        cls,
        backbone: Backbone,
        settings: Settings | None = None,
        lora: LoraSettings = PAPER_LORA,
        prompt: Prompt | None = None,
    ) -> Self:
        """An untrained weaver on a backbone; draws from torch's global generator."""
        settings = settings or Settings()
        weaver = Weaver(backbone, settings.operators, add_lora(backbone.model, lora)).eval()
        return cls(backbone, weaver, None, settings, prompt or Prompt.of(backbone.tokenizer))

    def with_engine(self, name: EngineName, **arguments: object) -> Self:
        """The same model on another engine, as `Tyler.with_engine`. Raises ValueError where there is a trigger, too."""
        return replace(self, decoder=EngineChoice(name, arguments))

    def with_new_trigger(self, lora: LoraSettings = PAPER_LORA) -> Self:
        """The same model with an untrained trigger; draws from torch's global generator."""
        return replace(self, trigger=Trigger(self.backbone, add_lora(self.backbone.model, lora)).eval())

    @classmethod
    def from_pretrained(
        cls,
        location: str,
        *,
        backbone: str | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
    ) -> Self:
        """Load a checkpoint, or the newest one of a run. `backbone` is where its backbone is found, if elsewhere now.

        Raises CheckpointError (a ValueError) for a checkpoint that does not fit, naming every missing, extra or
        misshapen tensor, and FileNotFoundError for one that is not there.
        """
        folder = latest_checkpoint(location) or Path(location)
        if not (folder / MANIFEST).is_file():
            raise FileNotFoundError(f"{folder} holds no {MANIFEST}; train one with `tyler train memgen CONFIG`")
        told = read_manifest(folder / MANIFEST, KINDS)
        loaded = load_recorded(told["backbone"], folder, instead=backbone, dtype=dtype, device=device)
        weaver = Weaver(loaded, told["settings"].operators, load_lora(loaded.model, folder / "weaver")).eval()
        trigger = Trigger(loaded, load_lora(loaded.model, folder / "trigger")).eval() if told["trigger"] else None
        model = cls(loaded, weaver, trigger, told["settings"], told["prompt"])
        found = read_tensors(folder / TENSORS, {name: tensor.shape for name, tensor in model._tensors().items()})
        check_files(folder / MANIFEST, told[DIGESTS], model._files(told["backbone"]))
        with torch.no_grad():
            for name, tensor in model._tensors().items():
                tensor.copy_(found[name])
        return model

    @property
    def _parts(self) -> dict[str, Adapted]:
        """What is trained, by the name of its folder."""
        return {"weaver": self.weaver, **({} if self.trigger is None else {"trigger": self.trigger})}

    def _files(self, backbone: BackboneRecord) -> list[str]:
        """The files beside memgen.json that are loaded."""
        return [*(f"{part}/{name}" for part in self._parts for name in ADAPTER_FILES), TENSORS, *backbone.files]

    def _tensors(self) -> dict[str, Tensor]:
        """The content of heads.safetensors."""
        named = ((name, part.tensors().items()) for name, part in self._parts.items())
        return {f"{name}.{key}": tensor for name, tensors in named for key, tensor in tensors}

    def saved_bytes(self) -> int:
        return sum(tensor.nbytes for part in self._parts.values() for tensor in part.trainable())

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a checkpoint that reloads to bit-equal outputs."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self.trigger is None:
            shutil.rmtree(folder / "trigger", ignore_errors=True)
        for name, part in self._parts.items():
            save_lora(part.lora, folder / name, self.backbone.id)
        save_file({name: t.detach().cpu().contiguous() for name, t in self._tensors().items()}, folder / TENSORS)
        backbone = BackboneRecord.of(self.backbone, folder)
        told: dict[str, Any] = {"backbone": backbone, "settings": self.settings, "prompt": self.prompt}
        content = {key: asdict(one) for key, one in told.items()} | {"trigger": self.trigger is not None}
        write_manifest(folder / MANIFEST, content, self._files(backbone))

    def fingerprint(self) -> str:
        """A short hash that names the weights: the backbone's, and those of weaver and trigger."""
        tensors = self._tensors()
        for part in self._parts.values():
            tensors |= {
                f"{type(part).__name__}.{name}.{key}": tensor
                for name, layer in lora_layers(part.lora).items()
                for key, tensor in layer.named_parameters()
                if "lora_" in key
            }
        return fingerprint_with(repr((self.backbone.fingerprint(), self.settings)), tensors)

    def engine(self, *, slots: int = 8, memory: int | None = None, positions: int | None = None) -> MemGenEngine:
        """A new decoding engine over this model's present weights."""
        parts = (self.backbone, self.settings.operators, self.weaver, self.trigger)
        return MemGenEngine(*parts, slots=slots, memory=memory, positions=positions)

    def router(self, temperature: float = 0.0) -> AtDelimiters:
        """Where blocks go; the trigger is greedy at `temperature` 0."""
        return AtDelimiters(
            self.settings.max_insertions,
            asks=self.trigger is not None,
            asks_at_prompt=self.settings.trigger_at_prompt,
            temperature=temperature,
        )

    def request(
        self,
        problem: Question,
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 2048,
        trigger_temperature: float = 0.0,
    ) -> Request:
        """What the engine is asked for one problem. Raises ValueError for an empty one."""
        return Request(
            prompt_ids=prompt_ids(self.backbone.tokenizer, problem, self.prompt),
            router=self.router(trigger_temperature),
            sampling=sampling or Sampling(),
            max_new_tokens=max_new_tokens,
        )


@dataclass(frozen=True)
class MemGenReasoner(Servable):
    """A MemGen with everything about decoding decided.

    In its trajectories every block is an invocation, "prompt" or "inference": `num_latents` counts all of them, and
    `num_insertions` only those that K limits. `max_new_tokens` counts visible tokens.
    """

    model: MemGen

    def request(self, question: Question, settings: AnswerSettings) -> Request:
        """The trigger samples where the tokens are sampled."""
        settings.check_without_operators(self.name)
        request = self.model.request(
            question,
            sampling=settings.sampling,
            max_new_tokens=settings.max_new_tokens,
            trigger_temperature=settings.sampling.temperature,
        )
        return settings.completed(request)


def num_insertions(trajectory: Trajectory) -> int:
    """Blocks after delimiters: what K limits. The block after the prompt is not one of them."""
    return sum(invocation.operator == INFERENCE for invocation in trajectory.invocations)


# --- as a method that an evaluation can name --------------------------------------------------------------------------


@pydantic_dataclass(frozen=True)
class MemGenOverrides:
    """What can be changed at evaluation; None is what the checkpoint says. `max_insertions` is K."""

    max_insertions: NonNegative | None = None
    trigger_at_prompt: bool | None = None


def reasoner(model: MemGen, settings: MemGenOverrides) -> MemGenReasoner:
    """A trained MemGen."""
    changed = {key: value for key, value in asdict(settings).items() if value is not None}
    return MemGenReasoner("memgen", replace(model, settings=replace(model.settings, **changed)))


METHOD = Method(MemGenOverrides, reasoner, (LengthSetting("max_insertions", highest=31),), MemGen)
