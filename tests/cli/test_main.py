import importlib
import io
import json
import re
import signal
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants

import tyler
from tyler.cli import doctor, main
from tyler.cli.options import PRESETS
from tyler.cli.train import METHOD
from tyler.config.files import presets
from tyler.engine.routing import AtBoundaries, Learned, Never
from tyler.evaluation.options import Answering, Matching, Questions, last_part
from tyler.model import Tyler
from tyler.reasoners.table import TRAININGS
from tyler.runs.signals import Interrupted
from tyler.tasks.problem import GradeOptions

HEAVY = ("torch", "transformers", "peft", "numpy", "pydantic", "fastapi", "httpx2", "matplotlib")
LOADING = ("solve mini-tyler 2+2?", "chat mini-tyler", "lens mini-tyler", "serve mini-tyler", "doctor mini-tyler")
LIGHT_COMMAND_LINES = (["--help"], ["stage1", "--help"], ["--version"], ["stag1"], ["solve"], ["eval", "--tsak", "x"])


class Calls(ModuleType):
    """Stands in for a module; keeps the last call of its `run`."""

    def run(self, *arguments: Any, **settings: Any) -> None:
        self.arguments, self.settings = arguments, settings


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch):
    def called(name: str) -> Calls:
        """Let `tyler.PACKAGE.MODULE` be a stand-in."""
        calls = Calls(f"tyler.{name}")
        package, _, module = name.partition(".")
        monkeypatch.setitem(sys.modules, f"tyler.{name}", calls)
        monkeypatch.setattr(importlib.import_module(f"tyler.{package}"), module, calls, raising=False)
        return calls

    return called


@pytest.mark.parametrize("arguments", LIGHT_COMMAND_LINES, ids=" ".join)
def test_help_version_and_usage_errors_import_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from tyler.cli.main import main
try:
    main({arguments!r})
except SystemExit:
    pass
print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    assert "heavy: []" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout


