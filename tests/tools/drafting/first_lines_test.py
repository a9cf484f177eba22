"""Files whose first lines are not a table: the error names the flaw, and a command to mend it."""

import gzip
import sys

import pytest

from launch import new
from mtl import checks
from mtl.tools.drafting import columns, lines, tables

ROWS = "".join(f"{i % 7},{i / 9:.3f},{i % 2},\u00e9{i % 3}\n" for i in range(60))
TABLE = "c,x,y,n\n" + ROWS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE.encode("utf-16"), "UTF-16.*iconv -f UTF-16 -t UTF-8"),
        (TABLE.encode("utf-16-le"), "UTF-16 without a mark.*iconv -f UTF-16"),
        (gzip.compress(TABLE.encode()), "mv .*t.csv .*t.csv.gz"),
        (b"# made by me\n# twice\n" + TABLE.encode(), r"Is line 3 the header\? Then tail -n \+3"),
        (b"Report of 2024\n\n" + TABLE.encode(), r"Is line 3 the header\? Then tail -n \+3"),
        (b"\n\n" + TABLE.encode(), "the header in line 3.*tail -n"),
        (b'{"c": 1, "y": 0}\n{"c": 2, "y": 1}\n', "must be a table, got 'JSON: "),
        (b'[{"c": 1, "y": 0}, {"c": 2, "y": 1}]', "must be a table, got 'JSON: "),
    ],
)
def test_what_stands_first_is_named(tmp_path, text, message):
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(checks.UserError, match=message):
        tables.read_dialect([str(tmp_path / "t.csv")])


def test_comments_before_the_header_are_refused_as_training_would_fail(tmp_path):
    (tmp_path / "t.csv").write_text("# made by me\n" + TABLE)
    with pytest.raises(checks.UserError, match="must be the header, got 'the header in line 2'"):
        tables.read_dialect([str(tmp_path / "t.csv")], comment="#")
    names = ["c", "x", "y", "n"]
    (tmp_path / "t.csv").write_text("# made by me\n" + ROWS)
    assert tables.read_dialect([str(tmp_path / "t.csv")], None, names, "#").comment == "#"


@pytest.mark.parametrize("header", ["c,2020,y,n", "2020,2021,y,n", "c,x,2020,n", "c,1.5,y,n"])
def test_a_number_beside_words_above_numbers_may_name_a_column(tmp_path, header):
    (tmp_path / "t.csv").write_text(TABLE.replace("c,x,y,n", header, 1))
    assert lines.read_dialect([str(tmp_path / "t.csv")]).columns == tuple(header.split(","))


def test_rows_of_lists_or_of_words_do_not_hide_the_header(tmp_path):
    rows = "".join(f"a:{i % 9}|b:1,{i / 7:.2f},{i % 2}\n" for i in range(60))
    (tmp_path / "t.csv").write_text("c,x,y\n" + rows)
    found = lines.read_dialect([str(tmp_path / "t.csv")])
    assert (found.delimiter, found.columns) == (",", ("c", "x", "y"))


def test_a_header_in_the_middle_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["launch.new"])
    argv = ["--data", str(tmp_path / "t.csv"), "--task", "y", "--out", str(tmp_path / "t.gin")]
    for text, got in ((TABLE + TABLE, "c,x,y,n"), (TABLE + 4 * ROWS + TABLE, "1 rows like it")):
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(checks.UserError, match=f"must hold its header once, got '{got}'"):
            new.draft(new._parse(argv))
    (tmp_path / "t.csv").write_text(TABLE + 4 * ROWS + "c,2,1,n\n")
    assert "Wrote" in new.draft(new._parse(argv))


def test_a_table_without_its_flag_is_one_line():
    for argv in (["t.csv"], ["t.csv", "--task", "y"]):
        with pytest.raises(checks.UserError, match="unexpected argument 't.csv'. Write --data t.c"):
            new._parse(argv)


def test_whole_numbers_beyond_int64_are_texts():
    texts = columns.pa.chunked_array([[str(2**63 + 7919 * i) for i in range(50)]])
    column = columns.Column("x")
    column.add(texts)
    assert column.summarize([""], texts).kind == "text"
