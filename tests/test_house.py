"""Nothing rots: the files around the code agree with the code."""

import re
import runpy
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import tyler


@pytest.fixture(scope="session")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def requirements(project: dict[str, Any]) -> list[Requirement]:
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in [*project["dependencies"], *extras]]


def test_every_pinned_package_takes_the_oldest_python(root: Path, project: dict[str, Any]) -> None:
    """One that asked for 3.11.5 kept `make test` from Debian's Python, which is 3.11.2."""
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    pinned = re.findall(r"^([\w.-]+)==", (root / "constraints.txt").read_text(), re.MULTILINE)
    found = {}
    for name in pinned:
        try:
            found[name] = metadata(name).get("Requires-Python", "")  # the backport raises KeyError for none
        except PackageNotFoundError:  # of an extra that is not installed
            continue
    assert len(found) > 50
    assert not {name: asked for name, asked in found.items() if oldest not in SpecifierSet(asked)}


@pytest.mark.parametrize("page", ["commands", "settings", "api", "metrics", "cases"])
def test_a_reference_page_can_be_written(page: str, root: Path) -> None:
    """The scripts refuse a key without a meaning and an exported name without a place."""
    assert runpy.run_path(str(root / "scripts" / "reference" / f"{page}.py"))["page"]().startswith("# ")


def test_constraints_pin_every_dependency_inside_its_range(root: Path, project: dict[str, Any]) -> None:
    files = ("constraints-vllm.txt", "constraints.txt")  # vLLM's environment has pins of its own
    texts = [line for name in files for line in (root / name).read_text().splitlines()]
    lines = [line for line in texts if not line.startswith("#")]
    pins = {canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in lines)}
    for requirement in requirements(project):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
    assert not [pin for pin in pins.values() if "+" in pin], "local versions exist on one machine only"


def test_the_version_is_the_same_everywhere(root: Path, project: dict[str, Any]) -> None:
    assert tyler.__version__ == project["version"]
    assert f"## [{tyler.__version__}]" in (root / "CHANGELOG.md").read_text()
    assert f"\nversion: {tyler.__version__}\n" in (root / "CITATION.cff").read_text()


def test_the_configs_at_the_root_are_those_in_the_package(root: Path) -> None:
    assert (root / "configs").resolve() == (root / "src" / "tyler" / "configs").resolve()


def test_make_help_names_every_target(root: Path) -> None:
    text = (root / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert targets is not None
    helped = re.findall(r'@echo "make ([\w-]+)', text)
    assert set(helped) == set(targets[1].split()) - {"help", "lint", "clean"}


def test_the_installed_torch_is_one_the_project_allows(project: dict[str, Any]) -> None:
    (torch,) = [requirement for requirement in requirements(project) if requirement.name == "torch"]
    assert torch.specifier.contains(version("torch"), prereleases=True)


def test_no_pattern_has_a_possessive_or_atomic_group(root: Path) -> None:
    """Early releases of Python 3.11 read them wrongly, and they are what Debian 12 has."""
    group = re.compile(r"\)[*+?]\+|\)\{[0-9,]+\}\+|\(\?>")
    found = [path for path in (root / "src").rglob("*.py") if group.search(path.read_text())]
    assert found == []


# ------------------------------------------------------------------------------------------------- the lint of words


@pytest.fixture(scope="module")
def lint(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "scripts" / "plain_words.py"))


@pytest.mark.parametrize(
    "text, phrase",
    [
        ("Whoever waits takes a step.", "Whoever"),
        ("Leave it away.\nTo be quick, leave --router and --budget away.", "leave --router and --budget away"),
        ("# a path that\n    # is none of ours", "is none"),
        ("the value is no\nnumber", "is no number"),
        ("an id that is no token", "is no token"),
        ("a step is whole or is not there", "is whole or is not there"),
    ],
)
def test_a_phrase_is_found_also_over_two_lines(lint: dict[str, Any], text: str, phrase: str) -> None:
    (fault,) = lint["phrases"]("a page", text)
    assert fault.text == phrase and fault.instead


@pytest.mark.parametrize(
    "text",
    ["There is no folder.", "where there\nare no tokens", "It is no longer read.", "is no faster than", "None is None"],
)
def test_plain_english_is_left_in_peace(lint: dict[str, Any], text: str) -> None:
    assert not list(lint["phrases"]("a page", text))


def test_a_fault_names_its_line(lint: dict[str, Any]) -> None:
    (fault,) = lint["phrases"]("page.md", "first\n\nthird has\nnobody\n")
    assert str(fault).startswith("page.md:4: 'nobody': ")


def test_names_that_say_nothing_are_found_where_they_are_defined(lint: dict[str, Any]) -> None:
    code = "def found(told):\n    for one in told:\n        total = one\n    return [x for place in total]\n"
    faults = list(lint["names"]("a.py", code))
    assert sorted((fault.line, fault.text) for fault in faults) == [(1, "found"), (1, "told"), (2, "one"), (4, "place")]
    assert not list(lint["names"]("a.py", "x = found.one\nprint(told)\n")), "a use is its definition's fault"
