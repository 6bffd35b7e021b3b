"""The methods that an evaluation can name, and how a model becomes a reasoner under one of them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, cast

from pydantic import TypeAdapter, ValidationError

from tyler.config.engine_choice import NATIVE, EngineChoice
from tyler.config.files import read_value
from tyler.config.sections import suggest
from tyler.engine.request import Event, Request
from tyler.engine.routing import Never, Router
from tyler.engine.sampling import Sampling
from tyler.engine.shared_engine import SharedEngine
from tyler.engine.trajectory import Trajectory
from tyler.model import DEFAULT_ROUTERS, Tyler
from tyler.modeling.backbone import dtype_name
from tyler.reasoners.cot import backbone_alone
from tyler.reasoners.method import MAX_NEW_TOKENS, LengthSetting, Method
from tyler.reasoners.reasoner import AnswerSettings, Finished, Reasoner, Servable
from tyler.reasoners.table import METHODS, OWN, find_method
from tyler.reasoners.tyler import TylerReasoner
from tyler.runs.checkpoints import latest_checkpoint
from tyler.tasks.prompts import Prompt, Question


@dataclass(frozen=True)
class SavedPolicy:
    """The settings of a model under its own last stage; `router` is shown as it is written in code."""

    stage: str
    router: str
    budget: int | None


@dataclass(frozen=True)
class Answerer:
    """A model as it was trained, with everything about decoding decided but the sampling."""

    request: Callable[[Question, Sampling], Request]
    """What the engine is asked for a question. Raises ValueError for one that is empty or no question."""
    engine: SharedEngine
    weights: Callable[[], str]
    """The hash of the weights."""
    dtype: str = "float32"
    text: Mapping[str, Any] | None = None
    memory: int | None = None
    """The bound on the engine's context and caches, in bytes."""

    def check(self, request: Request) -> None:
        """Raise ValueError for a request that the engine will refuse."""
        self.engine.between_steps(lambda engine: engine.prepare(request), memory=self.memory).result()

    def events(self, requests: Sequence[Request]) -> Iterator[Event]:
        return self.engine.events(requests, memory=self.memory)

    def run(self, requests: Sequence[Request], *, slots: int, finished: Finished | None = None) -> list[Trajectory]:
        return self.engine.run(requests, slots=slots, memory=self.memory, finished=finished)


@dataclass(frozen=True)
class Loaded:
    """A model under a method, and everything about it that decides its answers.

    `build` makes the reasoner of some settings and `max_new_tokens`; its answers' length depends on `length_settings`.
    """

    method: str
    settings: Any
    max_new_tokens: int
    model: Any
    length_settings: tuple[LengthSetting, ...]
    build: Callable[[Any, int], Reasoner]

    @property
    def weights(self) -> str:
        return str(self.model.fingerprint())

    @property
    def dtype(self) -> str:
        """What the weights are in: rounding decides answers too, and bfloat16 has the same hash in float32."""
        return dtype_name(self.model.backbone.dtype)

    @property
    def text(self) -> Mapping[str, Any]:
        """How the model is asked and where its answers end: end tokens, chat template, tokenizer."""
        return cast(Mapping[str, Any], self.model.backbone.text_settings)

    @property
    def reasoner(self) -> Reasoner:
        return self.build(self.settings, self.max_new_tokens)

    def with_setting(self, setting: str, value: int) -> Self:
        """The same with one setting, or `max_new_tokens`, changed."""
        if setting == MAX_NEW_TOKENS:
            return replace(self, max_new_tokens=value)
        return replace(self, settings=replace(self.settings, **{setting: value}))

    def answerer(self, stop: Sequence[str] = ()) -> Answerer:
        """The same, to be asked one question after another."""
        servable = cast(Servable, self.reasoner)

        def request(question: Question, sampling: Sampling) -> Request:
            return servable.request(question, AnswerSettings(sampling, self.max_new_tokens, tuple(stop)))

        engine = servable.model.shared_engine
        return Answerer(request, engine, lambda: self.weights, self.dtype, self.text, servable.memory)


def kind_of(location: str) -> str | None:
    """The method whose checkpoint a location claims to be; None for a Tyler checkpoint, a backbone or a Hub id."""
    folder = latest_checkpoint(location) or Path(location)
    formats = ((name, find_method(name).checkpoint) for name in METHODS)
    return next((name for name, own in formats if own is not None and (folder / own.manifest).is_file()), None)


