"""What `tyler train` can train of SoftCoT. Without torch."""

from __future__ import annotations

from tyler.reasoners.trainer import Trainer

TRAINERS = {
    "softcot": Trainer(
        "soft thoughts of an assistant in the prompt", "softcot.sft:run", "softcot", ("softcot", "stage1.max_length")
    ),
}
