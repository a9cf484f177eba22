"""Seeds of random draws; they depend on the run and the step, so a restored run repeats its draws.

keep = draws.draw_uniform(shape, draws.make_step_seed("dropout"))
with draws.draw_for_slice(index):               # each slice of the batch draws its own numbers
    layers.dropout(hidden, 0.1, "dropout", training=True)
offsets = draws.draw_rows("crop", num_rows, 2)  # the same for a row, whichever slice holds it
with draws.draw_again(1): ...                   # another pass over these rows draws other numbers
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mtl import ambient
from mtl.deferred import tf, tf1


class _Slice(NamedTuple):
    """The place of a slice among equal slices of the batch, and the pass over it.

    Attributes:
      number: of the slice, from 0.
      total: how many slices there are.
      again: the number of the pass; 0 is the first.
      names: gets the names of the draws of this pass; None if nobody reads them.
    """

    number: tf.Tensor | int = 0
    total: tf.Tensor | int = 1
    again: int = 0
    names: list[str] | None = None


_SLICE: ambient.Ambient[_Slice] = ambient.Ambient("slice index", default=_Slice())


def draw_for_slice(
    index: tf.Tensor | int, count: tf.Tensor | int = 1
) -> contextlib.AbstractContextManager[object]:
    """Let layers within the context draw for this one of `count` slices of the batch.

    Each slice draws its own numbers. Only `draw_rows` needs the count.
    """
    return _SLICE.set(_SLICE.get()._replace(number=index, total=count))


@contextlib.contextmanager
def draw_again(number: int) -> Iterator[list[str]]:
    """Let layers within the context draw other numbers for the same slice; 0 repeats the draws.

    Yields a list, which gets the name of each draw that `make_step_seed` seeds.
    """
    names: list[str] = []
    with _SLICE.set(_SLICE.get()._replace(again=number, names=names)):
        yield names


def draw_without_xla() -> contextlib.AbstractContextManager[None]:
    """Keep draws within the context out of XLA, which would draw other numbers."""
    if tf.executing_eagerly():  # XLA compiles only graphs.
        return contextlib.nullcontext()
    return tf.xla.experimental.jit_scope(compile_ops=False)


def draw_uniform(
    shape: tf.Tensor | Sequence[int], seed: tf.Tensor, minval: float = 0.0
) -> tf.Tensor:
    """Draw float32 numbers in [minval, 1), the same with and without XLA."""
    with draw_without_xla():
        return tf.random.stateless_uniform(shape, seed, minval=minval)


def make_step_seed(name: str) -> tf.Tensor:
    """Make a seed [2] int32 of the run, the scope with `name`, the slice and the step.

    It is for stateless draws. The seed of the run, and the number of the slice in the batch, go
    into it. The graph must hold a global step.
    """
    scope = f"{tf1.get_variable_scope().name}/{name}"
    run_seed = tf1.get_default_graph().seed or 0
    step = tf.cast(tf1.train.get_global_step(), tf.int32)
    own = tf.cast(_SLICE.get().number, tf.int32) * 0x61C88647  # Wraps: spreads the slices' seeds.
    if again := _SLICE.get().again:
        own += (again * 0x27D4EB2F) & 0x7FFFFFFF
    if (names := _SLICE.get().names) is not None:
        names.append(scope)
    own = tf.bitwise.bitwise_xor(own, (run_seed ^ zlib.crc32(scope.encode())) & 0x7FFFFFFF)
    return tf.stack([own, step])


def draw_rows(name: str, num_rows: tf.Tensor | int, size: int) -> tf.Tensor:
    """Draw uniform numbers in [0, 1) for the rows of this slice, [num_rows, size].

    They depend on the run, the scope with `name`, the step, and the place of the row in the whole
    batch. The number of slices and replicas does not change them.
    """
    own = _SLICE.get()
    with draw_for_slice(0):
        seed = make_step_seed(name)
    # Draws for all rows at once: TensorFlow's generators take no seed per row.
    drawn = draw_uniform([own.total * num_rows, size], seed)
    if isinstance(own.total, int) and own.total == 1:
        return drawn
    return tf.slice(drawn, [own.number * num_rows, 0], [num_rows, size])


def make_run_seed(name: str) -> tf.Tensor:
    """Make a seed [2] int32 of the run and a name, the same in every step and slice."""
    run_seed = tf1.get_default_graph().seed or 0
    # No step is numbered -1, so no step draws the same numbers.
    return tf.constant([(run_seed ^ zlib.crc32(name.encode())) & 0x7FFFFFFF, -1])


def make_balancing_seed(index: int = 0) -> tf.Tensor:
    """Make a seed [2] int32 of the run and the global step, the same for every slice.

    Older than `make_step_seed`, and kept: resumed runs have to repeat their draws.
    """
    run = (tf1.get_default_graph().seed or 0) ^ zlib.crc32(f"balancing/{index}".encode())
    step = tf.cast(tf1.train.get_or_create_global_step().read_value(), tf.int32)
    return tf.stack([run & 0x7FFFFFFF, step])
