"""Two tensor-parallel workers, in processes of their own: the same answers, new weights, and what their death does."""

import signal
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import torch
from tests.engine.vllm.conftest import engine_of
from tests.engine.vllm.test_engine import SOME, check_equal, check_nothing_left, requests

from tyler.engine.shared_engine import DecodingError
from tyler.model import Tyler

PATIENT = """
def register():
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
"""


@pytest.fixture
def _workers_wait_asleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's workers wait for each other in a loop that a busy core starves: here they use gloo, which sleeps.

    They are processes of their own, which a plugin of vLLM's reaches, as it does ours.
    """
    (tmp_path / "patient.py").write_text(PATIENT)
    (tmp_path / "patient-1.dist-info").mkdir()
    (tmp_path / "patient-1.dist-info" / "METADATA").write_text("Name: patient\nVersion: 1\n")
    (tmp_path / "patient-1.dist-info" / "entry_points.txt").write_text(
        "[vllm.general_plugins]\npatient = patient:register\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_workers_wait_asleep")
def test_two_workers_answer_as_one_until_one_of_them_dies(models: Mapping[str, Tyler]) -> None:
    """One test, since starting workers takes longer than all of it."""
    model, asked = models["llama"], requests()[:: 2 * SOME]
    with engine_of(model, tensor_parallel_size=2, latents=512) as engine:
        answers = engine.run(asked)
        check_equal(answers, model.engine(slots=16).run(asked))
        assert sum(answer.num_invocations for answer in answers) > 10
        check_nothing_left(engine)
        kept = model.policy.psi.detach().clone()
        with torch.no_grad():
            model.policy.psi.mul_(-1)
        engine.refresh()
        check_equal(engine.run(asked[:8]), model.engine(slots=16).run(asked[:8]))
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
