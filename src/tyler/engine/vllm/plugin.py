"""What vLLM's entry point `vllm.general_plugins` calls in each of its processes: our decoder classes get their names."""

from __future__ import annotations

FAMILIES = ("Llama", "Qwen2", "Qwen3", "SmolLM3")


def register() -> None:
    """Register the classes by name: none is imported before it is needed."""
    from vllm import ModelRegistry

    for family in FAMILIES:
        name = f"Tyler{family}ForCausalLM"
        ModelRegistry.register_model(name, f"tyler.engine.vllm.model:{name}")
