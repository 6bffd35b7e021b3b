"""TylerLM in lm-evaluation-harness: the harness's own model as oracle, our engine and grader as the other."""

from __future__ import annotations

import json
import logging
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

import tiny

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (the extra lm-eval)")

import lm_eval
from lm_eval.api import registry
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import tyler.evaluation.harness
from tyler.engine.routing import AtBoundaries, Forced, Learned, Never
from tyler.evaluation.harness import TylerLM
from tyler.model import Tyler
from tyler.tasks import Problem, grade
from tyler.tasks.mini import load

CONTEXTS = ("Tom has 42 nuts.", "Find y when ", "", "We know: ")
CONTINUATIONS = ("A", "B", " Step 1", "$ 5$ nuts")


@pytest.fixture(scope="module")
def mini() -> Tyler:
    return Tyler.from_pretrained("mini", device="cpu")


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return load("eval", count=6, seed=0)


def asked(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=args, idx=0) for args in arguments]


def oracle(model: Tyler) -> HFLM:
    return HFLM(pretrained=model.backbone.model, tokenizer=model.backbone.tokenizer, batch_size=3)


def chat(model: TylerLM, problem: str) -> str:
    return model.apply_chat_template([{"role": "user", "content": problem}])


def texts(model: TylerLM, *arguments: tuple[str, dict[str, Any]]) -> list[str]:
    return model.generate_until(asked("generate_until", *arguments), disable_tqdm=True)


# --------------------------------------------------------------------- the harness's model is the oracle


def test_a_plain_backbone_scores_texts_as_the_harness_does(mini: Tyler) -> None:
    pairs = asked("loglikelihood", *((context, text) for context in CONTEXTS for text in CONTINUATIONS))
    whole = asked("loglikelihood_rolling", ("Tom has 42 nuts. Sue finds 17.",), ("Sue finds 17 plums. " * 150,))
    ours, theirs = TylerLM(mini, batch_size=5), oracle(mini)
    for (logprob, greedy), expected in zip(ours.loglikelihood(pairs), theirs.loglikelihood(pairs), strict=True):
        assert logprob == pytest.approx(expected[0], abs=1e-4)
        assert greedy == expected[1]
    assert ours.loglikelihood_rolling(whole) == pytest.approx(theirs.loglikelihood_rolling(whole), rel=1e-6)
    assert len(ours.tok_encode(whole[1].args[0])) > mini.backbone.max_positions, "the text needs several windows"
    assert ours._detect_batch_size() < ours._detect_batch_size([("", [1, 2], [3])]), "short texts together"


def test_a_plain_backbone_answers_as_the_harness_does(mini: Tyler, problems: list[Problem]) -> None:
    ours, theirs = TylerLM(mini, batch_size=5), oracle(mini)
    settings = [{"until": [], "max_gen_toks": 90}, {"until": ["\n\n", "$"], "max_gen_toks": 40}]
    contexts = [chat(ours, problem.prompt) for problem in problems]
    assert contexts == [chat(theirs, problem.prompt) for problem in problems]
    requests = asked("generate_until", *((text, settings[n % 2]) for n, text in enumerate([*contexts, "Tom has"])))
    answers = ours.generate_until(requests, disable_tqdm=True)
    assert answers == theirs.generate_until(requests, disable_tqdm=True)
    assert len(set(answers)) > 4


def test_a_context_too_long_loses_its_left_end_and_says_so(mini: Tyler, caplog: pytest.LogCaptureFixture) -> None:
    text = chat(ours := TylerLM(mini), "Tom has 42 nuts. Tom finds 17. " * 200)
    settings = {"until": [], "max_gen_toks": 12}
    expected = oracle(mini).generate_until(asked("generate_until", (text, settings)), disable_tqdm=True)
    with caplog.at_level(logging.WARNING, "tyler.evaluation.harness"):
        request = ours.request(text, settings)
        assert texts(ours, (text, settings)) == expected
    limit = mini.backbone.max_positions - 12
    assert request.prompt_ids == ours.tok_encode(text)[-limit:]
    assert f"cut to its last {limit}" in caplog.text
    with pytest.raises(ValueError, match="max_gen_toks=2048 leaves no room for a context in the 2048 positions"):
        texts(ours, (text, {"max_gen_toks": 2048}))


