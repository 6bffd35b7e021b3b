"""What the shipped model answered, as a stranger finds it: recounted, graded again, and read."""

import shutil
from pathlib import Path

import pytest

from tyler.cli.main import main
from tyler.evaluation import parquet
from tyler.evaluation.store import gather_verdicts, read_records


@pytest.fixture
def folders(root: Path, tmp_path: Path) -> list[Path]:
    """The committed answers of `smollm2-tyler` without its operators and with them, in a place that may be written."""
    names = ("never", "operators")
    return [shutil.copytree(root / "docs" / "results" / "smollm2-skill" / name, tmp_path / name) for name in names]


def test_one_command_recounts_what_the_page_says(
    root: Path, folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--compare", *map(str, folders)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    page = " ".join((root / "docs" / "results" / "README.md").read_text().split())
    right = [sum(one.correct for one in read_records(folder)) for folder in folders]
    assert right == [318, 303] and "mawps 501 63.5% 60.5% -3.0 -6.2 to +0.2" in printed
    assert "solves 303 with operators" in page and "318 without any" in page and "−3.0 (−6.2 to +0.2)" in page


def test_one_command_grades_the_answers_again_and_their_texts_can_be_read(
    folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in folders:
        assert main(["grade", str(folder)]) == 0
        assert "graded 501 answers" in (printed := capsys.readouterr().out) and ": 0 verdicts changed" in printed
        assert all("\\boxed{" in (one.text or "") for one in read_records(folder) if one.correct)


def test_an_answer_has_one_verdict_in_a_file_also_where_it_is_gathered_twice(root: Path, folders: list[Path]) -> None:
    gather_verdicts(folders[0], folders)
    gathered, *_ = folders[0].glob("verdicts-*.parquet")
    for file in (gathered, *(root / "docs" / "results").rglob("verdicts-*.parquet")):
        rows = parquet.read(file)[0]
        assert len({tuple(row[name] for name in ("evaluation", "task", "id", "sample")) for row in rows}) == len(rows)
    assert len(parquet.read(gathered)[0]) == 1002
