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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mtl import ambient
from mtl.deferred import tf, tf1


class _Pass(NamedTuple):
    """A pass over a slice of the batch, for the parts that draw in it.

    Attributes:
      number: the number of the slice among equal slices, from 0.
      total: the number of slices.
      again: the number of the pass over this slice; 0 is the first.
      names: a list that receives the names of the draws of this pass; None if no code reads them.
      features: {field: [B, ...]} in predictions, whose draws depend on them; None in training.
    """

    number: tf.Tensor | int = 0
    total: tf.Tensor | int = 1
    again: int = 0
    names: list[str] | None = None
    features: Mapping[str, Any] | None = None


_PASS: ambient.Ambient[_Pass] = ambient.Ambient("pass", default=_Pass())


def know_rows(features: Mapping[str, Any]) -> contextlib.AbstractContextManager[object]:
    """Let predictions within the context draw by the rows of {field: [B, ...]}."""
    return _PASS.set(_PASS.get()._replace(features=features))


def read_rows() -> Mapping[str, Any] | None:
    """Return the rows by which predictions draw, {field: [B, ...]}; None in training."""
    return _PASS.get().features


def draw_for_slice(
    index: tf.Tensor | int, count: tf.Tensor | int = 1
) -> contextlib.AbstractContextManager[object]:
    """Let layers within the context draw for one of several slices of the batch.

    Each slice draws its own numbers.

    Args:
      index: the number of the slice, from 0.
      count: the number of slices, which only `draw_rows` needs.
    """
    return _PASS.set(_PASS.get()._replace(number=index, total=count))


@contextlib.contextmanager
def draw_again(number: int) -> Iterator[list[str]]:
    """Let layers within the context draw other numbers for the same slice; 0 repeats the draws.

    Yields a list, which gets the name of each draw that `make_step_seed` seeds.
    """
    names: list[str] = []
    with _PASS.set(_PASS.get()._replace(again=number, names=names)):
        yield names


def draw_without_xla() -> contextlib.AbstractContextManager[None]:
    """Keep draws within the context out of XLA, which would draw other numbers."""
    if tf.executing_eagerly():  # XLA compiles only graphs.
        return contextlib.nullcontext()
    return tf.xla.experimental.jit_scope(compile_ops=False)


def draw_uniform(
    shape: tf.Tensor | Sequence[int], seed: tf.Tensor, minval: float = 0.0
) -> tf.Tensor:
    """Draw uniform numbers, the same with and without XLA.

    Args:
      shape: the shape of the result.
      seed: int32 [2], such as a result of `make_step_seed`.
      minval: the least number.

    Returns:
      float32 in [minval, 1).
    """
    with draw_without_xla():
        return tf.random.stateless_uniform(shape, seed, minval=minval)


def make_step_seed(name: str) -> tf.Tensor:
    """Make a seed for stateless draws.

    The graph must hold a global step.

    Args:
      name: the name of the draw, unique in the open variable scope.

    Returns:
      int32 [2]: a number of the run's seed, the scope, the name and the slice; and the global step.
    """
    scope = f"{tf1.get_variable_scope().name}/{name}"
    run_seed = tf1.get_default_graph().seed or 0
    step = tf.cast(tf1.train.get_global_step(), tf.int32)
    # Multiples of the golden ratio modulo 2^32 lie far apart, so slices get different seeds. The
    # product may overflow, and then wraps around.
    slice_seed = tf.cast(_PASS.get().number, tf.int32) * 0x61C88647
    # The factor differs from the factor of slices, as a second pass must not repeat the draws of
    # another slice.
    if repeat := _PASS.get().again:
        slice_seed += (repeat * 0x27D4EB2F) & 0x7FFFFFFF
    if (names := _PASS.get().names) is not None:
        names.append(scope)
    # A CRC is used, because Python's `hash` of a text differs from process to process.
    slice_seed = tf.bitwise.bitwise_xor(
        slice_seed, (run_seed ^ zlib.crc32(scope.encode())) & 0x7FFFFFFF
    )
    return tf.stack([slice_seed, step])


def draw_rows(name: str, num_rows: tf.Tensor | int, size: int) -> tf.Tensor:
    """Draw uniform numbers for the rows of this slice.

    They depend on the run, the scope with `name`, the step, and the place of the row in the whole
    batch. The number of slices and replicas does not change them.

    Args:
      name: the name of the draw, unique in the open variable scope.
      num_rows: the number of rows of this slice, the same for all slices.
      size: the number of draws for each row.

    Returns:
      float32 in [0, 1), [num_rows, size].
    """
    slice_info = _PASS.get()
    with draw_for_slice(0):
        seed = make_step_seed(name)
    # All rows are drawn at once, as TensorFlow's generators take no seed for each row.
    numbers = draw_uniform([slice_info.total * num_rows, size], seed)
    if isinstance(slice_info.total, int) and slice_info.total == 1:
        return numbers
    return tf.slice(numbers, [slice_info.number * num_rows, 0], [num_rows, size])


def make_run_seed(name: str) -> tf.Tensor:
    """Make a seed that is the same in every step and slice.

    Args:
      name: the name of the draw, unique in the run.

    Returns:
      int32 [2]: a number of the run's seed and the name; and -1.
    """
    run_seed = tf1.get_default_graph().seed or 0
    # No step is numbered -1, so no step draws the same numbers.
    return tf.constant([(run_seed ^ zlib.crc32(name.encode())) & 0x7FFFFFFF, -1])


def make_balancing_seed(index: int = 0) -> tf.Tensor:
    """Make a seed [2] int32 of the run and the global step, the same for every slice.

    The function is older than `make_step_seed`. It stays, because resumed runs repeat their draws.
    """
    run = (tf1.get_default_graph().seed or 0) ^ zlib.crc32(f"balancing/{index}".encode())
    step = tf.cast(tf1.train.get_or_create_global_step().read_value(), tf.int32)
    return tf.stack([run & 0x7FFFFFFF, step])
