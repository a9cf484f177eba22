"""Seeds of random draws: of the run and the step alone, so that a restored run repeats them.

keep = tf.random.stateless_uniform(shape, draws.make_step_seed("dropout"))
with draws.draw_for_slice(index):               # another slice of the batch draws other numbers
    layers.dropout(hidden, 0.1, "dropout", training=True)
"""

import contextlib
import zlib

import tensorflow as tf

from mtl import ambient

tf1 = tf.compat.v1

_SLICE_INDEX: ambient.Ambient[tf.Tensor | int] = ambient.Ambient("slice index", default=0)


def draw_for_slice(index: tf.Tensor | int) -> contextlib.AbstractContextManager[tf.Tensor | int]:
    """Have layers within it draw for this slice of the batch: slices have draws of their own."""
    return _SLICE_INDEX.set(index)


def make_step_seed(name: str) -> tf.Tensor:
    """Make a seed [2] int32 of the run, the scope with `name`, the slice and the step.

    It is for stateless draws. The run counts by its seed, the slice by its number among those of
    the batch. The graph must hold a global step.
    """
    scope = f"{tf1.get_variable_scope().name}/{name}"
    run_seed = tf1.get_default_graph().seed or 0
    step = tf.cast(tf1.train.get_global_step(), tf.int32)
    own = tf.cast(_SLICE_INDEX.get(), tf.int32) * 0x61C88647  # Wraps around; slices lie far apart.
    own = tf.bitwise.bitwise_xor(own, (run_seed ^ zlib.crc32(scope.encode())) & 0x7FFFFFFF)
    return tf.stack([own, step])


def make_run_seed(name: str) -> tf.Tensor:
    """Make a seed [2] int32 of the run and a name, the same in every step and slice."""
    run_seed = tf1.get_default_graph().seed or 0
    # No step has this number: the draw is no other one's.
    return tf.constant([(run_seed ^ zlib.crc32(name.encode())) & 0x7FFFFFFF, -1])


def make_balancing_seed(index: int = 0) -> tf.Tensor:
    """Make a seed [2] int32 of the run and the global step, the same for every slice.

    A scheme of its own, older than `make_step_seed`: runs that go on have to draw as they did.
    """
    run = (tf1.get_default_graph().seed or 0) ^ zlib.crc32(f"balancing/{index}".encode())
    step = tf.cast(tf1.train.get_or_create_global_step().read_value(), tf.int32)
    return tf.stack([run & 0x7FFFFFFF, step])
