"""Checkpoints on the Hub: found by their manifest, downloaded whole and of one commit. Free of torch."""

import re
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

from tyler.modeling.locations import check_location

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
"""USER/NAME; a name without a user is some backbone of the Hub's early days."""

LOADED = ("*.json", "*.safetensors")
"""What is downloaded of a repository: nothing that could be executed."""


def with_revision(location: str, revision: str | None) -> tuple[str, str | None]:
    """A location and the branch, tag or commit that it names as USER/NAME@REVISION, or that is given beside it.

    Raises ValueError for two of them, and for one of a folder.
    """
    id, at, named = location.partition("@")
    if at and HUB_ID.fullmatch(id) and not Path(location).exists():
        if revision is not None and revision != named:
            raise ValueError(f"{location!r} and revision={revision!r} name two revisions; give one")
        return id, named
    if revision is not None and (Path(location).exists() or not HUB_ID.fullmatch(location)):
        raise ValueError(f"revision={revision!r} is for a model on the Hub; {location!r} has no revisions")
    return location, revision


def checkpoint_on_hub(id: str, revision: str | None, manifest: str) -> Path | None:
    """The folder in the Hub's cache that holds the repository's checkpoint; None where it has no such manifest.

    It is None too where the Hub cannot be asked and the cache has none: loading the id as a backbone then says why.
    Raises OSError where a checkpoint is there and cannot be downloaded whole, and FileNotFoundError, before the Hub is
    asked, for an id that is rather a path.
    """
    if not HUB_ID.fullmatch(id) or Path(id).exists():
        return None
    check_location(id)
    try:
        file = Path(hf_hub_download(id, manifest, revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled):
        return None
    # By its commit, so that all files are of one, whatever is pushed meanwhile.
    return Path(snapshot_download(id, revision=file.parent.name, allow_patterns=list(LOADED)))