def test_the_help_has_every_command_once_in_its_group_with_its_first_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main([]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^([a-z ]+):$", shown, re.MULTILINE) == list(main.GROUPS)
    assert re.findall(r"^  (\w+)  ", shown, re.MULTILINE) == list(main.COMMANDS)
    assert "  runs        List the training runs and evaluations below a folder" in shown
    assert max(map(len, shown.splitlines())) <= main.HELP_WIDTH


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_the_packages(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([flag]) == 0
    assert capsys.readouterr().out == f"tyler {tyler.__version__}\n"


REFUSED = {
    "stag1 mini": "there is no command 'stag1'; did you mean 'stage1'? commands: quickstart, fetch",
    "slove mini": "there is no command 'slove'; did you mean 'solve'?",
    "--hlep": "there is no command '--hlep'; commands: quickstart",
    "train mini": "there is no method 'mini'; methods: stage1, stage2, sft",
    "train stage3 mini": "there is no method 'stage3'; did you mean 'stage2'?",
    "train grpo mini --start a": "tyler train grpo starts from the backbone",
    "stage1 mini --tokenizer t": "belong to --dry-run",
    "stage1 mini --grpo.kl_wieght 0.1": "did you mean 'kl_weight'?",
    "stage1 mini --grpo.kl_weight --resume": "--grpo.kl_weight needs a value",
    "stage1 mini --grpo.kl_weight": "--grpo.kl_weight needs a value",
    "eval --compare a": "--compare needs two or more evaluations, got only a",
    "eval --task gsm8k": "needs a MODEL (a folder or a Hub id), --endpoint",
    **{f"eval model --router {text}": f"--router {text!r}" for text in ("sometimes", "boundaries:1.5", "never:0.5")},
    **{f"{words} --device banana": "device 'banana' is not known" for words in LOADING},
    "solve mini x --router boundaries": "mini is a plain backbone, without trained operators",
    "chat mini --router boundaries": "mini is a plain backbone, without trained operators",
    "lens mini x": "mini has no trained operators; give a model of Stage 1 or 2, or mini-tyler",
    "solve mini caf\udce9": "at character 3, which is not a character: its text was not UTF-8",
    "solve mini --input no.jsonl --answers a": "tyler: no.jsonl: No such file or directory",
    "report {run} --page /proc/a.html": "tyler: /proc/a.html: No such file or directory",
}
"""By the command line: what the one line of its refusal says."""


@pytest.mark.parametrize("line", REFUSED)
def test_a_users_error_is_one_line_that_says_what_to_do(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("extends: mini\n")
    (tmp_path / "metrics.jsonl").write_text("")
    assert main.main([str(tmp_path) if word == "{run}" else word for word in line.split()]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert REFUSED[line] in shown[-1] and "Traceback" not in shown[0]


def test_the_completion_of_bash_offers_commands_and_their_flags(tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    with script.open("w") as file:
        subprocess.run([sys.executable, "-m", "tyler", "completion", "bash"], stdout=file, check=True)
    for words, expected in (("tyler be", "bench"), ("tyler bench --slo", "--slots")):
        typed = words.split()
        ask = f"source {script}; COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _tyro_tyler; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True)
        assert done.stdout.split() == [expected], done.stderr


def test_an_unknown_flag_is_answered_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(["stage1", "mini", "--resum"])
    assert stop.value.code == 2
    assert "--resume" in capsys.readouterr().err


def test_stage1_loads_the_config_with_overrides_and_makes_one_call(called) -> None:
    stage1 = called("training.stage1")
    arguments = ["stage1", "mini", "--stage1.learning_rate", "1e-4", "--grpo.kl-weight=0.5", "--set", "lora.rank=2"]
    assert main.main(arguments) == 0
    (config,) = stage1.arguments
    assert (config.stage1.learning_rate, config.grpo.kl_weight, config.lora.rank) == (1e-4, 0.5, 2)
    assert stage1.settings == {"output": Path("runs/mini-stage1"), "resume": False}


def test_the_help_of_training_names_every_preset_and_method() -> None:
    assert set(PRESETS.split(", ")) == set(presets())
    assert [name for name in TRAININGS if f"{name} (" not in METHOD] == []


def test_a_stage_is_trained_by_train_and_by_its_own_name(called) -> None:
    for stage in ("stage1", "stage2"):
        training = called(f"training.{stage}")
        assert main.main(["train", stage, "mini", "--output", "a"]) == 0
        kept = training.arguments, training.settings
        assert main.main([stage, "mini", "--output", "a"]) == 0
        assert (training.arguments, training.settings) == kept


def test_stage2_starts_from_where_stage1_wrote_unless_told_otherwise(called) -> None:
    stage2 = called("training.stage2")
    main.main(["stage2", "mini"])
    assert stage2.settings == {"start": Path("runs/mini-stage1"), "output": Path("runs/mini-stage2"), "resume": False}
    main.main(["stage2", "mini", "--start", "a", "--output", "b", "--resume"])
    assert stage2.settings == {"start": Path("a"), "output": Path("b"), "resume": True}


@pytest.mark.parametrize("stage", ["stage1", "stage2"])
def test_both_stages_have_the_dry_run_and_then_train_nothing(called, stage: str) -> None:
    training, dry_run = called(f"training.{stage}"), called("planning.dry_run")
    main.main([stage, "mini", "--dry-run", "--tokenizer", "t", "--length", "64", "--lora.rank", "2"])
    assert dry_run.arguments[0].lora.rank == 2
    assert dry_run.arguments[1:] == (Path("t"), 64, "stage1")
    assert not hasattr(training, "settings")


@pytest.mark.parametrize(
    ("options", "part", "value"),
    [
        ("", "answering.routed", None),
        ("--router learned", "answering.routed", Learned()),
        ("--router never", "answering.routed", Never()),
        ("--router boundaries", "answering.routed", AtBoundaries()),
        ("--router boundaries:0.25", "answering.routed", AtBoundaries(rate=0.25)),
        ("--budget 2", "answering", Answering(budget=2)),
        ("--method soft-thinking", "answering.method", "soft-thinking"),
        ("--method-set a=1 --method-set b=2", "answering.method_set", ("a=1", "b=2")),
        ("--task gsm8k MATH-500 --count 7", "questions", Questions(("gsm8k", "MATH-500"), data=Path("d"), count=7)),
        ("--mode strict --allow-code-execution", "grading", GradeOptions("strict", 5.0, allow_code_execution=True)),
        ("--match runs/x", "matching", Matching(Path("runs/x"), "dev", None)),
        ("--match runs/x --match-split train --match-data e", "matching", Matching(Path("runs/x"), "train", Path("e"))),
    ],
)
def test_eval_passes_its_options_on(called, options: str, part: str, value: object) -> None:
    benchmarking = called("evaluation.command")
    assert main.main(["eval", "model", "--data", "d", *options.split()]) == 0
    model, request = benchmarking.arguments
    assert (model, benchmarking.settings) == ("model", {"output": None})
    assert attrgetter(part)(request) == value


def test_the_bound_on_memory_is_passed_on_in_bytes(called, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    benchmarking = called("evaluation.command")
    assert main.main(["eval", "model", "--memory", "4GB"]) == 0
    assert benchmarking.arguments[1].answering.bytes == 4 * 10**9
    request: dict[str, Any] = {}
    answerer = SimpleNamespace(request=lambda *_: None, events=lambda _: iter(()))
    loaded = SimpleNamespace(answerer=lambda stop=(): answerer)
    monkeypatch.setattr("tyler.reasoners.registry.load", lambda *_, **settings: request.update(settings) or loaded)
    assert main.main(["solve", "model", "2+2?", "--memory", "512MiB"]) == 0
    assert request["memory"] == 2**29
    for command in (["eval", "model"], ["solve", "model", "2+2?"], ["lens", "model"], ["chat", "model"]):
        assert main.main([*command, "--memory", "much"]) == 2
        assert "'much'; write it as a number of bytes, such as 4GB or 512MiB" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["solve mini ?", "chat mini", "lens mini", "serve mini", "eval mini", "bench mini"])
def test_every_command_that_loads_a_model_takes_a_dtype(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main([*command.split(), "--dtype", "float8"])
    assert stop.value.code == 2
    assert "float8" in capsys.readouterr().err


@pytest.mark.parametrize("folders", [("a", "b"), ("a", "b", "c")])
def test_eval_compares_two_evaluations_or_more(called, folders: tuple[str, ...]) -> None:
    comparison = called("evaluation.comparison")
    assert main.main(["eval", "--compare", *folders]) == 0
    assert comparison.arguments == tuple(map(Path, folders))


@pytest.mark.parametrize(
    ("option", "words"), [(["--task", "gsm9k"], "unknown task 'gsm9k'"), (["--count", "0"], "--count 0: at least 1")]
)
def test_eval_refuses_a_task_or_a_count_before_anything_is_loaded(option: list[str], words: str) -> None:
    code = (
        "import sys; from tyler.cli.main import main; "
        f"main({['eval', 'mini', *option]!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert words in done.stderr and done.stdout == "False\n"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 640 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_running_out_of_memory_says_which_command_and_what_to_lower(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setitem(main.COMMANDS, "train", fail)
    assert main.main(["train"]) == 2
    error = capsys.readouterr().err
    assert "tyler train ran out of memory" in error and "more" not in error.splitlines()[0]
    for word in ("decoding.slots", "decoding.memory", "micro_batch_size", "micro_batch_tokens", "`tyler plan CONFIG`"):
        assert word in error


def test_running_out_of_memory_while_answering_names_the_flags_to_lower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("tyler.engine.native.engine.Engine._admit", fail)  # in the engine's own thread
    assert main.main(["solve", "mini", "?"]) == 2
    error = capsys.readouterr().err
    assert "tyler solve ran out of memory: CUDA out of memory." in error
    assert "--slots" in error and "--memory" in error and "tyler plan" not in error


def test_another_runtime_error_is_a_bug_and_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setitem(main.COMMANDS, "solve", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        main.main(["solve"])


def test_standard_input_that_is_not_utf8_is_one_line_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8", errors="strict"))
    assert main.main(["solve", "mini", "-"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "standard input is not UTF-8" in error and "iconv -f latin1 -t utf-8" in error


def test_tyler_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TYLER_DEBUG", "1")
    assert main.main(["stage1", "nowhere.yaml"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_negative_numbers_and_empty_values_are_values() -> None:
    assert main.fold_overrides(["--a.b", "-1", "--c.d=", "--e-f.g", "x=y"]) == [
        *("--set", "a.b=-1", "--set", "c.d=", "--e-f.g", "x=y")
    ]


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted("saved step 3", signal.SIGTERM), 143, "saved step 3"),
        (Interrupted("ended by SIGHUP", signal.SIGHUP, resumes=False), 129, "ended by SIGHUP"),
        (FileNotFoundError("no model at 'x'"), 2, "no model at 'x'"),
    ],
)
def test_interruptions_and_errors_have_their_exit_status(
    error: BaseException, status: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(doctor, "run", fail)
    assert main.main(["doctor"]) == status
    assert capsys.readouterr().err == f"tyler: {words}\n"


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_an_interrupted_training_names_the_whole_command_that_goes_on(called, resume: list[str], capsys) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Interrupted("stopped after step 3 of 9", signal.SIGINT)

    called("training.stage1").run = fail
    arguments = ["stage1", "mini", "--output", "my runs/a", *resume, "--lora.rank=2"]
    assert main.main(arguments) == 130
    assert capsys.readouterr().err == (
        "Stage 1 of mini, in my runs/a: loading ...\n"
        "tyler: stopped after step 3 of 9\n"
        "the command is: tyler train stage1 mini --output 'my runs/a' --lora.rank=2 --resume\n"
    )


def test_an_interrupted_quickstart_says_that_it_begins_anew(called, capsys) -> None:
    def fail(**settings: Any) -> None:
        assert settings == {"output": Path("q"), "seed": 42, "scale": 0.1}
        raise Interrupted("stopped after step 3 of 9", signal.SIGINT)

    called("cli.quickstart").run = fail
    assert main.main(["quickstart", "--output", "q", "--scale", "0.1"]) == 130
    assert "tyler quickstart cannot resume; run it again" in capsys.readouterr().err


def test_doctor_names_every_part_of_the_machine_and_respects_offline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert all(
        word in shown for word in ("versions", "device", "dtypes", "cores", "disk", "offline, as HF_HUB_OFFLINE asks")
    )


@pytest.mark.parametrize("endpoint", ["[no url]", "http://127.0.0.1:9"])
def test_doctor_reports_an_unreachable_hub_without_failing(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    assert main.main(["doctor"]) == 0
    assert f"{endpoint} cannot be reached" in capsys.readouterr().out, "what is in brackets is shown"


def test_lens_shows_what_each_replacement_costs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    question = "Tom has 50 cups. Tom sells 24. How many cups are left?"
    assert main.main(["lens", "mini-tyler", question, "--count", "3", "--max-new-tokens", "100", "--json"]) == 0
    (first, *_) = json.loads(capsys.readouterr().out)
    assert first["operator"] == "global" and set(first["effects"]) >= {"zeros", "means", "no block"}
    assert main.main(["lens", "mini-tyler", "--split", "dev", "--count", "4", "--max-new-tokens", "100"]) == 0
    shown = capsys.readouterr().out
    assert "global" in shown and "other problem" in shown


def test_lens_keeps_to_the_bound_on_memory(capsys: pytest.CaptureFixture[str]) -> None:
    for question in ([], ["What is 2 + 3?"]):
        assert main.main(["lens", "mini-tyler", *question, "--count", "3", "--memory", "1"]) == 2
        assert "memory" in capsys.readouterr().err


def test_lens_says_before_it_works_that_a_page_has_no_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tyler, "from_pretrained", None)  # nothing is loaded
    assert main.main(["lens", "mini-tyler", "x", "--page", str(tmp_path / "no" / "x.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_model_in_this_folder_is_called_what_the_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [last_part(model) for model in (".", "./", "mini", "org/model", "runs/mine/")]
    assert names == [tmp_path.name, tmp_path.name, "mini", "model", "mine"]
