"""Names rows of tables for TensorBoard's projector, which reads tables from the checkpoint.

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
"""A browser holds all rows of a table at once."""

Shapes = Mapping[str, Sequence[int]]


def choose(shapes: Shapes, named: Mapping[str, types.RowNames]) -> dict[str, types.RowNames]:
    """Return {table: names of its rows} for the variables that the projector can show.

    Args:
      shapes: {variable: its shape} of float32 variables.
      named: {scope: names}, from `row_names.load`.

    Raises:
      UserError: no variable can be shown.
    """
    found, large = {}, []
    for name, shape in shapes.items():
        names = row_names.find_row_names(named, name)
        is_table = names is not None and names.axis == 0 and len(shape) == 2
        # Names of a changed vocabulary would label the wrong rows.
        if not is_table or names is None or not row_names.fit_shape(names, shape):
            continue
        if shape[0] > MOST_ROWS:
            large.append(f"{name} of {shape[0]:,} rows")
        else:
            found[name] = names
    if large:
        _log.warning("Too large for the projector, and so left out: %s", ", ".join(large))
    fix = f"No table of at most {MOST_ROWS:,} rows has names for them."
    checks.require(bool(found), "TensorBoard.embeddings", "be False", True, fix)
    return found


def write(model_dir: str, chosen: Mapping[str, types.RowNames], shapes: Shapes) -> None:
    """Write the list of tables and the names of rows for the projector, beside the checkpoints."""
    config = projector_config_pb2.ProjectorConfig()
    tf.io.gfile.makedirs(os.path.join(model_dir, FOLDER))
    for number, (name, names) in enumerate(chosen.items()):
        # The number keeps names apart that are equal after the cut; file systems limit names.
        path = os.path.join(FOLDER, f"{number}_{name.replace('/', '_')[-80:]}.tsv")
        lines = list(map(_clean_name, row_names.read_names(names)))
        # The projector needs a line for each row: rows of unknown words have no name.
        lines += [f"(unknown {place})" for place in range(shapes[name][0] - len(lines))]
        atomic.write(os.path.join(model_dir, path), "\n".join(lines) + "\n")
        config.embeddings.add(tensor_name=name, metadata_path=path)
    atomic.write(os.path.join(model_dir, CONFIG), text_format.MessageToString(config))


def _clean_name(name: str) -> str:
    """Return a name as one cell of a table: a tab or the end of a line would start another one."""
    # Tokens may hold halves of characters (surrogates), which UTF-8 cannot write.
    plain = name.encode(errors="replace").decode()
    return " ".join(plain.split()) or "(empty)"
