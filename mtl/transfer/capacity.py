"""Changes the capacity of growing tables: moves their rows, and rewrites checkpoints.

capacity.find_keys("features/items/embedding/Adam", shapes)          # "features/items/keys"
capacity.enlarge_tables(["runs/a/model.ckpt-500"], {"features/items": 2_000_000}, initial)

The row of a key depends on the number of rows, so all keys get other rows in a larger table.
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

_KEYS, _TABLE, _SKETCH = "keys", "embedding", "sketch"
# Variables beside the keys of a table; they move with the keys.
_BESIDE = ("last_seen", "comings", "size", _SKETCH)


def find_keys(name: str, names: Iterable[str]) -> str | None:
    """Return the name of the keys that determine a variable's rows, or None."""
    parts = name.split("/")
    scopes = ("/".join(parts[:end]) for end in range(1, len(parts)))
    candidates = (
        f"{scope}/{_KEYS}"
        for scope, part in zip(scopes, parts[1:], strict=True)
        if part in (_TABLE, _KEYS, *_BESIDE)
    )
    return next((keys for keys in candidates if keys in names), None)


def find_table(name: str, names: Iterable[str]) -> str:
    """Return the table that keys of this name, or a variable beside them, belong to.

    For all other variables, return `name`.
    """
    keys = find_keys(name, names)
    is_beside = keys is not None and name.rpartition("/")[2] in (_KEYS, *_BESIDE)
    return f"{name.rpartition('/')[0]}/{_TABLE}" if is_beside else name


def is_sketch(name: str) -> bool:
    """Return True if a variable is a sketch of counts, which fits only one capacity."""
    return name.rpartition("/")[2] == _SKETCH


def place_keys(keys: np.ndarray, capacity: int, where: str) -> np.ndarray:
    """Assign saved keys to the rows of a table; if the capacity is equal, keys keep their rows.

    Args:
      keys: the saved keys, int64 of any shape; 0 marks a free place.
      capacity: the number of rows of the table.
      where: the holder of the saved keys, for errors.

    Returns:
      int64 [capacity]: the saved row whose key each row gets, or -1.

    Raises:
      UserError: all places of a key are taken.
    """
    # If they were placed again, some keys of a full table could find no free place.
    if keys.size == capacity:
        return np.arange(capacity)
    origins = key_table.place_keys(keys, capacity)
    # 0 marks a free place.
    count = np.count_nonzero(keys)
    num_lost = count - np.count_nonzero(origins >= 0)
    fix = f"{num_lost:,} of them find no place: make it larger."
    rule = f"hold the {count:,} keys of {where}"
    checks.require(not num_lost, "Growing.capacity", rule, capacity, fix)
    return origins


def place_rows(
    origins: np.ndarray, saved: int, old_shape: Sequence[int], shape: Sequence[int]
) -> np.ndarray:
    """Return the saved row that each row of a variable gets, or -1.

    Args:
      origins: the result of `place_keys` for the rows of keys.
      saved: the number of rows of keys in the saved table.
      old_shape: the shape of the saved variable.
      shape: the shape of the variable.

    Returns:
      One number for each row of the variable, [rows]; for the variable of keys in its shape.
    """
    if list(shape) == [len(origins) // key_table.PLACES, key_table.PLACES]:
        return origins.reshape(shape)
    # Rows for unknown keys come after all others, in both tables.
    unknown, old = shape[0] - len(origins), old_shape[0] - saved
    # If there are more of them than before, repeat the old ones.
    unknown_origins = saved + np.arange(unknown) % old if old else np.full([unknown], -1)
    return np.concatenate([origins, unknown_origins])


def enlarge_tables(
    paths: Iterable[str],
    capacities: Mapping[str, int],
    initial: Callable[[list[str]], Mapping[str, np.ndarray]],
) -> None:
    """Rewrite checkpoints with larger tables; keys keep the values that they learned.

    Args:
      paths: the checkpoints, the latest last; an interruption damages at most one of them.
      capacities: {scope of a table: rows for its keys}.
      initial: returns the initial values of variables by name, in their new shapes.

    Raises:
      UserError: a checkpoint holds a table with more rows.
    """
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


def _enlarge_table(
    reader: Any,
    path: str,
    scope: str,
    capacity: int,
    initial: Callable[[list[str]], Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Return the changed variables of a checkpoint."""
    shapes = {name: list(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    keys_name = f"{scope}/{_KEYS}"
    if keys_name not in shapes:  # Another check reports that the run has no such table.
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
        # A sketch fits only one capacity, so it starts anew.
        if is_sketch(name):
            continue
        origins = place_rows(of_keys, keys.size, shapes[name], value.shape)
        if averaging.is_state(name) and not averaging.is_decay(name):
            # The average of a new row is its weights.
            value[:] = new_values[name.rpartition("/")[0]]
        _keep_rows(value, reader.get_tensor(name), origins)
    return new_values


def _list_with_keys(keys_name: str, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the keys, and all variables whose rows move with them; their `size` does not."""
    return [name for name in shapes if find_keys(name, shapes) == keys_name and shapes[name]]


def _keep_rows(value: np.ndarray, old: np.ndarray, origins: np.ndarray) -> None:
    """Write the saved rows of keys into the new rows of these keys."""
    old = old.reshape(-1) if origins.ndim > 1 else old
    value[origins >= 0] = old[origins[origins >= 0]]


def _replace(path: str, values: Mapping[str, np.ndarray]) -> None:
    """Replace a checkpoint by another one."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f"{name}.{uuid.uuid4().hex}_temp")
    checkpoint.write_checkpoint(values, os.path.join(temporary, name))
    files = [f for f in storage.listed(temporary) if os.path.basename(f) != "checkpoint"]
    # Rename the index last: a checkpoint without it counts as damaged, and runs use an older one.
    for file in sorted(files, key=lambda file: file.endswith(".index")):
        tf.io.gfile.rename(file, os.path.join(folder, os.path.basename(file)), overwrite=True)
    storage.sync([*storage.listed(folder, f"{name}."), folder])
    tf.io.gfile.rmtree(temporary)
