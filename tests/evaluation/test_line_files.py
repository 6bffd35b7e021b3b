import errno
from pathlib import Path

import pytest

from tyler.evaluation import line_files
from tyler.evaluation.line_files import LineFile
from tyler.runs.checkpoints import RunError


def test_a_line_that_was_cut_short_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "lines.jsonl"
    path.parent.mkdir()
    path.write_text('{"a": 1}\n{"a"')
    file = LineFile(path, "{")
    file.add('{"a": "\u2028"}')
    file.close()
    assert path.read_text() == '{"a": 1}\n{"a": "\u2028"}\n'


@pytest.mark.parametrize("content", ['{"line": 1}\nmy notes', "my notes", '{"a": 1}\n{"lone": 2}'])
def test_the_end_of_somebody_elses_file_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(content)
    with pytest.raises(RunError, match=r"lines.jsonl ends in text that this command did not write; choose another"):
        LineFile(path, '{"line": ')
    assert path.read_text() == content


def test_nothing_is_cut_before_a_line_is_added(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('1\n{"li')
    LineFile(path, '{"line": ').close()
    assert path.read_text() == '1\n{"li'


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"cannot write to {tmp_path}: Is a directory; choose another place"):
        LineFile(tmp_path, "{")


def test_one_process_at_a_time_writes_a_file(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines.jsonl", "")
    with pytest.raises(RunError, match=r"another process is writing .*; wait for it"):
        LineFile(tmp_path / "lines.jsonl", "")
    file.close()
    LineFile(tmp_path / "lines.jsonl", "").close()


def test_a_full_disk_leaves_whole_lines_and_says_how_to_resume(tmp_path: Path, monkeypatch) -> None:
    file = LineFile(tmp_path / "lines.jsonl", "")
    file.add("1")

    def half(file, content: bytes) -> None:
        file.write(content[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(line_files, "write_all", half)
    with pytest.raises(RunError) as caught:
        file.add("23")
    assert str(caught.value) == (
        f"the disk of {tmp_path} is full; every answer before is whole in lines.jsonl: make room and run the same "
        "command again"
    )
    assert (tmp_path / "lines.jsonl").read_text() == "1\n"
    file.close()
