import datetime
import math
import types

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import (
    arrow,
    csv,
    field_splits,
    frames,
    pipeline,
    source,
    splits,
    stored_rows,
    subset,
    tfrecord,
)

SPEC = spec.Spec(
    features={
        "age": "float32",
        "size": "int64",
        "word": "string",
        "town": "string",
        "tags": ("string", (None,)),
        "point": ("float32", (2,)),
        "items": ("int64", (None, None)),
    },
    labels={"clicked": "int64", "minutes": "float32"},
    defaults={"age": "nan", "size": 7, "word": "?"},
)
GOOD = {
    "age": [1.5, None],
    "size": [3, None],
    "word": [" a ", None],
    "town": ["b", ""],
    "tags": [["x", "y"], None],
    "point": [[1, 2], (3.0, 4.0)],
    "items": [[[1], [], [2, 3]], None],
    "clicked": [True, None],
    "minutes": [None, 2],
}


def _read(data, fields=None, **settings):
    table = frames.Table(data, fields or SPEC.fields, **settings)
    found = table.read(0, len(table))
    return {name: [np.asarray(value).tolist() for value in own] for name, own in found.items()}


def _as_rows(data):
    return [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]


@pytest.mark.parametrize("form", [dict, _as_rows])
def test_absent_values_are_as_the_specification_says(form):
    found = _read(form(GOOD))
    assert found["age"][0] == 1.5 and math.isnan(found["age"][1])
    assert found["size"] == [3, 7] and found["clicked"] == [1, spec.MISSING["int64"]]
    assert found["word"] == ["a", "?"] and found["town"] == ["b", ""]
    assert found["tags"] == [["x", "y"], []] and found["point"] == [[1, 2], [3, 4]]
    assert found["items"] == [[1, 2, 3], []]
    assert found[spec.counts_name("items")] == [[1, 0, 2], []]
    assert math.isnan(found["minutes"][0]) and found["minutes"][1] == 2


