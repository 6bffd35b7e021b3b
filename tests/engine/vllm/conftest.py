"""Engines on vLLM for these tests: small, eager, in this process; skipped where vLLM is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import tiny

from tyler.model import Tyler

if TYPE_CHECKING:
    from tyler.engine.vllm.engine import VllmEngine

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # vLLM compiles a function of its sampler for longer than all tests take
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"

WITHOUT = "vLLM is not installed here; `make test-vllm` runs this in an environment of its own"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is below this folder, or let it ignore the warnings of vLLM's own code."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in ("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"):
                item.add_marker(pytest.mark.filterwarnings(warning))
            if find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason=WITHOUT))


POSITIONS = 384


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tyler]:
    """Tiny random models by family, as wide as vLLM's attention on a CPU asks, their backbones in folders."""
    built = {}
    for family in tiny.FAMILIES:
        model = tiny.build(family, seed=tiny.SEEDS[family], width=128)
        model.backbone.model.config.max_position_embeddings = POSITIONS
        folder = tmp_path_factory.mktemp(family)
        model.backbone.model.save_pretrained(folder)
        backbone = replace(model.backbone, path=str(folder))
        built[family] = Tyler(
            backbone, model.operators, model.synthesizer, model.policy, model.heads, model.prompt, model.stage
        )
    return built


@pytest.fixture(scope="session", autouse=True)
def _classes_that_vllm_need_not_inspect() -> None:
    """vLLM looks at a class that is registered by its name in a process of its own, which takes longer than most tests.

    Workers, which are such processes, still find it by name.
    """
    if find_spec("vllm") is not None:
        from vllm import ModelRegistry
        from vllm.plugins import load_general_plugins

        from tyler.engine.vllm import model

        load_general_plugins()
        for base in model.BASES:
            name = f"Tyler{base.__name__}"
            ModelRegistry.register_model(name, getattr(model, name))


@contextmanager
def engine_of(model: Tyler, *, slots: int = 8, memory: int | None = 2**26, **arguments: Any) -> Iterator[VllmEngine]:
    """An engine on vLLM, closed at the end."""
    from tyler.engine.vllm.engine import VllmEngine

    parts = (model.backbone, model.operators, model.policy, model.synthesizer)
    engine = VllmEngine(*parts, slots=slots, memory=memory, arguments={"enforce_eager": True, **arguments})
    try:
        yield engine
    finally:
        engine.close()
