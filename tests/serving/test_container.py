"""The Dockerfile names what exists, and what it starts works; no Docker is needed to know that."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from tests.serving.served import Served

from tyler.cli.main import main


@pytest.fixture(scope="module")
def instructions(root: Path) -> list[tuple[str, str]]:
    """Each instruction and its argument, continued lines joined."""
    text = re.sub(r"\\\n", " ", (root / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def arguments(instructions: list[tuple[str, str]], word: str) -> list[str]:
    return [rest for found, rest in instructions if found == word]


def test_what_is_copied_is_there_and_is_not_ignored(root: Path, instructions: list[tuple[str, str]]) -> None:
    let_in = [line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for copied in arguments(instructions, "COPY"):
        *sources, _ = copied.split()
        for source in sources:
            assert (root / source).exists() and source in let_in, source
    built = tomllib.loads((root / "pyproject.toml").read_text())
    readme = built["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["fragments"][0]["path"]
    needed = {readme, *built["project"]["license-files"], "pyproject.toml", "constraints.txt", "src"}
    assert needed <= set(let_in), "a wheel cannot be built without them"


def test_what_is_installed_exists(root: Path, instructions: list[tuple[str, str]]) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    first, install = [run for run in arguments(instructions, "RUN") if "pip install" in run]
    assert "torch" in first and "-c constraints.txt" in first, "what is large is a layer before the source"
    before = [rest for _, rest in instructions[: instructions.index(("RUN", first))]]
    assert not any("src" in rest.split() for rest in before)
    extras = re.search(r"\.\[([\w,-]+)\]", install)
    assert extras and "serve" in extras[1] and set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert "-c constraints.txt" in install
    (base,) = arguments(instructions, "FROM")
    version = re.search(r"python:([\d.]+)", base)
    assert version and SpecifierSet(project["requires-python"]).contains(version[1])


def test_the_server_runs_as_a_user_and_its_command_is_one(
    instructions: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word, _ in instructions]
    (user,) = arguments(instructions, "USER")
    assert user not in ("root", "0") and words.index("USER") < words.index("ENTRYPOINT")
    assert any(f"useradd --create-home --uid 1000 {user}" in run for run in arguments(instructions, "RUN"))
    program, *rest = json.loads(arguments(instructions, "ENTRYPOINT")[0])
    (model,) = json.loads(arguments(instructions, "CMD")[0])
    assert program == "tyler" and model == "mini-tyler"
    with pytest.raises(SystemExit) as ended:
        main([*rest, model, "--help"])
    assert ended.value.code == 0 and "--api-key-file" in capsys.readouterr().out
    assert rest[rest.index("--port") + 1] == arguments(instructions, "EXPOSE")[0]


def test_the_health_check_tells_a_server_that_is_ready(served: Served, instructions: list[tuple[str, str]]) -> None:
    (check,) = arguments(instructions, "HEALTHCHECK")
    _, script, code = json.loads(check[check.index("[") :])
    assert script == "-c" and "http://127.0.0.1:8000" in code
    for url, status in ((served.url, 0), ("http://127.0.0.1:9", 1)):
        command = [sys.executable, "-c", code.replace("http://127.0.0.1:8000", url)]
        assert subprocess.run(command, capture_output=True, timeout=30).returncode == status