def test_a_table_in_memory_is_read_as_its_csv_file(tmp_path):
    texts = {
        "age": ["1e3", "", " 2.5", "nan"],
        "size": ["+5", "", "5.0", "true"],
        "word": ["  a b", "", "?", "ä"],
        "town": ["", "x", "  ", "nan"],
        "tags": ["a|b", "", "c", "|d|"],
        "point": ["1|2", " 3|4", "5|6", "7| 8"],
        "items": ["1|2;3||4", "", ";", "5"],
        "clicked": ["1", "", "0", "1"],
        "minutes": ["", "2", "3", "nan"],
    }
    path = tmp_path / "rows.csv"
    lines = [",".join(texts), *map(",".join, zip(*texts.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    expected = [values for _, values in csv.Csv(files={"all": str(path)}).scan("all", SPEC)]
    found = [values for _, values in frames.Frames(splits={"all": texts}).scan("all", SPEC)]
    assert repr(found) == repr(expected) and len(found) == 4


def test_cells_are_read_as_those_of_a_csv_source():
    cells = csv.Csv(files={"all": "x.csv"}, missing=("?", "-"), list_delimiter=";")
    fields = {name: SPEC.fields[name] for name in ("word", "size", "tags")}
    data = {"word": [" ?", ""], "size": ["-", "1"], "tags": ["a;b", "?"]}
    assert _read(data, fields, cells=cells) == {
        "word": ["?", ""],
        "size": [7, 1],
        "tags": [["a", "b"], []],
    }


@pytest.mark.parametrize(
    "values, expected",
    [
        (np.array([2**53, -1], np.int64), [2**53, -1]),
        (np.array([1.0, np.nan]), [1, 7]),
        (np.array([True, False]), [1, 0]),
        (np.array([255, 0], np.uint8), [255, 0]),
        (np.array(["3", " 4 "]), [3, 4]),
        (np.array([b"3", b"4"]), [3, 4]),
        (np.ma.masked_array([3, 4], [False, True]), [3, 7]),
        (np.array([np.int32(3), np.float64("nan")], object), [3, 7]),
        (tf.constant([3, 4]), [3, 4]),
    ],
)
def test_whole_numbers_of_any_type(values, expected):
    found = frames.Table({"size": values}, {"size": SPEC.fields["size"]}).read(0, 2)["size"]
    assert found.dtype == np.int64 and found.tolist() == expected


@pytest.mark.parametrize(
    "name, values, message",
    [
        ("age", ["x", 1], "row 0: field 'age' must be float32, got 'x'."),
        ("age", [1, 1e39], "row 1: field 'age' must be float32, got 1e+39."),
        ("size", [1, 1.5], "row 1: field 'size' must be int64, got 1.5."),
        ("size", [1.0, 2.0**63], "row 1: field 'size' must be int64, got 9.2233"),
        ("size", [1, 2**63], "row 1: field 'size' must be int64, got 9223372036854775808."),
        ("size", np.array([1, 2**63], np.uint64), "row 1: field 'size' must be int64, got 92"),
        ("size", [math.inf, 1], "row 0: field 'size' must be int64, got inf."),
        ("word", ["a", 7], "row 1: field 'word' must be string, got 7. Read the column as text"),
        ("word", [7.0, None], "row 0: field 'word' must be string, got 7.0. Read the column"),
        ("word", ["a", True], "row 1: field 'word' must be string, got True. Read"),
        ("word", [b"a", b"\xff"], "row 1: field 'word' must be text in UTF-8."),
        ("point", [[1, 2], None], "row 1: field 'point' must be present, as it has no default."),
        ("point", [[1, 2], [1]], "row 1: field 'point' must hold 2 values, got 1."),
        ("point", np.zeros((2, 3)), "row 0: field 'point' must hold 2 values, got 3."),
        ("items", [[1], []], "row 0: field 'items' must be a list of lists"),
        ("age", np.array(["2024-01-01"] * 2, "M8[ns]"), "row 0: field 'age' must be float32"),
        ("age", [np.datetime64("2024-01-01", "ns"), 1], "row 0: field 'age' must be float32"),
        ("age", [datetime.datetime(2024, 1, 1), 1], "row 0: field 'age' must be float32"),
        ("age", [1j, 2j], "row 0: field 'age' must be float32"),
        ("age", 5, "'age' must hold a value for each row, got 5. One row is [{"),
        ("age", "ab", "'age' must hold a value for each row, got 'ab'."),
        ("word", ["a"], "'word' must hold 2 values, as 'age' does, got 1."),
    ],
)
def test_a_wrong_value_is_named_by_row_and_field(name, values, message):
    with pytest.raises(checks.UserError) as error:
        _read({**GOOD, name: values})
    assert message in str(error.value) and str(error.value).startswith("the data")


@pytest.mark.parametrize(
    "data, message",
    [
        ({"agee": [1]}, "the data must have the column 'age', got ['agee']. Did you mean 'agee'?"),
        ([{"agee": 1}, {}], "the data must have the column 'age', got ['agee']. Did you"),
        ({"age": 1}, "the data: 'age' must hold a value for each row, got 1."),
        (
            [1, 2],
            "an Arrow table, a dict of arrays or a list of dicts, got 1.",
        ),
        (
            types.SimpleNamespace(columns=["age"]),
            "must be a DataFrame, an Arrow table, a dict of arrays or a list of dicts, got 'Simple",
        ),
        (
            np.zeros(3),
            "must be a DataFrame, an Arrow table, a dict of arrays or a list of dicts, got 'n",
        ),
    ],
)
def test_what_is_no_table_is_refused(data, message):
    with pytest.raises(checks.UserError) as error:
        frames.Table(data, {"age": SPEC.fields["age"]})
    assert message in str(error.value)


@pytest.mark.medium
def test_columns_of_pandas():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "age": pd.array([1.5, None], "Float64"),
            "size": pd.array([3, None], "Int64"),
            "word": pd.Categorical(["a", None]),
            "town": pd.array(["b", None], "string"),
            "tags": [np.array(["x"]), pd.NA],
            "point": [[1, 2], [3, 4]],
            "items": [[[1]], pd.NaT],
            "clicked": pd.array([True, None], "boolean"),
            "minutes": pd.Series([None, 2], dtype=object).values,
        },
        index=["u1", "u2"],
    )
    found = _read(frame)
    assert found["size"] == [3, 7] and found["word"] == ["a", "?"] and found["town"] == ["b", ""]
    assert found["tags"] == [["x"], []] and found["clicked"] == [1, spec.MISSING["int64"]]
    assert math.isnan(found["age"][1]) and math.isnan(found["minutes"][0])
    with pytest.raises(checks.UserError, match=r"row 1, index 'u2': field 'age' must be float32"):
        _read(frame.assign(age=["1", "old"]))
    with pytest.raises(checks.UserError, match="hold one column 'age'"):
        _read(pd.concat([frame, frame[["age"]]], axis=1))
    with pytest.raises(checks.UserError, match=r"got 'Series'. One row is .* frame.iloc\[\[0\]\]"):
        _read(frame.iloc[0])
    with pytest.raises(checks.UserError, match="'word' must hold text or numbers"):
        _read(frame.assign(word=pd.to_timedelta([1, None], "s")))


class Polars:
    """A column or a table that converts itself to Arrow, like those of polars."""

    def __init__(self, values, **columns):
        self.values, self.columns, self._columns = values, list(columns), columns

    def __len__(self):
        return len(self.values)

    def __getitem__(self, name):
        return self._columns[name]

    def to_arrow(self):
        return self.values

    def to_numpy(self):
        return self.values.to_numpy(zero_copy_only=False)


GREAT = 2**60 + 1  # No float holds it.


GAPS = pa.array([GREAT, None])
GAPS_BY_FORM = {
    "list": {"size": GAPS.to_pylist()},
    "Arrow array": {"size": GAPS},
    "Arrow column": {"size": pa.chunked_array([GAPS])},
    "Arrow table": pa.table({"size": GAPS}),
    "Arrow record batch": pa.record_batch({"size": GAPS}),
    "column of polars": {"size": Polars(GAPS)},
    "polars": Polars(GAPS, size=Polars(GAPS)),
}


@pytest.mark.parametrize("data", GAPS_BY_FORM.values(), ids=GAPS_BY_FORM)
def test_great_numbers_beside_an_absent_one_are_exact(data):
    assert _read(data, {"size": SPEC.fields["size"]})["size"] == [GREAT, 7]


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["Int64", "UInt64", "int64[pyarrow]"])
def test_great_numbers_of_pandas_beside_an_absent_one_are_exact(kind):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"size": pd.array([GREAT, None], kind)})
    assert _read(frame, {"size": SPEC.fields["size"]})["size"] == [GREAT, 7]


