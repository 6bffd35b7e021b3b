"""The methods that an evaluation can name, and how a model becomes a reasoner under one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from tyler.model import DEFAULT_ROUTERS, Tyler
from tyler.reasoner import Reasoner, TylerReasoner
from tyler.reasoners import cot, soft_thinking, softcot, swireasoning
from tyler.reasoners.memgen import MemGen, MemGenReasoner, is_memgen
from tyler.routing import Router
from tyler.sampling import Sampling
from tyler.tasks.prompts import Prompt

OWN = "tyler"
"""The model itself, as its last stage left it: Tyler after a stage, SFT, GRPO, or the plain backbone."""

METHODS: dict[str, ModuleType] = {
    "cot": cot,
    "soft-thinking": soft_thinking,
    "swireasoning": swireasoning,
    "softcot": softcot,
}
"""Each has `Settings`, a frozen dataclass, and `reasoner(model, settings, ...)`."""


@dataclass(frozen=True)
class Loaded:
    """A reasoner, and everything about it that decides its answers."""

    reasoner: Reasoner
    method: str
    settings: dict[str, Any]
    weights: str
    prompt: Prompt


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
) -> Loaded:
    """The model at `location` under a method, by default its own, with overrides such as `min_p=0.01` of its settings.

    Raises ValueError for a method, a setting or an option that does not go with the model.
    """
    if is_memgen(location):
        if method not in (None, "memgen") or overrides or router is not None or budget is not None:
            raise ValueError(f"{location} is a MemGen; leave --method, --method-set, --router and --budget away")
        return memgen(location, name, device, max_new_tokens, slots)
    trained = softcot.is_checkpoint(location)
    method = method or ("softcot" if trained else OWN)
    if method not in (OWN, *METHODS):
        raise ValueError(f"--method {method!r} is none of: {', '.join((OWN, *METHODS))}")
    if trained != (method == "softcot"):
        raise ValueError(
            f"{location} is a SoftCoT checkpoint; leave --method away, or give its backbone"
            if trained
            else f"{location} is no SoftCoT checkpoint; train one with `tyler train softcot CONFIG`"
        )
    if method == OWN:
        if overrides:
            raise ValueError(f"--method-set {overrides[0]!r} needs a --method that has settings")
        return own(location, name, device, router, budget, max_new_tokens, slots)
    if router is not None or budget is not None:
        raise ValueError(f"--method {method} has no operators; leave --router and --budget away")
    settings = settings_of(method, overrides)
    model: Any = (softcot.SoftCot if trained else Tyler).from_pretrained(location, device=device)
    if not trained:
        model = cot.plain(model)
    reasoner = METHODS[method].reasoner(
        model, settings, name=f"{name}, {method}", sampling=Sampling(), max_new_tokens=max_new_tokens, slots=slots
    )
    return Loaded(reasoner, method, asdict(settings), model.fingerprint(), model.prompt)


def own(
    location: str,
    name: str,
    device: str | None,
    router: Router | None,
    budget: int | None,
    max_new_tokens: int,
    slots: int,
) -> Loaded:
    """A model as its last stage left it."""
    model = Tyler.from_pretrained(location, device=device)
    router = router or DEFAULT_ROUTERS[model.stage]
    reasoner = TylerReasoner(name, model, router, budget, max_new_tokens=max_new_tokens, slots=slots)
    settings = {"stage": model.stage, "router": repr(router), "budget": budget}
    return Loaded(reasoner, OWN, settings, model.fingerprint(), model.prompt)


def memgen(location: str, name: str, device: str | None, max_new_tokens: int, slots: int) -> Loaded:
    """A MemGen as it was trained."""
    model = MemGen.from_pretrained(location, device=device)
    reasoner = MemGenReasoner(name, model, max_new_tokens=max_new_tokens, slots=slots)
    return Loaded(reasoner, "memgen", asdict(model.settings), model.fingerprint(), model.prompt)


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
            given[key] = yaml.safe_load(text)
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
