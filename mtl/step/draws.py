"""Makes seeds from the run's seed and the step, so a restored run repeats its random draws.

keep = draws.draw_uniform(shape, draws.make_step_seed("dropout"))
with draws.draw_for_slice(index):               # other numbers for each slice of the batch
    layers.dropout(hidden, 0.1, "dropout", training=True)
offsets = draws.draw_rows("crop", num_rows, 2)  # numbers of a row, in any slice
with draws.draw_again(1): ...                   # new numbers for a second pass over the same rows
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mtl import ambient
from mtl.deferred import tf, tf1


class _Pass(NamedTuple):
    """Properties of the forward pass that is being built, on which its random draws depend.

    Attributes:
      number: the index of the slice of the batch in this pass, from 0; all slices have equal size.
      total: the number of slices of the batch.
      again: the number of earlier passes over the same slice of the batch.
      names: a list that receives the names of the draws of this pass; None if no code reads them.
      features: {field: [B, ...]} in predictions, whose draws depend on the features; None in
        training.
    """

    number: tf.Tensor | int = 0
    total: tf.Tensor | int = 1
    again: int = 0
    names: list[str] | None = None
    features: Mapping[str, Any] | None = None


_PASS: ambient.Ambient[_Pass] = ambient.Ambient("pass", default=_Pass())


def know_rows(features: Mapping[str, Any]) -> contextlib.AbstractContextManager[object]:
    """Let random draws of predictions in the context depend on the features, {field: [B, ...]}."""
    return _PASS.set(_PASS.get()._replace(features=features))


def read_rows() -> Mapping[str, Any] | None:
    """Return the features of the open context `know_rows`, {field: [B, ...]}; None in training."""
    return _PASS.get().features


def draw_for_slice(
    index: tf.Tensor | int, count: tf.Tensor | int = 1
) -> contextlib.AbstractContextManager[object]:
    """Let layers within the context draw the random numbers of one slice of the batch.

    Different slices get different numbers.

    Args:
      index: the index of the slice, from 0.
      count: the number of slices; only `draw_rows` needs it.
    """
    return _PASS.set(_PASS.get()._replace(number=index, total=count))


@contextlib.contextmanager
def draw_again(number: int) -> Iterator[list[str]]:
    """Let layers within the context draw new random numbers for the same slice.

    Args:
      number: the number of earlier passes over the slice; 0 repeats the random numbers of the first
        pass.
    """
    names: list[str] = []
    with _PASS.set(_PASS.get()._replace(again=number, names=names)):
        yield names


def draw_without_xla() -> contextlib.AbstractContextManager[None]:
    """Keep random ops within the context out of XLA, whose generators give other numbers."""
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
      minval: the lower bound of the numbers.

    Returns:
      float32 in [minval, 1).
    """
    with draw_without_xla():
        return tf.random.stateless_uniform(shape, seed, minval=minval)


def make_step_seed(name: str) -> tf.Tensor:
    """Make a seed for stateless random ops of this step.

    The graph must hold a global step.

    Args:
      name: the name of the draw, unique in the open variable scope.

    Returns:
      The seed, int32 [2]: first a hash of the run's seed, the scope, the name and the slice; second
      the global step.
    """
    scope = f"{tf1.get_variable_scope().name}/{name}"
    run_seed = tf1.get_default_graph().seed or 0
    step = tf.cast(tf1.train.get_global_step(), tf.int32)
    # Multiples of the golden ratio modulo 2^32 lie far apart, so slices get different seeds. The
    # product may overflow, and then wraps around.
    slice_seed = tf.cast(_PASS.get().number, tf.int32) * 0x61C88647
    # The index of a slice of the batch and the number of a pass are multiplied by different
    # factors. If both were multiplied by the same factor, a second forward pass over one slice
    # would repeat the draws of another slice.
    if repeat := _PASS.get().again:
        slice_seed += (repeat * 0x27D4EB2F) & 0x7FFFFFFF
    if (names := _PASS.get().names) is not None:
        names.append(scope)
    # The code computes a CRC, because Python's `hash` of a text differs from process to process.
    slice_seed = tf.bitwise.bitwise_xor(
        slice_seed, (run_seed ^ zlib.crc32(scope.encode())) & 0x7FFFFFFF
    )
    return tf.stack([slice_seed, step])


def draw_rows(name: str, num_rows: tf.Tensor | int, size: int) -> tf.Tensor:
    """Draw uniform random numbers for the rows of this slice.

    The random numbers of a row depend on the run's seed, the scope with `name`, the step, and the
    row's place in the whole batch, but not on the number of slices and replicas.

    Args:
      name: the name of the draw, unique in the open variable scope.
      num_rows: the number of rows of this slice, the same for all slices.
      size: the number of draws for each row.

    Returns:
      Random numbers, float32 in [0, 1), [num_rows, size].
    """
    slice_info = _PASS.get()
    with draw_for_slice(0):
        seed = make_step_seed(name)
    # TensorFlow's stateless ops take one seed for a tensor, not one for each row. So the numbers of
    # the whole batch are drawn at once.
    numbers = draw_uniform([slice_info.total * num_rows, size], seed)
    if isinstance(slice_info.total, int) and slice_info.total == 1:
        return numbers
    return tf.slice(numbers, [slice_info.number * num_rows, 0], [num_rows, size])


def make_run_seed(name: str) -> tf.Tensor:
    """Make a seed that is the same in every step and slice.

    Args:
      name: the name of the draw, unique in the run.

    Returns:
      The seed, int32 [2]: first a hash of the run's seed and the name; second -1.
    """
    run_seed = tf1.get_default_graph().seed or 0
    # The seed of a training step has the global step, at least 0, as the second number. So no step
    # repeats the draws of a seed with -1.
    return tf.constant([(run_seed ^ zlib.crc32(name.encode())) & 0x7FFFFFFF, -1])


def make_balancing_seed(index: int = 0) -> tf.Tensor:
    """Make a seed for the random draws of balancing; all slices get the same seed.

    `make_balancing_seed` comes from earlier versions, which lacked `make_step_seed`. Balancing
    still uses `make_balancing_seed`, so that a resumed run repeats the draws of earlier versions.

    Args:
      index: the number of the draw in the step; each number gives another seed.

    Returns:
      The seed, int32 [2]: first a hash of the run's seed and `index`; second the global step.
    """
    run = (tf1.get_default_graph().seed or 0) ^ zlib.crc32(f"balancing/{index}".encode())
    step = tf.cast(tf1.train.get_or_create_global_step().read_value(), tf.int32)
    return tf.stack([run & 0x7FFFFFFF, step])
