"""`tyler eval` as a whole: any tasks, a kill in the middle, several processes."""

import html
import json
import re
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scripted
import tiny
from damage import change, nudge
from processes import Started, together
from stored import keep, write_problems
from tyler.cli.main import main
from tyler.config.sections import EvaluationConfig
from tyler.evaluation import command as evaluation
from tyler.evaluation import html_report
from tyler.evaluation.answers import Record
from tyler.evaluation.command import default_folder, digest
from tyler.evaluation.options import Answering, EndpointOptions, EvaluationRequest, Matching, Questions
from tyler.evaluation.pass_at_1 import asking
from tyler.evaluation.reports import Report, by_task
from tyler.evaluation.store import AnswerStore, read_answers, read_records, verdicts_name
from tyler.model import Tyler
from tyler.modeling.tokenizer import load_tokenizer
from tyler.reasoners import registry
from tyler.runs.checkpoints import RunError
from tyler.runs.environment import processor
from tyler.tasks import Outcome, Problem, grader_version
from tyler.tasks.problem import GradeOptions
from tyler.tasks.sandbox import sandbox

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT = 24


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Stage 1 checkpoint, its backbone, and a file of problems."""
    folder = tmp_path_factory.mktemp("eval")
    model = tiny.tyler("qwen3").at_stage("stage1")
    tiny.save(model.backbone, folder / "backbone")
    replace(model, backbone=replace(model.backbone, id=str(folder / "backbone"))).save_pretrained(folder / "model")
    write_problems(folder / "test.jsonl", range(COUNT))
    return folder


def command(place: Path, output: Path, *more: str) -> list[str]:
    return [
        *("eval", str(place / "model"), "--task", "jsonl", "--data", str(place / "test.jsonl")),
        *("--max-new-tokens", "200", "--slots", "2", "--output", str(output), *more),
    ]


def asked(place: Path, count: int | None = None, **answering: Any) -> EvaluationRequest:
    """The problems of `place`, or the first of them, answered under some options."""
    return EvaluationRequest(Questions(("jsonl",), data=place / "test.jsonl", count=count), Answering(**answering))


def answers(records: list[Record]) -> list[Record]:
    """What must be equal for any engine and time."""
    return [
        replace(one, seconds=0, engine_seconds=0, synthesis_seconds=0, elapsed=0, session=0, rank=0) for one in records
    ]


@pytest.fixture(scope="module")
def whole(place: Path) -> list[Record]:
    """What one undisturbed process finds."""
    assert main(command(place, place / "whole")) == 0
    return read_records(place / "whole")


def test_the_command_evaluates_and_writes_its_reports(place: Path, whole: list[Record]) -> None:
    assert [one.id for one in whole] == [f"test-{line}" for line in range(1, COUNT + 1)]
    assert {one.task for one in whole} == {"jsonl"}
    assert any(one.invocations for one in whole), "after Stage 1 operators are invoked at boundaries"
    expected = Tyler.from_pretrained(str(place / "model")).solve([one.prompt for one in whole], max_new_tokens=200)
    assert [one.text for one in whole] == [answer.text for answer in expected]
    assert {path.name for path in (place / "whole").iterdir()} == {
        *("answers.parquet", verdicts_name(grader_version())),
        *("report.html", "report.json", "settings.json"),
    }
    settings = json.loads((place / "whole" / "settings.json").read_text())
    assert (settings["max_new_tokens"], settings["method"]) == (200, "tyler")
    assert settings["method_settings"]["router"] == "AtBoundaries(rate=1.0, only=None, learned=False)"


def test_a_run_is_asked_what_its_config_says(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "step-3"
    checkpoint.mkdir(parents=True)
    own = "evaluation: {task: gsm8k, split: train, count: 5, revision: abc}\n"
    own += "stage1: {centring: {num_traces: 64, learning_rate: 0.1}}\n"  # written by runs before it went
    (tmp_path / "run" / "config.yaml").write_text(own)
    for model in (tmp_path / "run", checkpoint):
        asked = Questions().of_model(str(model))
        assert asked == Questions(("gsm8k",), "train", None, 5, "abc")
        assert Questions(count=2).of_model(str(model)) == replace(asked, count=2), "what is named goes before"
    assert Questions(("math500",)).of_model(str(checkpoint)) == Questions(("math500",))
    assert Questions().of_model("mini").task == ("mini",)


def test_a_plain_backbone_is_not_evaluated_as_tyler(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["eval", "mini", "--method", "tyler", "--count", "1", "--output", str(tmp_path / "out")]) == 2
    assert "mini is a plain backbone, without trained operators; omit --method" in capsys.readouterr().err


@pytest.mark.parametrize("changed", ["end_tokens", "chat_template", "tokenizer", "weights"])
def test_an_evaluation_does_not_go_on_with_another_model_or_other_texts(
    place: Path, changed: str, tmp_path: Path
) -> None:
    folder, few = shutil.copytree(place / "backbone", tmp_path / "backbone"), asked(place, 2, max_new_tokens=4)
    evaluation.run(str(folder), few, output=tmp_path / "out")
    tokenizer = load_tokenizer(str(folder))
    if changed == "end_tokens":
        config = json.loads((folder / "generation_config.json").read_text())
        (folder / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [5, 6]}))
    elif changed == "chat_template":
        tokenizer.chat_template = "{{ messages[0]['content'] }}!"
        tokenizer.save_pretrained(folder)
    elif changed == "tokenizer":
        file = folder / "tokenizer.json"
        described = json.loads(file.read_text())
        normaliser = {"type": "Replace", "pattern": {"String": "x"}, "content": "y"}
        file.write_text(json.dumps(described | {"normalizer": normaliser}))
    else:
        change(folder / "model.safetensors", lambda tensors: nudge(tensors["model.layers.1.self_attn.q_proj.weight"]))
    with pytest.raises(RunError, match=f"under other settings: .*{changed} was"):
        evaluation.run(str(folder), few, output=tmp_path / "out")


def test_a_killed_evaluation_goes_on_and_finds_the_same(place: Path, whole: list[Record]) -> None:
    output = place / "killed"
    written = output / "answers.jsonl"
    process = Started(command(place, output), place / "killed.txt")
    process.until(lambda: written.exists() and written.read_bytes().count(b"\n") >= 3)
    process.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (kept,) = read_answers(output).values()
    assert 3 <= len(kept) < COUNT, "killed in the middle"
    again = Started(command(place, output), place / "again.txt")
    assert again.wait() == 0, again.output
    found = read_records(output)
    assert answers(found) == answers(whole)
    assert {one.id for one in found if one.session == 0} == {one.id for one in kept}, "nothing was answered again"
    assert f"/{COUNT}" in again.output


def test_two_processes_find_what_one_does(place: Path, whole: list[Record]) -> None:
    assert together(2, main, command(place, place / "two")) == [0, 0]
    found = read_records(place / "two")
    assert answers(found) == answers(whole)
    assert [one.rank for one in found] == [index % 2 for index in range(COUNT)]
    assert not list((place / "two").glob("*.jsonl"))


def test_a_second_process_may_open_the_folder_first(tmp_path: Path) -> None:
    with AnswerStore(tmp_path, {}, rank=1) as second:
        assert second.answers == {}


def test_a_late_process_is_of_the_same_session_and_no_time_is_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process opens the folder only when the first waits for it, or is done with its share."""
    met, opened = threading.Barrier(2, timeout=60), AnswerStore.__init__
    waits = threading.Event()

    def late(store: AnswerStore, folder: Path, settings: dict[str, str], *, options: GradeOptions, rank: int) -> None:
        while rank == 1 and not waits.is_set():
            time.sleep(0.001)
        opened(store, folder, settings, options=options, rank=rank)

    def process(rank: int) -> list[Record] | None:
        def wait_for_everyone() -> None:
            waits.set()
            met.wait()

        state = SimpleNamespace(process_index=rank, num_processes=2, wait_for_everyone=wait_for_everyone)
        sets = {"jsonl": scripted.PROBLEMS}
        return evaluation.answered(asking(scripted.Scripted()), sets, {}, tmp_path, EvaluationRequest(), state)  # type: ignore[arg-type]

    monkeypatch.setattr(AnswerStore, "__init__", late)
    with ThreadPoolExecutor(2) as processes:
        first, second = processes.map(process, range(2))
    assert first is not None and second is None
    assert [one.rank for one in first] == [0, 1, 0, 1, 0]
    assert {one.session for one in first} == {0}
    assert Report("x", tuple(first)).seconds == max(one.elapsed for one in first)


