"""Replaces paths of image files in rows by the bytes of the files.

files = image_rows.find(experiment.data.source)         # an `ImageFiles`, or None
columns = image_rows.read_columns(files, chunk, columns)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from google.protobuf import message

from mtl import checks
from mtl.data import image_files
from mtl.deferred import tf
from mtl.tools.scoring import batches

Columns = dict[str, batches.Values]


def unwrap(source: Any) -> Any:
    """Return the innermost source, whose settings say how files are read."""
    while getattr(source, "source", None) is not None:
        source = source.source
    return source


def find(source: Any) -> image_files.ImageFiles | None:
    """Return the source of image files: `source` or a source within it; None if none is."""
    while source is not None and not isinstance(source, image_files.ImageFiles):
        source = getattr(source, "source", None)
    return source


def read_columns(
    files: image_files.ImageFiles | None, chunk: batches.Chunk, columns: Columns
) -> Columns:
    """Return the columns of a chunk with the bytes of files in place of their paths.

    Args:
      files: says which fields name files; None leaves all columns unchanged.
      chunk: the rows, for errors.
      columns: {field: B values}.

    Raises:
      UserError: an image cannot be read; names file and line.
    """
    if files is None:
        return columns
    files.require_folder()
    found: Columns = {}
    for name in files.fields:
        checks.one_of("ImageFiles.fields", name, columns)
        paths = (path.item() if isinstance(path, np.ndarray) else path for path in columns[name])
        read = [files.read_file(name, path) for path in paths]
        for number, encoded in zip(chunk.numbers, read, strict=True):
            if isinstance(encoded, str):
                raise checks.UserError(f"{chunk.path} line {number}: {encoded}")
        found[name] = np.array([*read, None], object)[:-1]  # An array of objects, also for one row.
    return {**columns, **found}


def find_problem(
    files: image_files.ImageFiles | None,
    chunk: batches.Chunk,
    parse: Callable[[bytes], Mapping[str, Any] | str],
) -> str:
    """Return an error for the first row of a chunk that names no image; "" if all do."""
    if files is None:
        return ""
    for (number, row), name in itertools.product(
        zip(chunk.numbers, chunk.rows, strict=True), files.fields
    ):
        values = parse(row)
        if isinstance(values, str):
            continue
        problem = files.find_problem(name, values[name])
        if problem:
            return f"{chunk.path} line {number}: {problem}"
    return ""


def read_examples(files: image_files.ImageFiles, chunk: batches.Chunk) -> list[bytes]:
    """Return serialized tf.Examples with the bytes of files in place of their paths.

    Raises:
      UserError: an image cannot be read; names file and record.
    """
    made = []
    for number, record in zip(chunk.numbers, chunk.rows, strict=True):
        try:
            example = tf.train.Example.FromString(record)
        except message.DecodeError as error:
            problem = "must be a serialized tf.Example"
            raise checks.UserError(f"{chunk.path} record {number}: {problem}.") from error
        for name in files.fields:
            values = example.features.feature[name].bytes_list.value
            encoded = files.read_file(name, values[0] if len(values) == 1 else b"")
            if isinstance(encoded, str):
                raise checks.UserError(f"{chunk.path} record {number}: {encoded}")
            values[:] = [encoded]
        made.append(example.SerializeToString())
    return made
