"""One server for the tests that only ask."""

import socket
from collections.abc import Iterator

import pytest
from tests import tiny
from tests.serving.served import Served, serving

from tyler.model import Tyler


@pytest.fixture(scope="session")
def model() -> Tyler:
    """A model that invokes operators now and then."""
    return tiny.build("qwen3", tiny.SEEDS["qwen3"], psi_scale=0.7)


@pytest.fixture(scope="session")
def served(model: Tyler) -> Iterator[Served]:
    with serving(model) as running:
        yield running


@pytest.fixture(scope="session")
def unused_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
