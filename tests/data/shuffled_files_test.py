"""Tables are written anew in random order: every row once, and nothing half-written."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from mtl import checks
from mtl.data import shuffled_files


def _write(folder, rows=5000):
    for part in range(2):
        numbers = np.arange(part * rows // 2, (part + 1) * rows // 2)
        table = pa.table({"n": numbers, "word": [f"w{n}" for n in numbers]})
        parquet.write_table(table, folder / f"t-{part}.parquet", row_group_size=100)


def test_every_row_is_there_once_in_random_order(tmp_path):
    _write(tmp_path)
    source, folder = str(tmp_path / "t-*.parquet"), str(tmp_path / "new")
    paths = shuffled_files.write_shuffled([source], folder, seed=1, file_bytes=20_000)
    assert len(paths) > 2
    table = pa.concat_tables([parquet.read_table(path) for path in paths])
    numbers = table["n"].to_numpy()
    assert sorted(numbers.tolist()) == list(range(5000))
    assert table["word"].to_pylist() == [f"w{n}" for n in numbers]
    assert abs(np.corrcoef(numbers, np.arange(5000))[0, 1]) < 0.05
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "t-0.parquet", "t-1.parquet"]


def test_mistakes_are_refused_and_leave_nothing(tmp_path):
    _write(tmp_path)
    with pytest.raises(checks.UserError, match="must not exist yet"):
        shuffled_files.write_shuffled([str(tmp_path / "t-*.parquet")], str(tmp_path))
    new = str(tmp_path / "new")
    with pytest.raises(checks.UserError, match="must name existing files"):
        shuffled_files.write_shuffled([str(tmp_path / "u-*.parquet")], new)
    parquet.write_table(pa.table({"n": [1]}), tmp_path / "t-2.parquet")
    with pytest.raises(checks.UserError, match="t-2.parquet"):
        shuffled_files.write_shuffled([str(tmp_path / "t-*.parquet")], new)
    assert len(list(tmp_path.iterdir())) == 3