def test_times_of_polars_are_those_of_its_arrow_table():
    times = pa.array([datetime.time(8, 30), None], pa.time64("ns"))
    fields = spec.Spec(features={"word": "string"}, labels={}).fields
    of_polars = frames.Table(Polars(times, word=Polars(times)), fields).read(0, 2)
    of_arrow = frames.Table(pa.table({"word": times}), fields).read(0, 2)
    assert list(of_polars["word"]) == list(of_arrow["word"]) == ["08:30:00.000000000", ""]


@pytest.mark.medium
def test_a_time_does_not_depend_on_the_times_of_other_rows():
    pd = pytest.importorskip("pandas")
    east = datetime.timezone(datetime.timedelta(hours=9))
    times = [
        datetime.date(2024, 5, 31),
        datetime.datetime(2024, 5, 31, 13, 45),
        datetime.datetime(2024, 5, 31, 13, 45, tzinfo=east),
        pd.Timestamp("2024-05-31 13:45", tz="UTC"),
        None,
        pd.NaT,
    ]
    fields = spec.Spec(features={"word": "string"}, labels={}, defaults={"word": ""}).feature_fields
    whole = frames.Table({"word": times}, fields).read(0, 6)["word"]
    alone = [frames.Table({"word": [one]}, fields).read(0, 1)["word"][0] for one in times]
    assert whole.tolist() == alone
    assert alone[0] == "2024-05-31" and alone[2].startswith("2024-05-31 13:45:00.000000+0900")


