"""Statistics of tables of all formats equal NumPy and pandas; broken files are refused."""

import datetime
import decimal
import gzip
import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import feather, orc, parquet

from mtl import checks
from mtl.tools.drafting import lines
from mtl.tools.statistics import gathering, tables


def _describe(*paths, marks=(), left_out=(), **settings):
    table = tables.open_table("FILE", list(map(str, paths)), **settings)
    return gathering.describe(table, marks, left_out)


def _write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _column(path, cells, name="x"):
    """The facts of a column of CSV; a second column keeps rows with an empty cell."""
    text = "".join(f"{cell},1\n" for cell in cells)
    return _describe(_write(path / "a.csv", f"{name},one\n{text}"), delimiter=",").columns[name]


@pytest.mark.parametrize(
    "cells, kind, missing, distinct",
    [
        (["1", "+5", "5.0", "-3", "5", " 1 "], "int", 0, 3),
        (["1", "1.5", "1e3", ".5", "5."], "float", 0, 5),
        (["1", "NA", "", "?", "2"], "int", 3, 2),
        (["1", "2", "nan", "NaN"], "int", 2, 2),
        (["1", "inf", "-Infinity"], "float", 0, 1),
        (["1,000", "2,000"], None, 0, 2),
        (["0x10", "0x11", "0x12", "0x13"], "text", 0, 4),
        (["007", "8"], "text", 0, 2),
        (["0", "0.5", "-0.5", "10"], "float", 0, 4),
        (["true", "FALSE", "True", ""], "bool", 1, 2),
        (["yes", "no", "yes"], "text", 0, 2),
        (["2024-05-31", "2024-06-01", ""], "time", 1, 2),
        (["2024-05-31 10:00:00", "2024-05-31T10:00Z"], "time", 0, 1),
        (["2024-13-01", "2024-05-31"], "text", 0, 2),
        (["31.05.2024", "1.6.2024"], "text", 0, 2),
        (["", ""], "empty", 2, 0),
        (["NA", "NA"], "text", 0, 1),
        (["9223372036854775807", "-9223372036854775808"], "int", 0, 2),
        (["9223372036854775808", "1"], "float", 0, 2),
        (["1e400"], "float", 0, 0),
        (["a", "b", "c", "d", "5"], "text", 0, 5),
        (["a"] * 3 + list(map(str, range(40))), "int", 3, 40),
        (["a"] * 9 + list(map(str, range(40))), "text", 0, 41),
        (["nan(1)", "a", "b", "c", "d"], "text", 0, 5),
    ],
)
def test_cells_mean_what_they_mean_in_a_draft(tmp_path, cells, kind, missing, distinct):
    if kind is None:
        cells, kind = [f'"{cell}"' for cell in cells], "text"
    found = _column(tmp_path, cells)
    assert (found.type_name, found.missing, found.distinct) == (kind, missing, distinct)
    assert found.rows == len(cells)


@pytest.mark.parametrize("block", [1 << 24, 30])
def test_the_kind_does_not_depend_on_blocks(tmp_path, monkeypatch, block):
    """A later block may contradict the first ones: the column is then read again."""
    monkeypatch.setattr(lines, "_BLOCK_BYTES", block)
    rows = [[str(n), "", "2024-01-01", "true", "a|b"] for n in range(30)]
    rows += [["x1", "5", "soon", "maybe", "a|c"], ["x2", "6", "", "false", ""]] * 2
    rows += [["x3", "", "", "", "c"], ["x4", "7", "2024-01-02", "", "b|a"]]
    text = "a,b,c,d,e\n" + "".join(",".join(row) + "\n" for row in rows)
    found = _describe(_write(tmp_path / "a.csv", text)).columns
    assert {n: c.type_name for n, c in found.items()} == {
        "a": "text", "b": "int", "c": "text", "d": "text", "e": "list of text",
    }  # fmt: skip
    frame = pd.DataFrame(rows, columns=list("abcde"))
    for name in "acd":
        cells = frame[name][frame[name] != ""]
        assert dict(found[name].list_frequent(99)) == cells.value_counts().to_dict()
        assert found[name].missing == len(frame) - len(cells)
    parts = [part for cell in frame["e"] for part in cell.split("|") if part]
    assert dict(found["e"].list_frequent(9)) == pd.Series(parts).value_counts().to_dict()
    assert found["e"].missing == 2 and found["e"].lengths.mean == len(parts) / 34


