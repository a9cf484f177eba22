"""Speeds up session calls that fetch the same values again and again, as in training.

repeated_calls.prepare(session)               # in after_create_session

At every call TensorFlow analyses the fetches and the structure of the result anew. That takes a
quarter of a small network's step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from mtl import deferred
from mtl.deferred import tf

with deferred.imports():
    from tensorflow.core.protobuf import config_pb2

# Fetches of a run that differ: with a summary or a table due or not. Beyond it they are no pattern.
_MOST = 64
_NESTS = frozenset([list, tuple, dict])


def prepare(session: tf.compat.v1.Session) -> None:
    """Let a session reuse its analysis of fetches in calls that feed nothing.

    Results and errors stay the same. Other calls, such as calls with options, do not change.
    """
    run = session.run
    # The fetches are kept as well: the id of a tensor that is gone could become that of another.
    made: dict[Hashable, tuple[Callable[[], Any], Any]] = {}

    def run_prepared(
        fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        # A monitored session always passes options, and metadata that only options fill.
        if feed_dict or (options is not None and options.ByteSize()):
            return run(fetches, feed_dict, options, run_metadata)
        key = _find_key(fetches)
        if key not in made:
            leaves = _list_leaves(session.graph, fetches)
            if leaves is None or len(made) == _MOST:
                return run(fetches, feed_dict, options, run_metadata)
            made[key] = _make_call(session, fetches, leaves), fetches
        call, _ = made[key]
        return call()

    session.run = run_prepared


def _find_key(fetches: Any) -> Hashable:
    """Return a key of the structure and the leaves of fetches; valid while they are kept."""
    kind = type(fetches)
    if kind is list or kind is tuple:
        # A call for each leaf would take most of the time.
        return kind, *[_find_key(x) if type(x) in _NESTS else id(x) for x in fetches]
    if kind is dict:
        return kind, *fetches, *map(_find_key, fetches.values())
    return id(fetches)


def _list_leaves(graph: tf.Graph, fetches: Any) -> list[tf.Tensor | tf.Operation] | None:
    """Return the fetched leaves in order; None if fetching takes more than to run a graph."""
    if isinstance(fetches, (tf.Tensor, tf.Operation)):
        operation = fetches if isinstance(fetches, tf.Operation) else fetches.op
        # One within a loop is refused, and a handle to a tensor is made of what is fetched.
        is_there = operation.graph is graph and graph.is_fetchable(operation)
        return [fetches] if is_there and "SessionHandle" not in operation.type else None
    if type(fetches) not in (list, tuple, dict):
        return None
    leaves: list[tf.Tensor | tf.Operation] = []
    for part in fetches.values() if isinstance(fetches, dict) else fetches:
        own = _list_leaves(graph, part)
        if own is None:
            return None
        leaves += own
    return leaves


def _make_call(
    session: tf.compat.v1.Session, fetches: Any, leaves: Sequence[tf.Tensor | tf.Operation]
) -> Callable[[], Any]:
    """Return a function that runs a session and returns the fetches; None for an operation."""
    tensors = list(dict.fromkeys(x.name for x in leaves if isinstance(x, tf.Tensor)))
    operations = dict.fromkeys(x.name for x in leaves if isinstance(x, tf.Operation))
    options = config_pb2.CallableOptions(fetch=tensors, target=operations)
    run = session._make_callable_from_options(options)
    # An operation has no value: its place is that of the None behind them.
    places = [len(tensors) if x.name in operations else tensors.index(x.name) for x in leaves]
    fill = _make_filler(fetches, iter(places))
    # A callable alone raises errors that name no line of Python.
    return lambda: fill([*session._do_call(run), None])


def _make_filler(fetches: Any, places: Iterator[int]) -> Callable[[list[Any]], Any]:
    """Return a function that puts values in the places of leaves; `places` yields the next."""
    kind = type(fetches)
    if kind not in _NESTS:
        return operator.itemgetter(next(places))
    if kind is dict:
        named = {name: _make_filler(part, places) for name, part in fetches.items()}
        return lambda values: {name: fill(values) for name, fill in named.items()}
    parts = [_make_filler(part, places) for part in fetches]
    return lambda values: kind([fill(values) for fill in parts])
