"""Draws how sparse a network became while it trained: one picture in the run's folder.

path = sparsity_picture.draw("runs/digits")      # runs/digits/sparsity.svg: open it in a browser

Three panels have a line for each pruned variable, over the steps. With `TaskSaliency`, a fourth
panel shows how far the tasks agree. The summary of the run tells how many weights are cut.
"""

from __future__ import annotations

import collections
import os
import zlib

import numpy as np

from mtl.deferred import tf
from mtl.files import atomic
from mtl.monitoring import chart, event_files
from mtl.variables import pruned

_FILE = "sparsity.svg"
_PREFIX = "pruning/"
TITLES = {
    "sparsity": "share of weights that are cut",
    "dead_units": "share of units that nothing feeds",
    "churn": "share of weights whose mask the last cut changed",
    "task_overlap": "overlap of the tasks' choices at the last cut",
}


def draw(model_dir: str, scalars: event_files.Curves | None = None) -> str | None:
    """Write the picture anew and return its path; None if the run prunes nothing.

    Args:
      model_dir: the folder of the run.
      scalars: the scalars of its event files; None reads them.
    """
    found = read(model_dir) if scalars is None else group(scalars)
    if not found:
        return None
    panels = [chart.draw_lines(TITLES[kind], curves) for kind, curves in found.items()]
    path = os.path.join(model_dir, _FILE)
    atomic.write(path, chart.draw_page(panels))
    return path


def count_weights(checkpoint: str) -> tuple[int, int, int] | None:
    """Return (cut weights, all weights, packed bytes) of the pruned variables of a checkpoint.

    Packed bytes are the size after zlib of their float32 values, with 0 for cut weights. Return
    None if the checkpoint has no pruned variables.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    names = map(pruned.find_weights, reader.get_variable_to_shape_map())
    cut = total = packed = 0
    for name, count in collections.Counter(names).items():
        if count > 1:  # The checkpoint has the weights and their mask.
            mask = reader.get_tensor(pruned.mask_name(name)) > 0
            value = np.where(mask, reader.get_tensor(name), np.float32(0))
            cut, total = cut + int((~np.broadcast_to(mask, value.shape)).sum()), total + value.size
            packed += len(zlib.compress(value.tobytes(), 1))
    return (cut, total, packed) if total else None


def read(model_dir: str) -> dict[str, event_files.Curves]:
    """Return {kind: {variable: {step: value}}} of a run."""
    return group(event_files.read_record(model_dir).curves)


def group(curves: event_files.Curves) -> dict[str, event_files.Curves]:
    """Return {kind: {variable: {step: value}}} among the scalars of a run."""
    found: dict[str, event_files.Curves] = {}
    for tag, points in curves.items():
        variable, _, kind = tag.removeprefix(_PREFIX).rpartition("/")
        if tag.startswith(_PREFIX) and kind in TITLES and points:
            name = variable.removeprefix("network/").removesuffix("/kernel")
            found.setdefault(kind, {})[name] = points
    return {kind: found[kind] for kind in TITLES if kind in found}
