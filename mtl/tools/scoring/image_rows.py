"""Replaces paths of image files in rows by the content of the files.

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
from mtl.data import image_files, mixture
from mtl.deferred import tf
from mtl.tools.scoring import batches

Columns = dict[str, batches.Values]


def find(source: Any) -> image_files.ImageFiles | None:
    """Return the `ImageFiles` among nested sources; None without an `ImageFiles`.

    Raises:
      UserError: the sources of a mixture read images from different fields or folders.
    """
    found: dict[tuple[str, tuple[str, ...]], image_files.ImageFiles] = {}
    sources = [source]
    for part in sources:  # The loop appends inner sources to `sources`.
        if isinstance(part, image_files.ImageFiles):
            found.setdefault((part.folder, tuple(part.fields)), part)
        elif isinstance(part, mixture.Mixture):
            sources += part.sources.values()
        elif part is not None:
            sources.append(getattr(part, "source", None))
    rule = "have equal ImageFiles.folder and ImageFiles.fields, as new rows name no source"
    checks.require(len(found) < 2, "the sources of a mixture", rule, sorted(found))
    return next(iter(found.values()), None)


def read_columns(
    files: image_files.ImageFiles | None,
    chunk: batches.Chunk,
    columns: Columns,
    unit: str = "line",
) -> Columns:
    """Replace paths of image files in the columns of a chunk by the content of the files.

    Args:
      files: the source that says which fields hold paths; None leaves all columns unchanged.
      chunk: the chunk that has the rows; error messages name its file and the number of the row.
      columns: {field: B values}.
      unit: the word for a row in error messages: "line", or "row" for the row of a table.

    Raises:
      UserError: an image cannot be read.
    """
    if files is None:
        return columns
    files.require_folder()
    images: Columns = {}
    for name in files.fields:
        checks.one_of("ImageFiles.fields", name, columns)
        paths = (path.item() if isinstance(path, np.ndarray) else path for path in columns[name])
        contents = [files.read_file(name, path) for path in paths]
        for number, content in zip(chunk.numbers, contents, strict=True):
            if isinstance(content, str):
                raise checks.UserError(f"{chunk.path} {unit} {number}: {content}")
        # Keep the images as Python objects. NumPy's type for bytes would drop zero bytes at the end
        # of an image.
        images[name] = np.array([*contents, None], object)[:-1]
    return {**columns, **images}


def find_problem(
    files: image_files.ImageFiles | None,
    chunk: batches.Chunk,
    parse: Callable[[bytes], Mapping[str, Any] | str],
) -> str:
    """Return an error for the first row whose image cannot be read; "" if no row is wrong.

    Args:
      files: the source that says which fields hold paths; None if no field holds paths.
      chunk: the chunk that has the rows.
      parse: a function that returns {field: value} for a row, or an error message.
    """
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
    """Return the tf.Examples of a chunk, with the content of image files instead of their paths.

    Args:
      files: the source that says which fields hold paths of image files.
      chunk: B serialized tf.Examples.

    Returns:
      B serialized tf.Examples.

    Raises:
      UserError: an image cannot be read, or a record is malformed.
    """
    examples = []
    for number, record in zip(chunk.numbers, chunk.rows, strict=True):
        try:
            example = tf.train.Example.FromString(record)
        except message.DecodeError as error:
            problem = "must be a serialized tf.Example"
            raise checks.UserError(f"{chunk.path} record {number}: {problem}.") from error
        for name in files.fields:
            values = example.features.feature[name].bytes_list.value
            content = files.read_file(name, values[0] if len(values) == 1 else b"")
            if isinstance(content, str):
                raise checks.UserError(f"{chunk.path} record {number}: {content}")
            values[:] = [content]
        examples.append(example.SerializeToString())
    return examples
