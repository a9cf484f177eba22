"""JSON lines: their meaning in training, and errors with the number of the line."""

import dataclasses
import gzip
import json
import re

import pyarrow as pa
import pytest
from pyarrow import parquet

from mtl import checks, spec
from mtl.data import arrow, csv, field_splits, frames, json_lines, pipeline
from tests.data import arrow_test

pytestmark = pytest.mark.medium

# JSON has lists of pixels, and no bytes.
NAMES = [name for name in arrow_test.VALUES if name != "unused"]
ROWS = [
    {name: arrow_test.VALUES[name][row] for name in NAMES}
    for row in range(len(arrow_test.VALUES["age"]))
]


def _write(folder, rows, name="train.jsonl"):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    opened = gzip.open if name.endswith(".gz") else open
    with opened(folder / name, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return json_lines.JsonLines(files={"train": name}, data_dir=str(folder))


def _read(source, fields=arrow_test.SPEC, training=False, **settings):
    data = pipeline.Pipeline(source=source, spec=fields, batch_size=5, **settings)
    made = data.dataset("train", training=training, seed=0)
    return repr(arrow_test._plain(made.take(1)))


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
def test_rows_mean_what_they_mean_in_memory(tmp_path, name):
    expected = _read(frames.Frames(splits={"train": ROWS}))
    # Absent keys are nulls, blank lines are none, other keys are ignored.
    lacking = [{k: v for k, v in row.items() if v is not None} | {"other": {}} for row in ROWS]
    for rows in (ROWS, ["", *lacking[:2], "  ", *lacking[2:]]):
        source = _write(tmp_path, rows, name)
        assert _read(source) == expected
        assert _read(source, training=True, cache=True, shuffle_buffer=1) == expected


@pytest.mark.parametrize("is_cached", [False, True])
def test_an_empty_text_is_absent_as_in_other_formats(tmp_path, is_cached):
    fields = spec.Spec(
        features={"word": "string", "town": "string"}, labels={}, defaults={"town": "none"}
    )
    rows = [{"word": "", "town": text} for text in ("", " ", "b")] + [{"word": "a", "town": None}]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    (tmp_path / "a.csv").write_text('word,town\n"",\n"", \n"",b\na,\n')
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    sources = {
        "frames": frames.Frames(splits={"train": columns}),
        "csv": csv.Csv(files={"train": "a.csv"}, data_dir=str(tmp_path)),
        "parquet": arrow.Arrow(files={"train": "a.parquet"}, data_dir=str(tmp_path)),
        "json lines": _write(tmp_path, rows),
    }
    settings = {"training": True, "cache": True, "shuffle_buffer": 1} if is_cached else {}
    found = {name: _read(source, fields, **settings) for name, source in sources.items()}
    assert found == dict.fromkeys(sources, found["frames"])
    values = [row["town"] for _, row in sources["json lines"].scan("train", fields)]
    assert values == ["none", "none", "b", "none"] and "none" in found["frames"]


def test_scan_gives_the_same_values_and_the_place(tmp_path):
    source = _write(tmp_path, ["", *ROWS])
    places, rows = zip(*source.scan("train", arrow_test.SPEC), strict=True)
    assert places[0].endswith("train.jsonl line 2") and len(rows) == 5
    assert rows[0]["items"] == [1, 2, 3] and rows[0]["items/values_per_item"] == [1, 0, 2]
    assert (
        rows[2]["clicked"] == arrow_test.SPEC.fields["clicked"].missing
        and rows[1]["word"] == "?"
        and rows[3]["tags"] == ["z"]
    )


NUMBERS = spec.Spec(features={"x": "int64", "tags": ("string", (None,))}, labels={"y": "int64"})
GOOD = {"x": 1, "tags": ["a"], "y": 1}


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"x": 1', "line 3: must be JSON, .* line 1 column 8"),
        ("[1]", r"line 3: must be a JSON object, got \[1\]"),
        ({**GOOD, "x": "a"}, "line 3: field 'x' must be int64, got 'a'"),
        ({**GOOD, "x": [1, 2]}, "line 3: field 'x' must hold 1 value, got 2"),
        ({**GOOD, "x": {}}, "line 3: field 'x' must be int64"),
        ({**GOOD, "tags": "a|b"}, "line 3: field 'tags' must be a list of texts"),
        ({"tags": [], "y": 1}, "line 3: field 'x' must"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, says, cache):
    source = _write(tmp_path, [GOOD, GOOD, line])
    data = pipeline.Pipeline(source=source, spec=NUMBERS, batch_size=3, cache=cache)
    try:
        list(data.dataset("train", training=True, seed=0).take(1))
    except checks.UserError as error:
        found = str(error)
    except Exception as error:
        found = data.diagnose(error, "train")
    else:
        found = ""
    assert re.search(says, found or "")


def test_a_key_that_no_object_has_is_refused(tmp_path):
    source = _write(tmp_path, [{"x": 1, "tagz": [], "y": 0}])
    with pytest.raises(checks.UserError, match="key of field 'tags'.* Did you mean 'tagz'"):
        _read(source, NUMBERS)
    fewer = dataclasses.replace(NUMBERS, features={"x": "int64"})
    assert "'x': 1" in _read(source, fewer)


@pytest.mark.parametrize("cache", [False, True])
def test_a_compressed_file_that_is_cut_off_is_refused(tmp_path, cache):
    source = _write(tmp_path, [{**GOOD, "x": row * row} for row in range(3000)], "train.jsonl.gz")
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-500])
    # TensorFlow would read the lines up to the cut and say nothing.
    with pytest.raises(checks.UserError, match="train.jsonl.gz must be a whole gzip file, got"):
        _read(source, NUMBERS, training=True, cache=cache)


