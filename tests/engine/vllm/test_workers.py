"""Two tensor-parallel workers, in processes of their own: the same answers, new weights, and what their death does."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import psutil
import pytest
import torch
from tests.engine.vllm.conftest import engine_of
from tests.engine.vllm.test_engine import check_equal, check_nothing_left, requests

from tyler.engine.shared_engine import DecodingError
from tyler.model import Tyler


def test_two_workers_answer_as_one_until_one_of_them_dies(
    models: Mapping[str, Tyler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, since starting workers takes longer than all of it."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    model, asked = models["llama"], requests()[::3]
    with engine_of(model, tensor_parallel_size=2, latents=512) as engine:
        check_equal(engine.run(asked), model.engine(slots=16).run(asked))
        check_nothing_left(engine)
        kept = model.policy.psi.detach().clone()
        with torch.no_grad():
            model.policy.psi.mul_(-1)
        engine.refresh()
        check_equal(engine.run(asked[:20]), model.engine(slots=16).run(asked[:20]))
        with torch.no_grad():
            model.policy.psi.copy_(kept)

        workers = [
            child for child in psutil.Process().children(recursive=True) if "Worker" in " ".join(child.cmdline())
        ]
        assert len(workers) == 2, psutil.Process().children(recursive=True)
        workers[1].send_signal(signal.SIGKILL)
        with pytest.raises(DecodingError, match="vLLM failed"):
            while True:
                engine.run(asked[:4])
        with pytest.raises(DecodingError, match="does not run any more"):
            engine.run(asked[:4])
