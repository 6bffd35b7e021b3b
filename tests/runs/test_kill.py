"""Real processes: both stages killed and resumed, and stopped by the signals that ask politely."""

import json
import os
import random
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import tiny
from damage import change, nudge
from processes import Started
from tyler.cli import main
from tyler.config.files import dump
from tyler.config.loops import CalibrationConfig, GrpoConfig, RewardConfig, Stage1Config, Stage2Config
from tyler.config.schema import Config
from tyler.config.sections import DataConfig, DecodingConfig, DevelopmentConfig
from tyler.runs.checkpoints import best_checkpoint, latest_checkpoint
from tyler.runs.json_lines import read_jsonl
from tyler.runs.run import Run

KILLS = int(os.environ.get("TYLER_KILLS", "2"))
"""Of each stage."""
SOLUTION = "Step 2: so $x$ is 12.\n\nThe total is $\\boxed{5}$."


def write_problems(path: Path, name: str, count: int) -> str:
    rows = [{"problem": f"{name} {i} x?", "solution": SOLUTION, "answer": "5"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config of a tiny model that is trained in a second or two."""
    folder = tmp_path_factory.mktemp("config")
    tiny.save(tiny.tyler("qwen3").backbone, folder / "backbone")
    training = write_problems(folder / "training.jsonl", "How many", 6)
    development = DevelopmentConfig(path=write_problems(folder / "development.jsonl", "What is", 2), count=None)
    (folder / "mine.py").write_text("def short(completions):\n    return [-len(one) for one in completions]\n")
    common = {"steps": 6, "batch_size": 2, "learning_rate": 0.01, "checkpoint_every": 2, "eval_every": 3}
    settings = Config(
        operators=tiny.OPERATORS,
        data=DataConfig(task="jsonl", path=training, development=development, held_out=()),
        stage1=Stage1Config(**common),
        stage2=Stage2Config(**common, max_new_tokens=12, calibration=CalibrationConfig(num_problems=2, steps=10)),
        grpo=GrpoConfig(group_size=2),
        rewards=(RewardConfig(name="verifier"), RewardConfig(path=f"{folder / 'mine.py'}:short", weight=0.1)),
        decoding=DecodingConfig(slots=4),
    )
    backbone = settings.backbone.model_copy(update={"id": str(folder / "backbone"), "instruction": ""})
    (folder / "tiny.yaml").write_text(dump(settings.model_copy(update={"backbone": backbone})))
    return folder / "tiny.yaml"


def test_killed_stages_end_in_the_weights_of_untouched_ones(config: Path, tmp_path: Path) -> None:
    """Stage 2 with a reward of one's own, in a file."""
    draw = random.Random(0)
    for command in (["stage1", str(config)], ["stage2", str(config), "--start", str(tmp_path / "stage1-whole")]):
        whole = tmp_path / f"{command[0]}-whole"
        seconds, kills, runs = undisturbed(command, whole), 0, 0
        while kills < KILLS:
            run, runs = tmp_path / f"{command[0]}-{runs}", runs + 1
            while killed(command, run, moment(run, seconds, draw) if kills < KILLS else lambda: False):
                kills += 1
            assert fingerprint(run) == fingerprint(whole)


def undisturbed(command: list[str], run: Path) -> float:
    """The seconds of a run from its opening to its end."""
    looked = list[float]()
    assert not killed(command, run, lambda: looked.append(time.monotonic()))
    return time.monotonic() - looked[0]


def killed(command: list[str], run: Path, reached: Callable[[], object]) -> bool:
    """Let a run begin or go on, and kill it once it is opened and the moment is reached; False where it ends before."""
    opened = starts(run)
    resume = ["--resume"] if (run / "config.yaml").exists() else []
    process = Started([*command, "--output", str(run), *resume], run.with_suffix(".txt"))
    while process.running and not (starts(run) > opened and reached()):
        time.sleep(0.002)  # a checkpoint takes longer to be written
    if not process.running:
        assert process.wait() == 0, process.output
        return False
    process.kill()
    return True


def moment(run: Path, seconds: float, draw: random.Random) -> Callable[[], bool]:
    """When to kill: some time after this is first asked or, one time in four, inside one of the next checkpoints."""
    in_checkpoint, delay, number = draw.random() < 0.25, draw.uniform(0, seconds), draw.randint(1, 3)
    seen, asked = set[str](), list[float]()

    def reached() -> bool:
        asked.append(time.monotonic())
        halves = (run / "checkpoints").glob(".step-*")
        seen.update(path.name for path in halves if not path.name.endswith(".removed"))
        return len(seen) >= number if in_checkpoint else asked[-1] - asked[0] >= delay

    return reached


def starts(run: Path) -> int:
    """How often the run was opened."""
    path = run / "environment.json"
    return len(json.loads(path.read_text())) if path.exists() else 0


def fingerprint(run: Path) -> dict[str, str]:
    """What has to come out the same: weights, states, the choice of the best, metrics but for times, trajectories."""
    last, best = latest_checkpoint(run), best_checkpoint(run)
    hashes = {"last": last.name if last else "", "best": best.name if best else ""}
    for folder in filter(None, (last, best)):
        for path in sorted(folder.rglob("*")):
            if path.suffix == ".safetensors" or path.name in ("state.json", "best.json"):
                hashes[f"{folder.name}/{path.relative_to(folder)}"] = sha256(path.read_bytes()).hexdigest()
    metrics = [{key: line[key] for key in line if "second" not in key} for line in read_jsonl(run / "metrics.jsonl")]
    trail = run / "trajectories.jsonl.gz"
    trajectories = sha256(trail.read_bytes()).hexdigest() if trail.exists() else ""  # Stage 1 writes none
    return hashes | {"metrics": json.dumps(metrics), "trajectories": trajectories}


def test_kills_change_nothing_of_a_run_whose_learning_rate_was_changed(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, log = tmp_path / "start", Run.log
    assert main.main(["stage1", str(config), "--output", str(start), "--stage1.steps", "1"]) == 0

    def go_on(name: str, rate: str, stop: int) -> Path:
        """Train, or go on, until `stop`, at which a kill takes what came after the newest checkpoint."""

        def cut(run: Run, step: int, metrics: dict[str, Any]) -> None:
            log(run, step, metrics)
            if step == stop:
                raise KeyboardInterrupt

        monkeypatch.setattr(Run, "log", cut)
        run = tmp_path / name
        resume = ["--resume"] if run.exists() else []
        command = ["stage2", str(config), "--start", str(start), "--stage2.learning_rate", rate, *resume]
        assert main.main([*command, "--output", str(run)]) == (130 if stop <= 6 else 0)
        return run

    unchanged = go_on("unchanged", "0.01", 9)
    for name in ("whole", "killed"):
        go_on(name, "0.01", 3)
    go_on("killed", "0.05", 5)
    whole, killed = go_on("whole", "0.05", 9), go_on("killed", "0.05", 9)
    assert fingerprint(whole) == fingerprint(killed)
    assert fingerprint(whole)["metrics"] != fingerprint(unchanged)["metrics"]
    starts = json.loads((killed / "environment.json").read_text())
    assert [one.get("changes") for one in starts] == [None, {"stage2.learning_rate": [0.01, 0.05]}, {}]


def interrupt(command: list[str], run: Path, signum: signal.Signals) -> tuple[int | None, str]:
    """Send a signal once the first step is logged; returns the exit status and what was said."""
    metrics = run / "metrics.jsonl"
    process = Started(command, run.with_suffix(".txt"))
    process.until(lambda: metrics.exists() and any(line["step"] for line in read_jsonl(metrics)))
    process.send(signum)
    return process.wait(), process.output


@pytest.mark.parametrize(
    ("stage", "signum", "status"), [("stage1", signal.SIGINT, 130), ("stage2", signal.SIGTERM, 143)]
)
def test_a_signal_saves_the_step_and_names_the_command_that_goes_on(
    stage: str, signum: signal.Signals, status: int, config: Path, tmp_path: Path
) -> None:
    start = []
    if stage == "stage2":
        assert main.main(["stage1", str(config), "--output", str(tmp_path / "start"), "--stage1.steps", "1"]) == 0
        start = ["--start", str(tmp_path / "start")]
    run = tmp_path / "run"
    command = ["train", stage, str(config), *start, "--output", str(run), f"--{stage}.steps", "5000"]
    found, said = interrupt(command, run, signum)
    assert found == status, said
    newest = latest_checkpoint(run)
    assert newest is not None
    steps = int(newest.name.removeprefix("step-"))
    assert f"stopped after step {steps} of 5000; resume with --resume --output {run}" in said
    assert read_jsonl(run / "metrics.jsonl")[-1]["step"] == steps
    named = said.splitlines()[-1].removeprefix("the command is: ")
    assert shlex.split(named) == ["tyler", *command, "--resume"]


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that is refused."""
    capsys.readouterr()
    assert main.main(arguments) == main.USAGE_ERROR
    return capsys.readouterr().err


def test_a_run_does_not_go_on_with_other_problems_or_from_another_model(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = write_problems(tmp_path / "training.jsonl", "How many", 6)
    common = [str(config), "--data.path", problems, "--stage1.steps", "1", "--stage2.steps", "1"]
    first, second = ["stage1", *common, "--output", str(tmp_path / "a")], ["stage2", *common, "--output"]
    assert main.main(first) == main.main([*first[:-1], str(tmp_path / "b")]) == 0
    second += [str(tmp_path / "c"), "--start"]
    assert main.main([*second, str(tmp_path / "a")]) == main.main([*second, str(tmp_path / "a"), "--resume"]) == 0
    (tmp_path / "b").rename(tmp_path / "same")
    assert main.main([*second, str(tmp_path / "same"), "--resume"]) == 0, "not where a model is, but what it is"
    assert main.main([*first[:-1], str(tmp_path / "other"), "--stage1.seed", "7"]) == 0
    told = refusal([*second, str(tmp_path / "other"), "--resume"], capsys)
    assert "c cannot resume: the weights it starts from changed since it was started" in told
    write_problems(tmp_path / "training.jsonl", "How few", 6)
    assert "a cannot resume: the training examples changed" in refusal([*first, "--resume"], capsys)
    assert "the training examples changed" in refusal([*second, str(tmp_path / "a"), "--resume"], capsys)


def test_a_run_does_not_go_on_with_a_backbone_that_differs_in_a_matrix(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone = shutil.copytree(config.parent / "backbone", tmp_path / "backbone")
    command = ["stage1", str(config), "--backbone.id", str(backbone), "--output", str(tmp_path / "run")]
    assert main.main([*command, "--stage1.steps", "1"]) == 0
    change(backbone / "model.safetensors", lambda tensors: nudge(tensors["model.layers.0.mlp.up_proj.weight"]))
    told = refusal([*command, "--stage1.steps", "1", "--resume"], capsys)
    assert "run cannot resume: the weights it starts from changed since it was started" in told
