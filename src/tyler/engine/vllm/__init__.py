"""The second engine: Tyler on an unmodified vLLM, for GPUs, large batches and models on several cards.

engine.py     answers as chains of vLLM's requests: decode, call, decode again
ids.py        how operators, latents and queries are written as token ids, and which rows of the table are free
model.py      the plugin: a decoder class of vLLM that knows operators
low_rank.py   both adapters as a path beside a frozen, perhaps quantised, linear map
decisions.py  the shared rule of choosing actions, as a logits processor of vLLM
settings.py   what vLLM is started with
"""


def register() -> None:
    """Register the decoder classes by name; vLLM calls this in each process (entry point `vllm.general_plugins`)."""
    from vllm import ModelRegistry

    for family in ("Llama", "Qwen2", "Qwen3", "SmolLM3"):
        name = f"Tyler{family}ForCausalLM"
        ModelRegistry.register_model(name, f"tyler.engine.vllm.model:{name}")
