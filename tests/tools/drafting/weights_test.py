"""Lists with weights are told from times, objects and texts, and train as they are drafted."""

import json
import random
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from launch import new
from mtl import features, verbs
from mtl.configs import config
from mtl.data import csv
from mtl.tools.drafting import weights

LIST, OF_WEIGHTS = ("string", (None,)), ("float32", (None,))


@pytest.mark.parametrize(
    ("texts", "delimiter", "found"),
    [
        (["a:0.5|b:2", "b:1|c:1", "a:3|c:-1", "c:2"], "|", (3, -1.0, 3.0)),
        (["a:0.5;b:2", "b:1;c:1", "a:3", "c:1;b:2"], ";", (3, 0.5, 3.0)),
        (["17:1|18:2", "17:5|19:70", "18:3|19:1", "19:2"], "|", (3, 1.0, 70.0)),
        (["a:0.5|b:2", "b:1|c:1", "a:3|c:-1", "c"], "|", None),
        (["a:0.5|b:2", "b:1|c:1", "a:3|c:-1", "c:x"], "|", None),
        (["12:30|13:45", "13:45|14:00", "12:30|14:00", "12:30|13:50"], "|", None),
        (["lat:52.5|lon:13.4", "lat:48.1|lon:11.6", "lat:50|lon:8"], "|", None),
        (["a:1", "b:2", "c:3"], "|", None),
        (["a:1|b:2", "c:1|d:2", "e:1|f:2"], "|", None),
        ([], "|", None),
    ],
)
def test_lists_with_weights_are_told_from_others(texts, delimiter, found):
    made = weights.find_weights(texts, delimiter)
    assert (made and (made.keys, made.least, made.greatest)) == found


def _draw_rows(signed=False):
    drawn = random.Random(0)
    for number in range(200):
        keys = drawn.sample(["tech", "art", "food", "travel", "sport"], drawn.randint(0, 3))
        pairs = {key: drawn.randint(1, 99) / 100 for key in keys}
        if signed:
            pairs = {key: own - 0.5 for key, own in pairs.items()}
        yield {"age": number % 61, "topics": pairs, "clicked": int("tech" in keys)}


def _write_csv(delimiter, rows, path="t.csv"):
    lines = [
        f"{row['age']},{delimiter.join(f'{k}:{w}' for k, w in row['topics'].items())},"
        f"{row['clicked']}"
        for row in rows
    ]
    with open(path, "w") as file:
        file.write("\n".join(["age,topics,clicked", *lines, ""]))
    return path


def _write_json(rows):
    with open("t.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return "t.jsonl"


def _write_parquet(rows):
    rows = list(rows)
    columns = {name: [row[name] for row in rows] for name in ("age", "clicked")}
    maps = [list(row["topics"].items()) for row in rows]
    kind = pa.map_(pa.string(), pa.float64())
    parquet.write_table(pa.table({**columns, "topics": pa.array(maps, kind)}), "t.parquet")
    return "t.parquet"


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """draft(file): the text that is printed, and the experiment."""
    monkeypatch.chdir(tmp_path)

    def call(path):
        argv = ["--data", path, "--task", "clicked"]
        monkeypatch.setattr(sys, "argv", ["launch.new", *argv])
        told = new.draft(new._parse(argv))
        with config.isolated():
            made = config.load(["t.gin"], ["Run.train_steps = 4", "Run.checkpoint_steps = 4"])
        return told, made

    return call


def _find_weighted(made):
    (column,) = [own for own in made.model.columns if isinstance(own, features.Weighted)]
    fields = made.data.spec.features
    assert (fields["topics"], fields["topics/weights"]) == (LIST, OF_WEIGHTS)
    return column


@pytest.mark.medium
@pytest.mark.parametrize("delimiter", ["|", ";"])
def test_a_column_of_texts_is_drafted(draft, delimiter):
    told, made = draft(_write_csv(delimiter, _draw_rows()))
    assert "list with weights, 5 values, weights 0.01 to 0.99" in told
    column = _find_weighted(made)
    assert column.columns == {"weighted_categorical_topics": ("topics", "topics/weights")}
    (source,) = [own for own in (made.data.source.source,) if isinstance(own, csv.Csv)]
    assert source.list_delimiter == delimiter


@pytest.mark.medium
def test_weights_below_0_are_summed(draft):
    _, made = draft(_write_csv("|", _draw_rows(signed=True)))
    (lookup,) = _find_weighted(made).lookups
    assert lookup.pooling == "sum"


@pytest.mark.slow
@pytest.mark.parametrize("write", [_write_json, _write_parquet])
def test_objects_and_maps_are_drafted_and_train(draft, tmp_path, write):
    told, made = draft(write(_draw_rows()))
    assert "list with weights, 5 values, weights 0.01 to 0.99" in told
    _find_weighted(made)
    _, steps = verbs.train(made, str(tmp_path / "run"))
    assert steps == 4


def test_objects_with_equal_keys_are_no_lists(draft):
    rows = [{**row, "place": {"lat": row["age"] / 7, "lon": 1.5}} for row in _draw_rows()]
    told, made = draft(_write_json(rows))
    assert "'place' is left out: a draft has no input for object." in told
    assert "place" not in made.data.spec.features