def test_several_tasks_make_one_report(place: Path, tmp_path: Path, capsys) -> None:
    gsm8k = [{"question": f"How many {i}?", "answer": "So.\n#### 5"} for i in range(1319)]
    (tmp_path / "gsm8k_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in gsm8k))
    reports = evaluation.run(
        str(place / "backbone"),
        EvaluationRequest(
            Questions(("GSM8K", "gsm8k"), data=tmp_path, count=3), Answering(max_new_tokens=4, router="never")
        ),
        output=tmp_path / "out",
    )
    assert [(report.name, len(report.records)) for report in reports] == [("GSM8K", 3)]
    few = EvaluationRequest(Questions(count=2), Answering(max_new_tokens=4))
    mini = evaluation.run(str(place / "backbone"), few, output=tmp_path / "mini")
    assert len(mini[0].records) == 2
    assert "0/2" in capsys.readouterr().out


def test_the_digest_names_the_problems() -> None:
    one, other = Problem("1", "jsonl", "a", "b"), Problem("1", "jsonl", "a", "c")
    assert digest([one]) == digest([one]) != digest([other])
    assert digest([one, other]) != digest([other, one])


def test_humaneval_without_a_sandbox_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "test": "def check(f): pass"}
    rows = [row | {"task_id": f"HumanEval/{n}", "canonical_solution": "    return 1\n"} for n in range(164)]
    (tmp_path / "HumanEval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sandbox, "probe", lambda: "this test has none")
    monkeypatch.setattr(registry, "load", lambda *_, **__: pytest.fail("the model was loaded first"))
    line = ["eval", "mini", "--task", "humaneval", "--data", str(tmp_path), "--allow-code-execution"]
    assert main([*line, "--output", str(tmp_path / "out")]) == 2
    assert "tyler: programs of the model cannot run safely: this test has none" in capsys.readouterr().err


def test_every_question_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/a/stage2", "runs/b/stage2", "elsewhere/model"):
        (tmp_path / folder).mkdir(parents=True)
    (file := tmp_path / "algebra.jsonl").touch()
    sampled = Answering(temperature=0.7, top_p=0.95, samples=8, seed=3)
    soft = Answering(method="soft-thinking", method_set=("min_p=0.01",))
    asked = {
        "mini": EvaluationRequest(),
        "mini-harder-7": EvaluationRequest(Questions(split="harder", count=7)),
        "jsonl-algebra": EvaluationRequest(Questions(("jsonl",), data=file)),
        "gsm8k+math500-max_new_tokens256": EvaluationRequest(
            Questions(("GSM-8K", "math500")), Answering(max_new_tokens=256)
        ),
        "mini-soft-thinking-min_p=0.01": EvaluationRequest(answering=soft),
        "mini-boundaries-0.25": EvaluationRequest(answering=Answering(router="boundaries:0.25")),
        "mini-never-budget0": EvaluationRequest(answering=Answering(router="never", budget=0)),
        "mini-temperature0.7-top_p0.95-samples8-seed3": EvaluationRequest(answering=sampled),
        "mini-64d9f06a": EvaluationRequest(Questions(ids=("a", "b"))),
        "mini-a1046b6b": EvaluationRequest(Questions(instruction="Be brief.")),
        "mini-endpoint": EvaluationRequest(server=EndpointOptions(endpoint="http://a/v1", model="m")),
        "mini-as-long-as-x-eval-mini": EvaluationRequest(matching=Matching(Path("runs/x-eval/mini"))),
    }
    assert [default_folder("m", one).name for one in asked.values()] == list(asked)
    models = {
        "runs/a/stage2": "a-stage2",
        "runs/b/stage2": "b-stage2",
        str(tmp_path / "elsewhere" / "model"): "elsewhere-model",
        "Qwen/Qwen2.5-1.5B-Instruct": "Qwen2.5-1.5B-Instruct",
    }
    for model, name in models.items():
        assert default_folder(model, EvaluationRequest()) == Path(f"runs/{name}-eval/mini")


def test_a_report_says_at_its_top_what_was_evaluated_when_where_and_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["eval", "mini", "--split", "harder", "--count", "3", "--max-new-tokens", "4"]
    output = tmp_path / "runs" / "mini-eval" / "mini-harder-3-max_new_tokens4"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/tyler", *line])
    assert main(line) == 0
    facts = {
        "problems": r"mini, harder: 3 of 300",
        "answers": r"greedy, Pass@1, at most 4 actions each",
        "model": r"mini, weights [0-9a-f]{16}",
        "date": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC",
        "version": rf"tyler {re.escape(version('tyler-reasoning'))}, torch {re.escape(version('torch'))}",
        "machine": rf"{re.escape(processor())}, \d+ cores?, .+",
        "command": re.escape("tyler " + " ".join(line)),
    }
    page = (output / "report.html").read_text()
    top = re.sub(r"\s+", " ", html.unescape(page[: page.index("<table")]))
    for name, text in facts.items():
        assert re.search(rf"<dt>{name}</dt> ?<dd>{text}</dd>", top), name
    numbers = json.loads((output / "report.json").read_text())["made"]
    assert all(re.fullmatch(facts[name], numbers[name]) for name in ("date", "version", "machine", "command"))
    assert main(["grade", str(output)]) == 0
    page = (output / "report.html").read_text()
    top = re.sub(r"\s+", " ", html.unescape(page[: page.index("<table")]))
    for name in ("problems", "answers", "model"):
        assert re.search(rf"<dt>{name}</dt> ?<dd>{facts[name]}</dd>", top), name


def test_grading_again_keeps_tasks_whose_texts_are_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        Record(task=task, id="p", gold="5", text=text, outcome=Outcome.CORRECT)
        for task, text in (("gpqa", None), ("jsonl", "\\boxed{5}"))
    ]
    keep(tmp_path, records)
    html_report.write(by_task(read_records(tmp_path)), tmp_path, "both")
    before = json.loads((tmp_path / "report.json").read_text())
    assert main(["grade", str(tmp_path)]) == 0
    after = json.loads((tmp_path / "report.json").read_text())
    assert [one["name"] for one in after["reports"]] == [one["name"] for one in before["reports"]]
    assert after["mean_accuracy"] == before["mean_accuracy"] == 1.0


def test_every_key_of_a_configs_evaluation_arrives() -> None:
    """A key that is new to the config needs a place among the options."""
    evaluation = EvaluationConfig(task="gsm8k", split="test", path="data", count=7)
    assert Questions.of(evaluation) == Questions(("gsm8k",), "test", Path("data"), 7)
    assert set(EvaluationConfig.model_fields) == {"task", "split", "path", "revision", "count"}


@pytest.mark.parametrize(
    ("answering", "message"),
    [
        (Answering(router="nver"), "--router"),
        (Answering(memory="much"), "--memory"),
        (Answering(temperature=-1.0), "temperature=-1.0"),
        (Answering(top_p=0.0), "top_p=0.0"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(answering: Answering, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationRequest(answering=answering).check()
