"""Tables of Arrow's formats are drafted as their texts would be, and train as they are."""

import datetime
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, feather, orc, parquet

from launch import new
from mtl import checks, verbs
from mtl.configs import config
from mtl.data import arrow
from mtl.tools.drafting import lines, tables
from mtl.tools.scoring import run_source

ROWS = 600


def _draw():
    draw = np.random.default_rng(0)
    age = draw.integers(18, 80, ROWS)
    job = np.array(["cook", "nurse", "pilot"])[draw.integers(0, 3, ROWS)]
    later = [datetime.timedelta(days=int(days)) for days in draw.integers(0, 300, ROWS)]
    clicked = draw.random(ROWS) < 1 / (1 + np.exp(-(age - 45) / 10 - (job == "pilot")))
    return pa.table(
        {
            "age": pa.array(age, mask=np.arange(ROWS) % 10 == 0),
            "wage": np.where(np.arange(ROWS) % 7 == 0, np.nan, draw.normal(size=ROWS)),
            "job": pa.array(job).dictionary_encode(),
            "member": draw.random(ROWS) < 0.3,
            "tags": [[f"t{n}" for n in draw.integers(0, 9, k)] for k in draw.integers(0, 4, ROWS)],
            "items": [draw.integers(0, 30, k) for k in draw.integers(0, 4, ROWS)],
            "day": [datetime.date(2024, 1, 1) + days for days in later],
            "noted": ["n/a" if x < 0.1 else str(int(x * 50)) for x in draw.random(ROWS)],
            "point": [[0.5, 1.0]] * ROWS,
            "clicked": clicked,
            "grade": draw.choice([2, 3, 5], ROWS),
            "two": draw.choice([3, -7], ROWS),
        }
    )


def _write_orc(table, path):  # ORC has no dictionaries.
    job = table.column_names.index("job")
    orc.write_table(table.set_column(job, "job", table["job"].cast(pa.string())), path)


WRITERS = {"parquet": parquet.write_table, "orc": _write_orc, "feather": feather.write_feather}


