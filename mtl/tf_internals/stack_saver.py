"""A saver that saves slices of a variable as separate tensors, and restores the variable from them.

stack_saver.add_stack_saver({id(variable): (("head/a/logits/bias", "head/b/logits/bias"), 0)})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorflow.python.training import saver as saver_lib
from tensorflow.python.training.saving import saveable_object

from mtl import deferred
from mtl.deferred import tf

with deferred.imports():
    from mtl.tf_internals import savers

Stacks = Mapping[int, tuple[Sequence[str], int]]
"""{id of a variable: (names of its members, axis along which the members are stacked)}."""


def add_stack_saver(stacks: Stacks) -> tf.compat.v1.train.Saver:
    """Add and return a saver for all variables that saves the members of stacks separately.

    Args:
      stacks: the stacked variables, which must be variables of the graph.
    """
    return savers.add_saver(_Builder(stacks))


class _Builder(saver_lib.BulkSaverBuilder):
    def __init__(self, stacks: Stacks):
        super().__init__()
        self._stacks = stacks

    def _build_internal(self, names_to_saveables: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        ids = {id(saveable) for saveable in names_to_saveables}
        if not ids >= self._stacks.keys():  # Never save a stack as one variable.
            raise ValueError("A stack is not among the variables of the graph.")
        saveables = [
            _Members(saveable, *self._stacks[id(saveable)])
            if id(saveable) in self._stacks
            else saveable
            for saveable in names_to_saveables
        ]
        return super()._build_internal(saveables, *args, **kwargs)


class _Members(saveable_object.SaveableObject):
    """Saves each slice of a variable along an axis as a separate tensor."""

    def __init__(self, variable: tf.Variable, names: Sequence[str], axis: int):
        self._axis = axis
        with tf.device(variable.device):
            value = variable.read_value()
        # The slices are on the CPU, because checkpoints are written from the memory of the host.
        with tf.device("/device:CPU:0"):
            parts = tf.unstack(tf.identity(value), len(names), axis)
        specs = [
            saveable_object.SaveSpec(part, "", name, variable.dtype.base_dtype, variable.device)
            for part, name in zip(parts, names, strict=True)
        ]
        super().__init__(variable, specs, names[0])

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Sequence | None
    ) -> tf.Operation:
        """Build an op that assigns the restored slices, stacked along the axis, to the variable."""
        del restored_shapes
        value = tf.ensure_shape(tf.stack(restored_tensors, self._axis), self.op.shape)
        with tf.device(self.op.device):
            return self.op.assign(value, read_value=False)
