"""The masks of pruned variables in the step that is being built.

pruned.kept_entries(variable)        # zeros and ones that broadcast to it; None without a mask

`mtl.sparsity` cuts weights. Code that changes gradients, and layers that look up rows, get the
masks here.
"""

from __future__ import annotations

import collections
import contextlib
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from mtl import ambient
from mtl.deferred import tf
from mtl.variables import patterns

_MASK, _SALIENCY = "pruning_mask", "saliency"
_OWNER, _SCOPE = "_of_", "pruning/"


def mask_name(name: str) -> str:
    """Return the name of the mask of a variable."""
    return f"{name}/{_MASK}"


def saliency_name(name: str) -> str:
    """Return the name of the variable for the values that a criterion gathers."""
    return f"{name}/{_SALIENCY}"


def owner_name(name: str, task: str) -> str:
    """Return the name of the variable that marks the weights of `name` that belong to a task."""
    return f"{name}{_OWNER}{task}"


def is_owner(name: str, weights: str) -> bool:
    """Return True if the variable `name` marks the entries of `weights` that belong to a task."""
    return name.startswith(f"{weights}{_OWNER}")


def is_shared_out(name: str, names: Collection[str]) -> bool:
    """Return True if one of `names` marks the weights of a variable that belong to a task."""
    return any(is_owner(owner, name) for owner in names)


def find_weights(name: str) -> str:
    """Return the name of the variable that a mask cuts; for other variables `name` itself."""
    return name.removesuffix(f"/{_MASK}")


def is_state(name: str) -> bool:
    """Return True if a variable is the mask or the saliency of another variable."""
    return name.rpartition("/")[2] in (_MASK, _SALIENCY)


def is_of_pruning(name: str) -> bool:
    """Return True if only a pruned network has the variable."""
    return is_state(name) or name.startswith(_SCOPE)


def hold_masks(
    masks: Mapping[str, tf.Tensor | None],
) -> contextlib.AbstractContextManager[Mapping[str, tf.Tensor | None]]:
    """Return a context in which code that asks for masks gets these.

    Args:
      masks: {variable: float32 zeros and ones that broadcast to it}, or None if its cut weights
        train on under the mask; entries may be added later.
    """
    return _MASKS.set(masks)


def kept_entries(variable: patterns.Variable) -> tf.Tensor | None:
    """Return zeros and ones, 0 for the cut entries of a variable; None if all entries train."""
    return _MASKS.get().get(patterns.variable_name(variable))


def is_cut(name: str) -> bool:
    """Return True if a variable is pruned in the step that is being built."""
    return name in _MASKS.get()


def mask_rows(rows: tf.Tensor, table: Any, ids: tf.Tensor) -> tf.Tensor:
    """Set the cut entries of looked-up rows to 0, without a gradient.

    Args:
      rows: [..., D].
      table: the variable that holds the rows.
      ids: the numbers of the rows, [...].
    """
    mask = kept_entries(table) if _MASKS.get() and isinstance(table, tf.Variable) else None
    return rows if mask is None else rows * take_rows(mask, ids, len(table.shape))


def take_rows(mask: tf.Tensor, ids: tf.Tensor, rank: int) -> tf.Tensor:
    """Return the entries of a mask for some rows of a variable of this rank; they broadcast to it.

    A mask of whole units is the same for all rows.
    """
    has_rows = mask.shape.rank == rank and mask.shape[0] != 1
    return tf.gather(mask, ids) if has_rows else mask


def fit_mask(mask: tf.Tensor, gradient: tf.Tensor | tf.IndexedSlices, rank: int) -> tf.Tensor:
    """Return the mask of a variable for the values that its gradient holds.

    Args:
      mask: the mask of the variable.
      gradient: dense, which holds all rows, or sparse, which holds the looked-up rows.
      rank: the rank of the variable.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return mask
    return take_rows(mask, gradient.indices, rank)


def count_weights(checkpoint: str) -> tuple[int, int, int] | None:
    """Return (cut weights, all weights, packed bytes) of the pruned variables of a checkpoint.

    Packed bytes are the size after zlib of their float32 values, with 0 for cut weights. Return
    None if the checkpoint has no pruned variables.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    names = map(find_weights, reader.get_variable_to_shape_map())
    cut_count = total = packed_bytes = 0
    for name, count in collections.Counter(names).items():
        if count > 1:  # The checkpoint has the weights and their mask.
            mask = reader.get_tensor(mask_name(name)) > 0
            value = np.where(mask, reader.get_tensor(name), np.float32(0))
            cut_count += int((~np.broadcast_to(mask, value.shape)).sum())
            total += value.size
            packed_bytes += len(zlib.compress(value.tobytes(), 1))
    return (cut_count, total, packed_bytes) if total else None


_MASKS: ambient.Ambient[Mapping[str, tf.Tensor | None]] = ambient.Ambient("pruned", default={})
