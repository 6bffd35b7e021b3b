"""`model.with_engine("vllm")`: one object on either engine, for users, evaluations, servers and rollouts."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from tests import tiny

from tyler.config.engine_choice import NATIVE, EngineChoice
from tyler.engine.request import Request
from tyler.engine.sampling import Sampling
from tyler.experiments.cells import Cell, Decoding, Questions, Sources, Training
from tyler.experiments.grid import Grid
from tyler.model import Tyler

PROBLEMS = [
    "Ben has 99 books. He sells 10. How many are left?",
    "Find x when $5x - 2 = 433$.",
    "Mia has 12 pens and buys 7 more. How many pens has she?",
]


@pytest.fixture(scope="module")
def shipped() -> Iterator[tuple[Tyler, Tyler]]:
    """The Tyler that ships, on both engines."""
    native = Tyler.from_pretrained("mini-tyler", dtype="float32")
    model = native.with_engine("vllm", enforce_eager=True, kv_cache_memory_bytes=2**26)
    yield native, model
    model.shared_engine.close()


def test_the_shipped_model_answers_alike_on_both_engines(shipped: tuple[Tyler, Tyler]) -> None:
    native, model = shipped
    asked = [
        native.request(problem, router=router, budget=budget, max_new_tokens=120)
        for problem in PROBLEMS
        for budget in range(9)
        for router in ("learned", "boundaries", "boundaries:0.5", "never")
        if budget or router == "learned"
    ]
    one, other = (m.shared_engine.run(asked) for m in (native, model))
    assert [t.actions for t in one] == [t.actions for t in other]
    assert [t.text for t in one] == [t.text for t in other]


def test_the_engine_sees_what_an_optimizer_wrote(models: Mapping[str, Tyler]) -> None:
    native = models["qwen2"]
    model = native.with_engine("vllm", enforce_eager=True, kv_cache_memory_bytes=2**26)
    asked = [Request(tiny.ids(text), sampling=Sampling(1.0, seed=1), max_new_tokens=20) for text in tiny.PROMPTS]
    before = model.shared_engine.run(asked)
    kept = native.policy.psi.detach().clone()
    with torch.no_grad():
        native.policy.psi.add_(torch.randn_like(kept))
    after = model.shared_engine.run(asked)
    assert [t.actions for t in after] == [t.actions for t in native.engine().run(asked)]
    assert [t.actions for t in after] != [t.actions for t in before]
    model.shared_engine.release()
    native.policy.psi.data.copy_(kept)  # as the calibration of psi writes it, past torch's counter
    assert [t.actions for t in model.shared_engine.run(asked)] == [t.actions for t in before]
    model.shared_engine.close()


def test_an_engine_or_an_argument_that_is_not_there_is_refused_by_name(models: Mapping[str, Tyler]) -> None:
    with pytest.raises(ValueError, match="choose from native, vllm"):
        models["qwen2"].with_engine("sglang")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="native engine has no argument 'quantization'"):
        models["qwen2"].with_engine("native", quantization="fp8")


def test_a_plain_backbone_answers_without_operators() -> None:
    """As SFT, GRPO and chains of thought do."""
    native = Tyler.from_pretrained("mini", dtype="float32")
    model = native.with_engine("vllm", enforce_eager=True, kv_cache_memory_bytes=2**26)
    one, other = (m.solve(PROBLEMS, max_new_tokens=80) for m in (native, model))
    assert [t.actions for t in one] == [t.actions for t in other]
    model.shared_engine.close()


def test_a_cell_of_an_experiment_is_answered_on_vllm_under_a_name_of_its_own(tmp_path: Path) -> None:
    """What needs the native engine stays there; a training that rolls out has a name of its own, too."""
    engine = EngineChoice("vllm", {"enforce_eager": True, "kv_cache_memory_bytes": 2**26})
    native, mine = Sources({}), Sources({}, engine=engine)
    cell = Cell("CoT", "mini", Training(), Decoding("cot"), Questions("mini", "dev", 3, 40), 42)
    reasoners = [Grid(tmp_path, tmp_path, sources).reasoner(cell, "mini")[0] for sources in (native, mine)]
    assert [one.model.decoder for one in reasoners] == [NATIVE, engine]
    answers = [one.solve(native.problems(cell.questions)) for one in reasoners]
    assert [t.actions for t in answers[0]] == [t.actions for t in answers[1]]
    reasoners[1].model.shared_engine.close()
    named = mine.engine_of(cell.decoding).settings()
    assert named == {"engine": "vllm", "engine_args": {"enforce_eager": True}}
    assert cell.identity(mine)["decoding"] == cell.identity(native)["decoding"] | named
    assert mine.engine_of(Decoding(intervention="zeros")) == mine.engine_of(Decoding("soft-thinking")) == NATIVE
    stage2 = Training("stage2", start=Training("stage1"))
    first, second = (stage2.identity("mini", 1, sources)["stages"] for sources in (native, mine))
    assert first[0] == second[0] and second[1]["decoding"] == first[1]["decoding"] | named
