"""Decoding a step ahead of the host: recorded programs, what is in step, and what must land first.

`test_engine.py` runs all its cases in this way too. Here programs are recorded as a CUDA graph records them:
kernels and addresses, nothing of Python. A program that asked the host for anything could not be recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock, call, create_autospec

import pytest
import torch
from tests import tiny
from tests.asking import CASES, ask, differences, distance, expected, same
from torch.fx.experimental.proxy_tensor import make_fx

from tyler.engine.native import batch, cuda_graphs, overlap
from tyler.engine.native.cuda_graphs import Program
from tyler.engine.native.overlap import InFlightStep
from tyler.engine.native.paged import PagedReader
from tyler.engine.request import FinishEvent, Request
from tyler.engine.routing import Forced, Learned, Never
from tyler.engine.sampling import Sampling
from tyler.engine.sizes import bucket
from tyler.model import Tyler
from tyler.reasoners import soft_thinking


class Traced:
    """Records the operations that a program runs, on the very tensors it runs them on, as a CUDA graph does."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def first(self, program: Program) -> None:
        program()

    def record(self, program: Program) -> Program:
        self.recorded += 1
        before = self.state(program)
        kept = [tensor.clone() for tensor in before]
        graph = make_fx(lambda: program() or ())()
        for tensor, value in zip(before, kept, strict=True):  # tracing runs what it traces, recording does not
            tensor.copy_(value)

        def replay() -> None:
            self.replayed += 1
            with torch.no_grad():
                graph()

        return replay

    def forget(self) -> None:
        pass

    def state(self, program: Program) -> list[torch.Tensor]:
        """All tensors that the program changes."""
        owner = program.func.__self__  # type: ignore[attr-defined]
        reader = owner if isinstance(owner, PagedReader) else owner._reader
        found = [value for one in (owner, reader) for value in vars(one).values() if isinstance(value, torch.Tensor)]
        return [*found, reader.pages.embeds]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    recorder = Traced()
    monkeypatch.setattr(batch, "recorder_for", lambda device: recorder)
    return recorder


@pytest.mark.parametrize(
    "family, slots, coalesce",
    [pytest.param("llama", 3, 1, marks=pytest.mark.slow), ("qwen2", 32, 16), ("qwen3", 3, 1), ("smollm3", 1, 0)],
)
def test_recorded_programs_decide_what_the_transcription_decides(
    family: str, slots: int, coalesce: int, traced: Traced
) -> None:
    cases = list(CASES)[:: 2 if slots > 1 else 4]
    engine = tiny.tyler(family).engine(slots=slots, coalesce=coalesce, ahead=True)
    for case, trajectory in zip(cases, engine.run([CASES[case] for case in cases]), strict=True):
        assert not differences(trajectory, expected(family, case)), case
    assert traced.replayed > traced.recorded > 0


