"""What was probably meant where no model is: a folder of a like name, a checkpoint inside, or a name that is known.

A path that is not a folder could be a Hub id, and an unreachable Hub takes half a minute; what can be known without it
is said at once.
"""

import re
from difflib import get_close_matches
from pathlib import Path

from tyler.modeling.architectures import FAMILIES, FETCHABLE, MINI, SHIPPED
from tyler.modeling.gguf import SUFFIX

WHAT_TO_GIVE = (
    "Give 'mini', a Hub id or a folder with config.json, safetensors weights and a tokenizer, or a GGUF file: "
    f"a causal language model of type {', '.join(FAMILIES)}."
)

NAMES = (MINI, *SHIPPED, *FETCHABLE)
MANIFEST = re.compile(rb'\s*{\s*"format"\s*:')
"""How the file that makes a folder a checkpoint of tyler's begins (`manifest.py`), whatever the method."""
RUNS = "runs/"
"""Where trainings are written unless told otherwise: no Hub id begins so."""
PRESETS = Path(__file__).parents[1] / "configs"
SHOWN = 3


def check_location(id: str) -> None:
    """Raise FileNotFoundError, with what is there, for an id that can be neither a model's folder nor a Hub id.

    These are a missing path, a misspelt name, a folder without a model, and a name like that of a run; everything else
    may be on the Hub.
    """
    path = Path(id)
    if path.is_dir():
        if not is_model(path):
            raise FileNotFoundError(f"{id} holds no model: it has no config.json{inside(path)}. {WHAT_TO_GIVE}")
        return
    if path.is_file():
        raise FileNotFoundError(f"{id} is a file, and no GGUF file. {WHAT_TO_GIVE}")
    if "/" not in id and (names := get_close_matches(id, NAMES, n=1, cutoff=0.75)):
        raise FileNotFoundError(f"there is no model {id!r}; did you mean {names[0]!r}?")
    if "/" not in id and (PRESETS / f"{id}.yaml").is_file():
        raise FileNotFoundError(f"{id} is a preset of settings, not a model; `tyler config {id}` shows its backbone.id")
    meant = near(path)
    is_path = id.startswith(("/", ".", "~", RUNS)) or id.count("/") > 1 or id.endswith("/") or holds_runs(path.parent)
    if is_path or (meant is not None and is_run(meant)):
        hint = "" if meant is None else f"; did you mean {meant}?"
        raise FileNotFoundError(f"There is no folder {id!r}{hint or f'. {WHAT_TO_GIVE}'}")


def near(path: Path) -> Path | None:
    """The folder or GGUF file whose path is like that of one that does not exist, part by part; None for no such."""
    nearest = Path(path.anchor)
    for part in path.parts[1:] if path.anchor else path.parts:
        if (nearest / part).exists():
            nearest /= part
            continue
        if not nearest.is_dir():
            return None
        names = [entry.name for entry in nearest.iterdir() if entry.is_dir() or entry.suffix == SUFFIX]
        if not (close := get_close_matches(part, names, n=1)):
            return None
        nearest /= close[0]
    return nearest


def holds_runs(folder: Path) -> bool:
    """Whether a folder holds runs, as `runs/` does; the current folder does not count."""
    return folder != Path() and folder.is_dir() and any(is_run(entry) for entry in folder.iterdir() if entry.is_dir())


def is_run(folder: Path) -> bool:
    """Whether a folder is a run or a checkpoint of tyler's."""
    return (folder / "checkpoints").is_dir() or any(map(_is_manifest, folder.glob("*.json")))


def _is_manifest(file: Path) -> bool:
    with file.open("rb") as opened:
        return MANIFEST.match(opened.read(64)) is not None


def inside(folder: Path) -> str:
    """What a folder without a model is, and which of its folders could be meant."""
    if folder.name == "checkpoints":
        return f"; it is where a run keeps its checkpoints: give the run, {folder.parent}, or one of them"
    if (folder / "checkpoints").is_dir():
        steps = sorted((folder / "checkpoints").glob("step-*"), key=lambda step: (len(step.name), step.name))
        if steps:
            earlier = f", or name an earlier one, {steps[-2]}" if steps[1:] else ""
            return f"; its newest checkpoint, {steps[-1].name}, is damaged (it has no manifest): restore it{earlier}"
        return "; it is a run that has no whole checkpoint yet: resume it with the command that began it and --resume"
    models = sorted(str(entry) for entry in folder.iterdir() if entry.is_dir() and (is_run(entry) or is_model(entry)))
    if not models:
        return ""
    more = f" and {len(models) - SHOWN} more" if len(models) > SHOWN else ""
    return f"; in it are {', '.join(models[:SHOWN])}{more}"


def is_model(folder: Path) -> bool:
    """Whether a folder looks like a backbone."""
    return (folder / "config.json").is_file()
