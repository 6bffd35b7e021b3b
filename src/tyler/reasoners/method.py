"""What a method says of itself: a module of this package that defines a `Method` as METHOD can be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tyler.engine.request import Request
from tyler.engine.sampling import Sampling
from tyler.reasoners.knobs import Knob
from tyler.tasks.prompts import Question


@dataclass(frozen=True)
class Saved:
    """The checkpoints of a method that has its own: what recognises one, the class that loads it, how it is asked."""

    recognises: Callable[[str], bool]
    model: Any
    request: Callable[[Any, Question, Sampling, int], Request]
    """Of a model, a question, a sampling and the most actions."""


@dataclass(frozen=True)
class Method:
    """One method: a module of `tyler.reasoners`, or `method.py` of a package there, defines it as METHOD.

    Its name is the module's, with `-` for `_`.
    """

    settings: type
    """A frozen dataclass of what an evaluation can change."""
    reasoner: Callable[..., Any]
    """`reasoner(model, settings, name=, sampling=, max_new_tokens=, slots=)` is a `Reasoner` with a field `memory`."""
    knobs: tuple[Knob, ...] = ()
    """What the length of its answers depends on."""
    saved: Saved | None = None
    """None for a method of a plain backbone, which is not trained."""