def test_times_are_the_texts_that_arrow_reads(tmp_path):
    pd = pytest.importorskip("pandas")
    times = pd.Series(pd.to_datetime(["2024-03-31 01:30:00", None]))
    days = [datetime.date(2024, 5, 31), None]
    frame = pd.DataFrame(
        {
            "time": times,
            "zone": times.dt.tz_localize("Europe/Berlin"),
            "day": days,
            "stamp": pd.Series([times[0].to_pydatetime(), None], dtype=object),
            "clock": [datetime.time(7, 30), None],
        }
    )
    names = list(frame)
    frame.to_parquet(tmp_path / "rows.parquet")
    fields = spec.Spec(features=dict.fromkeys(names, "string"), labels={}).fields
    (part,) = arrow.open_file(str(tmp_path / "rows.parquet"))[1]
    table = arrow.read_part("rows", part, names)
    columns = dict(zip(names, names, strict=True))
    expected = arrow.to_table("rows", table, columns, fields, frames.PLAIN_CSV).read(0, 2)
    for data in (frame, frame.to_dict("records"), table, {name: frame[name] for name in names}):
        found = frames.Table(data, fields).read(0, 2)
        assert {n: list(v) for n, v in found.items()} == {n: list(v) for n, v in expected.items()}
    assert list(expected["day"]) == ["2024-05-31", ""]
    assert expected["zone"][0].startswith("2024-03-31 01:30:00")


def test_arrow_tables_of_any_type_are_read_or_refused():
    fields = spec.Spec(features={"word": "string"}, labels={}, defaults={"word": "?"}).fields
    words = pa.array(["a", None]).cast(pa.string_view())
    found = frames.Table(pa.table({"word": words}), fields).read(0, 2)
    assert list(found["word"]) == ["a", "?"]
    times = pa.array([0, 1], pa.timestamp("s", "Mars/Olympus"))
    with pytest.raises(checks.UserError, match="the data: 'word' cannot be read: .*Mars/Olympus"):
        frames.Table(pa.table({"word": times}), fields)


@pytest.mark.medium
def test_columns_with_a_number_as_name_have_its_text():
    pd = pytest.importorskip("pandas")
    fields = spec.Spec(features={"0": "int64", "1": "int64"}, labels={}).fields
    found = frames.Table(pd.DataFrame([[1, 2], [3, 4]]), fields).read(0, 2)
    assert {name: list(values) for name, values in found.items()} == {"0": [1, 3], "1": [2, 4]}


def test_settings_for_texts_are_kept_with_stored_rows(tmp_path):
    cells = csv.Csv(files={"none": ""}, list_delimiter="^")
    rows = {"tags": ["x^y", "z"]}
    fields = spec.Spec(features={"tags": ("string", (None,))}, labels={})
    stored = frames.store(frames.Frames(splits={"train": rows}, cells=cells), fields, str(tmp_path))
    assert isinstance(stored, stored_rows.StoredRows) and stored.cells == cells
    plain = frames.store(frames.Frames(splits={"train": rows}), fields, str(tmp_path))
    assert type(plain) is tfrecord.TfRecord


def _pipeline(rows=GOOD):
    splits = {"train": rows, "test": {name: own[:1] for name, own in rows.items()}}
    return pipeline.Pipeline(source=frames.Frames(splits=splits), spec=SPEC, batch_size=2)


@pytest.mark.medium
def test_rows_in_memory_and_their_files_are_the_same_source(tmp_path):
    data = _pipeline()
    stored = frames.store(data.source, SPEC, str(tmp_path / "data"))
    again = frames.store(_pipeline().source, SPEC, str(tmp_path / "data"))
    assert stored == again and len(list((tmp_path / "data").iterdir())) == 2
    in_file = pipeline.Pipeline(source=stored, spec=SPEC, batch_size=2)
    for split in ("train", "test"):
        one, other = (
            list(source.iterate(lambda own=own, split=split: own.one_pass(split)))
            for own in (data, in_file)
        )
        assert repr(one) == repr(other) and len(one) == 1
        scanned = [
            [values for _, values in own.source.scan(split, SPEC)] for own in (data, in_file)
        ]
        assert repr(scanned[0]) == repr(scanned[1])
    changed = frames.store(_pipeline({**GOOD, "age": [1, 2]}).source, SPEC, str(tmp_path / "data"))
    assert changed != stored and len(list((tmp_path / "data").iterdir())) == 4