def test_a_column_that_changes_its_type_between_files_is_a_line(tmp_path):
    first = _write(tmp_path / "a.csv", "x,y\n" + "1,2\n" * 20)
    second = _write(tmp_path / "b.csv", "x,y\n" + "".join(f"w{n},2\n" for n in range(20)))
    found = _describe(first, second)
    assert found.files == {str(first): 20, str(second): 20} and found.rows == 40
    assert found.columns["x"].kind == "text" and found.columns["x"].texts.count == 40
    (note,) = found.notes
    assert str(second) in note and "'x'" in note and "numbers and texts" in note
    tables_ = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, value in zip(tables_, (1, 1.5), strict=True):
        parquet.write_table(pa.table({"x": [value]}), path)
    with pytest.raises(checks.UserError, match=r"b.parquet: column 'x' must be int64, as in .*a.p"):
        _describe(*tables_)
    parquet.write_table(pa.table({"y": [1]}), tables_[1])
    with pytest.raises(checks.UserError, match=r"b.parquet must hold the columns of .*a.parquet"):
        _describe(*tables_)


def _make_table(rows=3000):
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=rows)
    numbers[:5] = [np.nan, np.inf, -np.inf, 0, 0]
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(int(n)) for n in range(rows)]
    lists = [draw.integers(0, 9, draw.integers(0, 4)).tolist() for _ in range(rows)]
    return pa.table(
        {
            "float": pa.array(numbers, from_pandas=False),
            "gaps": pa.array([None if n % 7 == 0 else n for n in range(rows)]),
            "large": pa.array(draw.integers(2**60, 2**62, rows)),
            "bool": pa.array(draw.random(rows) < 0.3),
            "day": pa.array(days),
            "time": pa.array(days).cast(pa.timestamp("ms", "Europe/Berlin")),
            "text": pa.array([f"<b>{n}" for n in draw.zipf(2, rows)]),
            "lists": pa.array(lists),
            "texts": pa.array([list(map(str, own)) or None for own in lists]),
            "none": pa.array([None] * rows, pa.string()),
            "bytes": pa.array([b"\xff\x00", b"a", None] * (rows // 3)),
            "category": pa.array(["u", "v", None] * (rows // 3)).dictionary_encode(),
            "price": pa.array([decimal.Decimal(n) / 4 for n in range(rows)], pa.decimal128(20, 2)),
            "struct": pa.array([{"a": 1}] * rows),
        }
    )


@pytest.mark.parametrize("kind", ["parquet", "orc", "feather", "arrow"])
def test_files_of_arrow_equal_pandas(tmp_path, kind):
    table = _make_table()
    if kind == "orc":
        texts = table["category"].cast(pa.string())
        table = table.drop_columns(["time", "category"]).append_column("category", texts)
    path = str(tmp_path / f"a.{kind}")
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=700)
    elif kind == "orc":
        orc.write_table(table, path)
    else:
        feather.write_feather(table, path, compression="uncompressed" if kind == "arrow" else "lz4")
    found = _describe(path).columns
    kinds = {name: column.type_name for name, column in found.items()}
    assert kinds == {
        "float": "float", "gaps": "int", "large": "int", "bool": "bool", "day": "time",
        "text": "text", "lists": "list of int", "texts": "list of text", "none": "empty",
        "bytes": "bytes", "category": "text", "price": "float", "struct": "other",
    } | ({"time": "time"} if kind != "orc" else {})  # fmt: skip
    for name in ("float", "gaps", "large", "bool", "price"):
        values = np.array([np.nan if v is None else float(v) for v in table[name].to_pylist()])
        finite = values[np.isfinite(values)]
        column, numbers = found[name], found[name].numbers
        assert column.missing == np.isnan(values).sum() and column.rows == len(values)
        assert math.isclose(numbers.mean, finite.mean(), rel_tol=1e-13)
        assert math.isclose(numbers.deviation, finite.std(), rel_tol=1e-9)
        assert (numbers.zeros, numbers.infinite) == ((finite == 0).sum(), np.isinf(values).sum())
        assert column.distinct == len(pd.unique(finite))
    assert found["large"].numbers.greatest == pc.max(table["large"]).as_py()
    for name in ("text", "category"):
        counts = table[name].to_pandas().value_counts()
        assert dict(found[name].list_frequent(10**4)) == counts.to_dict()
    flat = [value for own in table["lists"].to_pylist() for value in own]
    assert found["lists"].numbers.mean == np.mean(flat) and found["lists"].count == len(flat)
    lengths = np.array(list(map(len, table["lists"].to_pylist())))
    assert found["lists"].missing == (lengths == 0).sum() == found["texts"].missing
    assert found["lists"].lengths.mean == lengths[lengths > 0].mean()
    assert found["day"].show(found["day"].numbers.least) == "2024-01-01"
    assert found["bytes"].list_frequent(1)[0][0] == "\\xff\x00" and found["bytes"].missing == 1000


def test_names_of_folders_mean_what_cells_mean(tmp_path):
    rows = [(year, code, size) for year in ("2023", "2024", "") for code in "ab" for size in (1, 2)]
    lines = [",".join(map(str, row)) for row in rows]
    flat = _describe(_write(tmp_path / "rows.csv", "\n".join(["year,code,size", *lines, ""])))
    for year, code in dict.fromkeys(row[:2] for row in rows):
        folder = f"year={year or '__HIVE_DEFAULT_PARTITION__'}/code={code}"
        (tmp_path / folder).mkdir(parents=True)
        # The file has a column `code`, too, which takes precedence.
        columns = {"size": [1, 2], "code": [code] * 2}
        parquet.write_table(pa.table(columns), tmp_path / folder / "part.parquet")
    folders = _describe(*sorted(tmp_path.rglob("*.parquet")))
    for name, column in flat.columns.items():
        other = folders.columns[name]
        assert (other.kind, other.missing, other.count) == (
            column.kind,
            column.missing,
            column.count,
        )
    assert folders.columns["year"].kind == "int" and folders.columns["year"].missing == 4


def test_json_lines_hold_gaps_lists_and_late_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_ROWS_OF_JSON", 3)
    rows = [{"a": 1, "b": None}, {"a": "2", "b": 1}, {}, {"a": 2.5, "late": [1, 2]}, {"late": []}]
    rows += [{"a": None, "late": [[3], [1]], "ok": True, "t": ""}, {"ok": False, "t": "x", "d": {}}]
    text = "\n\n".join(map(json.dumps, rows)) + "\n"
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    found = _describe(path).columns
    facts = {n: (c.type_name, c.missing, c.distinct) for n, c in found.items()}
    assert facts == {
        "a": ("float", 4, 3), "b": ("int", 6, 1), "late": ("list of int", 5, 3),
        "ok": ("bool", 5, 2), "t": ("text", 6, 1), "d": ("text", 6, 1),
    }  # fmt: skip
    assert {column.rows for column in found.values()} == {7}


@pytest.mark.parametrize(
    "text, says",
    [
        ('{"a": 1}\n{"a": 2\n', r"a.jsonl line 2: must be JSON"),
        ('{"a": 1}\n[1]\n', r"a.jsonl line 2: must be a JSON object"),
        ('{"a": [1]}\n{"a": 2}\n', r"a.jsonl line 2: field 'a' must be a list, .* got 2"),
        ('{"a": "\\ud800"}\n', r"a.jsonl line 1: field 'a' must be UTF-8"),
        (b'{"a": "\xff"}\n', r"a.jsonl line 1: must be text in UTF-8"),
    ],
)
def test_a_bad_line_of_json_is_named(tmp_path, text, says):
    with pytest.raises(checks.UserError, match=says):
        _describe(_write(tmp_path / "a.jsonl", text))


def test_a_list_in_a_later_block_makes_a_column_of_lists_or_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_ROWS_OF_JSON", 1)
    path = _write(tmp_path / "a.jsonl", '{"a": null}\n{"a": [1]}\n{"b": 1}\n')
    found = _describe(path).columns["a"]
    assert (found.type_name, found.missing, found.rows) == ("list of int", 2, 3)
    _write(path, '{"a": 1}\n{"a": [1]}\n')
    with pytest.raises(checks.UserError, match="'a' must hold lists, as in other rows, got '1'"):
        _describe(path)


def test_lists_beyond_the_depth_of_functions_are_refused(tmp_path, monkeypatch):
    """From Python 3.12 on, `json` parses them; before, it refuses them itself."""
    values = []
    for _ in range(5000):
        values = [values]
    monkeypatch.setattr(tables.json_lines, "parse_object", lambda line: {"a": values})
    (tmp_path / "a.jsonl").write_text("{}\n{}\n")
    table = tables.open_table("FILE", [str(tmp_path / "a.jsonl")])
    says = r"a.jsonl lines 1 to 2: field 'a' must hold lists at most 100 deep, got 'deeper lists'"
    with pytest.raises(checks.UserError, match=says):
        list(tables.read_blocks(table))


@pytest.mark.parametrize(
    "text, says",
    [
        ("a,a\n1,2\n", "name each column once"),
        ("a,b\n1,2\n1\n", r"a.csv line 3 must have 2 columns, got '1: 1'"),
        (b"a,b\n1,\xff\n", r"a.csv line 2 must be UTF-8"),
        ("a,b\n", "hold a row below its header"),
        ("", "hold a row"),
    ],
)
def test_a_bad_csv_is_a_line(tmp_path, text, says):
    with pytest.raises(checks.UserError, match=says):
        _describe(_write(tmp_path / "a.csv", text))


def test_files_must_share_a_format(tmp_path):
    _write(tmp_path / "a.csv", "x,y\n1,2\n")
    _write(tmp_path / "a.jsonl", '{"x": 1}\n')
    with pytest.raises(checks.UserError, match="FILE must name files of one format"):
        _describe(tmp_path / "a.csv", tmp_path / "a.jsonl")
    _write(tmp_path / "a.tfrecord", "x")
    with pytest.raises(checks.UserError, match=r"end in one of .csv, .* --gin_file or --model_dir"):
        _describe(tmp_path / "a.tfrecord")
    with pytest.raises(checks.UserError, match="--leave_out must be one of x, y, got 'z'"):
        _describe(tmp_path / "a.csv", left_out=["z"])


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": list(range(1000))}), path)
    _write(path, path.read_bytes()[:-100] + b"PAR1")
    with pytest.raises(checks.UserError, match=r"a.parquet cannot be read"):
        _describe(path)


def test_many_columns_with_odd_names_and_long_texts(tmp_path):
    names = [f"{n} <i>&'{n}" for n in range(500)]
    rows = [["y" * 50_000 if n == m else str(n + m) for n in range(500)] for m in range(4)]
    text = "\n".join([";".join(names), *(";".join(row) for row in rows)]) + "\n"
    found = _describe(_write(tmp_path / "a.csv", text)).columns
    assert list(found) == names
    assert found[names[0]].texts.longest == 50_000 and found[names[400]].numbers.mean == 401.5


def test_marks_and_left_out_columns(tmp_path):
    path = _write(tmp_path / "a.csv", "x,y,z\n-999,a,1\n5,-999,2\n")
    found = _describe(path, marks=["-999"], left_out=["z"]).columns
    assert list(found) == ["x", "y"]
    assert [column.missing for column in found.values()] == [1, 1]


def test_columns_of_json_may_be_left_out(tmp_path):
    path = _write(tmp_path / "a.jsonl", '{"x": 1, "y": 2}\n')
    assert list(_describe(path, left_out=["y"]).columns) == ["x"]
    with pytest.raises(checks.UserError, match="--leave_out must be one of x, y, got 'z'"):
        _describe(path, left_out=["y", "z"])


def test_other_data_are_read_as_the_first(tmp_path):
    """A small file may look like numbers where the first one has codes."""
    first = _write(tmp_path / "a.csv", "zip,tags,x\n" + "007,a|b,1\n123,b|a,2\n5,a,3\n" * 9)
    second = _write(tmp_path / "b.csv", "zip,tags\n123,a\n456,b\n")
    before = _describe(first)
    assert [c.type_name for c in before.columns.values()] == ["text", "list of text", "int"]
    table = tables.open_table("--against", [str(second)])
    after = gathering.describe(table, (), ["x"], before)
    assert [c.type_name for c in after.columns.values()] == ["text", "list of text"]
    assert after.notes == []


def test_an_error_of_a_reader_thread_ends_the_pass():
    def read():
        yield 1
        raise checks.UserError("bad")

    with pytest.raises(checks.UserError, match="bad"):
        list(gathering.read_ahead(read()))
    endless = gathering.read_ahead(iter(int, 1))
    assert next(endless) == 0
    endless.close()


@pytest.mark.medium
def test_files_are_read_without_tensorflow(tmp_path):
    _write(tmp_path / "a.csv", "x,y\n1,2\n")
    code = (
        "import sys\n"
        "from mtl.tools.statistics import gathering, tables\n"
        f"gathering.describe(tables.open_table('FILE', [{str(tmp_path / 'a.csv')!r}]))\n"
        "assert 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_an_empty_text_is_missing_in_all_formats(tmp_path):
    """As in training, where it takes the field's default."""
    rows = [{"x": value, "one": 1} for value in ("red", "", "blue", "", "red")]
    table = pa.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "a.parquet")
    encoded = table.set_column(0, "x", table["x"].dictionary_encode())
    feather.write_feather(encoded, str(tmp_path / "a.feather"))
    _write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    _write(tmp_path / "a.csv", "x,one\n" + "".join(f"{row['x']},1\n" for row in rows))
    for name in ("a.csv", "a.jsonl", "a.parquet", "a.feather"):
        column = _describe(tmp_path / name).columns["x"]
        assert (column.missing, column.distinct) == (2, 2), name
