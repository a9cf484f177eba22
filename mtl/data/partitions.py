"""Partitioned folders of Parquet or ORC files, as Spark and Hive write them.

partitions.list_files("Arrow.files", "data/sales")       # the files below, without _SUCCESS
partitions.read_keys("data/year=2024/country=de/part-0.parquet")
# {"year": "2024", "country": "de"}
"""

from __future__ import annotations

import functools
import os
import urllib.parse
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from mtl import checks, deferred

with deferred.imports():
    from mtl.files import remote

ENDINGS = (".parquet", ".pq", ".orc", ".feather", ".arrow", ".ipc")
# The value in a folder name that stands for null.
_MISSING = "__HIVE_DEFAULT_PARTITION__"
# A partition column is a dictionary, because it has few distinct values. The values are texts,
# which fields parse like CSV cells.
_TYPE = pa.dictionary(pa.int32(), pa.string())
# {folder of a log: format of the table}. In a Delta or Hudi table, only the log in this folder says
# which files are valid.
_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}


def list_files(where: str, folder: str) -> list[str]:
    """Return the sorted files below a local or remote folder.

    Like Spark, skip names that start with "_" or ".".

    Args:
      where: the name of the setting, for errors.
      folder: the path of the local or remote folder.

    Raises:
      UserError: the folder holds no table, holds files other than tables, or holds a table with a
        log of its versions.
    """
    paths = remote.walk(folder) if remote.is_remote(folder) else _walk(folder)
    inner = {path: path.removeprefix(folder.rstrip("/") + "/").split("/") for path in paths}
    for path, names in inner.items():
        log = next((kind for name, kind in _LOGS.items() if name in names), None)
        log = "Iceberg" if path.endswith(".metadata.json") and "metadata" in names else log
        fix = "Some files of the table are out of date: export the table, such as by Spark."
        checks.require(log is None, where, "be a folder of plain files", f"a {log} table", fix)
    visible = sorted(path for path, names in inner.items() if not any(map(_is_hidden, names)))
    endings = ", ".join(ENDINGS)
    fix = f"It is a folder, in which no file ends in one of {endings}. Or write a glob of files."
    checks.require(any(map(_is_table, visible)), where, "name files", folder, fix)
    for path in visible:
        rule = f"hold only files that end in one of {endings}"
        checks.require(_is_table(path), f"{where}: folder {folder!r}", rule, path)
    return visible


def expand(where: str, paths: Sequence[str]) -> list[str]:
    """Replace each folder among the paths by the files below the folder.

    Args:
      where: the name of the setting, for errors.
      paths: local or remote paths. A remote path can be a folder only if it is the only path.

    Raises:
      UserError: `list_files` refuses a folder.
    """
    # A remote glob matches only files, so only a single path may be a folder.
    single = paths[:1] if len(paths) == 1 else []
    folders = [path for path in single if remote.is_remote(path) and remote.is_folder(path)]
    folders += [path for path in paths if os.path.isdir(path)]
    parts = [list_files(where, path) if path in folders else [path] for path in paths]
    return [path for part in parts for path in part]


def _is_table(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in ENDINGS


def _walk(folder: str) -> list[str]:
    return [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names]


def _is_hidden(name: str) -> bool:
    return name[:1] in ("_", ".") and "=" not in name


def read_keys(path: str) -> dict[str, str | None]:
    """Return the values that folder names such as year=2024 give to columns.

    Args:
      path: the path of a file; the name of the file itself is not read.

    Returns:
      {column: text, or None for a null}; an empty dict if no folder names a column.
    """
    pairs = [folder.partition("=") for folder in path.split("/")[:-1] if "=" in folder]
    values = {urllib.parse.unquote(name): value for name, _, value in pairs if name}
    return {
        name: None if value == _MISSING else urllib.parse.unquote(value)
        for name, value in values.items()
    }


def add_columns(path: str, schema: pa.Schema, parts: Sequence[Any]) -> tuple[pa.Schema, list[Any]]:
    """Add the columns of folder names to the schema and the parts of a file.

    A column of the file takes precedence over a folder name.

    Args:
      path: the path of the file, which names the folders.
      schema: the schema of the file.
      parts: the parts of the file, each an `arrow.Part`.
    """
    keys = {name: value for name, value in read_keys(path).items() if name not in schema.names}
    if not keys:
        return schema, list(parts)
    for name in keys:
        schema = schema.append(pa.field(name, _TYPE))
    return schema, [part._replace(read=functools.partial(_read, part, keys)) for part in parts]


def _read(part: Any, keys: dict[str, str | None], columns: Sequence[str]) -> pa.Table:
    in_file = [name for name in columns if name not in keys]
    values = {name: _repeat(keys[name], part.num_rows) for name in columns if name in keys}
    if in_file:
        table = part.read(in_file)
        values |= {name: table[name] for name in in_file}
    return pa.table({name: values[name] for name in columns})


def _repeat(value: str | None, count: int) -> pa.DictionaryArray:
    numbers = pa.nulls(count, pa.int32()) if value is None else pa.repeat(pa.scalar(0), count)
    texts = pa.array([] if value is None else [value], pa.string())
    return pa.DictionaryArray.from_arrays(numbers.cast(pa.int32()), texts)
