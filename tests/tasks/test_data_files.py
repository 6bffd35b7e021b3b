import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tyler.tasks.data_files import ENDINGS, Row, read_rows

ROWS = [{"problem": f"Question {i}?", "answer": str(i)} for i in range(1, 4)]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    """The rows in the format that the name asks for."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if path.name.endswith(".jsonl"):
        path.write_text(lines)
    elif path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.name.endswith(".json"):
        path.write_text(json.dumps(rows, indent=1))
    elif path.name.endswith(".csv"):
        path.write_text("problem,answer\n" + "".join(f"{row['problem']},{row['answer']}\n" for row in rows))
    else:
        pq = pytest.importorskip("pyarrow.parquet")
        pq.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_gives_the_same_rows_numbered_by_line_or_by_place(tmp_path, ending):
    rows = list(read_rows(write(tmp_path / f"rows{ending}", ROWS)))
    assert [dict(row.fields) for row in rows] == ROWS
    assert [row.number for row in rows] == ([2, 3, 4] if ending == ".csv" else [1, 2, 3])
    assert all("rows" in row.where and str(row.number) in row.where for row in rows)


def test_a_csv_row_is_numbered_by_its_first_line_after_newlines_and_blank_lines(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('\nproblem,answer\n\n"one\ntwo",1\n\n\nthree,3\n')
    assert [(row.number, row.text("problem")) for row in read_rows(path)] == [(4, "one\ntwo"), (8, "three")]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".json", ".csv"])
def test_an_empty_file_is_refused(tmp_path, ending):
    path = tmp_path / f"rows{ending}"
    path.write_bytes(gzip.compress(b"\n", mtime=0) if ending.endswith("gz") else b"\n")
    with pytest.raises(ValueError, match=r"rows\.\S+ is empty"):
        list(read_rows(path))


def test_a_csv_field_may_be_long(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n" + "x" * 200_000 + ",1\n")
    assert [len(row.fields["a"]) for row in read_rows(tmp_path / "a.csv")] == [200_000]


def test_a_damaged_page_of_parquet_is_refused_by_the_files_name(tmp_path):
    table, path = pa.table({"a": ["x" * 40] * 500}), tmp_path / "a.parquet"
    pq.write_table(table, path, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.parquet: not Parquet"):
        list(read_rows(path))


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(row).encode() for row in ROWS) + b"\r\n\n")
    assert [dict(row.fields) for row in read_rows(path)] == ROWS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n\n{"a": 2}\n', r"a\.jsonl, line 2: not JSON \(a blank line\)"),
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        ("a.jsonl", b'{"a": 1}\n\xff\n', "line 2: not UTF-8"),
        ("a.jsonl", b"[" * 100_000, "line 1: not JSON"),
        ("a.jsonl", b"[1]\n", "line 1: expected a JSON object, got list"),
        ("a.jsonl.gz", b'{"a": 1}\n', "not a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 1000, mtime=0)[:-8], "not a whole gzip file"),
        ("a.json", b'{"a": 1}', "expected a JSON array of objects, got dict"),
        ("a.json", b'[{"a": 1},\n7]', "row 2: expected a JSON object, got int"),
        ("a.json", b'[{"a": 1},\n{"a": ]', "not JSON .*line 2"),
        ("a.csv", b"a,b\n1\n", "line 2: expected 2 columns"),
        ("a.csv", b"a,b\n1,2\n\n1,2,3\n", "line 4: expected 2 columns"),
        ("a.csv", b'a,b\n\n"1,2\n', "line 3: not CSV"),
        ("a.parquet", b"PAR1", "not Parquet"),
        ("a.jsonl", b'{"a": ' + b"7" * 5000 + b"}", "line 1: not JSON"),
        ("a.txt", b"x", r"allowed endings are \.jsonl"),
    ],
)
def test_a_broken_file_is_refused_with_its_name_and_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        list(read_rows(tmp_path / name))
    assert name in str(refused.value)


def test_a_file_is_read_no_further_than_is_asked_for(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "1"}\nbroken\n')
    assert next(read_rows(path)).text("a") == "1"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "must be a string, got int 5"),
        (None, "must be a string, got NoneType None"),
        (" \n", "is empty"),
        ("\ud800", "is not valid Unicode"),
    ],
)
def test_a_field_that_is_no_text_is_refused_by_name(value, message):
    with pytest.raises(ValueError, match=f"rows, line 3: field 'a' {message}"):
        Row({"a": value}, "rows, line 3", 3).text("a")


def test_a_missing_field_is_refused_with_those_that_are_there():
    with pytest.raises(ValueError, match="field 'c' is missing; there is a, b"):
        Row({"a": "1", "b": "2"}, "rows, line 1", 1).text("c")


def test_a_private_row_shows_none_of_its_contents():
    row = Row({"a": ["secret"]}, "rows, line 1", 1, private=True)
    with pytest.raises(ValueError, match=r"^rows, line 1: field 'a' must be a string, got list$"):
        row.text("a")
