"""How an evaluation names a method, and what it refuses."""

import json
import shutil
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages

import pytest
from tests import kinds, tiny
from tests.reasoners import soft

from tyler import reasoners
from tyler.cli import main
from tyler.engine.routing import Never
from tyler.engine.sampling import Sampling
from tyler.evaluation import command
from tyler.evaluation.options import Answering, EvaluationRequest, Questions
from tyler.evaluation.store import read_records
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.reasoners import registry, soft_thinking, swireasoning
from tyler.reasoners.method import Method
from tyler.reasoners.table import METHODS
from tyler.tasks import Problem


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain backbone, a Tyler checkpoint on it, and a file of problems."""
    folder = tmp_path_factory.mktemp("methods")
    theta = soft.model("qwen3").backbone
    tiny.save(theta, folder / "backbone")
    trained = Tyler.from_pretrained(str(folder / "backbone")).at_stage("stage1")
    trained.save_pretrained(folder / "trained")
    rows = [{"problem": f"How many {i} x?", "solution": "\\boxed{5}", "answer": "5"} for i in range(5)]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("method", ["cot", "soft-thinking", "swireasoning"])
@pytest.mark.parametrize("model", ["backbone", "trained"])
def test_a_training_free_method_runs_on_the_plain_backbone(place: Path, method: str, model: str) -> None:
    loaded = registry.load(str(place / model), method, name="x", max_new_tokens=6)
    assert loaded.reasoner.name == f"x, {method}"
    assert loaded.reasoner.model.policy.lora is None and loaded.reasoner.model.stage == "backbone"
    assert loaded.weights == registry.load(str(place / "backbone"), "cot", name="x").weights


def test_without_a_method_the_model_is_itself(place: Path) -> None:
    loaded = registry.load(str(place / "trained"), name="x", budget=2)
    assert (loaded.method, loaded.settings.stage, loaded.settings.budget) == ("tyler", "stage1", 2)
    assert loaded.reasoner.model.stage == "stage1"


@pytest.mark.parametrize(
    "model, method, overrides, options, message",
    [
        (
            "backbone",
            "soft",
            [],
            {},
            "unknown --method 'soft'; choose from tyler, cot, memgen, soft-thinking, softcot, swireasoning",
        ),
        ("backbone", "softcot", [], {}, "is not a softcot checkpoint; train one"),
        ("backbone", None, ["x=1"], {}, "'x=1' needs a --method that has settings"),
        ("backbone", "cot", ["x=1"], {}, "cot has no setting 'x'; allowed: none"),
        ("backbone", "cot", [], {"budget": 1}, "cot has no operators"),
        ("backbone", "swireasoning", [], {"router": Never()}, "swireasoning has no operators"),
    ],
)
def test_what_does_not_go_together_is_refused(place: Path, model, method, overrides, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        registry.load(str(place / model), method, overrides, name="x", **options)


def test_settings_are_read_and_checked() -> None:
    found = registry.method_settings("soft-thinking", ["top_k=5", "gumbel=true", "temperature=1", "soft_steps=null"])
    assert found == soft_thinking.SoftThinkingSettings(top_k=5, gumbel=True, temperature=1.0)
    assert registry.method_settings("swireasoning", ["close=' </think>'"]) == swireasoning.SwiReasoningSettings(
        close=" </think>"
    )
    assert registry.method_settings(
        "soft-thinking", ["min_p=1e-3", "temperature=7E-1"]
    ) == soft_thinking.SoftThinkingSettings(min_p=0.001, temperature=0.7), "numbers as in a config, not YAML 1.1's"
    for method, override, message in (
        ("soft-thinking", "topk=5", "no setting 'topk'; did you mean 'top_k'.* allowed: temperature"),
        ("soft-thinking", "top_k", "write it as key=value"),
        ("soft-thinking", "top_k=[", "cannot read the value"),
        ("soft-thinking", "top_k=2.5", r"top_k = 2.5: should be a valid integer"),
        ("soft-thinking", "top_p=2", "soft-thinking: top_p = 2: should be less than or equal to 1"),
        ("swireasoning", "exit_mix=both", "exit_mix = 'both': .*'token' or 'soft'"),
    ):
        with pytest.raises(ValueError, match=message):
            registry.method_settings(method, [override])


def test_an_evaluation_keeps_the_method_and_counts_soft_steps(place: Path, capsys) -> None:
    output = place / "out"
    command.run(
        str(place / "backbone"),
        EvaluationRequest(
            Questions(("jsonl",), data=place / "test.jsonl"),
            Answering(method="soft-thinking", method_set=("soft_steps=3",), max_new_tokens=8),
        ),
        output=output,
    )
    settings = json.loads((output / "settings.json").read_text())
    assert settings["method"] == "soft-thinking" and settings["method_settings"]["soft_steps"] == 3
    records = read_records(output)
    assert len(records) == 5 and all(one.latents == 3 and one.visible_tokens <= 5 for one in records)
    assert "backbone, soft-thinking" in capsys.readouterr().out


def test_a_memgen_folder_is_evaluated_as_what_it_is(place: Path) -> None:
    model = kinds.new("memgen", Backbone.load(str(place / "backbone")))
    model.save_pretrained(place / "memgen")
    found = registry.load(str(place / "memgen"), name="x", max_new_tokens=6)
    assert (found.method, found.weights) == ("memgen", model.fingerprint())
    assert asdict(found.settings) == {"max_insertions": None, "trigger_at_prompt": None}
    asked = EvaluationRequest(Questions(("jsonl",), data=place / "test.jsonl"), Answering(max_new_tokens=6))
    (report,) = command.run(str(place / "memgen"), asked, output=place / "memgen-out")
    expected = found.reasoner.solve([one.prompt for one in report.records])
    assert [one.text for one in report.records] == [answer.text for answer in expected]
    assert all(one.latents >= model.settings.prompt_latents for one in report.records)
    with pytest.raises(ValueError, match="is a memgen checkpoint; omit --method"):
        registry.load(str(place / "memgen"), "cot", name="x")


def test_memgens_places_can_be_changed_at_evaluation_and_its_latents_cannot(place: Path) -> None:
    model = kinds.new("memgen", Backbone.load(str(place / "backbone")))
    model.save_pretrained(place / "woven")
    where = str(place / "woven")
    problems = [Problem("p", "jsonl", "How many, 1, 2 x?", "5")]
    few = registry.load(where, None, ["max_insertions=0"], name="x", max_new_tokens=30).reasoner.solve(problems)
    assert [one.operator for one in few[0].invocations] == ["prompt"]
    loaded = registry.load(where, "memgen", ["trigger_at_prompt=true"], name="x")
    assert loaded.reasoner.model.settings.trigger_at_prompt and loaded.reasoner.model.settings.max_insertions == 5
    assert loaded.with_setting("max_insertions", 3).reasoner.model.settings.max_insertions == 3
    assert loaded.with_setting("max_new_tokens", 3).reasoner.max_new_tokens == 3
    with pytest.raises(ValueError, match="no setting 'prompt_latents'; allowed: max_insertions, trigger_at_prompt"):
        registry.load(where, None, ["prompt_latents=4"], name="x")
    with pytest.raises(ValueError, match="memgen: max_insertions = -1: should be greater than or equal to 0"):
        registry.load(where, None, ["max_insertions=-1"], name="x")


@pytest.mark.parametrize("kind", ["softcot", "memgen", "backbone"])
def test_solve_answers_with_the_checkpoint_of_any_method(place: Path, kind: str, capsys) -> None:
    folder = place / ("backbone" if kind == "backbone" else f"solve-{kind}")
    if kind != "backbone":
        kinds.new(kind, Backbone.load(str(place / "backbone"))).save_pretrained(folder)
    problem = Problem("p", "jsonl", "How many x?", "5")
    (expected,) = registry.load(str(folder), name="x", max_new_tokens=20).reasoner.solve([problem])
    assert main.main(["solve", str(folder), problem.prompt, "--max-new-tokens", "20"]) == 0
    shown, counts = capsys.readouterr()
    shown = shown.removesuffix("\n")
    for call in expected.invocations:
        mark = f"⟨{call.operator} ×{call.num_latents}⟩"
        assert mark in shown
        shown = shown.replace(mark, "", 1)
    assert shown == expected.text
    told = f"{expected.num_visible} visible tokens, {expected.num_latents} latents in {expected.num_invocations}"
    assert counts.startswith(told)
    assert (expected.num_latents > 0) == (kind != "backbone")
    if kind != "backbone":
        assert main.main(["solve", str(folder), "x", "--budget", "1"]) == 2
        assert f"a {kind} checkpoint without operators; omit --router and --budget" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["softcot", "memgen", "stage1", "sft"])
def test_every_command_finds_a_backbone_that_was_moved(kind: str, place: Path, tmp_path: Path, capsys) -> None:
    at = Path(shutil.copytree(place / "backbone", tmp_path / "before"))
    folder = tmp_path / "saved"
    kinds.new(kind, Backbone.load(str(at))).save_pretrained(folder)
    at.rename(tmp_path / "after")
    there = ["--backbone", str(tmp_path / "after")]
    evaluation = ["--task", "jsonl", "--data", str(place / "test.jsonl"), "--count", "1", "--max-new-tokens", "2"]
    commands = [["solve", str(folder), "x?", "--max-new-tokens", "2"], ["eval", str(folder), *evaluation]]
    commands[1] += ["--output", str(tmp_path / "out")]
    commands += [["merge", str(folder), "--output", str(tmp_path / "merged")]] if kind == "sft" else []
    for words in commands:
        assert main.main(words) == 2
        assert "was trained on it. If it is elsewhere now, give its path: --backbone" in capsys.readouterr().err
        assert main.main([*words, *there]) == 0, capsys.readouterr().err


def test_the_table_names_every_module_that_defines_a_method() -> None:
    every = [module.name for module in walk_packages(reasoners.__path__, f"{reasoners.__name__}.")]
    modules = [name for name in every if not name.endswith("on_vllm") or find_spec("vllm")]
    defining = [name for name in modules if isinstance(vars(import_module(name)).get("METHOD"), Method)]
    assert sorted(f"{reasoners.__name__}.{name}" for name in METHODS.values()) == sorted(defining)


@pytest.mark.parametrize("method", [None, "cot", "swireasoning"])
def test_every_method_keeps_to_the_bound_on_memory(place: Path, method: str | None) -> None:
    loaded = registry.load(str(place / "backbone"), method, name="x", max_new_tokens=4, memory=10_000)
    with pytest.raises(ValueError, match=r"needs [\d,]+ bytes of context and caches, and memory=10,000"):
        loaded.reasoner.solve([Problem("p", "jsonl", "How many x?", "5")])
    with pytest.raises(ValueError, match=r"memory=10,000"):
        answerer = registry.load(str(place / "backbone"), name="x", max_new_tokens=4, memory=10_000).answerer()
        list(answerer.events([answerer.request("How many x?", Sampling())]))