def load(
    location: str,
    method: str | None = None,
    overrides: Sequence[str] = (),
    *,
    name: str,
    revision: str | None = None,
    backbone: str | None = None,
    device: str | None = None,
    dtype: str = "auto",
    prompt: Prompt | None = None,
    router: Router | None = None,
    budget: int | None = None,
    sampling: Sampling | None = None,
    max_new_tokens: int = 2048,
    slots: int = 32,
    memory: int | None = None,
    engine: EngineChoice = NATIVE,
) -> Loaded:
    """The model at `location` under a method, by default its own, with overrides such as `min_p=0.01` of its settings.

    `backbone` is where a checkpoint's backbone is found, if elsewhere now; `revision` and `prompt` are a plain
    backbone's, whose tokenizer says how it is asked without one. Without `sampling` it is greedy. Raises ValueError for
    a method, a setting or an option that does not go with the model.
    """
    kind = kind_of(location)
    method = method or kind or OWN
    chosen = None if method == OWN else find_method(method)
    check_method(location, kind, method, chosen, overrides)
    if chosen is not None and (router is not None or budget is not None):
        what = f"{location} is a {kind} checkpoint without" if kind else f"--method {method} has no"
        raise ValueError(f"{what} operators; omit --router and --budget")
    place = {"backbone": backbone, "device": device, "dtype": dtype}
    if chosen is None:
        model: Any = typed_model(location, revision=revision, prompt=prompt, engine=engine, **place)
        settings, length_settings, make = as_trained(model, location, router, budget)
    else:
        settings, length_settings, make = method_settings(method, overrides), chosen.length_settings, chosen.reasoner
        if chosen.checkpoint is None:
            model = backbone_alone(typed_model(location, revision=revision, prompt=prompt, engine=engine, **place))
        else:
            model = on_engine(chosen.checkpoint.from_pretrained(location, **place), method, engine)
    shown = name if kind or chosen is None else f"{name}, {method}"
    decided = {"name": shown, "sampling": sampling or Sampling(), "slots": slots, "memory": memory}

    def build(settings: Any, longest: int) -> Reasoner:
        return cast(Reasoner, replace(make(model, settings), max_new_tokens=longest, **decided))

    return Loaded(method, settings, max_new_tokens, model, length_settings, build)


def check_method(location: str, kind: str | None, method: str, chosen: Method | None, overrides: Sequence[str]) -> None:
    """Raise ValueError where the method does not fit the checkpoint of `kind`, or has no settings to override."""
    if kind and method != kind:
        raise ValueError(f"{location} is a {kind} checkpoint; omit --method, or give its backbone")
    if chosen is None and overrides:
        raise ValueError(f"--method-set {overrides[0]!r} needs a --method that has settings")
    if chosen is not None and chosen.checkpoint is not None and not kind:
        raise ValueError(f"{location} is not a {method} checkpoint; train one with `tyler train {method} CONFIG`")


def typed_model(location: str, *, prompt: Prompt | None = None, engine: EngineChoice = NATIVE, **place: Any) -> Tyler:
    """What `Tyler.from_pretrained` finds, on an engine; `prompt` replaces its tokenizer's."""
    found = Tyler.from_pretrained(location, **place)
    return replace(found, prompt=found.prompt if prompt is None else prompt, decoder=engine)


def on_engine(model: Any, kind: str, engine: EngineChoice) -> Any:
    """A method's own model on an engine. Raises ValueError for one that decodes on the native engine alone."""
    if engine.name == "native":
        return model
    if not hasattr(model, "decoder"):
        raise ValueError(f"a {kind} checkpoint runs on the native engine alone; use engine 'native'")
    return replace(model, decoder=engine)


def as_trained(
    model: Tyler, location: str, router: Router | None, budget: int | None
) -> tuple[SavedPolicy, tuple[LengthSetting, ...], Callable[[Any, Any], Any]]:
    """A model as its last stage left it: its settings, its length settings, and what makes its reasoner.

    Raises ValueError for a router that calls operators which were never trained.
    """
    routed = router or DEFAULT_ROUTERS[model.stage]
    if model.stage == "backbone" and not isinstance(routed, Never):
        raise ValueError(f"{location} is a plain backbone, without trained operators; omit --router, or give never")
    length_settings = () if isinstance(routed, Never) else (LengthSetting("budget", only_shortens=True),)

    def make(model: Tyler, settings: SavedPolicy) -> TylerReasoner:
        return TylerReasoner(OWN, model, router=routed, budget=settings.budget)

    return SavedPolicy(model.stage, repr(routed), budget), length_settings, make


def method_settings(method: str, overrides: Sequence[str] = ()) -> Any:
    """A method's settings with overrides `key=value`, the value in YAML.

    Raises ValueError naming the key, what came and what is allowed.
    """
    kind = find_method(method).settings
    allowed = [field.name for field in fields(kind)]
    given = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ValueError(f"cannot read the setting {override!r}; write it as key=value")
        if key not in allowed:
            raise ValueError(f"{method} has no setting {key!r}{suggest(key, allowed)}")
        given[key] = read_value(key, text)
    try:
        # As JSON, because pydantic's strict mode takes a mapping for a dataclass only there.
        return TypeAdapter(kind).validate_json(json.dumps(given, default=str), strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        reason = wrong["msg"].removeprefix("Value error, ").removeprefix("Input ")
        where = f"{wrong['loc'][0]} = {wrong['input']!r}: " if wrong["loc"] else ""
        raise ValueError(f"{method}: {where}{reason}") from error
