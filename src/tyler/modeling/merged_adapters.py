"""A LoRA that is part of a backbone's weights: its peft folder, as bytes, to be kept beside what is trained on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What is loaded of an adapter's folder."""


@dataclass(frozen=True)
class MergedAdapter:
    """The files of one adapter, by name."""

    files: Mapping[str, bytes]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises FileNotFoundError for a folder that lacks one of the files."""
        return cls({name: (folder / name).read_bytes() for name in ADAPTER_FILES})

    def write(self, folder: Path) -> None:
        """Write the adapter as it was read into `folder`, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def folder_names(count: int) -> tuple[str, ...]:
    """Where a checkpoint keeps the adapters of its backbone, in the order in which they are merged."""
    return tuple(f"merged_adapters/{number}" for number in range(1, count + 1))
