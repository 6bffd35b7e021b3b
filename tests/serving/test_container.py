"""The Dockerfile and the units of systemd and Kubernetes name what exists; no Docker is needed to know that."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from tests.serving.served import Served

from tyler.cli.main import main
from tyler.serving.settings import KEY_VARIABLE, ServerSettings


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
        assert subprocess.run(command, capture_output=True, timeout=300).returncode == status


# ------------------------------------------------------------------------------------------------------- supervisors


def are_flags(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether `tyler serve` takes them."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments, "--help"])
    shown = capsys.readouterr().out
    return ended.value.code == 0 and all(
        one in shown for one in arguments if one.startswith("--") and one != "--config"
    )


@pytest.fixture(scope="module")
def unit(root: Path) -> str:
    return (root / "docs" / "recipes" / "tyler.service").read_text()


def test_the_unit_of_systemd_starts_the_server_again_and_lets_it_drain(
    unit: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fields = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    _, command, *arguments = shlex.split(fields["ExecStart"])
    settings = tmp_path / "serve.yaml"
    settings.write_text("port: 8000\n")
    at = arguments.index("--config") + 1
    assert command == "serve" and are_flags([*arguments[:at], str(settings), *arguments[at + 1 :]], capsys)
    assert fields["Restart"] == "on-failure", "status 1 is a lost engine, 0 an end that was asked for"
    assert int(fields["TimeoutStopSec"]) > ServerSettings().drain_seconds


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(unit: str, tmp_path: Path) -> None:
    path = tmp_path / "tyler.service"
    path.write_text(unit.replace("/opt/tyler/bin/tyler", sys.executable))
    found = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_kubernetes_takes_the_deployment_and_the_service(root: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="extra clients")
    for resource in yaml.safe_load_all((root / "docs" / "recipes" / "kubernetes.yaml").read_text()):
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_the_deployment_of_kubernetes_asks_what_the_server_answers(
    root: Path, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment, service = yaml.safe_load_all((root / "docs" / "recipes" / "kubernetes.yaml").read_text())
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    pod = deployment["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    (container,) = pod["spec"]["containers"]
    ports = [one["containerPort"] for one in container["ports"]]
    assert [one["port"] for one in service["spec"]["ports"]] == ports
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[name]["httpGet"]
        assert asked["port"] in ports and served.get(asked["path"]).status_code == 200
    assert are_flags(container["args"], capsys)
    drain = float(container["args"][container["args"].index("--drain-seconds") + 1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > drain
    (key,) = container["env"]
    assert key["name"] == KEY_VARIABLE and key["valueFrom"]["secretKeyRef"].keys() == {"name", "key"}
