"""Speeds up repeated session calls with the same fetches, as in training.

repeated_calls.prepare(session)               # in after_create_session

TensorFlow analyses the fetches again in each session call. For a small network, analysing the
fetches takes a quarter of the time of a training step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from mtl import deferred
from mtl.deferred import tf

with deferred.imports():
    from tensorflow.core.protobuf import config_pb2

# The largest number of different fetches that are remembered, such as with and without a summary.
_MOST = 64
_NESTS = frozenset([list, tuple, dict])


def prepare(session: tf.compat.v1.Session) -> None:
    """Let a session reuse its analysis of fetches, in calls without feeds and options.

    The results and the errors of session calls stay the same.

    Args:
      session: the session, whose attribute `run` is replaced.
    """
    run = session.run
    # The dict also holds the fetches, because their ids are its keys. Without this reference, a new
    # tensor could get the id of a deleted tensor.
    calls: dict[Hashable, tuple[Callable[[], Any], Any]] = {}

    def run_prepared(
        fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        # A monitored session always passes options and metadata. If the options are empty,
        # TensorFlow does not fill the metadata.
        if feed_dict or (options is not None and options.ByteSize()):
            return run(fetches, feed_dict, options, run_metadata)
        key = _find_key(fetches)
        if key not in calls:
            leaves = _list_leaves(session.graph, fetches)
            if leaves is None or len(calls) == _MOST:
                return run(fetches, feed_dict, options, run_metadata)
            calls[key] = _make_call(session, fetches, leaves), fetches
        call, _ = calls[key]
        return call()

    session.run = run_prepared


def _find_key(fetches: Any) -> Hashable:
    """Return a key of a dict for nested fetches, which is valid while the fetched tensors exist."""
    kind = type(fetches)
    if kind is list or kind is tuple:
        # Leaves are handled without a recursive call, which would take most of the time.
        return kind, *[_find_key(x) if type(x) in _NESTS else id(x) for x in fetches]
    if kind is dict:
        return kind, *fetches, *map(_find_key, fetches.values())
    return id(fetches)


def _list_leaves(graph: tf.Graph, fetches: Any) -> list[tf.Tensor | tf.Operation] | None:
    """Return the tensors and operations in fetches, in order; None for other kinds of fetches."""
    if isinstance(fetches, (tf.Tensor, tf.Operation)):
        operation = fetches if isinstance(fetches, tf.Operation) else fetches.op
        # TensorFlow cannot fetch tensors inside loops, and handles of tensors need special
        # treatment.
        is_fetchable = operation.graph is graph and graph.is_fetchable(operation)
        return [fetches] if is_fetchable and "SessionHandle" not in operation.type else None
    if type(fetches) not in (list, tuple, dict):
        return None
    leaves: list[tf.Tensor | tf.Operation] = []
    for part in fetches.values() if isinstance(fetches, dict) else fetches:
        leaves_of_part = _list_leaves(graph, part)
        if leaves_of_part is None:
            return None
        leaves += leaves_of_part
    return leaves


def _make_call(
    session: tf.compat.v1.Session, fetches: Any, leaves: Sequence[tf.Tensor | tf.Operation]
) -> Callable[[], Any]:
    """Return a function that runs the session, and returns the values in the nesting of fetches."""
    tensors = list(dict.fromkeys(x.name for x in leaves if isinstance(x, tf.Tensor)))
    operations = dict.fromkeys(x.name for x in leaves if isinstance(x, tf.Operation))
    options = config_pb2.CallableOptions(fetch=tensors, target=operations)
    run = session._make_callable_from_options(options)
    # The value of an operation is None; it comes after the values of all tensors.
    places = [len(tensors) if x.name in operations else tensors.index(x.name) for x in leaves]
    fill = _make_filler(fetches, iter(places))
    # `_do_call` adds to an error the line of Python code that has created the failed op.
    return lambda: fill([*session._do_call(run), None])


def _make_filler(fetches: Any, places: Iterator[int]) -> Callable[[list[Any]], Any]:
    """Return a function that puts a list of values into the nesting of `fetches`.

    Args:
      fetches: tensors and operations in any nesting.
      places: an iterator that yields, for each tensor or operation in `fetches`, the index of its
        value in the list.
    """
    kind = type(fetches)
    if kind not in _NESTS:
        return operator.itemgetter(next(places))
    if kind is dict:
        fillers = {name: _make_filler(part, places) for name, part in fetches.items()}
        return lambda values: {name: fill(values) for name, fill in fillers.items()}
    parts = [_make_filler(part, places) for part in fetches]
    return lambda values: kind([fill(values) for fill in parts])
