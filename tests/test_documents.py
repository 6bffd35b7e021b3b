"""The documents are true: names on their pages exist, blocks run, metrics and settings are the real ones."""

import importlib
import inspect
import re
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import tyler
from documents import follow
from tyler.boundaries import rules
from tyler.config.files import dump, load_config, parse_config, presets
from tyler.config.schema import Config
from tyler.tasks.sandbox.sandbox import probe

EQUATIONS = (
    "next-token-sampling", "ar-update", "latent-update", "lcf-transition", "synth-intermediate", "synth-final",
    "operator-sft", "trajectory-reward", "stage2-objective", "app-operator-sft", "app-trajectory-reward",
    "app-budget-penalty", "app-grpo-advantage", "app-grpo-ratio", "app-grpo-token", "app-grpo-objective",
    "app-operator-mask", "app-operator-anchor-loss", "app-stage2-control-loss",
)  # fmt: skip
"""Every \\label{eq:...} of the paper."""

TABLES = ("implementation-details", "unified-ablation", "efficiency-overhead", "efficiency-budget")
"""The \\label{tab:...} of what the method can be set to."""

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md")
NAME = re.compile(r"`(tyler(?!\.json`)(?:\.\w+)+)`")


def pages(root: Path) -> dict[str, str]:
    paths = [path for pattern in PAGES for path in sorted(root.glob(pattern))]
    return {str(path.relative_to(root)): path.read_text() for path in paths}


