"""Shortens the building of graphs, the longest part of most tests, by a fifth.

Tests do not need the skipped work: a lock per op, as no session runs while another thread builds
its graph; for each op, the default graph becoming the default once more; repeated encoding of the
same small constants; and the text file graph.pbtxt, which hooks of Estimator write.
"""

import contextlib
import ctypes
import gc
import pathlib
import resource
import types
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops, tensor_util
from tensorflow.python.training import training_util

_encode = tensor_util.make_tensor_proto
_encoded: dict[Any, Any] = {}
_as_default = tf.Graph.as_default
_GROWTH = 100 << 20
_kept = [0]
"""The memory in bytes after the last call of `release_memory` that collected."""


class _Nothing:
    def __init__(self, value: Any = None):
        self._value = value

    def __enter__(self) -> Any:
        return self._value

    def __exit__(self, *error: object) -> None:
        pass


def _stay_default(self: tf.Graph) -> Any:
    stack = ops._default_graph_stack.stack
    is_default = stack and stack[-1] is self and not tf.executing_eagerly()
    return _Nothing(self) if is_default else _as_default(self)


def _encode_once(value: Any, dtype: Any = None, shape: Any = None, **settings: bool) -> Any:
    """Encode a constant; whoever calls copies it."""
    if type(value) not in (bool, int, float):
        return _encode(value, dtype=dtype, shape=shape, **settings)
    # As text, since 0.0 and -0.0 are equal.
    key = (type(value), repr(value), dtype, repr(shape), *settings.values())
    if key not in _encoded:
        _encoded[key] = _encode(value, dtype=dtype, shape=shape, **settings)
    return _encoded[key]


def spare_collector() -> None:
    """Spare the garbage collector all modules: a tenth of the time of tests that build graphs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def forget_gradients() -> None:
    """Forget the gradients that `tf.custom_gradient` has made for graphs so far.

    TensorFlow keeps them until the process ends, and each of them holds its whole graph.
    """
    registry = ops.gradient_registry._registry
    for name in [name for name in registry if name.startswith("CustomGradient-")]:
        del registry[name]


def release_memory() -> None:
    """Collect the graphs of a test file if memory has grown, and give freed memory back.

    The collector seldom looks for old objects, and malloc keeps what is freed between live blocks.
    """
    if _measure_memory() > _kept[0] + _GROWTH:
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # Only glibc has this function.
            ctypes.CDLL(None).malloc_trim(0)
        _kept[0] = _measure_memory()


def _measure_memory() -> int:
    """Return the resident memory in bytes, without mapped files; 0 where /proc does not tell."""
    try:
        resident, shared = pathlib.Path("/proc/self/statm").read_text().split()[1:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def leave_out() -> None:
    """Skip this work in all graphs that this process and its forks build from now on."""
    nothing = _Nothing()
    tf.Graph._mutation_lock = lambda self: nothing
    tf.Graph.as_default = _stay_default
    quick = types.SimpleNamespace(**vars(tensor_util))
    quick.make_tensor_proto = _encode_once
    ops.tensor_util = quick
    training_util.write_graph = lambda *given: None
