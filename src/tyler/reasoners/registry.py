"""The methods that an evaluation can name, and how a model becomes a reasoner under one of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from types import ModuleType
from typing import Any, cast

import yaml
from pydantic import TypeAdapter, ValidationError

from tyler.config.files import read_value
from tyler.engine.request import Event
from tyler.engine.routing import Never, Router
from tyler.engine.sampling import Sampling
from tyler.model import DEFAULT_ROUTERS, Tyler
from tyler.reasoners import cot, soft_thinking, softcot, swireasoning
from tyler.reasoners.knobs import MAX_NEW_TOKENS, Knob
from tyler.reasoners.memgen import MemGen, is_memgen
from tyler.reasoners.memgen import method as memgen
from tyler.reasoners.reasoner import Reasoner
from tyler.reasoners.softcot import SoftCot
from tyler.reasoners.tyler import TylerReasoner
from tyler.tasks.prompts import Prompt

OWN = "tyler"
"""The model itself, as its last stage left it: Tyler after a stage, SFT, GRPO, or the plain backbone."""

METHODS: dict[str, ModuleType] = {
    "cot": cot,
    "soft-thinking": soft_thinking,
    "swireasoning": swireasoning,
    "softcot": softcot,
    "memgen": memgen,
}
"""Each has `Settings`, a frozen dataclass, `reasoner(model, settings, ...)`, and `KNOBS`."""

SAVED: dict[str, tuple[Callable[[str], bool], Any]] = {
    "softcot": (softcot.is_checkpoint, SoftCot),
    "memgen": (is_memgen, MemGen),
}
"""The methods with checkpoints of their own: what recognises one, and the class that loads it."""


@dataclass(frozen=True)
class SavedPolicy:
    """The settings of a model under its own last stage; `router` is shown as it is written in code."""

    stage: str
    router: str
    budget: int | None


@dataclass(frozen=True)
class Loaded:
    """A model under a method, and everything about it that decides its answers.

    `build` makes the reasoner of some settings and `max_new_tokens`; `knobs` are what its answers' length depends on.
    """

    method: str
    settings: Any
    max_new_tokens: int
    weights: str
    prompt: Prompt
    knobs: tuple[Knob, ...]
    build: Callable[[Any, int], Reasoner]
    earlier_weights: Callable[[], str] | None = None
    """The hash of the same weights in evaluations from before checkpoints of format 3."""

    @property
    def reasoner(self) -> Reasoner:
        return self.build(self.settings, self.max_new_tokens)

    def with_setting(self, setting: str, value: int) -> Loaded:
        """The same with one setting, or `max_new_tokens`, changed."""
        if setting == MAX_NEW_TOKENS:
            return replace(self, max_new_tokens=value)
        return replace(self, settings=replace(self.settings, **{setting: value}))


def kind_of(location: str) -> str | None:
    """The method whose checkpoint a location claims to be; None for a Tyler checkpoint, a backbone or a Hub id."""
    return next((name for name, (recognises, _) in SAVED.items() if recognises(location)), None)


def load(
    location: str,
    method: str | None = None,
    overrides: Sequence[str] = (),
    *,
    name: str,
    device: str | None = None,
    router: Router | None = None,
    budget: int | None = None,
    max_new_tokens: int = 2048,
    slots: int = 32,
    memory: int | None = None,
) -> Loaded:
    """The model at `location` under a method, by default its own, with overrides such as `min_p=0.01` of its settings.

    Raises ValueError for a method, a setting or an option that does not go with the model.
    """
    kind = kind_of(location)
    method = method or kind or OWN
    if method not in (OWN, *METHODS):
        raise ValueError(f"--method {method!r} is none of: {', '.join((OWN, *METHODS))}")
    if kind and method != kind:
        raise ValueError(f"{location} is a {kind} checkpoint; leave --method away, or give its backbone")
    if method in SAVED and not kind:
        raise ValueError(f"{location} is no {method} checkpoint; train one with `tyler train {method} CONFIG`")
    if method == OWN:
        if overrides:
            raise ValueError(f"--method-set {overrides[0]!r} needs a --method that has settings")
        return own(location, name, device, router, budget, max_new_tokens, slots, memory)
    if router is not None or budget is not None:
        raise ValueError(f"--method {method} has no operators; leave --router and --budget away")
    settings, module = settings_of(method, overrides), METHODS[method]
    model = SAVED[kind][1].from_pretrained(location, device=device) if kind else None
    model = model or cot.plain(Tyler.from_pretrained(location, device=device))
    shown = name if kind else f"{name}, {method}"

    def build(settings: Any, longest: int) -> Reasoner:
        made = module.reasoner(model, settings, name=shown, sampling=Sampling(), max_new_tokens=longest, slots=slots)
        return cast(Reasoner, replace(made, memory=memory))

    return Loaded(method, settings, max_new_tokens, model.fingerprint(), model.prompt, module.KNOBS, build)


def own(
    location: str,
    name: str,
    device: str | None,
    router: Router | None,
    budget: int | None,
    max_new_tokens: int,
    slots: int,
    memory: int | None,
) -> Loaded:
    """A model as its last stage left it."""
    model = Tyler.from_pretrained(location, device=device)
    routed = router or DEFAULT_ROUTERS[model.stage]

    def build(settings: SavedPolicy, longest: int) -> Reasoner:
        return TylerReasoner(name, model, routed, settings.budget, max_new_tokens=longest, slots=slots, memory=memory)

    settings = SavedPolicy(model.stage, repr(routed), budget)
    knobs = () if isinstance(routed, Never) else (Knob("budget", caps=True),)
    return Loaded(
        OWN, settings, max_new_tokens, model.fingerprint(), model.prompt, knobs, build, model.earlier_fingerprint
    )


def stream(
    location: str,
    question: str,
    *,
    router: Router | None = None,
    budget: int | None = None,
    sampling: Sampling,
    max_new_tokens: int,
    memory: int | None = None,
) -> Iterator[Event]:
    """Answer one question by the model at `location`, as it was trained, telling what happens as it happens.

    Raises ValueError for an option that does not go with the model.
    """
    if kind := kind_of(location):
        if router is not None or budget is not None:
            raise ValueError(f"{location} is a {kind} checkpoint without operators; leave --router and --budget away")
        model = SAVED[kind][1].from_pretrained(location)
        events = model.stream(question, sampling=sampling, max_new_tokens=max_new_tokens, memory=memory)
        return cast(Iterator[Event], events)
    return Tyler.from_pretrained(location).stream(
        question, budget=budget, router=router, sampling=sampling, max_new_tokens=max_new_tokens, memory=memory
    )


def settings_of(method: str, overrides: Sequence[str] = ()) -> Any:
    """A method's settings with overrides `key=value`, the value in YAML.

    Raises ValueError naming the key, what came and what is allowed.
    """
    kind = METHODS[method].Settings
    allowed = [field.name for field in fields(kind)]
    given = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ValueError(f"cannot read the setting {override!r}; write it as key=value")
        if key not in allowed:
            close = get_close_matches(key, allowed, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ";"
            raise ValueError(f"{method} has no setting {key!r}{hint} allowed: {', '.join(allowed) or 'none'}")
        try:
            given[key] = read_value(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{key}: cannot read the value {text!r} as YAML") from error
    try:
        # As JSON, because pydantic's strict mode takes a mapping for a dataclass only there.
        return TypeAdapter(kind).validate_json(json.dumps(given, default=str), strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        reason = wrong["msg"].removeprefix("Value error, ").removeprefix("Input ")
        where = f"{wrong['loc'][0]} = {wrong['input']!r}: " if wrong["loc"] else ""
        raise ValueError(f"{method}: {where}{reason}") from error
