"""Changes the capacity of growing embedding tables: moves their rows in checkpoints.

capacity.find_keys("features/items/embedding/Adam", shapes)          # "features/items/keys"
capacity.enlarge_tables(["runs/a/model.ckpt-500"], {"features/items": 2_000_000}, initial)

The row of a key depends on a hash of the key, and on the number of rows, so keys move to other rows
in a larger table.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks
from mtl.deferred import tf
from mtl.features import key_table
from mtl.files import storage
from mtl.transfer import checkpoint
from mtl.variables import averaging

_KEYS, _TABLE, _SKETCH, _SIZE = "keys", "embedding", "sketch", "size"
# Variables with these names are in the scope of a growing table, and their rows move with the keys.
_BESIDE = ("last_seen", "comings", _SIZE, _SKETCH)


def find_keys(name: str, names: Iterable[str]) -> str | None:
    """Return the name of the variable with the keys of another variable's rows.

    Args:
      name: the name of a variable: the keys, a growing table, a variable beside the keys, or
        optimizer state of one of them.
      names: the names of all variables; a list or a map, because the search may read it several
        times.

    Returns:
      A name such as "features/items/keys"; None if the variable has no keys among `names`.
    """
    parts = name.split("/")
    scopes = ("/".join(parts[:end]) for end in range(1, len(parts)))
    candidates = (
        f"{scope}/{_KEYS}"
        for scope, part in zip(scopes, parts[1:], strict=True)
        if part in (_TABLE, _KEYS, *_BESIDE)
    )
    return next((keys for keys in candidates if keys in names), None)


def find_table(name: str, names: Iterable[str]) -> str:
    """Return the name of the growing table to which a variable of the table's keys or state
    belongs.

    Args:
      name: the name of a variable.
      names: the names of all variables, as for `find_keys`.

    Returns:
      The name of the table, `<scope>/embedding`; `name` itself if the variable belongs to no keys.
    """
    keys = find_keys(name, names)
    is_beside = keys is not None and name.rpartition("/")[2] in (_KEYS, *_BESIDE)
    return f"{name.rpartition('/')[0]}/{_TABLE}" if is_beside else name


def find_counted_keys(name: str, names: Iterable[str]) -> str | None:
    """Return the name of the keys that a variable counts; None for all other variables."""
    return find_keys(name, names) if name.rpartition("/")[2] == _SIZE else None


def is_sketch(name: str) -> bool:
    """Return True if a variable is a sketch of counts, which is valid for only one capacity."""
    return name.rpartition("/")[2] == _SKETCH


def place_keys(keys: np.ndarray, capacity: int, where: str) -> np.ndarray:
    """Assign saved keys to the rows of a table; with the same capacity, keys keep their rows.

    Args:
      keys: the saved keys, int64 of any shape; 0 stands for a free row.
      capacity: the number of rows of the table.
      where: the name of the checkpoint, for error messages.

    Returns:
      For each row of the table, the index of the saved row with the same key, int64 [capacity]; -1
      for a free row.

    Raises:
      UserError: a key finds no free row.
    """
    # With the same capacity, keep all rows: a second placement of a full table's keys could fail.
    if keys.size == capacity:
        return np.arange(capacity)
    origins = key_table.place_keys(keys, capacity)
    # A key of 0 stands for a free row.
    count = np.count_nonzero(keys)
    num_lost = count - np.count_nonzero(origins >= 0)
    fix = f"{num_lost:,} of them find no place: make it larger."
    rule = f"hold the {count:,} keys of {where}"
    checks.require(not num_lost, "Growing.capacity", rule, capacity, fix)
    return origins


def place_rows(
    origins: np.ndarray, saved: int, old_shape: Sequence[int], shape: Sequence[int]
) -> np.ndarray:
    """Return the index of the saved row for each row of a variable; -1 for a new row.

    Args:
      origins: the result of `place_keys`.
      saved: the number of rows for keys in the saved table.
      old_shape: the shape of the saved variable.
      shape: the shape of the variable in this run.

    Returns:
      The indices of the saved rows, [rows]; for the variable with the keys, in the shape of the
      keys.
    """
    if list(shape) == [len(origins) // key_table.PLACES, key_table.PLACES]:
        return origins.reshape(shape)
    # In the old and the new table, rows for unknown keys come after all other rows.
    unknown, old = shape[0] - len(origins), old_shape[0] - saved
    # If there are more rows for unknown keys than before, the saved rows are repeated.
    unknown_origins = saved + np.arange(unknown) % old if old else np.full([unknown], -1)
    return np.concatenate([origins, unknown_origins])


def enlarge_tables(
    paths: Iterable[str],
    capacities: Mapping[str, int],
    initial: Callable[[list[str]], Mapping[str, np.ndarray]],
) -> bool:
    """Rewrite checkpoints with larger tables; keys keep their learned values.

    Args:
      paths: the paths of the checkpoints, the latest last. If the process is interrupted, at most
        one checkpoint is damaged.
      capacities: {scope of a table: new number of rows for its keys}.
      initial: a function from names of variables to {name: initial value in the new shape}.

    Returns:
      True if a checkpoint was rewritten.

    Raises:
      UserError: a table in a checkpoint has more rows than its new capacity.
    """
    is_rewritten = False
    for path in paths:
        reader = tf.train.load_checkpoint(path)
        new_values: dict[str, np.ndarray] = {}
        for scope, capacity in capacities.items():
            new_values |= _enlarge_table(reader, path, scope, capacity, initial)
        if new_values:
            other_names = reader.get_variable_to_shape_map().keys() - new_values.keys()
            _replace(
                path, {**{name: reader.get_tensor(name) for name in other_names}, **new_values}
            )
            is_rewritten = True
    return is_rewritten


def _enlarge_table(
    reader: Any,
    path: str,
    scope: str,
    capacity: int,
    initial: Callable[[list[str]], Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Return the new values of the variables that change in a checkpoint, {name: value}."""
    shapes = {name: list(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    keys_name = f"{scope}/{_KEYS}"
    if keys_name not in shapes:  # Another check reports a missing table.
        return {}
    keys = reader.get_tensor(keys_name)
    if keys.size == capacity:
        return {}
    rule = f"be at least {keys.size}, the capacity in {path}"
    checks.require(keys.size < capacity, "Growing.capacity", rule, capacity)
    # Rows without a saved key keep their initial values.
    initials = initial(_list_with_keys(keys_name, shapes))
    new_values = {name: np.array(value) for name, value in initials.items()}
    of_keys = place_keys(keys, capacity, path)
    for name, value in new_values.items():
        # A sketch is valid for only one capacity, so it starts again from its initial value.
        if is_sketch(name):
            continue
        origins = place_rows(of_keys, keys.size, shapes[name], value.shape)
        if averaging.is_state(name) and not averaging.is_decay(name):
            # The moving average of a new row starts at the row's weights.
            value[:] = new_values[name.rpartition("/")[0]]
        _keep_rows(value, reader.get_tensor(name), origins)
    return new_values


def _list_with_keys(keys_name: str, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the names of all variables whose rows move with the keys, and of the keys."""
    return [name for name in shapes if find_keys(name, shapes) == keys_name and shapes[name]]


def _keep_rows(value: np.ndarray, old: np.ndarray, origins: np.ndarray) -> None:
    """Copy saved rows into the rows that their keys have in the new table."""
    old = old.reshape(-1) if origins.ndim > 1 else old
    value[origins >= 0] = old[origins[origins >= 0]]


def _replace(path: str, values: Mapping[str, np.ndarray]) -> None:
    """Replace the files of a checkpoint by files with new values."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f"{name}.{uuid.uuid4().hex}_temp")
    checkpoint.replace_checkpoint(values, os.path.join(temporary, name))
    files = [f for f in storage.listed(temporary) if os.path.basename(f) != "checkpoint"]
    # Rename the index last: a checkpoint without an index counts as damaged, and runs use an older
    # checkpoint.
    for file in sorted(files, key=lambda file: file.endswith(".index")):
        tf.io.gfile.rename(file, os.path.join(folder, os.path.basename(file)), overwrite=True)
    storage.sync([*storage.listed(folder, f"{name}."), folder])
    tf.io.gfile.rmtree(temporary)
