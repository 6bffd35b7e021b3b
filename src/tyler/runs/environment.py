"""What a result depends on besides its config: packages, processor, device, threads."""

import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tyler.runs.threads import cores

PACKAGES = ("tyler-reasoning", "torch", "transformers", "peft", "accelerate", "safetensors", "numpy")
THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_NUM_THREADS")


def environment() -> dict[str, Any]:
    """What a run depends on besides its config. Asks torch only when something has already imported it."""
    facts: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "packages": {name: _package_version(name) for name in PACKAGES},
        "cores": cores(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "thread_settings": {name: os.environ[name] for name in THREAD_SETTINGS if name in os.environ},
    }
    if (torch := sys.modules.get("torch")) is not None:
        cuda = torch.cuda.is_available()
        facts["threads"] = torch.get_num_threads()
        facts["device"] = torch.cuda.get_device_name() if cuda else processor()
        facts["cuda"] = torch.version.cuda if cuda else None
    return facts


def processor() -> str:
    """The model of this machine's CPU: another model rounds differently, and a run then ends in other weights."""
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
