"""Pruned variables of the step that is being built: which of their entries are kept.

pruned.kept_entries(variable)        # zeros and ones that broadcast to it; None where all are kept

`mtl.sparsity` cuts weights; what changes gradients, and layers that look up rows, ask here.
"""

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from mtl import ambient
from mtl.variables import patterns

_MASK, _SALIENCY = "pruning_mask", "saliency"
_OWNER, _SCOPE = "_of_", "pruning/"


def mask_name(name: str) -> str:
    """Return the name of the mask of a variable."""
    return f"{name}/{_MASK}"


def saliency_name(name: str) -> str:
    """Return the name of what a criterion gathers about the entries of a variable."""
    return f"{name}/{_SALIENCY}"


def owner_name(name: str, task: str) -> str:
    """Return the name of what tells which weights of a variable belong to a task."""
    return f"{name}{_OWNER}{task}"


def is_owner(name: str, weights: str) -> bool:
    """Return True if a variable tells which weights of another one belong to a task."""
    return name.startswith(f"{weights}{_OWNER}")


def is_shared_out(name: str, names: Collection[str]) -> bool:
    """Return True if some of these names tell which weights of a variable belong to a task."""
    return any(is_owner(other, name) for other in names)


def find_weights(name: str) -> str:
    """Return the name of the variable that a mask cuts; of all else the name itself."""
    return name.removesuffix(f"/{_MASK}")


def is_state(name: str) -> bool:
    """Return True if a variable beside another one tells what of that is kept, or is to be."""
    return name.rpartition("/")[2] in (_MASK, _SALIENCY)


def is_of_pruning(name: str) -> bool:
    """Return True if a variable is of pruning alone, so that a network has it only if pruned."""
    return is_state(name) or name.startswith(_SCOPE)


def hold_masks(
    masks: Mapping[str, tf.Tensor | None],
) -> contextlib.AbstractContextManager[Mapping[str, tf.Tensor | None]]:
    """Have variables of these names keep no more than their masks within it.

    Args:
      masks: {name: float32 zeros and ones that broadcast to the variable}, None where what is cut
        moves behind the mask; entries may be added while it holds.
    """
    return _MASKS.set(masks)


def kept_entries(variable: patterns.Variable) -> tf.Tensor | None:
    """Return which entries of a variable move, zeros and ones; None where all do."""
    return _MASKS.get().get(patterns.variable_name(variable))


def is_cut(name: str) -> bool:
    """Return True if a variable is pruned in the step that is being built."""
    return name in _MASKS.get()


def mask_rows(rows: tf.Tensor, table: Any, ids: tf.Tensor) -> tf.Tensor:
    """Return looked-up rows [..., D], 0 where the table is cut and without a gradient there."""
    kept = kept_entries(table) if _MASKS.get() and isinstance(table, tf.Variable) else None
    return rows if kept is None else rows * take_rows(kept, ids, len(table.shape))


def take_rows(mask: tf.Tensor, ids: tf.Tensor, rank: int) -> tf.Tensor:
    """Return what a mask says of some rows of a variable of this rank; it broadcasts to them.

    One of whole units is the same for all rows, and has none of its own.
    """
    has_rows = mask.shape.rank == rank and mask.shape[0] != 1
    return tf.gather(mask, ids) if has_rows else mask


def watch_inputs(inputs: tf.Tensor, name: str = "kernel") -> tf.Tensor:
    """Return what goes into the layer whose scope this is, and note it for who asks for it."""
    noted = _INPUTS.get()
    scope = tf.compat.v1.get_variable_scope().name
    if noted is not None and f"{scope}/{name}" not in noted:
        noted[f"{scope}/{name}"] = tf.stop_gradient(inputs)
    return inputs


def are_inputs_watched() -> bool:
    """Return True if `watch_inputs` notes something."""
    return _INPUTS.get() is not None


def note_inputs(
    noted: dict[str, tf.Tensor] | None,
) -> contextlib.AbstractContextManager[dict[str, tf.Tensor] | None]:
    """Have layers within it note {kernel: its inputs, [..., D]}; None for nothing."""
    return _INPUTS.set(noted)


_INPUTS: ambient.Ambient[dict[str, tf.Tensor] | None] = ambient.Ambient(
    "watched inputs", default=None
)
_MASKS: ambient.Ambient[Mapping[str, tf.Tensor | None]] = ambient.Ambient("pruned", default={})
