"""Puts saved values in the place of initial ones.

values.write_rows(plan, "mean", model_dir)               # once a run, by one process
values.initialize_variables(plan, model_dir)              # before the session initialises variables

The initialiser of a variable becomes a read of the checkpoint, so that it takes no time when a run
goes on from its own, and a variable is never seen without its value by a second worker. Where rows
have moved, and where averages of rows have to be brought up to date, the variable as it starts is
written to `<model_dir>/warm_start/` and read from there. The chief writes it in a graph of one
device, since no strategy tells the first value of a variable beforehand.
"""

import collections
import os
from collections.abc import Mapping
from typing import cast

import numpy as np
import tensorflow as tf

from mtl.compat import shards
from mtl.transfer import checkpoint, plan
from mtl.variables import patterns

tf1 = tf.compat.v1

NEW_ROWS = ("own", "mean", "unknown", "zeros")


def write_rows(made: plan.Plan, new_rows: str, model_dir: str) -> None:
    """Write what cannot be read from the source as it lies there; read all of that once.

    Raises:
      UserError: if the source is damaged.
    """
    variables = {patterns.variable_name(variable): variable for variable in tf1.global_variables()}
    written: dict[str, np.ndarray] = {}
    for entry in made.warmed():
        if entry.rows is None:
            value, dtype = made.source.read_value(entry.saved), variables[entry.name].dtype
            if _is_written(made, entry, dtype):
                written[entry.name] = value.astype(dtype.as_numpy_dtype)
    written |= _move_rows(made, variables, new_rows)
    if written:
        checkpoint.write_checkpoint(written, _rows_path(model_dir))


def _move_rows(
    made: plan.Plan, variables: Mapping[str, tf.Variable], new_rows: str
) -> dict[str, np.ndarray]:
    """Return the values of the variables whose rows have other places than in the source."""
    moved = [entry for entry in made.warmed() if entry.rows is not None]
    if not moved:
        return {}
    with tf1.Session(graph=tf1.get_default_graph()) as session:
        own = session.run([variables[entry.name].initial_value for entry in moved])
    return {
        entry.name: _with_rows(entry, made.source.read_value(entry.saved), value, new_rows)
        for entry, value in zip(moved, own, strict=True)
    }


def initialize_variables(made: plan.Plan, model_dir: str) -> None:
    """Let what the plan warms start from the source, and from the rows that were written."""
    variables = collections.defaultdict(list)  # With the copies of other replicas, and shards.
    for variable in tf1.global_variables():
        variables[patterns.variable_name(variable)].append(variable)
    for entry in made.warmed():
        if _is_written(made, entry, variables[entry.name][0].dtype):
            _read_from(_rows_path(model_dir), entry.name, variables[entry.name])
        else:
            _read_from(made.source.path, entry.saved, variables[entry.name])


def _is_written(made: plan.Plan, entry: plan.Entry, dtype: tf.DType) -> bool:
    is_other = made.source.dtype(entry.saved) != dtype.base_dtype  # A table of 16 bits, or of 32.
    return entry.rows is not None or made.source.is_behind(entry.saved) or is_other


def _rows_path(model_dir: str) -> str:
    return os.path.join(model_dir, "warm_start", "rows.ckpt")


def _read_from(path: str, name: str, variables: list[tf.Variable]) -> None:
    """Read values of variables: of copies each reads all of it, of shards each its part."""
    for target in [variables] if shards.find_shard(variables[0]) else variables:
        tf1.train.init_from_checkpoint(path, {name: target})


def _with_rows(entry: plan.Entry, old: np.ndarray, own: np.ndarray, new_rows: str) -> np.ndarray:
    """Return the variable's own initial value with the rows that are known put in."""
    rows = cast(plan.Rows, entry.rows)  # Of an entry that has some.
    if rows.origins.ndim > 1:  # Of keys, which lie in buckets.
        old = old.reshape(-1)
    old, value = np.moveaxis(old, rows.axis, 0), np.moveaxis(own, rows.axis, 0).copy()
    is_new = rows.origins < 0
    value[~is_new] = old[rows.origins[~is_new]]
    old = old.astype(np.float32) if old.dtype.itemsize == 2 else old  # For their mean.
    unknown = old[rows.num_named :]
    if not rows.is_state:
        if new_rows == "zeros":
            value[is_new] = 0
        elif new_rows == "mean":
            value[is_new] = old.mean(0)
        elif new_rows == "unknown" and len(unknown):
            value[is_new] = unknown.mean(0)
    return np.moveaxis(value, 0, rows.axis)
