"""A text means the same in further files of every format, whatever source the run reads."""

import csv as csv_text
import dataclasses
import json

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from mtl import checks, spec
from mtl.data import (
    arrow,
    csv,
    eager_pass,
    examples,
    file_settings,
    frames,
    mixture,
    pipeline,
    stored_rows,
    subset,
)
from mtl.tools import scoring
from mtl.tools.scoring import run_source

SPEC = spec.Spec(
    features={"price": "float32", "job": "string", "tags": ("string", (None,))},
    labels={"rich": "int64"},
    defaults={"job": "none"},
)
COLUMNS = {
    "price": ["$1.50", "$1,200", "$3"],
    "job": ["cook", "?", " smith "],
    "tags": ["x^y", "", "z"],
    "rich": ["1", "0", "1"],
}
CELLS = {"list_delimiter": "^", "missing": ("", "?"), "number_forms": {"price": "$1,234.5"}}
CSV = csv.Csv(files={"train": "a.csv"}, delimiter=";", **CELLS)
OF_CELLS = csv.Csv(files={"none": ""}, delimiter=";", **CELLS)
SOURCES = {
    "csv": CSV,
    "part of csv": subset.Subset(source=CSV, share=0.5),
    "arrow": arrow.Arrow(files={"train": "a.parquet"}, cells=OF_CELLS),
    "frames": frames.Frames(splits={"train": COLUMNS}, cells=OF_CELLS),
    "stored": stored_rows.StoredRows(files={"train": "a.tfrecord"}, cells=OF_CELLS),
    "mixture": mixture.Mixture(
        sources={"a": CSV, "b": dataclasses.replace(CSV, files={"train": "b.csv"})}
    ),
    "mixture of formats": mixture.Mixture(
        sources={"a": CSV, "b": arrow.Arrow(files={"train": "b.parquet"}, cells=OF_CELLS)}
    ),
}
EXPECTED = {
    "price": [1.5, 1200.0, 3.0],
    "job": [b"cook", b"none", b"smith"],
    "tags": [[b"x", b"y"], [], [b"z"]],
}


def _write_csv(path, delimiter=";"):
    with path.open("w", newline="") as file:
        writer = csv_text.writer(file, delimiter=delimiter)
        writer.writerows([list(COLUMNS), *zip(*COLUMNS.values(), strict=True)])


def _write_lines(path):
    columns = {**COLUMNS, "tags": [["x", "y"], "", ["z"]]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(map(json.dumps, rows)))


WRITERS = {
    "in.jsonl": _write_lines,
    "in.csv": _write_csv,
    "in.parquet": lambda path: parquet.write_table(pa.table(COLUMNS), path),
    "in.feather": lambda path: feather.write_feather(pa.table(COLUMNS), str(path)),
}


def _parse(serialized):
    values = SPEC.parse(serialized, with_labels=False)
    return {
        name: value.to_list() if SPEC.fields[name].is_ragged else value.numpy().tolist()
        for name, value in values.items()
    }


@pytest.mark.medium
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("run", SOURCES)
def test_rows_to_predict_are_read_as_the_run_reads_texts(run, name, tmp_path):
    WRITERS[name](tmp_path / name)
    # An export describes how texts are read, for predictions without the run.
    for settings in (SOURCES[run], file_settings.restore(file_settings.describe(SOURCES[run]))):
        if name == "in.csv" and settings is not SOURCES[run]:
            _write_csv(tmp_path / name, ",")
        reader = scoring.Reader(spec=SPEC, settings=settings)
        (chunk,) = reader.chunks([str(tmp_path / name)])
        assert _parse(list(reader.parse(chunk).examples)) == EXPECTED


@pytest.mark.medium
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("run", SOURCES)
def test_rows_to_evaluate_are_read_as_the_run_reads_texts(run, name, tmp_path):
    WRITERS[name](tmp_path / name)
    data = pipeline.Pipeline(source=SOURCES[run], spec=SPEC, batch_size=4)
    opened, split = scoring.open_files(data, [str(tmp_path / name)])
    (values,) = opened.one_pass(split, with_labels=False).as_numpy_iterator()
    ((eager, _),) = eager_pass.read(opened, split, with_labels=False)
    for batch in (values, {field: value.numpy() for field, value in eager.items()}):
        assert [round(float(price), 3) for price in batch["price"]] == EXPECTED["price"]
        assert list(batch["job"]) == EXPECTED["job"]
        assert list(map(list, batch["tags"])) == EXPECTED["tags"]


@pytest.mark.medium
def test_a_text_in_json_that_the_run_reads_as_a_list_is_one_line(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"price": 1, "tags": ["x"]}\n{"price": 1, "tags": "x^y"}\n')
    reader = scoring.Reader(spec=SPEC, settings=CSV)
    (chunk,) = reader.chunks([str(path)])
    with pytest.raises(checks.UserError, match=r"line 2: field 'tags' must be a list of texts"):
        reader.parse(chunk)
    data = pipeline.Pipeline(source=CSV, spec=SPEC, batch_size=4)
    opened, split = scoring.open_files(data, [str(path)])
    problems = [values for _, values in opened.source.scan(split, SPEC)]
    assert "must be a list of texts" in problems[1]


@pytest.mark.parametrize("run", SOURCES)
def test_rows_of_a_data_frame_are_read_as_the_run_reads_texts(run):
    cells = run_source.find_cells(SOURCES[run])
    table = frames.Table(pd.DataFrame(COLUMNS), SPEC.feature_fields, cells=cells)
    assert _parse(list(examples.serialize_examples(table.read(0, 3)))) == EXPECTED


def test_sources_that_read_texts_differently_are_refused():
    other = dataclasses.replace(CSV, missing=("",))
    mixed = mixture.Mixture(sources={"a": CSV, "b": other})
    with pytest.raises(checks.UserError, match=r"differ in Csv.missing, \('', '\?'\) and \('',\)"):
        run_source.find_csv(mixed)
    table = arrow.Arrow(files={"train": "a.parquet"}, cells=other)
    with pytest.raises(checks.UserError, match="differ in Csv.missing"):
        run_source.find_cells(mixture.Mixture(sources={"a": CSV, "b": table}))


def test_without_a_run_texts_are_plain():
    assert run_source.find_csv(None) == frames.PLAIN_CSV
    assert run_source.find_arrow(None).cells == frames.PLAIN_CSV
    assert run_source.find_settings(None, csv.Csv) is None