def _draft(monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", ["launch.new", *args])
    return new.draft(new._parse(sys.argv[1:]))


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["csv", "parquet", "feather"])
def test_lists_have_the_same_delimiter_in_every_format(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    tags = ["^".join(draw.choice(list("abcdefg"), k, False)) for k in draw.integers(0, 4, ROWS)]
    table = pa.table({"tags": tags, "clicked": (draw.random(ROWS) < 0.4).astype(int)})
    write = {**WRITERS, "csv": csv.write_csv}[kind]
    write(table, f"t.{kind}")
    assert "list, 7 values between '^'" in _draft(
        monkeypatch, "--data", f"t.{kind}", "--task", "clicked"
    )
    with config.isolated():
        source = config.load(["t.gin"], []).data.source
    assert run_source.find_cells(source).list_delimiter == "^"


def _write_rows(path, **columns):
    feather.write_feather(pa.table({"clicked": [0, 1] * 30, **columns}), path)


@pytest.mark.medium
def test_texts_and_times_that_cannot_be_read_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw = pa.array([b"a", b"\xff"] * 30, pa.binary())
    _write_rows("t.feather", x=pa.Array.from_buffers(pa.string(), 60, raw.buffers()))
    with pytest.raises(checks.UserError, match="t.feather: column 'x' cannot be read: .*UTF"):
        _draft(monkeypatch, "--data", "t.feather", "--task", "clicked")
    _write_rows("z.feather", x=pa.array([0, 1] * 30, pa.timestamp("s", "Mars/Olympus")))
    with pytest.raises(checks.UserError, match="z.feather: column 'x' cannot be read: .*Mars"):
        _draft(monkeypatch, "--data", "z.feather", "--task", "clicked")


@pytest.mark.medium
def test_large_lists_of_large_texts_are_drafted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lists = pa.array([["a"], ["b", "c"], []] * 20, pa.large_list(pa.large_string()))
    _write_rows("t.feather", x=lists)
    assert "list, 3 values" in _draft(monkeypatch, "--data", "t.feather", "--task", "clicked")


@pytest.mark.medium
@pytest.mark.parametrize("kind", WRITERS)
def test_a_draft_of_a_columnar_file_trains_as_it_is(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    WRITERS[kind](_draw(), f"t.{kind}")
    tasks = [word for name in ("clicked", "grade", "two") for word in ("--task", name)]
    told = _draft(monkeypatch, "--data", f"t.{kind}", *tasks)
    assert f"t.{kind}: 600 rows, 11 columns\n" in told
    assert "'point' is left out: a draft has no input for" in told
    assert f"--input NEW.{kind}" in told
    made = config.load(["t.gin"], ["Run.train_steps = 4", "Run.checkpoint_steps = 4"])
    assert made.data.spec.features == {
        "age": "float32",
        "wage": "float32",
        "job": "string",
        "member": "int64",
        "tags": ("string", (None,)),
        "items": ("int64", (None,)),
        "noted": "float32",
        "day": "string",
    }
    assert made.data.spec.labels == dict.fromkeys(("clicked", "grade", "two"), "int64")
    assert isinstance(made.data.source.source, arrow.Arrow)
    metrics, steps = verbs.train(made, "run")
    assert steps == 4 and 0 <= metrics["clicked/auc"] <= 1
    found = next(verbs.predict(made, "run"))
    assert found["grade/class"] in (b"2", b"3", b"5") and found["two/class"] in (b"3", b"-7")


@pytest.mark.medium
def test_a_column_of_floats_may_get_fractions_later(tmp_path, monkeypatch):
    """But float32 would lose digits of numbers above 2^24."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0).permutation(600)[:60]
    kinds = {"whole": draw, "price": draw.astype(float), "large": draw * 1e6, "flag": draw % 2.0}
    _write_rows("t.feather", **kinds, cents=pa.array(draw).cast(pa.decimal128(24, 2)))
    _draft(monkeypatch, "--data", "t.feather", "--task", "clicked")
    assert config.load(["t.gin"]).data.spec.features == {
        "whole": "int64",
        "price": "float32",
        "large": "int64",
        "flag": "float32",
        "cents": "float32",
    }


def test_a_column_has_the_texts_of_a_delimited_file(tmp_path):
    table = _draw()
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=100)
    dialect = tables.read_dialect([str(tmp_path / "t.parquet")])
    blocks = [block for _, block in tables.read_blocks(dialect)]
    assert [len(block) for block in blocks] == [100] * 6
    first = blocks[0].to_pylist()[:2]
    assert first[0]["age"] == first[0]["wage"] == "" and first[1]["age"] == str(table["age"][1])
    assert first[0]["member"] in "01" and first[0]["day"].startswith("2024-")
    assert first[0]["items"] == "|".join(map(str, table["items"][0].as_py()))


def test_a_null_in_a_list_takes_nothing_else_away(tmp_path):
    path = str(tmp_path / "t.parquet-00000-of-00001")
    parquet.write_table(pa.table({"tags": [["a", None], None, [], ["b", "c"]]}).slice(0), path)
    dialect = tables.read_dialect([path])
    ((_, block),) = tables.read_blocks(dialect)
    assert dialect.is_arrow and block["tags"].to_pylist() == ["a|", "", "", "b|c"]


@pytest.mark.parametrize("setting", [{"delimiter": ";"}, {"columns": ["a"]}, {"comment": "#"}])
def test_settings_of_delimited_files_are_refused(tmp_path, setting):
    path = str(tmp_path / "t.parquet")
    parquet.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(checks.UserError, match="must be left out: .* has columns with names"):
        tables.read_dialect([path], **setting)


def test_a_delimited_file_is_read_as_before(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1;2\n")
    assert tables.read_dialect([str(path)]) == lines.read_dialect([str(path)])


def test_a_file_that_is_damaged_is_one_line(tmp_path):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(checks.UserError, match="t.parquet cannot be read"):
        tables.read_dialect([str(path)])
