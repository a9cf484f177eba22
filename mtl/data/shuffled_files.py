"""Rewrites tables as Parquet files with the rows in random order.

shuffled_files.write_shuffled(["sales-*.parquet"], "shuffled")     # shuffled/00000-of-00012.parquet

Use this module for a table that is sorted by a label and does not fit into memory: see
docs/data.md.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from mtl import checks
from mtl.data import arrow, order

# The approximate size of an output file in memory, in bytes.
_FILE_BYTES = 2**28
# The number of rows in a row group, which readers load as a whole.
_GROUP_ROWS = 2**16


def write_shuffled(
    paths: Sequence[str], folder: str, *, seed: int = 0, file_bytes: int = _FILE_BYTES
) -> list[str]:
    """Write all rows of some tables in random order; return the paths of the new files.

    Each row goes to a random file, and then the rows of each file are shuffled in memory. Memory
    holds one file and one row group at a time. The disk needs twice the space of the tables for a
    while.

    Args:
      paths: tables of the same schema, as files or globs; `arrow.Arrow.files` lists the formats.
      folder: a new folder, which appears when all files are complete.
      seed: the seed of the random order of the rows.
      file_bytes: the approximate size of an output file in memory, in bytes.

    Raises:
      UserError: the folder exists, a table cannot be read, or the schemas of tables differ.
    """
    checks.require(not os.path.exists(folder), "the folder", "not exist yet", folder)
    tables = sorted(path for pattern in paths for path in glob.glob(pattern))
    checks.require(bool(tables), "the tables", "name existing files", list(paths))
    partial = f"{folder}.partial-{os.getpid()}"
    os.makedirs(partial)
    try:
        names = _write_all(tables, partial, seed, file_bytes)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [os.path.join(folder, name) for name in names]


def _write_all(tables: Sequence[str], folder: str, seed: int, file_bytes: int) -> list[str]:
    from pyarrow import parquet

    parts = [(path, part) for path in tables for part in arrow.open_file(path)[1]]
    schema = arrow.open_file(tables[0])[0]
    size = sum(part.num_bytes or os.path.getsize(path) for path, part in parts)
    count = max(1, -(-size // file_bytes))
    draft_paths = [os.path.join(folder, f"draft-{number}") for number in range(count)]
    writers = [parquet.ParquetWriter(path, schema) for path in draft_paths]
    draw = np.random.default_rng(seed)
    for table in _read_all(parts, schema):
        file_numbers = draw.integers(0, count, len(table))
        for number, writer in enumerate(writers):
            rows = np.flatnonzero(file_numbers == number)
            if len(rows):
                writer.write_table(table.take(rows))
    for writer in writers:
        writer.close()
    names = [f"{number:05d}-of-{count:05d}.parquet" for number in range(count)]
    for number, (path, name) in enumerate(zip(draft_paths, names, strict=True)):
        table = parquet.read_table(path)
        shuffled_rows = table.take(order.permute(len(table), seed, number))
        parquet.write_table(shuffled_rows, os.path.join(folder, name), row_group_size=_GROUP_ROWS)
        os.remove(path)
    return names


def _read_all(parts: Sequence[tuple[str, arrow.Part]], schema: pa.Schema) -> Iterator[pa.Table]:
    for path, part in parts:
        table = arrow.read_part(path, part, schema.names)
        same = table.schema.equals(schema, check_metadata=False)
        checks.require(same, path, f"have the columns {schema.names} of the first file", "others")
        yield table.cast(schema)
