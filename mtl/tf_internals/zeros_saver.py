"""A saver that restores zeros for variables that are missing in a checkpoint.

zeros_saver.add_zeros_saver({"features/identity_word/embedding/average_decay"})  # the graph's saver
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tensorflow.python.training import saver as saver_lib

from mtl import deferred
from mtl.deferred import tf, tf1

with deferred.imports():
    from mtl.tf_internals import savers


def add_zeros_saver(lacking: Collection[str]) -> None:
    """Add a saver for all variables, which restores zeros for variables that a checkpoint lacks.

    If the graph already has a saver, nothing is added.

    Args:
      lacking: the names of the variables that are missing in the checkpoint.
    """
    if tf1.get_collection(tf1.GraphKeys.SAVERS):
        return  # Another replica has already added a saver.
    savers.add_saver(_Builder(lacking))


class _Builder(saver_lib.BulkSaverBuilder):
    def __init__(self, lacking: Collection[str]):
        super().__init__()
        self._lacking = lacking

    def bulk_restore(
        self, filename_tensor: tf.Tensor, saveables: Sequence[Any], *settings: Any
    ) -> list[tf.Tensor]:
        saved = [saveable for saveable in saveables if saveable.name not in self._lacking]
        tensors = iter(super().bulk_restore(filename_tensor, saved, *settings) if saved else ())
        return [
            tf.zeros(spec.tensor.shape, spec.dtype)
            if saveable.name in self._lacking
            else next(tensors)
            for saveable in saveables
            for spec in saveable.specs
        ]
