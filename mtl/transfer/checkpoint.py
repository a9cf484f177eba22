"""Reads the weights of a checkpoint as arrays, and writes arrays as a checkpoint.

values = checkpoint.read_checkpoint("runs/digits")               # {"network/trunk/...": array, ...}
values["head/digit/logits/bias"][3] = 0.0
checkpoint.write_checkpoint(values, "edited/model.ckpt")            # WarmStart.source = "edited"
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import numpy as np

from mtl import checks, deferred, types
from mtl.checkpoints import run_directory
from mtl.deferred import tf
from mtl.files import atomic, storage
from mtl.variables import row_names

with deferred.imports():
    from mtl.transfer import source as source_lib

_STEP = "global_step"
_OF_RUN = ("statistics", "events.out.tfevents.*")  # Files of every run.


class Values(dict[str, np.ndarray]):
    """The values of a checkpoint, {variable: value}.

    Attributes:
      source: the checkpoint from which the values were read, with the names of the rows of tables.
    """

    def __init__(self, values: Mapping[str, np.ndarray], source: source_lib.Source):
        super().__init__(values)
        self.source = dataclasses.replace(source)  # Drops the reader, which cannot be copied.


def read_checkpoint(source: str) -> Values:
    """Read all values of a checkpoint, of the latest in a model_dir, or of a SavedModel.

    Raises:
      UserError: the source has no checkpoint, or the checkpoint is damaged.
    """
    checkpoint = source_lib.open_source("source", source)
    return Values({name: checkpoint.read_value(name) for name in checkpoint.shapes}, checkpoint)


def write_checkpoint(values: Mapping[str, np.ndarray], path: str) -> str:
    """Write values as a checkpoint, which becomes the latest checkpoint of its folder.

    If the values include `global_step` and all variables of a run, the run can continue from the
    checkpoint in its folder. A checkpoint with only some variables of a run can still be the source
    of a `WarmStart`. Without `global_step` in the values, the step of the checkpoint is 0.

    Args:
      values: {variable: value}. With the `Values` of `read_checkpoint`, the tokens and classes of
        rows are also written, so that a warm start can match rows by name.
      path: the path of the checkpoint, such as "runs/new/model.ckpt-0". In the folder of a run, the
        number in the path must be `global_step`.

    Returns:
      The path of the checkpoint.

    Raises:
      UserError: a name or value cannot be saved; the path is a folder or a checkpoint of a run; or
        a variable has changed, but not its moving average, which a warm start would use.
    """
    arrays_by_name = _require_arrays(values)
    path = os.fspath(path)
    directory, name = os.path.split(path)
    checks.require(bool(name), "path", "end in the name of a checkpoint", path, "Add model.ckpt.")
    source = dataclasses.replace(values.source) if isinstance(values, Values) else None
    if source:
        _require_equal_averages(arrays_by_name, source)
    if _is_run(directory):
        _spare_run(directory, path, arrays_by_name)
    elif source:
        tf.io.gfile.makedirs(directory or ".")
        row_names.save({k: _list_names(v) for k, v in source.named.items()}, directory)
    return replace_checkpoint(arrays_by_name, path)


def _require_equal_averages(values: Mapping[str, np.ndarray], source: source_lib.Source) -> None:
    """Fail if a variable has changed since it was read, but its moving average has not changed."""
    for name in values.keys() & source.shapes.keys():
        average = source.trained_name(name)
        if average != name and average in values:
            is_same, is_average_same = (
                np.array_equal(values[key], source.read_value(key)) for key in (name, average)
            )
            if is_average_same and not is_same:
                raise checks.UserError(
                    f"values[{name!r}] has changed, but not its average, values[{average!r}], "
                    "which warm starts and predictions use. Change both."
                )


def _list_names(names: types.RowNames) -> types.RowNames:
    """Return row names that are read from their file, which lies beside the old checkpoint."""
    return names._replace(names=tuple(row_names.read_names(names)), first=0, last=None)


def _is_run(directory: str) -> bool:
    """Return True if a folder belongs to a run: the model_dir, or its folder `best`."""
    is_best = os.path.basename(directory) == "best"
    folder = os.path.dirname(directory) if is_best else directory
    return all(tf.io.gfile.glob(os.path.join(folder, pattern)) for pattern in _OF_RUN)


def _spare_run(directory: str, path: str, values: Mapping[str, np.ndarray]) -> None:
    """Fail if a checkpoint in the folder of a run would spoil the run."""
    rule = "name a new checkpoint, not one that a run has saved"
    checks.require(not run_directory.is_checkpoint(path), "path", rule, path)
    ending = f"-{int(values.get(_STEP, 0))}"
    rule = f"end in {ending}, as values[{_STEP!r}] is the step of the checkpoint"
    checks.require(path.endswith(ending), "path", rule, path, "Or choose another folder.")
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
    """Write arrays as a checkpoint, like `write_checkpoint`, but replace an earlier checkpoint.

    Args:
      values: {variable: array}.
      path: the path of the checkpoint.

    Returns:
      The path of the checkpoint.
    """
    values = {_STEP: np.zeros([], np.int64), **values}
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
