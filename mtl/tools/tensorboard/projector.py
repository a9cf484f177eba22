"""Writes the names of table rows for TensorBoard's projector, which reads tables from checkpoints.

shapes = {"features/word/embedding": (100, 16)}
projector.write(model_dir, projector.choose(shapes, names), shapes)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

from google.protobuf import text_format
from tensorboard.plugins.projector import projector_config_pb2

from mtl import checks, types
from mtl.deferred import tf
from mtl.files import atomic
from mtl.variables import row_names

_log = logging.getLogger(__name__)

CONFIG, FOLDER = "projector_config.pbtxt", "projector"
MOST_ROWS = 100_000
"""The largest number of rows in a table, because a browser holds all rows in memory."""

Shapes = Mapping[str, Sequence[int]]


def choose(shapes: Shapes, named: Mapping[str, types.RowNames]) -> dict[str, types.RowNames]:
    """Return {table: names of rows} for the variables that the projector can show.

    Args:
      shapes: {variable: shape} for float32 variables.
      named: {scope of a table: names of its rows}, as `row_names.load` returns them.

    Raises:
      UserError: no variable can be shown.
    """
    tables, large_tables = {}, []
    for name, shape in shapes.items():
        names = row_names.find_row_names(named, name)
        is_table = names is not None and names.axis == 0 and len(shape) == 2
        # Check the number of names, because names from another vocabulary would label wrong rows.
        if not is_table or names is None or not row_names.fit_shape(names, shape):
            continue
        if shape[0] > MOST_ROWS:
            large_tables.append(f"{name} of {shape[0]:,} rows")
        else:
            tables[name] = names
    if large_tables:
        _log.warning(
            "The projector leaves out tables that are too large: %s", ", ".join(large_tables)
        )
    fix = f"No table of at most {MOST_ROWS:,} rows has names of rows."
    checks.require(bool(tables), "TensorBoard.embeddings", "be False", True, fix)
    return tables


def write(model_dir: str, tables: Mapping[str, types.RowNames], shapes: Shapes) -> None:
    """Write the names of table rows and the configuration of the projector into `model_dir`.

    Args:
      model_dir: the folder of the run.
      tables: {table: names of rows}, from `choose`.
      shapes: {variable: shape}.
    """
    config = projector_config_pb2.ProjectorConfig()
    tf.io.gfile.makedirs(os.path.join(model_dir, FOLDER))
    for number, (name, names) in enumerate(tables.items()):
        # File systems limit the length of file names. With the number of the table, shortened names
        # stay distinct.
        path = os.path.join(FOLDER, f"{number}_{name.replace('/', '_')[-80:]}.tsv")
        lines = list(map(_clean_name, row_names.read_names(names)))
        # The projector needs a name for each row, but rows for unknown words have none.
        lines += [f"(unknown {place})" for place in range(shapes[name][0] - len(lines))]
        atomic.write(os.path.join(model_dir, path), "\n".join(lines) + "\n")
        config.embeddings.add(tensor_name=name, metadata_path=path)
    atomic.write(os.path.join(model_dir, CONFIG), text_format.MessageToString(config))


def _clean_name(name: str) -> str:
    """Return a name without tabs and line breaks, which would begin another cell of the file."""
    # Tokens may hold single surrogates, which UTF-8 cannot encode.
    plain = name.encode(errors="replace").decode()
    return " ".join(plain.split()) or "(empty)"