# ------------------------------------------------------------------------------ with operators, without


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_likelihood_is_that_of_decoding_with_budget_0(family: str) -> None:
    model = tiny.tyler(family)
    for context in ("Let me solve 5 + 12", "Solution: x"):
        drawn = model.engine().run([TylerLM(model, router="never").request(context, {"max_gen_toks": 20})])[0]
        tokens = [action for action in drawn.actions if action not in model.backbone.eos_ids]
        for setting in ({"router": "never"}, {"router": "learned"}, {"router": "boundaries", "budget": 3}):
            scored = TylerLM(model, **setting)._loglikelihood_tokens([(None, list(drawn.prompt_ids), tokens)], True)[0]
            assert scored == (pytest.approx(sum(drawn.logprobs[: len(tokens)]), abs=1e-3), True)


def test_the_likelihood_is_the_policys_after_stage_2_and_the_backbones_before() -> None:
    model = tiny.tyler("qwen3")
    pair = asked("loglikelihood", ("Let me solve 5", " + 12"))
    ((policy, _),), ((backbone, _),) = TylerLM(model).loglikelihood(pair), oracle(model).loglikelihood(pair)
    assert abs(policy - backbone) > 0.1, "eta counts"
    stage1 = tiny.Tyler.start(model.backbone, tiny.OPERATORS).at_stage("stage1")
    assert TylerLM(stage1).loglikelihood(pair)[0][0] == pytest.approx(backbone, abs=1e-4)


@pytest.mark.parametrize("slots", [1, 4])
def test_answers_are_the_engines_in_the_order_asked(slots: int) -> None:
    model = tiny.tyler("qwen2")
    contexts = ("Let me solve", "x", "Solution: 5 + 12", "Step 1:", "the total is", "2. ")
    adapter = TylerLM(model, router="learned", budget=2, batch_size=slots)
    requests = [adapter.request(context, {"max_gen_toks": 30}) for context in contexts]
    expected = model.engine(slots=2).run(requests)
    assert texts(adapter, *((context, {"max_gen_toks": 30}) for context in contexts)) == [one.text for one in expected]
    calls = [one.num_invocations for one in expected]
    assert max(calls) == 2, "operators are called, up to the budget"


def test_stop_strings_end_an_answer_before_them(mini: Tyler, problems: list[Problem]) -> None:
    adapter = TylerLM(mini)
    context = chat(adapter, problems[0].prompt)
    (whole,) = texts(adapter, (context, {"until": [], "max_gen_toks": 90}))
    assert "\n\n" in whole
    assert texts(adapter, (context, {"until": "\n\n", "max_gen_toks": 90})) == [whole.split("\n\n")[0]]
    assert texts(adapter, (context, {"until": ["", "="], "max_gen_toks": 90})) == [whole.split("=")[0]]


def test_repeats_are_sampled_apart_and_a_seed_brings_them_back() -> None:
    model = tiny.tyler("smollm3")
    settings = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "max_gen_toks": 12, "until": []}
    four = [("Let me solve", settings)] * 4
    first = texts(TylerLM(model, seed=1), *four)
    assert len(set(first)) == 4
    assert texts(TylerLM(model, seed=1, batch_size=2), *four) == first
    assert not set(texts(TylerLM(model, seed=2), *four)) & set(first)
    greedy = {**settings, "do_sample": False}
    assert len(set(texts(TylerLM(model), *[("Let me solve", greedy)] * 3))) == 1


def test_an_answer_is_as_long_as_the_task_says_else_as_the_model_argument_says() -> None:
    adapter = TylerLM(tiny.tyler("qwen3"), max_new_tokens=7)
    assert adapter.request("x", {}).max_new_tokens == 7
    assert adapter.request("x", {"max_gen_toks": 9}).max_new_tokens == 9
    assert adapter.request("", {}).prompt_ids == [adapter.prefix_token_id]
    with pytest.raises(ValueError, match="num_beams, which Tyler does not know; allowed are until, max_gen_toks"):
        adapter.request("x", {"num_beams": 4})


def test_answers_are_kept_for_the_harness_to_resume_from(mini: Tyler) -> None:
    kept: list[tuple[Any, ...]] = []
    adapter = TylerLM(mini)
    adapter.set_cache_hook(SimpleNamespace(add_partial=lambda *found: kept.append(found)))
    (answer,) = texts(adapter, ("Tom has", {"max_gen_toks": 5}))
    assert kept == [("generate_until", ("Tom has", {"max_gen_toks": 5}), answer)]


