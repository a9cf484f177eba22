"""Seeds of random draws: of the run and the step alone, so that a restored run repeats them.

keep = draws.draw_uniform(shape, draws.make_step_seed("dropout"))
with draws.draw_for_slice(index):               # another slice of the batch draws other numbers
    layers.dropout(hidden, 0.1, "dropout", training=True)
offsets = draws.draw_rows("crop", num_rows, 2)  # a row draws the same ones in whatever slice it is
with draws.draw_again(1): ...                   # another pass over these rows draws other numbers
"""

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from mtl import ambient

tf1 = tf.compat.v1


class _Slice(NamedTuple):
    """The number of a slice among so many that are equally large, and of the pass over it.

    `names` are those of the draws of a pass that draws anew.
    """

    number: tf.Tensor | int = 0
    total: tf.Tensor | int = 1
    again: int = 0
    names: list[str] | None = None


_SLICE: ambient.Ambient[_Slice] = ambient.Ambient("slice index", default=_Slice())


def draw_for_slice(
    index: tf.Tensor | int, count: tf.Tensor | int = 1
) -> contextlib.AbstractContextManager[object]:
    """Have layers within it draw for this one of `count` slices of the batch.

    Slices have draws of their own. `draw_rows` needs their number.
    """
    return _SLICE.set(_SLICE.get()._replace(number=index, total=count))


@contextlib.contextmanager
def draw_again(number: int) -> Iterator[list[str]]:
    """Have layers within it draw other numbers for the same slice; 0 repeats the draws.

    Yields the names of what is drawn by step.
    """
    names: list[str] = []
    with _SLICE.set(_SLICE.get()._replace(again=number, names=names)):
        yield names


def draw_without_xla() -> contextlib.AbstractContextManager[None]:
    """Leave what is drawn within it to TensorFlow's kernels: XLA would draw other numbers."""
    if tf.executing_eagerly():  # XLA compiles graphs alone.
        return contextlib.nullcontext()
    return tf.xla.experimental.jit_scope(compile_ops=False)


def draw_uniform(
    shape: tf.Tensor | Sequence[int], seed: tf.Tensor, minval: float = 0.0
) -> tf.Tensor:
    """Draw float32 numbers in [minval, 1), the same whether XLA compiles what reads them or not."""
    with draw_without_xla():
        return tf.random.stateless_uniform(shape, seed, minval=minval)


def make_step_seed(name: str) -> tf.Tensor:
    """Make a seed [2] int32 of the run, the scope with `name`, the slice and the step.

    It is for stateless draws. The run counts by its seed, the slice by its number among those of
    the batch. The graph must hold a global step.
    """
    scope = f"{tf1.get_variable_scope().name}/{name}"
    run_seed = tf1.get_default_graph().seed or 0
    step = tf.cast(tf1.train.get_global_step(), tf.int32)
    own = tf.cast(_SLICE.get().number, tf.int32) * 0x61C88647  # Wraps around; slices lie far apart.
    if again := _SLICE.get().again:
        own += (again * 0x27D4EB2F) & 0x7FFFFFFF
    if (names := _SLICE.get().names) is not None:
        names.append(scope)
    own = tf.bitwise.bitwise_xor(own, (run_seed ^ zlib.crc32(scope.encode())) & 0x7FFFFFFF)
    return tf.stack([own, step])


def draw_rows(name: str, num_rows: tf.Tensor | int, size: int) -> tf.Tensor:
    """Draw uniform numbers in [0, 1) for the rows of this slice, [num_rows, size].

    They count by the run, the scope with `name`, the step and the place of the row in the batch of
    all slices and replicas: how the batch is cut changes none of them.
    """
    own = _SLICE.get()
    with draw_for_slice(0):
        seed = make_step_seed(name)
    # Drawn for all rows at once, as no generator of TensorFlow's takes a seed for each row.
    drawn = draw_uniform([own.total * num_rows, size], seed)
    if isinstance(own.total, int) and own.total == 1:
        return drawn
    return tf.slice(drawn, [own.number * num_rows, 0], [num_rows, size])


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