def test_a_source_around_rows_in_memory_is_kept(tmp_path):
    cut = subset.Subset(source=_pipeline().source, share=0.5)
    stored = frames.store(cut, SPEC, str(tmp_path))
    assert stored.share == 0.5 and stored.source.data_dir == str(tmp_path)
    assert frames.store(stored, SPEC, str(tmp_path)) is stored


@pytest.mark.medium
@pytest.mark.parametrize("user", [str, int, lambda user: user if user % 7 else None])
@pytest.mark.parametrize("cut", ["key", "keys", "day", "label"])
def test_fields_that_cut_rows_in_memory_are_stored_with_them(cut, user, tmp_path):
    pd = pytest.importorskip("pandas")
    columns = {
        "x": list(range(300)),
        "user": [user(row // 3) for row in range(300)],
        "day": [f"2024-01-{1 + row % 30:02d}" for row in range(300)],
        "kind": [row % 3 for row in range(300)],
    }
    # A split that is not cut needs no key.
    source_of = frames.Frames(splits={"train": pd.DataFrame(columns), "other": {"x": [1]}})
    shares = {"train": 0.6, "test": 0.4}
    parts = {
        "key": lambda: field_splits.ByKey(source=source_of, field="user", held_out={"test": 0.4}),
        "keys": lambda: splits.Splits(source=source_of, shares=shares, keys=["user", "day"]),
        "day": lambda: field_splits.ByTime(
            source=source_of, field="day", starts={"test": "2024-01-19"}
        ),
        "label": lambda: splits.Splits(source=source_of, shares=shares, stratify="kind"),
    }
    fields = spec.Spec(features={"x": "int64"}, labels={})
    made = parts[cut]()
    stored = frames.store(made, fields, str(tmp_path))
    for split in ("train", "test"):
        rows, again = (
            [values["x"] for _, values in part.scan(split, fields)] for part in (made, stored)
        )
        assert rows == again and 0 < len(rows) < 300
        batches = pipeline.Pipeline(source=stored, spec=fields, batch_size=300).one_pass(split)
        assert [x for batch in batches for x in batch[0]["x"].numpy()] == rows


def test_a_bad_row_leaves_no_file(tmp_path):
    source_of = _pipeline({**GOOD, "size": [1, "x"]}).source
    with pytest.raises(checks.UserError, match="split 'train' row 1: field 'size' must be int64"):
        frames.store(source_of, SPEC, str(tmp_path))
    with pytest.raises(checks.UserError, match="split 'train' must hold a row"):
        frames.store(frames.Frames(splits={"train": []}), SPEC, str(tmp_path))
    assert not list(tmp_path.iterdir())
    with pytest.raises(checks.UserError, match="Frames.splits must be one of train, got 'tset'"):
        frames.Frames(splits={"train": []}).records("tset")


@pytest.mark.parametrize("text", ["['a', 'b']", '["a"]', "[]"])
def test_the_text_of_a_list_is_no_list(text):
    fields = {"tags": spec.Field(name="tags", dtype="string", shape=(None,))}
    table = frames.Table([{"tags": ["a"]}, {"tags": text}], fields)
    with pytest.raises(checks.UserError, match="row 1: field 'tags' must be a list or a text such"):
        table.read(0, 2)


def test_the_greatest_number_of_a_type_may_be_a_float():
    fields = spec.Spec(features={"size": "uint8"}, labels={"y": "int64"}).feature_fields
    assert frames.Table({"size": [0.0, 255.0]}, fields).read(0, 2)["size"].tolist() == [0, 255]
    for bad in (256.0, 0.5, -1.0):
        with pytest.raises(checks.UserError, match="row 1: field 'size' must be uint8"):
            frames.Table({"size": [1.0, bad]}, fields).read(0, 2)


def test_times_in_units_that_arrow_lacks_are_texts():
    mixed = [np.datetime64("2024-01-01T10:00"), datetime.datetime(2024, 1, 1, 9)]
    assert [text[:16] for text in frames.write_mixed_times(mixed)] == [
        "2024-01-01T10:00",
        "2024-01-01 09:00",
    ]
    texts = np.array(["a", "b"], object)
    assert frames.write_mixed_times(texts) is texts