# --------------------------------------------------------------------------------------- model arguments


def test_model_args_reach_the_model(tmp_path: Path) -> None:
    string = "pretrained=mini,router=boundaries:0.25,budget=5,max_new_tokens=64,batch_size=3,dtype=float64,seed=4"
    adapter = TylerLM.create_from_arg_string(string, {"batch_size": 1, "device": "cpu", "max_batch_size": 64})
    assert (adapter.router, adapter.budget, adapter.max_gen_toks) == (AtBoundaries(rate=0.25), 5, 64)
    assert (adapter.slots, adapter.seed, adapter.tyler.backbone.dtype) == (3, 4, torch.float64)
    assert (adapter.rank, adapter.world_size) == (0, 1)
    info = adapter.get_model_info()
    assert json.loads(json.dumps(info)) == info
    assert (info["router"], info["budget"]) == (repr(AtBoundaries(rate=0.25)), 5)
    tiny.tyler("qwen2").save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        TylerLM.create_from_arg_obj({"pretrained": str(tmp_path), "backbone": "elsewhere"})


def test_the_harnesss_own_device_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    def load(location: str, **settings: Any) -> Tyler:
        taken.append(settings["device"])
        return tiny.tyler("qwen3")

    monkeypatch.setattr(Tyler, "from_pretrained", load)
    for there_is_cuda in (False, True):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there_is_cuda: there)
        TylerLM.create_from_arg_obj({"pretrained": "x"}, {"device": "cuda:0"})
        TylerLM.create_from_arg_obj({"pretrained": "x", "device": "cuda:1"}, {"device": "cuda:0"})
    assert taken == [None, "cuda:1", "cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("given", "slots"), [(None, 32), (1, 1), ("6", 6), ("auto", 32), ("auto:4", 32), ("0", None), ("many", None)]
)
def test_the_harnesss_batch_size_is_a_number_of_slots(mini: Tyler, given: str | int | None, slots: int | None) -> None:
    if slots is None:
        with pytest.raises(ValueError, match=f"batch_size={given!r}; it must be 1 or more, or 'auto'"):
            TylerLM(mini, batch_size=given)
    else:
        assert TylerLM(mini, batch_size=given).slots == slots


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "pretrained=mini,peft=x",
            "peft is unknown; allowed are pretrained, router, budget, max_new_tokens, batch_size",
        ),
        ("router=never", "model_args needs pretrained=MODEL"),
        ("pretrained=mini,router=sometimes", "router 'sometimes' is unknown; choose from learned, never, boundaries"),
        ("pretrained=mini,budget=few", "budget='few'; it must be a whole number, 0 or more"),
        ("pretrained=mini,memory=much", "memory='much'; write it as a number of bytes, such as 4GB or 512MiB"),
        ("pretrained=mini,seed=-1", "seed=-1; it must be a whole number, 0 or more"),
    ],
)
def test_an_impossible_argument_is_refused_by_name(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        TylerLM.create_from_arg_string(arguments)


def test_answers_keep_to_the_bound_on_memory(mini: Tyler) -> None:
    question = ("What is 2 + 3?", {"until": [], "max_gen_toks": 4})
    free, bound = (texts(TylerLM(mini, memory=memory), question) for memory in (None, "1GiB"))
    assert free == bound
    with pytest.raises(ValueError, match="memory"):
        texts(TylerLM(mini, memory=1), question)


def test_who_routes_is_the_models_last_stage_unless_somebody_says(mini: Tyler) -> None:
    assert TylerLM(mini).router == Never()
    assert TylerLM(tiny.tyler("qwen3")).router == Learned()
    assert TylerLM(tiny.tyler("qwen3"), router=Forced({0: ("state",)})).router == Forced({0: ("state",)})


# ----------------------------------------------------------------------------------------- whole tasks


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problems: list[Problem]) -> Path:
    """The folder with the task `boxed`, whose answers are in the last box, over a local file, away from every cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]
    (tmp_path / "boxed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    last_box = {"function": "regex", "regex_pattern": r"\\boxed\{([^{}]*)\}", "group_select": -1}
    task = {
        "task": "boxed",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "boxed.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["<|user|>"], "max_gen_toks": 160, "do_sample": False},
        "filter_list": [{"filter": [last_box, {"function": "take_first"}], "name": "boxed"}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    (tmp_path / "boxed.yaml").write_text(yaml.safe_dump(task))
    return tmp_path


def run(folder: Path, model: TylerLM | str, **settings: Any) -> dict[str, Any]:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(model=model, task_manager=manager, bootstrap_iters=0, **settings)


def graded(model: Tyler, problems: list[Problem], **settings: Any) -> float:
    """The share that our own engine and grader count as correct."""
    answers = model.solve([problem.prompt for problem in problems], max_new_tokens=160, **settings)
    verdicts = [grade("mini", one.text, two.answer) for one, two in zip(answers, problems, strict=True)]
    return sum(verdict.correct for verdict in verdicts) / len(verdicts)


def test_a_generation_task_gives_our_own_graders_number(tasks: Path, mini: Tyler, problems: list[Problem]) -> None:
    found = run(tasks, TylerLM(mini), tasks=["boxed"], apply_chat_template=True)
    expected = graded(mini, problems)
    assert 0 < expected < 1, "some are right, some are wrong"
    assert found["results"]["boxed"]["exact_match,boxed"] == pytest.approx(expected)
    by_name = run(
        tasks,
        "tyler",
        model_args={"pretrained": "mini", "router": "never"},
        tasks=["boxed"],
        apply_chat_template=True,
        device="cpu",
        batch_size="auto",
    )
    assert by_name["results"]["boxed"] == found["results"]["boxed"]
    assert by_name["config"]["model_sha"] == mini.fingerprint()


def test_a_saved_stage_1_model_runs_a_task_with_its_operators(
    tasks: Path, mini: Tyler, problems: list[Problem], tmp_path: Path
) -> None:
    model = Tyler.start(mini.backbone).at_stage("stage1")
    model.save_pretrained(tmp_path / "stage1")
    found = run(
        tasks,
        "tyler",
        model_args=f"pretrained={tmp_path / 'stage1'},router=boundaries,budget=2,device=cpu",
        tasks=["boxed"],
        apply_chat_template=True,
        log_samples=True,
    )
    settings = {"router": AtBoundaries(), "budget": 2}
    assert found["results"]["boxed"]["exact_match,boxed"] == pytest.approx(graded(model, problems, **settings))
    answers = model.solve([problem.prompt for problem in problems], max_new_tokens=160, **settings)
    assert sum(answer.num_invocations for answer in answers) > 0
    samples = sorted(found["samples"]["boxed"], key=lambda sample: sample["doc_id"])
    assert [sample["resps"][0][0] for sample in samples] == [answer.text for answer in answers]


def test_the_harnesss_command_line_knows_tyler(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(registry.model_registry._objs, "tyler")
    monkeypatch.setattr("sys.argv", ["tyler.evaluation.harness", *command_line(tasks, tasks / "out")])
    runpy.run_path(tyler.evaluation.harness.__file__, run_name="__main__")
    assert "|boxed|" in capsys.readouterr().out
    assert results(tasks / "out")["n-samples"]["boxed"]["effective"] == 5


@pytest.mark.slow
def test_two_processes_share_the_problems_and_find_the_same(tasks: Path) -> None:
    program = [sys.executable, "-m", "tyler.evaluation.harness"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29531"]
    found = []
    for name, command in (("alone", program), ("together", [*launcher, *program[1:]])):
        arguments = command_line(tasks, tasks / name)
        ran = subprocess.run([*command, *arguments], capture_output=True, text=True, env=offline(tasks))
        assert ran.returncode == 0, ran.stderr
        found.append(results(tasks / name))
    alone, together = found
    assert together["results"] == alone["results"]
    assert together["n-samples"] == alone["n-samples"]


def command_line(folder: Path, output: Path) -> list[str]:
    arguments = ["run", "--model", "tyler", "--model_args", "pretrained=mini", "--tasks", "boxed", "--limit", "5"]
    where = ["--include_path", str(folder), "--output_path", str(output)]
    return [*arguments, *where, "--apply_chat_template"]


def offline(folder: Path) -> dict[str, str]:
    """An environment without network, whose caches are its own."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}


def results(folder: Path) -> dict[str, Any]:
    (written,) = folder.glob("**/results_*.json")
    return json.loads(written.read_text())