@pytest.mark.parametrize("router", [Learned(), Forced({30: ("state",), 90: ("global",)})])
def test_a_context_that_grows_is_recorded_anew(
    router: Learned | Forced, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.small_pages(monkeypatch)
    model, requests = tiny.tyler("qwen3"), [ask(tiny.MEDIUM, router=router, max_new_tokens=150, budget=4)]
    plain = model.engine(slots=1).run(requests)[0]
    assert same(model.engine(slots=1, ahead=True).run(requests)[0], plain)
    assert traced.recorded > 1


@pytest.mark.parametrize("slots", [3, 5, 6, 7])
def test_memory_stays_where_it_is_while_rows_leave(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that moves is recorded anew: it moves when rows need more pages than all before them."""
    tiny.small_pages(monkeypatch)
    engine = tiny.tyler("qwen2").engine(slots=slots, ahead=True)
    for _ in range(2):
        requests = [ask(tiny.SHORT, router=Never(), max_new_tokens=4 * (row + 1)) for row in range(slots)]
        for request in requests:
            engine.add_request(request)
        held = set()
        while engine.waiting or engine.rows:
            engine.step()
            held.add(engine.context.pages)
        assert engine.context.in_use == 0
    assert len(held) == 1, "the second time there are pages enough"


def test_the_next_step_is_launched_before_the_last_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def tell(owner: type, method: str) -> None:
        plain: Callable[..., object] = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda *args, **more: told.append(method) or plain(*args, **more))

    tell(overlap.OverlapScheduler, "launch")
    tell(InFlightStep, "arrived")
    engine = tiny.tyler("qwen2").engine(slots=1, ahead=True)
    engine.run([ask(tiny.SHORT, router=Never(), max_new_tokens=20)])
    in_flight = [told[:place].count("launch") - told[:place].count("arrived") for place in range(len(told))]
    waits = [there for there, what in zip(in_flight, told, strict=True) if what == "arrived"]
    assert waits[:-1] == [2] * (len(waits) - 1), "the host waits only while another step is in flight"
    assert told.count("launch") == 20, "and no step is launched after the last"


@pytest.mark.parametrize("router", [Forced({4: ("global",)}), Forced({1: ("global", "state"), 9: ("procedure",)})])
@pytest.mark.parametrize("slots", [1, 2])
def test_memory_grows_before_a_step_in_flight_reaches_its_end(
    router: Forced, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.small_pages(monkeypatch)
    model = tiny.tyler("qwen2")
    for length in range(36, 54):
        requests = [Request((tiny.ids(tiny.LONG) * 5)[: length + more], router, max_new_tokens=14) for more in (0, 5)]
        plain = model.engine(slots=slots).run(requests)
        assert all(map(same, model.engine(slots=slots, ahead=True).run(requests), plain)), length


def test_uniform_numbers_reach_the_device_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    plain = overlap.invert
    monkeypatch.setattr(
        overlap, "invert", lambda logits, numbers: seen.extend(numbers.tolist()) or plain(logits, numbers)
    )
    request = ask(tiny.SHORT, router=Never(), sampling=Sampling(1.0, seed=5), max_new_tokens=6)
    tiny.tyler("qwen2").engine(slots=1, ahead=True).run([request])
    stream = request.sampling.stream(purpose=0)
    assert seen == [stream.random() for _ in seen]
    assert len(seen) == 6


def test_what_cannot_be_recorded_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> Program:
        raise RuntimeError("no graphs here")

    monkeypatch.setattr(cuda_graphs.Unrecorded, "record", refuse)
    model, request = tiny.tyler("qwen2"), ask(tiny.MEDIUM)
    assert same(model.engine(slots=1, ahead=True).run([request])[0], model.engine(slots=1).run([request])[0])
    assert "no graphs here" in caplog.text


def test_a_pass_is_recorded_when_it_comes_for_the_third_time_and_anew_when_memory_moves() -> None:
    told, recorder = [], Mock(spec=cuda_graphs.Unrecorded)
    recorder.first.side_effect = lambda program: program()
    recorder.record.side_effect = lambda program: lambda: told.append("replayed")
    programs, memory = cuda_graphs.CudaGraphDispatcher(recorder), [torch.zeros(1), torch.zeros(1)]
    for _ in range(5):
        programs.run("short", lambda: told.append("run"), memory)
    programs.run("other", lambda: told.append("other"), memory)
    assert told == ["run"] * 3 + ["replayed"] * 2 + ["other"]
    assert recorder.forget.call_count == 0
    memory[1] = torch.zeros(2)
    for _ in range(2):
        programs.run("short", lambda: told.append("run"), memory)
    assert told[6:] == ["run", "replayed"], "what is known to come again is recorded at once"
    assert recorder.forget.call_count == 1
    for descriptor in range(cuda_graphs.KEPT):
        for _ in range(3):
            programs.run(descriptor, lambda: None, memory)
    programs.run("short", lambda: told.append("run"), memory)
    assert told[-1] == "run", "what has not come for long has made room"


def test_a_calls_two_passes_are_replayed(traced: Traced) -> None:
    model = tiny.tyler("qwen3")
    request = ask(tiny.MEDIUM, router=Forced({place: ("state",) for place in range(2, 50, 2)}), max_new_tokens=60)
    plain = model.engine(slots=1).run([request])[0]
    engine = model.engine(slots=1, ahead=True)
    assert same(engine.run([request])[0], plain)
    for reader in (engine.batch.policy_reader, engine.batch.synthesis_reader):
        assert reader._programs._recorded
    assert len(plain.invocations) > 10


def test_an_answer_ends_in_flight_and_its_neighbours_go_on() -> None:
    model = tiny.tyler("qwen2")
    requests = [ask(tiny.LONG, router=Never(), max_new_tokens=length) for length in (3, 17, 9, 30)]
    requests += [ask(tiny.ODD, sampling=Sampling(1.0, seed=seed)) for seed in range(4)]
    plain = model.engine(slots=4).run(requests)
    assert all(map(same, model.engine(slots=4, ahead=True).run(requests), plain))


def test_a_request_joins_and_another_is_aborted_while_a_step_is_in_flight() -> None:
    model = tiny.tyler("qwen3")
    first, second, third = (ask(text, router=Never()) for text in (tiny.LONG, tiny.ODD, tiny.MEDIUM))
    alone = [model.engine(slots=1).run([one])[0] for one in (first, third)]
    engine = model.engine(slots=3, ahead=True)
    engine.add_request(first), engine.add_request(second)
    for _ in range(4):
        engine.step()
    assert engine.batch.in_flight
    engine.add_request(third)
    for _ in range(3):
        engine.step()
    assert engine.batch.in_flight
    engine.abort(1)
    ends = {}
    while engine.rows or engine.waiting:
        ends |= {event.index: event.trajectory for event in engine.step() if isinstance(event, FinishEvent)}
    assert ends[1].finish_reason == "abort"
    assert same(ends[0], alone[0])
    assert same(ends[2], alone[1])


def test_a_plain_backbone_runs_ahead_too() -> None:
    model = Tyler.start(tiny.build_backbone("smollm3"), ())
    requests = [ask(text, router=Never()) for text in (tiny.LONG, tiny.SHORT)]
    plain = model.engine(slots=2).run(requests)
    assert all(map(same, model.engine(slots=2, ahead=True).run(requests), plain))


def test_requests_with_a_chooser_are_decided_step_by_step() -> None:
    model = tiny.tyler("qwen2")
    request = Request(
        tiny.ids(tiny.MEDIUM),
        Never(),
        max_new_tokens=12,
        sampler=soft_thinking.SoftThinking(model.backbone, soft_thinking.Settings()),
    )
    ahead, plain = (model.engine(slots=1, ahead=way).run([request])[0] for way in (True, False))
    assert ahead.actions == plain.actions
    assert distance(ahead.logprobs, plain.logprobs) < 1e-4, "a mixture that is fed back carries what was rounded"


@pytest.mark.parametrize(
    "rows, most, size", [(1, 8, 1), (2, 8, 2), (3, 8, 4), (5, 8, 8), (8, 8, 8), (9, 64, 16), (60, 61, 61), (33, 64, 40)]
)
def test_few_numbers_of_rows_have_a_program(rows: int, most: int, size: int) -> None:
    assert bucket(rows, most) == size


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_reloaded_model_decides_the_same_on_every_device(device: str, tmp_path: Path) -> None:
    """On a GPU: plain steps, and programs recorded as graphs, against the transcription on a CPU."""
    model = tiny.tyler("qwen3")
    model.backbone.model.save_pretrained(tmp_path / "backbone")
    model.backbone.tokenizer.save_pretrained(tmp_path / "backbone")
    model.save_pretrained(tmp_path / "tyler")
    settings = {"backbone": str(tmp_path / "backbone"), "device": device, "dtype": "float32"}
    there = Tyler.from_pretrained(str(tmp_path / "tyler"), **settings)
    cases = [case for case in CASES if CASES[case].sampling.greedy]
    for ahead in (False, True):
        for case, trajectory in zip(cases, there.engine(ahead=ahead).run([CASES[one] for one in cases]), strict=True):
            trajectory.latents[:] = [latents.cpu() for latents in trajectory.latents]
            found = differences(trajectory, expected("qwen3", case))
            rounding = [one for one in found if one.startswith(("log-probabilities", "the latents"))]
            assert found == ([] if device == "cpu" else rounding), case


def test_a_recording_asks_cuda_in_the_right_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the signatures of torch's own classes, where there is no device to record on."""
    graph = create_autospec(torch.cuda.CUDAGraph, instance=True)
    stream = create_autospec(torch.cuda.Stream, instance=True)
    told = Mock()
    told.attach_mock(graph, "graph")
    told.attach_mock(stream, "stream")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(cuda_graphs, "side_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: told.current)
    monkeypatch.setattr(torch.cuda, "stream", lambda one: contextlib.nullcontext(one))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", iter([("pool", 1), ("pool", 2)]).__next__)
    monkeypatch.setattr(torch.cuda, "synchronize", told.synchronize)
    monkeypatch.setattr(torch.cuda, "empty_cache", told.empty_cache)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", told.clear, raising=False)
    recorder = cuda_graphs.CudaGraphs(torch.device("cuda"))
    recorder.first(told.program)
    assert recorder.record(told.program) is graph.replay
    recorder.forget()
    recorder.record(told.program)
    begun = [call.graph.capture_begin(pool=("pool", n), capture_error_mode="thread_local") for n in (1, 2)]
    assert told.mock_calls == [
        *(call.stream.wait_stream(told.current), call.program(), call.current.wait_stream(stream)),
        *(call.synchronize(), call.clear(), begun[0], call.program(), call.graph.capture_end(), call.clear()),
        call.empty_cache(),
        *(call.synchronize(), call.clear(), begun[1], call.program(), call.graph.capture_end(), call.clear()),
    ]


def test_a_recording_that_fails_is_ended_and_leaves_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, ended = (
        create_autospec(torch.cuda.CUDAGraph, instance=True),
        Mock(side_effect=RuntimeError("nothing to end")),
    )
    monkeypatch.setattr(torch.cuda, "synchronize", Mock())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", iter([("pool", 1), ("pool", 2)]).__next__)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", Mock(), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", ended, raising=False)
    monkeypatch.setattr(cuda_graphs, "side_stream", Mock())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda one: contextlib.nullcontext(one))
    recorder = cuda_graphs.CudaGraphs(torch.device("cuda"))
    with pytest.raises(ZeroDivisionError):
        recorder.record(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    graph.capture_end.assert_called_once_with()
    assert ended.call_args.args[1] == ("pool", 1)
    recorder.record(lambda: None)
    assert graph.capture_begin.call_args.kwargs["pool"] == ("pool", 2)
