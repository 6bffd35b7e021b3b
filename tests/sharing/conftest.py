"""A Hub for every test, and a cache of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants, hf_api
from tests import hub
from tests.hub import TOKEN, Hub
from transformers.utils import hub as transformers_hub


@pytest.fixture()
def the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """huggingface_hub speaks with a server on loopback, as HF_ENDPOINT would have it, and stores what it finds here."""
    with hub.running() as running:
        template = f"{running.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        # Objects that were made before, and know another Hub.
        monkeypatch.setattr(hf_api.api, "endpoint", running.url)
        monkeypatch.setattr(transformers_hub, "_hf_api", None)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        close_session()
        yield running
        close_session()
