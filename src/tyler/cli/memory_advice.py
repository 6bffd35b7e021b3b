"""What a command says when the machine has no memory left: in which phase, and which settings to lower for it."""

from __future__ import annotations

from traceback import walk_tb
from typing import NamedTuple


class Phase(NamedTuple):
    """A part of a command's work, known by the functions that were running: `code` is how their full names begin.

    `settings` are what to change in a config, `options` what to change where a command takes none.
    """

    name: str
    code: tuple[str, ...]
    settings: str
    options: str = ""


DECODING = Phase(
    "while answers were decoded",
    ("tyler.engine.",),
    "lower decoding.slots, bound what answers hold with decoding.memory (as 8GB), or lower max_new_tokens",
    "lower --slots, bound what answers hold with --memory 8GB, lower --max-new-tokens, or shorten the question",
)
LEARNING = Phase(
    "in a training step",
    ("tyler.training.", "tyler.reasoners."),
    "lower micro_batch_size or micro_batch_tokens in the command's section, or set gradient_checkpointing: true",
)
PHASES = (
    DECODING,
    Phase(
        "while the model was loaded",
        ("tyler.modeling.backbone.Backbone.load", "tyler.model.Tyler.from_pretrained", "tyler.model.Tyler.start"),
        "a smaller LoRA (lora.rank), backbone.dtype bfloat16, or a smaller backbone",
        "load fewer bytes: --dtype bfloat16, a smaller model, or another --device",
    ),
    Phase("while psi was calibrated", ("tyler.training.calibration",), "lower stage2.calibration.num_problems"),
    LEARNING,
)
"""The first whose code was running."""

WITH_CONFIG = ("quickstart", "train", "plan")


def out_of_memory(command: str, error: BaseException) -> str:
    """The refusal of a command that ran out of memory: what was said, in which phase, and what to do."""
    phase, configured = phase_of(error), command in WITH_CONFIG
    where = f" {phase.name}" if phase else ""
    reason = str(first_cause(error)).strip().partition("\n")[0]
    advice = [part.settings if configured else part.options for part in ([phase] if phase else [DECODING, LEARNING])]
    whole = "; ".join(filter(None, advice)) or DECODING.options
    plan = " `tyler plan CONFIG` says how much each phase needs, and on which device it fits."
    return (
        f"tyler {command} ran out of memory{where}{f': {reason}' if reason else ''}\n"
        f"{whole[0].upper()}{whole[1:]}.{plan if configured else ''}"
    )


def first_cause(error: BaseException) -> BaseException:
    """What was raised first: the engine's thread tells its callers of it by an error of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def phase_of(error: BaseException) -> Phase | None:
    """The phase in which an error came up, by the functions that it came through."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    names = [f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}" for frame in frames]
    return next((phase for phase in PHASES if any(name.startswith(phase.code) for name in names)), None)
