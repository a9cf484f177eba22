"""Files with labels give the metrics of the split that holds the same rows."""

import dataclasses
import json
import pathlib

import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import feather, orc, parquet

from mtl import checks, verbs
from mtl.data import csv, frames
from mtl.runs import evaluation
from mtl.tools import scoring
from tests import tiny

pytestmark = pytest.mark.medium

COLUMNS = {
    name: [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]
    for name, values in tiny.SPLITS["test"].items()
}
ROWS = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]


def _write_csv(path, rows=ROWS):
    def show(value):
        return "|".join(map(str, value)) if isinstance(value, list) else str(value)

    lines = [",".join(COLUMNS), *(",".join(map(show, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def _write_records(path):
    table = frames.Table(ROWS, tiny.SPEC.fields)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for some in table.serialize():
            for row in some:
                writer.write(row)


WRITERS = {
    "new.csv": _write_csv,
    "new.jsonl": lambda path: path.write_text("\n".join(map(json.dumps, ROWS))),
    "new.parquet": lambda path: parquet.write_table(pa.table(COLUMNS), path),
    "new.feather": lambda path: feather.write_feather(pa.table(COLUMNS), str(path)),
    "new.orc": lambda path: orc.write_table(pa.table(COLUMNS), str(path)),
    "new.tfrecord": _write_records,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, and the metrics of its split."""
    folder = tmp_path_factory.mktemp("run")
    made = tiny.make(train_steps=5)
    tiny.train(made, folder)
    return made, str(folder), verbs.evaluate(made, str(folder))


def _evaluate(trained, *patterns, **settings):
    made, folder, _ = trained
    data, split = scoring.open_files(made.data, [str(p) for p in patterns], **settings)
    return split, verbs.evaluate(dataclasses.replace(made, data=data), folder, split)


@pytest.mark.parametrize("name", WRITERS)
def test_metrics_are_those_of_the_split(trained, tmp_path, name):
    WRITERS[name](tmp_path / name)
    split, metrics = _evaluate(trained, tmp_path / name)
    assert split == name and metrics == trained[2]


def test_metrics_of_files_are_not_among_those_of_the_run(trained, tmp_path):
    made, folder, _ = trained
    _write_csv(tmp_path / "test")
    data, split = scoring.open_files(made.data, [str(tmp_path / "test")], "csv")
    assert split == "input" and data.eval_split == made.data.eval_split
    opened = dataclasses.replace(made, data=data)
    assert evaluation.name_stream(opened, split) == "eval_input"
    before = sorted(pathlib.Path(folder, "eval").glob("*"))
    verbs.evaluate(opened, folder, split)
    assert sorted(pathlib.Path(folder, "eval").glob("*")) == before
    assert list(pathlib.Path(folder, "eval_input").glob("events*"))


def test_files_are_one_split_and_settings_of_the_source_count(trained, tmp_path):
    made = trained[0]
    for number, some in enumerate((ROWS[:20], ROWS[20:])):
        _write_csv(tmp_path / f"{number}.csv", some)
        text = (tmp_path / f"{number}.csv").read_text()
        (tmp_path / f"{number}.txt").write_text(text.replace(",", ";"))
    assert _evaluate(trained, tmp_path / "*.csv") == ("input", trained[2])
    source = csv.Csv(files={"train": "no"}, delimiter=";", data_dir="elsewhere")
    data = dataclasses.replace(made.data, source=source)
    own = dataclasses.replace(made, data=data), *trained[1:]
    found = _evaluate(own, tmp_path / "*.txt", format_name="csv")
    assert found == ("input", trained[2])


@pytest.mark.parametrize(
    ("files", "settings", "says"),
    [
        ({}, {}, "--input must name existing files, got"),
        ({"new.csv": "x", "new.jsonl": "{}"}, {}, "--input must hold files of one format"),
        ({"new.rows": "x"}, {}, "--input must name its format, such as .csv"),
        ({"new.csv": "x"}, {"format_name": "cvs"}, "--input_format must be one of .* 'csv'"),
        ({"new.jsonl": '{"x": [1, 2, 3]}\n{'}, {}, "new.jsonl line 2: must be JSON"),
        ({"new.csv": "x,word,kind,size\n1|2|3,a,0,1\n"}, {}, "the column of field 'sign' must be"),
        (
            {"new.jsonl": '{"x": [1, 2, 3]}'},
            {},
            "new.jsonl: .*the key of field '.*', which no object has, must be one of x",
        ),
    ],
)
def test_a_mistake_is_one_line(trained, tmp_path, files, settings, says):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(checks.UserError, match=says):
        _evaluate(trained, tmp_path / "new*", **settings)
