"""Seeds of random draws: of the run and the step alone, so that a restored run repeats them.

keep = tf.random.stateless_uniform(shape, draws.make_step_seed("dropout"))
with draws.draw_for_slice(part):                     # another part of the batch draws other numbers
    layers.dropout(hidden, 0.1, "dropout", training=True)
"""

import contextlib
import contextvars
import zlib
from collections.abc import Iterator

import tensorflow as tf

tf1 = tf.compat.v1

_slice_index: contextvars.ContextVar[tf.Tensor | int] = contextvars.ContextVar("part", default=0)


@contextlib.contextmanager
def draw_for_slice(part: tf.Tensor | int) -> Iterator[None]:
    """Within it, layers draw for this part of the batch: parts have draws of their own."""
    token = _slice_index.set(part)
    try:
        yield
    finally:
        _slice_index.reset(token)


def make_step_seed(name: str) -> tf.Tensor:
    """[2] int32 of the run's seed, the scope with `name`, the part of the batch, and the step.

    For stateless draws. The graph must hold a global step.
    """
    scope = f"{tf1.get_variable_scope().name}/{name}"
    run_seed = tf1.get_default_graph().seed or 0
    step = tf.cast(tf1.train.get_global_step(), tf.int32)
    own = tf.cast(_slice_index.get(), tf.int32) * 0x61C88647  # Wraps around; parts lie far apart.
    own = tf.bitwise.bitwise_xor(own, (run_seed ^ zlib.crc32(scope.encode())) & 0x7FFFFFFF)
    return tf.stack([own, step])


def make_balancing_seed(index: int = 0) -> tf.Tensor:
    """[2] int32 of the run and the global step, the same for every part of the batch.

    A scheme of its own, older than `step_seed`: runs that go on have to draw as they did.
    """
    run = (tf1.get_default_graph().seed or 0) ^ zlib.crc32(f"balancing/{index}".encode())
    step = tf.cast(tf1.train.get_or_create_global_step().read_value(), tf.int32)
    return tf.stack([run & 0x7FFFFFFF, step])
