"""LoRAs that are part of a backbone's weights: their peft folders are kept beside what is trained on it."""

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What is loaded of an adapter's folder."""


def folder_names(count: int) -> tuple[str, ...]:
    """Where a checkpoint keeps the adapters of its backbone, in the order in which they are merged."""
    return tuple(f"merged_adapters/{number}" for number in range(1, count + 1))
