"""README.md does what it says: its commands and its Python run as printed, in order, in one folder."""

import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest

from documents import commands, follow, parse, steps
from tyler import Tyler
from tyler.cli.main import main
from tyler.config.files import presets

SHORT = {
    "train stage1 mini": "--data.count 64 --stage1.steps 2 --stage1.batch_size 4 --stage1.eval_every null",
    "train stage2 mini": "--data.count 64 --stage2.steps 1 --stage2.batch_size 2 --stage2.max_new_tokens 48 "
    "--stage2.eval_every null --stage2.calibration.num_problems 8 --grpo.group_size 2",
    "train sft mini": "--data.count 64 --sft.steps 2 --sft.batch_size 4 --sft.eval_every null",
    "solve": "--max-new-tokens 48",
    "eval": "--count 4 --max-new-tokens 48",
}
"""Options that make README's longest lines short, as a reader could type them; `--slow` runs the lines alone."""

MOST_LINES = 110


@pytest.fixture
def readme(root: Path) -> str:
    return (root / "README.md").read_text()


@pytest.mark.parametrize(
    "more", [pytest.param(SHORT, id="short"), pytest.param({}, id="whole", marks=pytest.mark.slow)]
)
def test_readme_runs_as_printed(
    more: dict[str, str], readme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    follow(readme, "README.md", more)
    assert {"mini-stage1", "mini-stage2", "mini-sft"} <= {path.name for path in (tmp_path / "runs").iterdir()}


def test_the_first_answer_is_the_one_that_readme_shows(readme: str, capsys: pytest.CaptureFixture[str]) -> None:
    block, shown = re.search(
        r"^```bash\n(tyler solve .*?)^```\n\n```text\n(.*?)^```", readme, re.MULTILINE | re.DOTALL
    ).groups()
    (arguments,) = commands(block)
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.out + printed.err == shown


def test_the_picture_is_of_that_answer_and_made_by_its_command(root: Path, readme: str) -> None:
    script = runpy.run_path(str(root / "scripts" / "answer_svg.py"))
    assert f'"{script["QUESTION"]}"' in readme
    events = Tyler.from_pretrained(script["MODEL"]).stream(script["QUESTION"], max_new_tokens=160)
    picture = (root / "docs" / "figures" / "answer.svg").read_text()
    assert script["svg"](script["QUESTION"], events) == picture
    assert len(picture) < 30_000 and "](docs/figures/answer.svg)" in readme


def test_what_readme_does_not_run_has_a_reason_and_is_parsed(readme: str) -> None:
    left_out = [step for step in steps(readme, "README.md") if step.reason]
    assert left_out and all(re.search(r"network|GPU", step.reason or "") for step in left_out)
    assert all(step.language == "bash" for step in left_out), "python runs on mini"


def test_the_installation_is_what_the_makefile_does(root: Path, readme: str) -> None:
    (block,) = [step.text for step in steps(readme, "README.md") if "git clone" in step.text]
    for target in re.findall(r"^make (\w+)", block, re.MULTILINE):
        subprocess.run(["make", "-n", target], cwd=root, check=True, capture_output=True)
    assert re.search(r"^VENV \?= \.venv$", (root / "Makefile").read_text(), re.MULTILINE)
    assert ".venv/bin/activate" in block and ".venv/bin/tyler" in block


def test_readme_is_short(readme: str) -> None:
    assert len(readme.splitlines()) <= MOST_LINES


def test_a_command_that_fails_or_does_not_parse_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "from pathlib import Path\nx = Path('a.yaml').read_text()\n"
    follow(
        f'```yaml title="a.yaml"\nextends: mini\n```\n```python\n{text}```\n```python no-run\nfail()\n```\n', "a page"
    )
    with pytest.raises(AssertionError, match="a page, line 2: tyler nonsense"):
        follow("text\n```bash\ntyler nonsense\n```\n", "a page")
    with pytest.raises(AssertionError, match=r"stage1\.stepz"):
        follow(
            "<!-- not run: needs a GPU -->\n```bash\ntorchrun -m tyler stage1 mini --stage1.stepz 2\n```\n", "a page"
        )
    with pytest.raises(subprocess.CalledProcessError):
        commands("tylr solve mini x")
    parse(["stage1", presets()[0], "--stage1.steps", "2"])


def test_bash_reads_a_line_as_it_does_for_a_reader() -> None:
    assert commands('tyler solve m "Find \\$x\\$" \\\n  --seed 1  # why') == [["solve", "m", "Find $x$", "--seed", "1"]]


def test_on_pypi_every_link_of_readme_is_absolute_and_leads_to_a_file(root: Path, readme: str) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())
    source = project["project"]["urls"]["Source"]
    for change in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        readme = re.sub(change["pattern"], change["replacement"], readme)
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len(links) > 20
    raw = source.replace("github.com", "raw.githubusercontent.com") + "/main/"
    for link in links:
        assert link.startswith("https://"), link
        if link.startswith(source) or link.startswith(raw):
            path = link.removeprefix(raw).removeprefix(f"{source}/blob/main/").partition("#")[0]
            assert (root / path).exists(), link