@pytest.mark.parametrize("name", ["late", 'la"te', "sp\u00e4t", "l/ate"])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_a_key_of_late_objects_is_found(tmp_path, name, is_ascii):
    """The first 1,000 objects lack the key, or hold its name in another place."""
    fields = spec.Spec(features={"x": "float32", name: "float32"}, labels={}, defaults={name: -1.0})
    rows = [{"x": n, "note": name} for n in range(1200)] + [{"x": 0, name: 7.0}]
    source = _write(tmp_path, [json.dumps(row, ensure_ascii=is_ascii) for row in rows])
    if is_ascii:  # Other programs escape other characters, or in capitals.
        path = tmp_path / "train.jsonl"
        path.write_text(path.read_text().replace("\\u00e4", "\\u00E4").replace("/", "\\/"))
    found = [values[name] for _, values in source.scan("train", fields)]
    assert found == [-1.0] * 1200 + [7.0]
    assert "'x': " in _read(source, fields)
    with pytest.raises(checks.UserError, match="the key of field .*, which no object has"):
        _read(_write(tmp_path, rows[:-1]), fields)


def test_whole_numbers_are_keys_of_splits(tmp_path):
    rows = [{"x": row, "user": row // 3 if row % 5 else None} for row in range(60)]
    fields = spec.Spec(features={"x": "int64"}, labels={})
    sources = [
        _write(
            tmp_path, [{**row, "user": kind(row["user"] or "")} for row in rows], f"{name}.jsonl"
        )
        for name, kind in {
            "texts": str,
            "numbers": lambda user: user or None,
            "floats": lambda user: float(user) if user else None,
        }.items()
    ]
    for split in ("train", "test"):
        cuts = [
            field_splits.ByKey(source=source, field="user", held_out={"test": 0.4})
            for source in sources
        ]
        texts, numbers, floats = (
            [values["x"] for _, values in source.scan(split, fields)] for source in cuts
        )
        assert texts == numbers == floats and 0 < len(numbers) < 60
        data = pipeline.Pipeline(source=cuts[2], spec=fields, batch_size=60)
        ((features, _),) = data.dataset(split, training=False, seed=0)
        assert features["x"].numpy().tolist() == numbers
