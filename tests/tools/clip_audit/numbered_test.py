"""An audit observes a run: numbered rows come in the order in which the run reads them without."""

import itertools

import pyarrow as pa
import pytest
from pyarrow import parquet

from mtl import spec, types
from mtl.data import arrow, csv, frames, joined, json_lines, mixture, pipeline
from mtl.tools.clip_audit import numbered

ROWS = 50
SPEC = spec.Spec(features={"x": "int64"}, labels={"y": "int64"})


def _make_csv(folder):
    lines = "".join(f"{row},{row % 2}\n" for row in range(ROWS))
    (folder / "rows.csv").write_text(f"x,y\n{lines}")
    return csv.Csv(files={"train": "rows.csv"}, data_dir=str(folder))


def _make_json_lines(folder):
    lines = "".join(f'{{"x": {row}, "y": {row % 2}}}\n' for row in range(ROWS))
    (folder / "rows.jsonl").write_text(lines)
    return json_lines.JsonLines(files={"train": "rows.jsonl"}, data_dir=str(folder))


def _make_arrow(folder, **settings):
    table = pa.table({"x": [*range(ROWS)], "y": [row % 2 for row in range(ROWS)]})
    parquet.write_table(table, folder / "rows.parquet", row_group_size=8)
    return arrow.Arrow(files={"train": "rows.parquet"}, data_dir=str(folder), **settings)


def _make_windows(folder):
    return _make_arrow(folder, window=20)


def _make_frames(_):
    return frames.Frames(splits={"train": {"x": [*range(ROWS)], "y": [0, 1] * (ROWS // 2)}})


def _make_joined(folder):
    """Join a feature `y` that equals the label of the row."""
    source = frames.Frames(splits={"train": {"x": [*range(ROWS)], "z": [0, 1] * (ROWS // 2)}})
    table = frames.Frames(splits={"train": {"z": [0, 1], "y": [0, 1]}})
    return joined.Joined(source=source, tables={"z": table}, fields={"z": ["y"]})


def _make_mixture(folder):
    return mixture.Mixture(sources={"a": _make_csv(folder), "b": _make_json_lines(folder)})


SOURCES = {
    make.__name__.removeprefix("_make_"): make
    for make in (
        *(_make_csv, _make_json_lines, _make_arrow, _make_windows),
        *(_make_frames, _make_joined, _make_mixture),
    )
}


def _read(data, count):
    split = data.dataset(data.train_split, training=True, seed=3)
    return [features for features, _ in itertools.islice(split.as_numpy_iterator(), count)]


@pytest.mark.medium
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_numbered_rows_come_in_the_order_of_the_run(make, tmp_path):
    data = pipeline.Pipeline(source=make(tmp_path), spec=SPEC, batch_size=8)
    numbers = numbered.number_rows(data)
    plain, with_numbers = _read(data, 15), _read(numbers, 15)
    assert [list(batch["x"]) for batch in with_numbers] == [list(batch["x"]) for batch in plain]
    if make is not _make_mixture:  # Its numbers go over both sources.
        assert all((batch[numbered.ROW] == batch["x"]).all() for batch in with_numbers)


def test_a_source_around_another_knows_all_that_decides_the_order():
    deciding = {"estimate_bytes", "list_rows", "list_blocks", "orders_rows", "known_steps"}
    lacking = {
        name for name in deciding if getattr(numbered.Numbered, name) is getattr(types.Source, name)
    }
    assert lacking == set()