def resolve(name: str) -> Any:
    """What a dotted name stands for. Raises AttributeError where it stands for nothing."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            target: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            target = member(target, part)
        return target
    raise AttributeError(f"no module in {name!r}")


def member(owner: Any, name: str) -> Any:
    """An attribute, a field of a dataclass, or a key of a config section (or of a list of them, or null)."""
    for inner in get_args(owner):
        if inner is not NoneType and inner is not Ellipsis:
            return member(inner, name)
    if is_dataclass(owner) and name in {field.name for field in fields(owner)}:
        return name
    if inspect.isclass(owner) and issubclass(owner, BaseModel) and name in owner.model_fields:
        return owner.model_fields[name].annotation
    return getattr(owner, name)


def missing(names: list[str]) -> list[str]:
    lost = []
    for name in dict.fromkeys(names):
        try:
            resolve(name)
        except AttributeError:
            lost.append(name)
    return lost


# ------------------------------------------------------------------------------------------- the paper


def test_every_name_on_every_page_exists(root: Path) -> None:
    lost = {page: names for page, text in pages(root).items() if (names := missing(NAME.findall(text)))}
    assert not lost


def test_a_name_that_does_not_exist_is_found_out() -> None:
    wrong = [
        "tyler.training.objectives.no_such_loss",
        "tyler.no_such_module.x",
        "tyler.engine.trajectory.Trajectory.no_such_field",
    ]
    assert missing([*wrong, "tyler.engine.request.Request.budget", "tyler.tasks.grade"]) == wrong


def prose(text: str) -> list[str]:
    """The lines of a page outside of fences, tables and pictures, whose lines cannot be broken."""
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [line for line in text.splitlines() if not line.lstrip().startswith(("|", "![", "<"))]


def test_prose_fits_a_terminal(root: Path) -> None:
    for page, text in pages(root).items():
        wide = [line for line in prose(text) if len(line) > 130]
        assert not wide, f"{page} has lines of more than 130 characters"


NUMBERS = (
    "backbones", "baselines", "benchmarks", "boundaries", "devices", "engine", "evaluation", "lens", "lessons",
    "memgen", "mini", "performance", "plan", "runs", "sandbox", "results/README",
)  # fmt: skip
"""The pages that hold measurements."""


@pytest.mark.parametrize("name", NUMBERS)
def test_a_page_of_numbers_begins_with_five_lines_that_say_what_to_see(name: str, root: Path) -> None:
    text = (root / "docs" / f"{name}.md").read_text()
    opening = re.search(r"^In brief[^\n]*:\n\n((?:- .*\n(?:  .*\n)*)+)", text, re.MULTILINE)
    assert opening and len(re.findall(r"^- ", opening[1], re.MULTILINE)) == 5
    assert text[: opening.start()].count("\n\n") <= 2, "it stands at the top"


def test_every_import_on_a_page_works(root: Path) -> None:
    """Those of blocks that are only read too."""
    line = re.compile(r"^ *from (tyler[\w.]*) import ([\w, ]+)", re.MULTILINE)
    for page, text in pages(root).items():
        names = [f"{home}.{name.strip()}" for home, listed in line.findall(text) for name in listed.split(",")]
        assert not missing(names), f"{page} imports what does not exist"


def test_the_drawing_of_the_packages_is_in_the_order_of_the_import_contract(root: Path) -> None:
    drawing = re.search(
        r"^```text\n(.*?)^```", (root / "docs" / "architecture.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert drawing
    drawn = [name.removesuffix(".py") for name in re.findall(r"^(\S+)", drawing[1], re.MULTILINE)]
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [set(layer.split(" | ")) for layer in contracts[0]["layers"] if layer != "__main__"]
    for layer in layers:
        assert set(drawn[: len(layer)]) == layer
        drawn = drawn[len(layer) :]
    assert not drawn


def test_every_equation_of_the_paper_has_its_place_in_the_code(root: Path) -> None:
    lines = [line for line in (root / "docs" / "paper.md").read_text().splitlines() if line.startswith("| Eq.")]
    for equation in EQUATIONS:
        rows = [line for line in lines if re.search(rf"[ ,]{equation}[ ,|]", line.split("|")[1] + "|")]
        assert rows, f"docs/paper.md has no line for Eq. {equation}"
        assert any(NAME.search(line) for line in rows), f"the line of Eq. {equation} names no code"


def test_every_table_of_settings_has_its_place_in_the_code(root: Path) -> None:
    text = (root / "docs" / "paper.md").read_text()
    for name in TABLES:
        assert re.search(rf"^\| Table {name}\b", text, re.MULTILINE), f"docs/paper.md has no line for Table {name}"


def test_every_file_that_a_page_names_exists(root: Path) -> None:
    named = re.compile(r"`((?:src|tests|docs|scripts|benchmarks|configs)/[\w./-]+\.\w+)`")
    for page, text in pages(root).items():
        if page == "CHANGELOG.md":
            continue  # it tells of files that are gone
        lost = [path for path in named.findall(text) if not (root / path).exists()]
        assert not lost, f"{page} names files that do not exist"


def test_every_link_between_pages_leads_somewhere(root: Path) -> None:
    written = root / "docs" / "reference"  # by the site's build, which refuses a link that leads nowhere
    link = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
    for page, text in pages(root).items():
        paths = {target: (root / page).parent.joinpath(target).resolve() for target in link.findall(text)}
        lost = [target for target, path in paths.items() if path.parent != written and not path.exists()]
        assert not lost, f"{page} links to what does not exist"


def test_no_page_holds_the_marks_of_a_merge(root: Path) -> None:
    """A formatter may have joined the middle mark with its neighbours, so the outer ones are looked for."""
    mark = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    assert not [page for page, text in pages(root).items() if mark.search(text)]


def test_pages_speak_of_no_ones_machine(root: Path) -> None:
    private = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt|opt)/\S+")
    for page, text in pages(root).items():
        assert not private.findall(text), f"{page} holds an absolute path"


# --------------------------------------------------------------------------------------- the tutorials

PAGES_THAT_RUN = (
    "guides/data", "guides/backbone", "guides/operator",
    "tutorials/traces", "tutorials/operator-and-reward", "tutorials/inside", "tutorials/training",
)  # fmt: skip


@pytest.mark.parametrize("name", PAGES_THAT_RUN)
def test_a_page_runs_as_printed(name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "tutorials/training" and probe():
        pytest.skip(f"it runs code: {probe()}")
    monkeypatch.chdir(tmp_path)
    known = dict(rules.RULES)
    try:
        follow((root / "docs" / f"{name}.md").read_text(), f"docs/{name}.md")
    finally:
        rules.RULES.clear()
        rules.RULES.update(known)


# -------------------------------------------------------------------------------------- configs, names


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_and_survives_writing(name: str) -> None:
    config = load_config(name)
    assert isinstance(config, Config)
    assert parse_config(dump(config)) == config


def test_every_setting_that_a_page_names_exists(root: Path) -> None:
    sections = "|".join(Config.model_fields)
    named = re.compile(rf"`((?:{sections})(?:\.\w+)+)`")
    for page, text in pages(root).items():
        lost = [key for key in named.findall(text) if not key.endswith(".py") and not is_setting(key)]
        assert not lost, f"{page} names settings that do not exist"


def is_setting(key: str) -> bool:
    """Whether a dotted word is a key of the config, or a name of the module that its section is called after."""
    return len(missing([f"tyler.config.schema.Config.{key}", f"tyler.{key}"])) < 2


def test_all_is_complete_and_every_name_in_it_resolves() -> None:
    for name, home in tyler.HOMES.items():
        assert getattr(tyler, name) is getattr(importlib.import_module(f"tyler.{home}"), name)
    source = inspect.getsource(tyler)
    for_types = re.findall(r"^    from tyler\.([\w.]+) import (\w+) as \2$", source, re.MULTILINE)
    listed = {name: module for module, name in for_types}
    assert listed == tyler.HOMES, "what type checkers see is what there is"
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        tyler.Nothing  # noqa: B018
