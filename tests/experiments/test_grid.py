"""Cells are run once, named by all that decides their answers, and a grid resumes where it was killed."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tyler.config.files import load_config
from tyler.evaluation.store import name_of
from tyler.experiments import records
from tyler.experiments.cells import SPREAD, Cell, Decoding, Questions, Sources, Training
from tyler.experiments.grid import Grid
from tyler.experiments.measures import packed, spread_of, unpacked
from tyler.experiments.study import read_study
from tyler.lens.interventions import PooledHead, intervene
from tyler.model import Tyler
from tyler.modeling import backbone
from tyler.modeling.backbone import Backbone
from tyler.training.command import load_backbone
from tyler.training.stage1 import new_operators

SHORT = ("stage1.steps=2", "stage1.batch_size=4", "data.count=8", "data.held_out=[]")
STAGE1 = Training("stage1", SHORT)
ASKED = Questions("mini", "dev", 4, 40)


def cell(row: str = "Stage 1", training: Training = STAGE1, seed: int = 42, **decoding: object) -> Cell:
    return Cell(row, "mini", training, Decoding(**decoding), ASKED, seed)  # type: ignore[arg-type]


CELLS = [cell("CoT", Training(), router="never"), cell(), cell("zeros", intervention="zeros")]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    folder = tmp_path_factory.mktemp("grid")
    made = Grid(folder / "models", folder / "records", Sources({}))
    made.run(CELLS)
    return made


def test_a_cell_that_has_a_record_is_not_run_again(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in grid.records.iterdir()}
    assert len(before) == 3
    monkeypatch.setattr(Grid, "measure", lambda *_: pytest.fail("a finished cell was run again"))
    grid.run(CELLS)
    assert {path: path.stat().st_mtime_ns for path in grid.records.iterdir()} == before


def test_cells_of_one_training_share_its_model(grid: Grid) -> None:
    assert len(list(grid.models.glob("*.done.json"))) == 1
    found = {record["row"]: record for record in records.read(grid.records).values()}
    assert found["Stage 1"]["weights"] == found["zeros"]["weights"] != found["CoT"]["weights"]
    assert found["Stage 1"]["training_seconds"] > 0 == found["CoT"]["training_seconds"]


def test_a_record_recounts_its_answers(grid: Grid) -> None:
    for record in records.read(grid.records).values():
        assert len(record["answers"]) == 4
        assert all((answer.latents > 0) == bool(answer.calls) for answer in record["answers"])
    assert "command" not in record["environment"]


@pytest.mark.parametrize(
    "other",
    [
        cell(seed=43),
        cell(training=Training("stage1", (*SHORT, "stage1.learning_rate=1e-3"))),
        cell(training=Training("stage1", (*SHORT[:2], "data.count=9", SHORT[3]))),
        cell(budget=1),
        cell(only=("global",)),
        replace(cell(), questions=replace(ASKED, count=5)),
        cell(training=Training("stage2", SHORT, start=STAGE1)),
    ],
)
def test_whatever_decides_the_answers_decides_the_name(grid: Grid, other: Cell) -> None:
    assert name_of(other.identity(grid.sources)) != name_of(cell().identity(grid.sources))


@pytest.mark.parametrize("method", ["sft", "softcot", "memgen"])
def test_what_limits_a_trace_decides_the_name_of_what_learns_traces(method: str) -> None:
    names = {
        name_of(Training(method, (*SHORT, *more)).identity("mini", 42, Sources({})))
        for more in ((), ("stage1.max_length=300",), ("stage1.max_length=400",))
    }
    assert len(names) == 3


@pytest.mark.parametrize("on_overlap", ["drop", "refuse"])
def test_what_is_learned_decides_the_name_and_what_is_held_out_where_it_is_dropped(
    tmp_path: Path, on_overlap: str
) -> None:
    def write(split: str, solution: str, count: int) -> None:
        rows = [{"problem": f"What is {one} + 1?", "answer": "1", "solution": solution} for one in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def name() -> str:
        held_out = f"data.held_out=[{{task: jsonl, path: {tmp_path}/dev.jsonl}}]"
        data = ("data.task=jsonl", f"data.path={tmp_path}/train.jsonl", "data.development=null", held_out)
        training = Training("stage1", (*data, f"data.on_overlap={on_overlap}"))
        return name_of(training.identity("mini", 42, Sources({"jsonl": str(tmp_path)})))

    names = []
    for solution, held_out in (("One more.", 2), ("One more.", 2), ("Plus one.", 2), ("Plus one.", 3)):
        write("train", solution, 30)
        write("dev", solution, held_out)
        names.append(name())
    assert names[0] == names[1] != names[2]
    assert (names[2] != names[3]) == (on_overlap == "drop")


def test_what_only_changes_the_speed_does_not_change_the_name(grid: Grid) -> None:
    faster = cell(training=Training("stage1", (*SHORT, "stage1.micro_batch_size=2", "stage1.checkpoint_every=1")))
    assert faster.identity(grid.sources) == cell().identity(grid.sources)


def test_an_untrained_model_has_no_seed(grid: Grid) -> None:
    one, other = (cell("CoT", Training(), seed=seed, router="never").unseeded for seed in (42, 43))
    assert one == other


def test_interventions_keep_places_and_numbers_and_change_what_is_said() -> None:
    model = Tyler.from_pretrained("mini").at_stage("stage1")
    problems = ["Find x when $5x - 28 = 47$.", "Tom has 50 cups. Tom sells 24. How many cups are left?"]
    own = model.solve(problems[0], max_new_tokens=8)
    for name in ("zeros", "means", "shuffled", "noise", "swap state procedure", "share state", "zero global"):
        changed = intervene(model, name, problems, 20)
        found = changed.solve(problems[0], max_new_tokens=8)
        assert found.invocations[0].position == own.invocations[0].position == 0
        if name in ("zeros", "means", "shuffled", "noise", "zero global"):
            assert found.invocations[0].num_latents == own.invocations[0].num_latents == 8
        assert "global" not in intervene(model, "remove global", problems, 20).heads


def test_an_unknown_intervention_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no intervention 'blur'; allowed: zeros, means, shuffled, noise, remove K"):
        intervene(Tyler.from_pretrained("mini"), "blur", [], 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [50, 64])
def test_a_pooled_head_answers_the_same_context_alike_and_others_apart(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(0)
    head = Tyler.from_pretrained("mini").synthesizer.mapping()["state"]
    pooled = PooledHead(head, [torch.full((4, 8), float(number)) for number in range(size)])
    contexts = [torch.randn(4, 8).to(dtype) for _ in range(40)]
    drawn = [float(pooled(one)[0, 0]) for one in contexts]
    assert drawn == [float(pooled(one)[0, 0]) for one in contexts]
    assert len(set(drawn)) > 15


def test_constant_latents_are_the_same_for_every_problem_and_all_that_learns(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "models", tmp_path / "records", Sources({}))
    pause = Training("stage1", (*SHORT, "stage1.latents=constant", "stage1.learning_rate=0.1"))
    grid.run([cell("Pause", pause)])
    (folder,) = [Path(str(done).removesuffix(".done.json")) for done in grid.models.glob("*.done.json")]
    model = Tyler.from_pretrained(str(folder))
    one, other = (model.solve(text, max_new_tokens=8).latents[0] for text in ("Find x when $5x - 28 = 47$.", "What?"))
    assert torch.equal(one, other) and torch.equal(one, model.synthesizer.mapping()["global"].latents)
    assert len({tuple(latent.tolist()) for latent in one}) == 8
    assert all(not tensor.any() for name, tensor in model.synthesizer.lora.named_parameters() if "lora_B" in name)
    config = load_config("mini", ("stage1.latents=constant", *SHORT))
    torch.manual_seed(config.stage1.seed)
    started = new_operators(config, load_backbone(config))
    moved = one - started.synthesizer.mapping()["global"].latents
    assert 0.19 < moved.abs().max() < 0.21, "each of two steps of Adam goes at most as far as the learning rate"


def test_the_spread_of_latents_is_that_of_their_squares_around_their_mean(grid: Grid) -> None:
    asked = replace(cell(), measure=SPREAD)
    reasoner, _ = grid.reasoner(asked, grid.trained(asked.training, asked.preset, asked.seed)[0])
    calls = [
        block
        for trajectory in reasoner.solve(grid.sources.problems(ASKED))
        for call, block in zip(trajectory.invocations, trajectory.latents, strict=True)
        if call.operator == "global"
    ]
    assert len(calls) == ASKED.count
    blocks = np.array([block.tolist() for block in calls])
    squares, around = (blocks**2).mean(), blocks.var(axis=0).mean()
    unbiased = blocks.var(axis=0, ddof=1).mean()
    told = grid.measure(asked, grid.records / "spread", {})["spread"]["global"]
    assert told["calls"] == len(blocks) and told["scale"] == pytest.approx(squares**0.5, abs=1e-4)
    assert told["scale_of_mean"] == pytest.approx((squares - around) ** 0.5, abs=1e-4)
    assert told["around_mean"] == pytest.approx(unbiased / squares, abs=2e-6) and told["around_mean"] > 0.001


def test_kept_vectors_have_seven_significant_bits() -> None:
    vectors = torch.tensor([[0.0, 1.0, -2.5], [1.009, -3.1415, 60000.0]])
    kept = unpacked(packed(vectors))
    np.testing.assert_allclose(kept, vectors.numpy(), rtol=2**-7)
    assert kept[0].tolist() == [0.0, 1.0, -2.5] and kept[1, 0] == 1 + 2**-6
    for wrong in (70000.0, 65504.0, torch.inf, torch.nan):
        with pytest.raises(ValueError, match=r"too large for float16, or not finite"):
            packed(torch.tensor([[wrong]]))


def test_constant_latents_have_no_spread() -> None:
    block = torch.randn(4, 8)
    assert spread_of(torch.stack([block, block, block]))["around_mean"] < 1e-6
    assert spread_of(torch.zeros(2, 4, 8))["around_mean"] == 0


def test_a_bound_on_memory_is_that_of_every_method_and_of_rollouts(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "models", tmp_path / "records", Sources({}), memory=2_000_000)
    for method in ("tyler", "soft-thinking"):
        reasoner, _ = grid.reasoner(cell("Any", Training(), method=method), "mini")
        assert reasoner.memory == 2_000_000  # type: ignore[attr-defined]
    grid.run([cell("Stage 1", Training("stage1", SHORT))])
    (config,) = grid.models.glob("*/config.yaml")
    assert load_config(str(config)).decoding.memory == 2_000_000


@pytest.mark.parametrize("method", ["tyler", "soft-thinking"])
def test_a_plain_backbone_is_read_and_asked_as_the_config_says(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, asked = Grid(tmp_path / "models", tmp_path / "records", Sources({})), {}
    load = Tyler.from_pretrained

    def noted(location: str, **settings: object) -> Tyler:
        asked.update(settings)
        return load(location, **{**settings, "revision": None})

    monkeypatch.setattr(Tyler, "from_pretrained", noted)
    changes = ("backbone.instruction=Box it.", "backbone.dtype=bfloat16", "backbone.revision=v2")
    reasoner, _ = grid.reasoner(cell("CoT", Training(overrides=changes), method=method), "mini")
    assert reasoner.model.prompt.instruction == "Box it."  # type: ignore[attr-defined]
    assert (asked["dtype"], asked["revision"]) == ("bfloat16", "v2")
    assert reasoner.model.backbone.dtype == torch.bfloat16  # type: ignore[attr-defined]


def test_what_weights_are_in_decides_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    auto = Training("stage1", (*SHORT, "backbone.dtype=auto"))
    names = set()
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(backbone, "best_device", lambda device=device: torch.device(device))
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
        sources = Sources({}, {("mini", (), None, "auto"): "0123"})
        names.add(name_of(auto.identity("mini", 42, sources)))
    assert len(names) == 2


STUDY = read_study("smollm2")


def test_what_answers_gsm8k_in_the_study_has_learned_gsm8k() -> None:
    asked = [one for one in STUDY.cells if one.questions == STUDY.columns["GSM8K"]]
    assert {one.row for one in asked} == {"CoT", *(row for row in STUDY.rows if row.startswith("GSM8K"))}
    for training in (training for one in asked for training in one.training.stages if training.method != "backbone"):
        config = training.config("smollm2-135m", 42)
        assert (config.data.task, config.data.split, config.evaluation.task) == ("gsm8k", "train", "gsm8k")
        assert config.stage2.max_new_tokens == config.decoding.max_new_tokens == STUDY.columns["GSM8K"].max_new_tokens


def test_backbones_of_one_id_and_other_settings_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(id: str, *, revision: str | None, dtype: str, **_: object) -> SimpleNamespace:
        return SimpleNamespace(fingerprint=lambda: f"{id} {revision} {dtype}")

    monkeypatch.setattr(Backbone, "load", load)
    sources = Sources({})
    configs = [load_config("mini", (f"backbone.revision={revision}",)) for revision in ("main", "v2")]
    assert [sources.fingerprint(config) for config in configs * 2] == ["mini main float32", "mini v2 float32"] * 2


def test_a_trainings_problems_are_looked_for_where_the_study_has_them() -> None:
    config = load_config("smollm2-135m")
    found = Sources({"mawps": "files"}).placed(config)
    assert found == ["data.path=files", "data.development.path=files", "evaluation.path=files"]
    resolved = load_config("smollm2-135m", found)
    assert resolved.development_set is not None and str(resolved.development_set.path) == "files"
    assert Sources({}).placed(config) == []
