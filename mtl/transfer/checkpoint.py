"""Reads the weights of a checkpoint as arrays, and writes arrays as a checkpoint.

values = checkpoint.read_checkpoint("runs/digits")               # {"network/trunk/...": array, ...}
values["head/digit/logits/bias"][3] = 0.0
checkpoint.write_checkpoint(values, "edited/model.ckpt")            # WarmStart.source = "edited"
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from mtl.deferred import tf
from mtl.files import atomic, storage
from mtl.transfer import source as source_lib


def read_checkpoint(source: str) -> dict[str, np.ndarray]:
    """Read all values of a checkpoint, of the latest in a model_dir, or of a SavedModel.

    Raises:
      UserError: the source has no checkpoint, or the checkpoint is damaged.
    """
    checkpoint = source_lib.open_source("source", source)
    return {name: checkpoint.read_value(name) for name in checkpoint.shapes}


def write_checkpoint(values: Mapping[str, np.ndarray], path: str) -> str:
    """Write values as a checkpoint, which becomes the latest checkpoint of its folder.

    If the values include `global_step` and all variables of a run, the run can continue from the
    checkpoint in its folder. A checkpoint with only some variables of a run can still be the source
    of a `WarmStart`. Without `global_step` in the values, the step of the checkpoint is 0.

    Args:
      values: {variable: value}.
      path: the path of the checkpoint, such as "runs/new/model.ckpt-0".

    Returns:
      The path of the checkpoint.
    """
    values = {"global_step": np.zeros([], np.int64), **values}
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
