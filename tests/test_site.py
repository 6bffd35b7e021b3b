"""The docs as a site: every page has its place, no link is dead, and nothing is fetched from anywhere."""

import re
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tyler
from tyler.evaluation import statistics
from tyler.evaluation.statistics import resampled
from tyler.experiments import averages
from tyler.experiments.declared import specialization
from tyler.lens import survey

GENERATED = re.compile(r"^::: (tyler\.[\w.]+)$", re.MULTILINE)
LOADED = re.compile(r"""(?:src|href)=["'](https?:)?//|@import\s+url\(["']?https?:|url\(["']?https?:""")
TAG = re.compile(r"<(?:script|link|img|iframe)\b[^>]*>")


def files_in(entry: Any) -> list[str]:
    """The files of a nav, which nests lists in mappings."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [file for each in inner for file in files_in(each)]


def test_every_page_has_its_place_in_the_navigation(root: Path) -> None:
    nav = files_in(yaml.safe_load((root / "mkdocs.yml").read_text())["nav"])
    docs = root / "docs"
    pages = [str(page.relative_to(docs)) for page in docs.rglob("*.md")]
    pages += [
        f"reference/{name}.md" for name in ("commands", "settings", "api", "metrics", "cases", "tables")
    ]  # written by the build
    assert sorted(nav) == sorted(pages), "see nav in mkdocs.yml"


def test_every_exported_name_is_in_the_api_reference(root: Path) -> None:
    text = runpy.run_path(str(root / "scripts" / "reference" / "api.py"))["page"]()
    generated = {name.rpartition(".")[2] for name in GENERATED.findall(text)}
    named = generated | set(re.findall(r"`(?:tyler\.)?(\w+)`", text))
    assert set(tyler.__all__) <= named
    assert {"Engine", "Request", "Sampling", "Trajectory", "Learned", "Forced"} <= generated


def draw_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals and tests on the page of tables draw a few samples: `tests/experiments` has the numbers themselves."""

    def few(values: np.ndarray, draws: int, source: np.random.Generator) -> np.ndarray:
        return resampled(values, 20, source)

    for module in (statistics, averages, survey):
        monkeypatch.setattr(module, "resampled", few)
    monkeypatch.setattr(statistics, "FLIPS", 20)
    monkeypatch.setattr(specialization, "PERMUTATIONS", 9)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a connection that another test left
@pytest.mark.skipif(not find_spec("mkdocs"), reason="mkdocs is not installed: pip install 'path/to/tyler[docs]'")
def test_the_site_builds_without_a_dead_link_and_loads_nothing_from_elsewhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    draw_little(monkeypatch)
    build(load_config(str(root / "mkdocs.yml"), site_dir=str(tmp_path)))  # strict: a dead link raises Abort
    pages = {page: page.read_text() for page in tmp_path.rglob("*.html")}
    assert len(pages) > 40
    assert "<math" in pages[tmp_path / "concepts" / "stage1.html"]
    elsewhere = {page.name: tag for page, text in pages.items() for tag in TAG.findall(text) if LOADED.search(tag)}
    assert not elsewhere
    for sheet in tmp_path.rglob("*.css"):
        assert not LOADED.search(sheet.read_text()), sheet
