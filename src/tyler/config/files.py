"""Configs as YAML: presets, files that extend others, dotted overrides, and what is wrong with them."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tyler.config.schema import Config
from tyler.config.sections import sections_in, suggest
from tyler.modeling.operators import Operator

PRESETS = Path(str(files("tyler") / "configs"))
"""The folder of the configs that ship in the package; each is named by its file's stem, as in `tyler config mini`."""

CHANGEABLE = (
    "checkpoints.*", "devices.*", "tracking.*", "decoding.slots", "decoding.memory",
    "*.micro_batch_size", "*.micro_batch_tokens", "*.gradient_checkpointing", "*.checkpoint_every",
    "*.learning_rate", "*.psi_learning_rate", "*.max_grad_norm", "*.clip_range", "*.clip_range_high",
    "*.steps", "*.epochs", "*.eval_every", "*.max_skipped", "stage1.centring.*",
)  # fmt: skip
"""Settings that a resumed run may change; each start notes in environment.json which it did (`changes`). The last ones
are in configs that earlier runs wrote, and in no other."""


class ConfigError(ValueError):
    """A config that cannot be used; says which key, what came, and what is allowed."""


def presets() -> list[str]:
    """The names of the configs that ship in the package."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_config(path_or_preset: str | Path, overrides: Sequence[str] = (), kind: type[Config] = Config) -> Config:
    """The config in a YAML file, or of a preset by name, with overrides such as `grpo.kl_weight=0.01` on top.

    A file may say `extends: NAME` (a preset, or a file beside it) and then states only what differs. What no file
    says has the paper's value. `kind` has the section of a method outside the package (`schema.with_sections`).
    Raises ConfigError for anything that cannot be used.
    """
    return _resolved(kind, _read_layers(_find(path_or_preset), ()), overrides, str(path_or_preset))


def load_run_config(file: Path, overrides: Sequence[str] = ()) -> Config:
    """The config that a run wrote, without the sections of a method outside the package. Raises ConfigError."""
    known = {key: value for key, value in _read_layers(file, ()).items() if key in Config.model_fields}
    known.get("stage1", {}).pop("centring", None)
    return _resolved(Config, known, overrides, str(file))


def parse_config(text: str) -> Config:
    """The config in YAML text, as `dump` writes it. Raises ConfigError."""
    return _resolved(Config, _parse_yaml(text, "the config"), (), "the config")


def dump(config: Config) -> str:
    """The resolved config as YAML: every key written out, so that no default can change under an old run."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """YAML, and 1e-5 is a number: YAML 1.1 reads it as text for want of a dot. A key that comes twice is refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if repeated := sorted({key for key in keys if keys.count(key) > 1}):
            raise yaml.MarkedYAMLError(
                problem=f"{repeated[0]!r} is there twice, and the first would be lost", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_value(key: str, text: str) -> Any:
    """The value of a key as configs write it. Raises ConfigError for text that is not YAML."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}: cannot read the value {text!r} as YAML") from error


def _find(path_or_preset: str | Path, folder: Path = Path()) -> Path:
    for candidate in (folder / path_or_preset, Path(path_or_preset), PRESETS / f"{path_or_preset}.yaml"):
        if candidate.is_file():
            return candidate
    hint = suggest(str(path_or_preset), presets())
    raise ConfigError(f"no config {str(path_or_preset)!r}: it is neither a file nor a preset{hint}")


def _read_layers(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """The settings of a file over those of the files that it extends."""
    path = path.resolve()
    if path in seen:
        raise ConfigError(f"configs extend each other in a circle: {' -> '.join(p.name for p in (*seen, path))}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it so") from error
    settings = _parse_yaml(text, str(path))
    if not settings:
        raise ConfigError(f"{path} has no settings; write what differs from a preset, such as `extends: mini`")
    if (base := settings.pop("extends", None)) is None:
        return settings
    return _merge(_read_layers(_find(str(base), path.parent), (*seen, path)), settings)


def _parse_yaml(text: str, source: str) -> dict[str, Any]:
    try:
        settings = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        why = " ".join(str(error).split()).replace('in "<unicode string>", ', "at ")
        raise ConfigError(f"{source} is not YAML: {why}") from error
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{source} holds {type(settings).__name__}; a config is sections such as `grpo:` with keys")
    return settings


def _merge(base: Any, top: Any, location: tuple[str, ...] = ()) -> Any:
    """`top` over `base`, section by section; a list replaces a list. `location` is where both are in a config."""
    if not (isinstance(base, dict) and isinstance(top, dict)):
        return top
    merged = dict(base)
    for key, value in top.items():
        below = (*location, key)
        if value is None and isinstance(base.get(key), dict) and below not in NULLABLE:
            continue  # a section with no key in it
        merged[key] = _merge(base.get(key), value, below)
    return merged


def _override(settings: dict[str, Any], override: str) -> dict[str, Any]:
    key, equals, text = override.removeprefix("--").partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"cannot read the override {override!r}; write it as section.key=value")
    return _replace_at(settings, (), tuple(key.split(".")), read_value(key, text))


def _replace_at(settings: Any, location: tuple[str, ...], path: tuple[str, ...], value: Any) -> Any:
    """A copy of `settings`, which are at `location` in a config, with `value` at `path` below; a section over a section
    as in a file. A number in the path is a place in a list."""
    if not path:
        return _merge(settings, value, location)
    first, *rest = path
    below = (*location, first), tuple(rest)
    if isinstance(settings, list) and first.isdigit() and int(first) < len(settings):
        at = int(first)
        return [*settings[:at], _replace_at(settings[at], *below, value), *settings[at + 1 :]]
    section = settings if isinstance(settings, dict) else {}
    return {**section, first: _replace_at(section.get(first), *below, value)}


def _resolved(kind: type[Config], given: dict[str, Any], overrides: Sequence[str], source: str) -> Config:
    settings = _merge(kind().model_dump(mode="json"), given)
    for override in overrides:
        settings = _override(settings, override)
    # As JSON, because pydantic's strict mode takes a list for a tuple and a mapping for a dataclass only there.
    try:
        return kind.model_validate_json(json.dumps(settings, default=str))
    except ValidationError as error:
        errors = error.errors(include_url=False)
        problems = [_explain(kind, fault) for fault in _causes(errors)]
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems)) from error


def _causes(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """The errors without those that follow from others: a list is too short where its only element was refused."""
    above = {fault["loc"][:length] for fault in errors for length in range(len(fault["loc"]))}
    return [fault for fault in errors if fault["type"] != "too_short" or fault["loc"] not in above]


def _explain(kind: type[Config], fault: ErrorDetails) -> str:
    location = fault["loc"]
    key = ".".join(map(str, location))
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"there is no key {key!r}{suggest(str(location[-1]), _keys_of(kind, location[:-1]))}"
    if fault["type"] == "missing":
        return f"{key} is missing"
    reason = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if fault["type"] == "value_error":
        return f"{key}: {reason}" if key else reason
    return f"{key} = {json.dumps(fault['input'])}: {reason}"


def _keys_of(kind: type[Config], location: tuple[int | str, ...]) -> list[str]:
    """The keys allowed at a place in a config that is known to exist."""
    if location and location[0] == "operators":
        return [field.name for field in fields(Operator)]
    section: type[BaseModel] = kind
    for name in location:
        if isinstance(name, str):
            section = sections_in(section.model_fields[name].annotation)[0]
    return list(section.model_fields)


def _nullable_sections(section: type[BaseModel] = Config, location: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a config may have null in the place of a section."""
    for name, field in section.model_fields.items():
        for below in sections_in(field.annotation):
            if type(None) in get_args(field.annotation):
                yield (*location, name)
            yield from _nullable_sections(below, (*location, name))


NULLABLE = frozenset(_nullable_sections())
"""Sections that may be null, such as `data.development`."""


def differences(old_text: str, new_text: str, defaults_text: str) -> list[str]:
    """What a resumed run would do otherwise than before, key by key."""
    changed = changes(old_text, new_text, defaults_text)
    fixed = {key: pair for key, pair in changed.items() if not any(fnmatchcase(key, pattern) for pattern in CHANGEABLE)}
    return [f"{key} was {old!r}, now {new!r}" for key, (old, new) in fixed.items()]


def changes(old_text: str, new_text: str, defaults_text: str) -> dict[str, tuple[Any, Any]]:
    """Every setting that differs between two configs, by its key: what it was (of a new key its default) and is."""
    defaults, old, new = (flatten(yaml.safe_load(text)) for text in (defaults_text, old_text, new_text))
    old = {**{key: value for key, value in defaults.items() if key in new}, **old}
    return {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}


def flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted keys."""
    if not isinstance(settings, dict):
        return {prefix: settings}
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def value_at(config: Config, key: str) -> Any:
    """The setting under a dotted key."""
    return attrgetter(key)(config)
