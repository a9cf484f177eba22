"""Spreadsheets: cells that another package wrote mean the same as cells of CSV."""

import datetime
import logging
import sys
import zipfile

import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import arrow, csv, sheets
from mtl.tools import scoring
from mtl.tools.drafting import lines, tables
from mtl.tools.statistics import gathering, tell
from mtl.tools.statistics import tables as statistics_tables

pytest.importorskip("python_calamine")
openpyxl = pytest.importorskip("openpyxl")

SPEC = spec.Spec(
    features={"age": "float32", "count": "int64", "job": "string", "tags": ("string", (None,))},
    labels={"rich": "int64"},
    defaults={"age": 0.5, "job": "none"},
)
_HEADER = ["age", "count", "job", "tags", "rich"]
_ROWS = [
    [31, 3, "clerk", "a|b", True],
    [4.5, 1e6, "007", None, False],
    [None, -2, 12, "c", 1],
    [0.1, 0, datetime.date(2024, 5, 31), "é", None],
]
_CSV = """age,count,job,tags,rich
31,3,clerk,a|b,true
4.5,1000000,007,,false
,-2,12,c,1
0.1,0,2024-05-31,é,
"""


def _write(path, rows, title="Prices", change=lambda book: None):
    book = openpyxl.Workbook()
    book.active.title = title
    for row in rows:
        book.active.append(row)
    change(book)
    book.save(path)
    return str(path)


def _values(source):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(source.records("a").batch(99)).get_next()
        found = session.run(source.decode(batch, SPEC, True))
    return {
        name: getattr(v, "to_list", v.tolist if hasattr(v, "tolist") else None)()
        for name, v in found.items()
    }


def test_statistics_see_numbers_as_in_csv(tmp_path):
    book = _write(tmp_path / "a.xlsx", [_HEADER, *_ROWS])
    (tmp_path / "a.csv").write_text(_CSV)
    found, expected = (
        tell.describe(gathering.describe(statistics_tables.open_table("FILE", [path])), 9, 200)
        for path in (book, str(tmp_path / "a.csv"))
    )
    assert found.replace(book, "") == expected.replace(str(tmp_path / "a.csv"), "")
    assert "float" in found and "int" in found


def test_cells_mean_what_they_mean_in_csv(tmp_path):
    path = _write(tmp_path / "a.xlsx", [_HEADER, *_ROWS])
    (tmp_path / "a.csv").write_text(_CSV)
    expected = _values(csv.Csv(files={"a": str(tmp_path / "a.csv")}))
    source = arrow.Arrow(files={"a": path})
    assert _values(source) == expected
    assert len(source.list_rows("a")) == 4
    assert expected["job"] == [b"clerk", b"007", b"12", b"2024-05-31"]
    scanned = [row for _, row in source.scan("a", SPEC)]
    assert [row["count"] for row in scanned] == [3, 1000000, -2, 0]


def test_a_table_may_start_anywhere_in_its_sheet(tmp_path):
    path = _write(tmp_path / "a.xlsx", [[], [], [None, "x", "y"], [None, 1, 2]])
    _, table = sheets.read_sheet(path, path, "")
    assert table.to_pylist() == [{"x": "1", "y": "2"}]


def test_texts_of_cells():
    to_text = sheets._to_text
    for value, text in (
        (5.0, "5"), (-0.25, "-0.25"), (1e300, "1e+300"), (2.0**60, repr(2.0**60)), (True, "true"),
        ("", None), (None, None), (" x ", " x "), (datetime.time(12, 30), "12:30:00"),
        (datetime.datetime(2024, 5, 31, 12, 30), "2024-05-31 12:30:00"),
        (datetime.timedelta(hours=30), "108000"),
    ):  # fmt: skip
        assert to_text(value) == text
    assert float(to_text(0.1 + 0.2)) == 0.1 + 0.2


def test_sheets_are_chosen_by_name_and_the_first_is_told(tmp_path, caplog):
    def add(book):
        book.create_sheet("Hidden", 0).sheet_state = "hidden"
        book.create_sheet("Other").append(["z"])
        book["Other"].append([5])

    path = _write(tmp_path / "a.xlsx", [["x"], [1]], change=add)
    sheets._tell.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert arrow.open_file(path)[0].names == ["x"]
        assert arrow.open_file(path)[0].names == ["x"]
    assert caplog.text.count("sheet 'Prices' is read. Arrow.sheet, or launch.new --sheet") == 1
    assert "another sheet: Other." in caplog.text
    assert arrow.open_file(path, sheet="Other")[0].names == ["z"]
    with pytest.raises(checks.UserError, match="the sheet must be one of .*Did you mean 'Other'"):
        arrow.open_file(path, sheet="Othr")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([["x", "y"], [1, 2], [], [3, 4]], "must have no empty row, got 'row 3'. Delete the row"),
        ([["x", None, "z"], [1, 2, 3]], "must name the column in cell B1"),
        ([["x", "y", "x"], [1, 2, 3]], "must name each column once, also in C1, got 'x'"),
        ([], "must name the columns in its first row, got 'an empty sheet'"),
    ],
)
def test_a_sheet_that_is_no_plain_table_is_one_line(tmp_path, rows, line):
    with pytest.raises(checks.UserError, match=f"a.xlsx sheet 'Prices' {line}"):
        arrow.open_file(_write(tmp_path / "a.xlsx", rows))


