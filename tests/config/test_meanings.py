"""A config printed for people is itself a config."""

import subprocess
import sys
from pathlib import Path

import pytest

from tyler.cli import main
from tyler.config.files import differences, dump, load_config, parse_config, presets
from tyler.config.meanings import annotated


@pytest.mark.parametrize("name", presets())
def test_an_annotated_config_loads_as_the_same(name: str) -> None:
    config = load_config(name)
    assert parse_config(annotated(config)) == config


def test_every_key_stands_below_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["config", "mini", "--stage1.learning_rate", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("  learning_rate: 0.5")
    assert lines[place - 1] == "  # The highest learning rate of the schedule. Default: 1e-05"
    keys = [place for place, line in enumerate(lines) if line.strip() and not line.lstrip().startswith(("#", "-"))]
    assert len(keys) > 100 and all(lines[place - 1].lstrip().startswith("#") for place in keys)


def test_a_runs_folder_is_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("mini", ["stage1.steps=7"])
    older = dump(config).replace("stage1:\n", "stage1:\n  centring: {num_traces: 64, learning_rate: 0.1}\n")
    (tmp_path / "config.yaml").write_text(older)
    assert not differences(older, dump(config), dump(config))
    assert main.main(["config", str(tmp_path)]) == 0
    assert parse_config(capsys.readouterr().out) == config
    assert main.main(["config", "minni"]) == 2
    assert "did you mean 'mini'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["config", "--help"], ["runs", "--help"], ["config", "mini"]])
def test_they_start_without_torch(command: list[str]) -> None:
    code = f"""import sys
from tyler.cli.main import main
try:
    main({command!r})
except SystemExit:
    pass
assert "torch" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
