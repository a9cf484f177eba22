"""Reads the weights of a checkpoint as arrays, and writes arrays as a checkpoint.

values = checkpoint.read_checkpoint("runs/digits")               # {"network/trunk/...": array, ...}
values["head/digit/logits/bias"][3] = 0.0
checkpoint.write_checkpoint(values, "edited/model.ckpt")            # WarmStart.source = "edited"
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from mtl import checks
from mtl.checkpoints import run_directory
from mtl.deferred import tf
from mtl.files import atomic, storage
from mtl.transfer import source as source_lib

_OF_RUN = ("statistics", "events.out.tfevents.*")  # Every run makes them.


def read_checkpoint(source: str) -> dict[str, np.ndarray]:
    """Read all values of a checkpoint, of the latest in a model_dir, or of a SavedModel.

    Raises:
      UserError: the source has no checkpoint, or the checkpoint is damaged.
    """
    checkpoint = source_lib.open_source("source", source)
    return {name: checkpoint.read_value(name) for name in checkpoint.shapes}


def write_checkpoint(values: Mapping[str, np.ndarray], path: str) -> str:
    """Write values as a checkpoint, which becomes the latest checkpoint of its folder.

    If the values include `global_step` and all variables of a run, the run can continue from the
    checkpoint in its folder. A checkpoint with only some variables of a run can still be the source
    of a `WarmStart`. Without `global_step` in the values, the step of the checkpoint is 0.

    Args:
      values: {variable: value}.
      path: the path of the checkpoint, such as "runs/new/model.ckpt-0".

    Returns:
      The path of the checkpoint.

    Raises:
      UserError: a name or value cannot be saved, or the path is a folder or a checkpoint of a run.
    """
    arrays_by_name = _require_arrays(values)
    path = os.fspath(path)
    directory, name = os.path.split(path)
    checks.require(bool(name), "path", "end in the name of a checkpoint", path, "Add model.ckpt.")
    _spare_runs(directory, path, arrays_by_name)
    return replace_checkpoint(arrays_by_name, path)


def _spare_runs(directory: str, path: str, values: Mapping[str, np.ndarray]) -> None:
    """Fail if a checkpoint would spoil a run, in whose folder or subfolder its path is."""
    is_best = os.path.basename(directory) == "best"
    folder = os.path.dirname(directory) if is_best else directory
    if not all(tf.io.gfile.glob(os.path.join(folder, pattern)) for pattern in _OF_RUN):
        return
    rule = "name a new checkpoint, not one that a run has saved"
    checks.require(not run_directory.is_checkpoint(path), "path", rule, path)
    latest = run_directory.find_latest(directory)
    if latest is not None:
        missing = sorted(dict(tf.train.list_variables(latest)).keys() - values.keys())
        rule = "hold every variable of the run, as training would go on from this checkpoint"
        fix = "Choose a path outside of the run for a part of its variables."
        checks.require(not missing, "values", rule, f"no {', '.join(missing[:3])}", fix)


def _require_arrays(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return values as arrays; fail unless TensorFlow can save them under their names."""
    checks.is_a("values", values, Mapping, "be {variable: array}")
    arrays = {}
    for name, value in values.items():
        checks.is_a("the name of a variable", name, str, "be a text")
        checks.require(bool(name), "the name of a variable", "not be empty", name)
        where, rule = f"values[{name!r}]", "be an array of numbers, truth values or texts"
        try:
            array = np.asarray(value)
            tf.as_dtype(array.dtype)
        except (TypeError, ValueError):
            checks.fail(where, rule, value)
        is_plain = array.dtype.kind != "O" or all(isinstance(v, (str, bytes)) for v in array.flat)
        checks.require(is_plain, where, rule, value)
        arrays[name] = array
    return arrays


def replace_checkpoint(values: Mapping[str, np.ndarray], path: str) -> str:
    """Write arrays as a checkpoint, as `write_checkpoint`; an earlier checkpoint is replaced.

    Args:
      values: {variable: array}.
      path: the path of the checkpoint.

    Returns:
      The path of the checkpoint.
    """
    values = {"global_step": np.zeros([], np.int64), **values}
    directory, name = os.path.split(path)
    tf.io.gfile.makedirs(directory or ".")
    arrays = [np.asarray(value) for value in values.values()]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        placeholders = [tf.compat.v1.placeholder(array.dtype, array.shape) for array in arrays]
        # A `Saver` would need variables, but this op writes tensors under any names.
        save_op = tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=list(values),
            shape_and_slices=[""] * len(arrays),
            tensors=placeholders,
        )
        session.run(save_op, dict(zip(placeholders, arrays, strict=True)))
    # The files must be on the disk before the file `checkpoint` names them.
    storage.sync(storage.listed(directory or ".", f"{name}."))
    atomic.write(os.path.join(directory, "checkpoint"), f'model_checkpoint_path: "{name}"\n')
    return path