def test_merged_cells_are_refused_since_all_but_one_are_empty(tmp_path):
    path = _write(
        tmp_path / "a.xlsx", [["x", "y"], ["a", 1], [None, 2]],
        change=lambda book: book.active.merge_cells("A2:A3"),
    )  # fmt: skip
    with pytest.raises(checks.UserError, match="must have no merged cells, got 'A2:A3'. Unmerge"):
        arrow.open_file(path)


def test_a_damaged_file_is_one_line(tmp_path):
    path = tmp_path / "a.xlsx"
    for data in (b"x,y\n1,2\n", b"", b"PK\x03\x04 cut off"):
        path.write_bytes(data)
        with pytest.raises(checks.UserError, match="a.xlsx cannot be read as a spreadsheet: "):
            arrow.open_file(str(path))


def test_a_wrong_cell_is_named(tmp_path):
    path = _write(tmp_path / "a.xlsx", [_HEADER, [1, 1, "a", "b", 1], ["x", 1, "a", "b", 1]])
    line = "a.xlsx sheet 'Prices' data row 1: field 'age' must be float32, got 'x'"
    with pytest.raises(checks.UserError, match=line):
        list(arrow.Arrow(files={"a": path}).scan("a", SPEC))


def test_an_opendocument_sheet_is_read(tmp_path):
    cells = "".join(
        f"<table:table-row>{''.join(row)}</table:table-row>"
        for row in (
            [_ods("string", "x"), _ods("string", "y")],
            [_ods("float", 1.5), _ods("string", "é")],
            [
                _ods("float", 2),
                '<table:table-cell office:value-type="boolean" office:boolean-value="true"/>',
            ],
        )
    )
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "table", "text")
    )
    content = (
        f'<?xml version="1.0"?><office:document-content {spaces}><office:body><office:spreadsheet>'
        f'<table:table table:name="T">{cells}</table:table>'
        "</office:spreadsheet></office:body></office:document-content>"
    )
    with zipfile.ZipFile(tmp_path / "a.ods", "w") as file:
        file.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        file.writestr("META-INF/manifest.xml", '<?xml version="1.0"?><manifest/>')
        file.writestr("content.xml", content)
    path = str(tmp_path / "a.ods")
    name, table = sheets.read_sheet(path, path, "")
    assert name == "T"
    assert table.to_pylist() == [{"x": "1.5", "y": "é"}, {"x": "2", "y": "true"}]


def _ods(kind, value):
    text = f"<text:p>{value}</text:p>"
    more = f' office:value="{value}"' if kind == "float" else ""
    return f'<table:table-cell office:value-type="{kind}"{more}>{text}</table:table-cell>'


def test_without_the_package_one_line_names_the_command(tmp_path, monkeypatch):
    path = _write(tmp_path / "a.xlsx", [["x"], [1]])
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    line = r"a.xlsx is a spreadsheet, which needs python-calamine. pip install '.*\[excel\]' brings"
    with pytest.raises(checks.UserError, match=line):
        arrow.open_file(path)


def test_a_draft_reads_a_sheet(tmp_path):
    path = _write(tmp_path / "a.xlsx", [_HEADER, *_ROWS])
    dialect = tables.read_dialect(lines.find_files("--data", path), sheet="Prices")
    assert dialect.columns == tuple(_HEADER) and dialect.sheet == "Prices"
    ((_, table),) = tables.read_blocks(dialect)
    assert table["count"].to_pylist() == ["3", "1000000", "-2", "0"]
    (tmp_path / "a.csv").write_text(_CSV)
    with pytest.raises(checks.UserError, match="--sheet must be left out: .*a.csv has no sheets"):
        tables.read_dialect([str(tmp_path / "a.csv")], sheet="Prices")


@pytest.mark.medium
def test_predictions_read_a_sheet_as_training_does(tmp_path):
    def add(book):
        book.create_sheet("First", 0).append(["no"])

    path = _write(tmp_path / "a.xlsx", [_HEADER, *_ROWS], change=add)
    settings = arrow.Arrow(files={"a": path}, sheet="Prices")
    reader = scoring.Reader(spec=SPEC, settings=settings, keep=["count"])
    (chunk,) = reader.chunks(reader.find([path]))
    batch = reader.parse(chunk)
    parsed = SPEC.parse(tf.constant(batch.examples), with_labels=False)
    assert parsed["job"].numpy().tolist() == [b"clerk", b"007", b"12", b"2024-05-31"]
    assert batch.kept["count"] == ["3", "1000000", "-2", "0"]


def test_a_formula_that_no_program_has_computed_is_told_once(tmp_path, caplog):
    computed = [["a", "b"], [1, 2], [3, 4]]
    path = _write(tmp_path / "a.xlsx", computed)
    with caplog.at_level(logging.WARNING):
        sheets.read_sheet(path, path, "")
        assert not caplog.records
        path = _write(tmp_path / "b.xlsx", [["a", "b"], [1, "=A2+1"], [3, 4]])
        for _ in range(2):
            _, table = sheets.read_sheet(path, path, "")
    assert table["b"].to_pylist() == [None, "4"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "b.xlsx: the formula in cell B2 has no stored value" in line
