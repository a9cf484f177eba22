"""Makes the masks of pruned variables available to code that builds the graph.

pruned.kept_entries(variable)        # zeros and ones, or None

`mtl.sparsity` prunes weights, and passes their masks to `hold_masks`. Code that changes gradients,
and layers that look up rows of tables, read the masks from this module.
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
    """Return the name of the variable with the mask of a variable.

    Args:
      name: the name of the pruned variable.

    Returns:
      `<name>/pruning_mask`.
    """
    return f"{name}/{_MASK}"


def saliency_name(name: str) -> str:
    """Return the name of the variable with the saliencies of a variable's weights.

    Args:
      name: the name of the pruned variable.

    Returns:
      `<name>/saliency`.
    """
    return f"{name}/{_SALIENCY}"


def owner_name(name: str, task: str) -> str:
    """Return the name of the variable that marks which weights of a variable belong to a task.

    Args:
      name: the name of the variable with the weights.
      task: the name of the task.

    Returns:
      `<name>_of_<task>`.
    """
    return f"{name}{_OWNER}{task}"


def is_owner(name: str, weights: str) -> bool:
    """Return True if a variable marks which weights of another variable belong to a task.

    Args:
      name: the name of the variable that may mark weights for a task.
      weights: the name of the variable with the weights.
    """
    return name.startswith(f"{weights}{_OWNER}")


def is_shared_out(name: str, names: Collection[str]) -> bool:
    """Return True if a variable among `names` marks which weights of `name` belong to a task."""
    return any(is_owner(owner, name) for owner in names)


def find_weights(name: str) -> str:
    """Return the name of the variable that a mask belongs to.

    Args:
      name: the name of a variable. A name that is not the name of a mask is returned unchanged.
    """
    return name.removesuffix(f"/{_MASK}")


def is_state(name: str) -> bool:
    """Return True if a variable has the mask or the saliencies of another variable."""
    return name.rpartition("/")[2] in (_MASK, _SALIENCY)


def is_of_pruning(name: str) -> bool:
    """Return True if a variable exists only in graphs with pruning."""
    return is_state(name) or name.startswith(_SCOPE)


def hold_masks(
    masks: Mapping[str, tf.Tensor | None],
) -> contextlib.AbstractContextManager[Mapping[str, tf.Tensor | None]]:
    """Set the masks that `kept_entries` returns within the context.

    Args:
      masks: {name of a variable: float32 zeros and ones that broadcast to it}. The mask is None for
        a pruned variable whose pruned weights are still trained. Masks may be added later.
    """
    return _MASKS.set(masks)


def kept_entries(variable: patterns.Variable) -> tf.Tensor | None:
    """Return the mask of a variable in the step that is being built.

    Args:
      variable: a variable, or its name.

    Returns:
      float32, 0 for pruned entries and 1 for others, in a shape that broadcasts to the variable.
      The mask is None if all entries are trained, even in a pruned variable.
    """
    return _MASKS.get().get(patterns.variable_name(variable))


def is_cut(name: str) -> bool:
    """Return True if a variable is pruned in the step that is being built.

    Args:
      name: the name of the variable. The result is True even if the step trains all weights of the
        pruned variable.
    """
    return name in _MASKS.get()


def mask_rows(rows: tf.Tensor, table: Any, ids: tf.Tensor) -> tf.Tensor:
    """Set the pruned entries of looked-up rows to 0, also in their gradient.

    Args:
      rows: looked-up rows, [..., D].
      table: the embedding table.
      ids: the row numbers, [...].
    """
    mask = kept_entries(table) if _MASKS.get() and isinstance(table, tf.Variable) else None
    return rows if mask is None else rows * take_rows(mask, ids, len(table.shape))


def take_rows(mask: tf.Tensor, ids: tf.Tensor, rank: int) -> tf.Tensor:
    """Return the entries of a mask for some rows of a variable.

    A mask that prunes whole columns is the same for all rows.

    Args:
      mask: the mask of the variable, in a shape that broadcasts to the variable.
      ids: the row numbers, [...].
      rank: the rank of the variable.

    Returns:
      The entries for the given rows, [..., D], if the mask has rows of D entries; the mask itself
      if it is the same for all rows.
    """
    has_rows = mask.shape.rank == rank and mask.shape[0] != 1
    return tf.gather(mask, ids) if has_rows else mask


def fit_mask(mask: tf.Tensor, gradient: tf.Tensor | tf.IndexedSlices, rank: int) -> tf.Tensor:
    """Return the entries of a mask that belong to the values of a gradient.

    Args:
      mask: the mask of the variable.
      gradient: a dense gradient, with all rows, or a sparse gradient, with looked-up rows.
      rank: the rank of the variable.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return mask
    return take_rows(mask, gradient.indices, rank)


def count_weights(checkpoint: str) -> tuple[int, int, int] | None:
    """Count the weights of a checkpoint's pruned variables.

    Args:
      checkpoint: the path of the checkpoint.

    Returns:
      Three numbers, (pruned weights, all weights, packed bytes). Packed bytes are the size of the
      float32 values after zlib, with 0 for pruned weights. The result is None if the checkpoint has
      no pruned variables.
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
