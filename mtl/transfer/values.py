"""Replaces the initial values of variables by saved values.

values.write_rows(plan, "mean", model_dir)               # once, in one process
values.initialize_variables(plan, model_dir)              # before the session initialises variables

The initialiser of a variable is replaced by an op that reads the checkpoint. Because initialisers
read the checkpoint, a warm start takes no time in a resumed run, and other workers never see a
variable without its saved value. If rows have moved, or averages are not up to date, the new values
are first written to `<model_dir>/warm_start/`. The chief computes the values of moved rows and
updated averages in a graph for a single device, because distribution strategies do not give access
to initial values.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping
from typing import cast

import numpy as np

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.tf_internals import shards
from mtl.transfer import checkpoint, plan
from mtl.transfer import source as source_lib
from mtl.variables import patterns

NEW_ROWS = ("own", "mean", "unknown", "zeros")


def write_rows(transfer_plan: plan.Plan, new_rows: str, model_dir: str) -> None:
    """Write the initial values that differ from the saved values into the folder of this run.

    All saved values are read once, so a damaged source is found before the training starts.

    Args:
      transfer_plan: the plan for the variables of the default graph.
      new_rows: the initial values of rows that are not in the source, a name in `NEW_ROWS`.
      model_dir: the folder of this run.

    Raises:
      UserError: the source is damaged, or a value is NaN, infinite or of another kind.
    """
    variables = {patterns.variable_name(variable): variable for variable in tf1.global_variables()}
    new_values: dict[str, np.ndarray] = {}
    for entry in transfer_plan.warmed():
        if entry.rows is None:
            dtype = variables[entry.name].dtype
            value = _read_value(transfer_plan.source, entry, dtype)
            if _is_written(transfer_plan, entry, dtype):
                new_values[entry.name] = value.astype(dtype.as_numpy_dtype)
    new_values |= _move_rows(transfer_plan, variables, new_rows)
    if new_values:
        checkpoint.replace_checkpoint(new_values, _rows_path(model_dir))


def _move_rows(
    transfer_plan: plan.Plan, variables: Mapping[str, tf.Variable], new_rows: str
) -> dict[str, np.ndarray]:
    """Compute the values of variables whose rows have other places in the source."""
    entries = [entry for entry in transfer_plan.warmed() if entry.rows is not None]
    if not entries:
        return {}
    with tf1.Session(graph=tf1.get_default_graph()) as session:
        # New rows have values of the variable's initialiser, which is run here.
        initial_values = session.run([variables[entry.name].initial_value for entry in entries])
    return {
        entry.name: _with_rows(
            entry,
            _read_value(transfer_plan.source, entry, variables[entry.name].dtype),
            value,
            new_rows,
        )
        for entry, value in zip(entries, initial_values, strict=True)
    }


def _read_value(source: source_lib.Source, entry: plan.Entry, dtype: tf.DType) -> np.ndarray:
    """Read a saved value, and check that it suits a variable of a given type."""
    value, where = source.read_value(entry.saved), f"checkpoint {source.path}: {entry.saved!r}"
    if dtype.is_floating:
        # Cast only floats, because a cast would round other numbers. Refuse NaN here, because a
        # ReLU may hide it: on a CPU, the ReLU of NaN is 0.
        is_float = source.dtype(entry.saved).is_floating
        checks.require(is_float, where, f"hold {dtype.base_dtype.name}", value.dtype.name)
        has_nan = bool(np.isnan(value).any())
        checks.require(not has_nan, where, "hold no NaN", f"{np.isnan(value).sum():,} of them")
    if entry.is_count:
        return np.asarray(np.count_nonzero(value))
    # Do not add an offset of 0, because a sum would copy each table, and turn booleans into
    # numbers.
    return value + entry.offset if entry.offset else value


def initialize_variables(transfer_plan: plan.Plan, model_dir: str) -> None:
    """Initialise the variables of a plan from the source, or from the values of `write_rows`.

    Args:
      transfer_plan: the plan for the variables of the default graph.
      model_dir: the folder of this run, in which `write_rows` has written its values.
    """
    # Copies on replicas, and the shards of a table, have the same name.
    variables = collections.defaultdict(list)
    for variable in tf1.global_variables():
        variables[patterns.variable_name(variable)].append(variable)
    for entry in transfer_plan.warmed():
        if _is_written(transfer_plan, entry, variables[entry.name][0].dtype):
            _read_from(_rows_path(model_dir), entry.name, variables[entry.name])
        else:
            _read_from(transfer_plan.source.path, entry.saved, variables[entry.name])


def _is_written(transfer_plan: plan.Plan, entry: plan.Entry, dtype: tf.DType) -> bool:
    source = transfer_plan.source
    # A table may have 16 bits in one run and 32 bits in the other.
    has_other_type = source.dtype(entry.saved) != dtype.base_dtype
    is_moved = entry.rows is not None or entry.is_count or entry.offset != 0
    return is_moved or source.is_behind(entry.saved) or has_other_type


def _rows_path(model_dir: str) -> str:
    return os.path.join(model_dir, "warm_start", "rows.ckpt")


def _read_from(path: str, name: str, variables: list[tf.Variable]) -> None:
    """Initialise copies or shards of a variable from a saved value."""
    # Each copy of a variable reads the whole value. For shards, `init_from_checkpoint` takes an
    # ordered list.
    for target in [variables] if shards.find_shard(variables[0]) else variables:
        tf1.train.init_from_checkpoint(path, {name: target})


def _with_rows(
    entry: plan.Entry, old: np.ndarray, initial_value: np.ndarray, new_rows: str
) -> np.ndarray:
    """Return the initial value of a variable after saved rows have replaced its rows."""
    rows = cast(plan.Rows, entry.rows)  # Callers pass only entries whose `rows` is set.
    if rows.origins.ndim > 1:  # The keys of a `Growing` table are a matrix.
        old = old.reshape(-1)
    # The axis of the rows is moved to the front, because classes are columns of a last layer.
    old, value = np.moveaxis(old, rows.axis, 0), np.moveaxis(initial_value, rows.axis, 0).copy()
    is_new = rows.origins < 0
    value[~is_new] = old[rows.origins[~is_new]]
    old = old.astype(np.float32) if old.dtype.itemsize == 2 else old  # For exact means.
    unknown = old[rows.num_named :]
    if not rows.is_state:
        if new_rows == "zeros":
            value[is_new] = 0
        elif new_rows == "mean":
            value[is_new] = old.mean(0)
        elif new_rows == "unknown" and len(unknown):
            value[is_new] = unknown.mean(0)
    return np.moveaxis(value, 0, rows.axis)
