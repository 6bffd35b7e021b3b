"""SoftCoT (Xu et al., 2025): a frozen assistant writes soft thoughts for a frozen backbone; one Linear is trained.

settings.py the section `softcot` of a config
model.py    the projection, where thoughts stand in a prompt, checkpoints, and SoftCoT as a reasoner
sft.py      the projection learns from traces
planned.py  what a step of it reads
"""

from tyler.reasoners.method import Training

TRAININGS = {
    "softcot": Training(
        "soft thoughts of an assistant in the prompt",
        "tyler.reasoners.softcot.sft:run", "softcot", ("softcot", "stage1.max_length"),
        "tyler.reasoners.softcot.settings:SoftCotConfig",
        planned="tyler.reasoners.softcot.planned:softcot", rehearsed="tyler.reasoners.softcot.sft:rehearsed",
    )
}  # fmt: skip
