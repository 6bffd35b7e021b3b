"""MemGen (Zhang et al., 2025): one kind of latents after the prompt and one after delimiters, on our engine.

weaver.py    r2w, queries, LoRA, w2r: from the context to latents
trigger.py   Linear(d, 2) on a LoRA'd decoder over the visible tokens: whether a block is inserted
routing.py   where a block may be inserted
decoding.py  the engine, with a reader whose inputs are mapped and a third stream for the trigger
model.py     all of it as one object: start, save, load, solve; MemGenReasoner
method.py    what an evaluation can change
sft.py       the weaver learns from traces
grpo.py      the weaver, or the trigger, learns from rewards
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tyler.reasoners.memgen.model import MemGen, MemGenReasoner, is_memgen

__all__ = ["MemGen", "MemGenReasoner", "is_memgen"]


def __getattr__(name: str) -> Any:
    """The names of `model.py`, loaded when they are used: the help of a command needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.model"), name)
