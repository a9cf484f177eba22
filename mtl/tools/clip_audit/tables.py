"""Reads and writes tables, as columns of equal length, in Parquet and CSV files.

tables.write_parquet("visits.parquet", {"id": ids, "norm": norms})
columns = tables.read_parquet("visits.parquet")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from mtl.deferred import tf
from mtl.files import atomic, csv_text

Columns = Mapping[str, np.ndarray]


def write_parquet(path: str, columns: Columns) -> None:
    """Write a Parquet file, which appears in its folder only when it is complete.

    Args:
      path: the path of the file.
      columns: {name: values, [N]}.
    """
    # Write to memory first, because pyarrow supports fewer file systems than TensorFlow, and would
    # leave incomplete files.
    buffer = pa.BufferOutputStream()
    arrays = {name: pa.array(values) for name, values in columns.items()}
    parquet.write_table(pa.table(arrays), buffer)
    atomic.write(path, buffer.getvalue().to_pybytes())


def read_parquet(path: str) -> dict[str, np.ndarray]:
    """Read a Parquet file, and return {column: [N]}."""
    with tf.io.gfile.GFile(path, "rb") as file:
        table = parquet.read_table(pa.BufferReader(file.read()))
    # A file has several row groups, so a column may have several chunks;
    # `to_numpy` joins the chunks.
    return {name: table[name].to_numpy() for name in table.column_names}


def write_csv(path: str, columns: Columns) -> None:
    """Write a CSV file with a header and a line for each row.

    Args:
      path: the path of the file.
      columns: {name: values, [N]}. Floats get at most six significant digits; a NaN becomes an
        empty cell.
    """
    rows = zip(*map(_write_cells, columns.values()), strict=True)
    atomic.write(path, csv_text.write([[*columns], *rows]))


def join_tables(tables: Sequence[Columns]) -> dict[str, np.ndarray]:
    """Join several tables to one table that has the rows of all of them.

    Args:
      tables: tables that have the same columns.

    Returns:
      The columns, with the rows in the order of the tables; {} without tables.
    """
    names = tables[0] if tables else ()
    return {name: np.concatenate([table[name] for table in tables]) for name in names}


def _write_cells(values: np.ndarray) -> list:
    if values.dtype.kind != "f":
        return values.tolist()
    return ["" if np.isnan(value) else f"{value:.6g}" for value in values.tolist()]
