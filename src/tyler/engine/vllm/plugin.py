"""What vLLM calls in each of its processes, by the entry point `vllm.general_plugins`."""

from __future__ import annotations

FAMILIES = ("Llama", "Qwen2", "Qwen3", "SmolLM3")


def register() -> None:
    """Register the classes by name: none is imported before it is needed."""
    from vllm import ModelRegistry

    for family in FAMILIES:
        name = f"Tyler{family}ForCausalLM"
        ModelRegistry.register_model(name, f"tyler.engine.vllm.model:{name}")
