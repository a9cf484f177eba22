"""Session calls that fetch the same again and again, as training does.

repeated_calls.prepare(session)               # in after_create_session

TensorFlow works out anew, at every call, what to fetch and how the answer is put together. That
takes a small network a quarter of its step.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

# Fetches of a run that differ: with a summary or a table due or not. Beyond it they are no pattern.
_MOST = 64


def prepare(session: tf.compat.v1.Session) -> None:
    """Have a session keep what it works out about fetches, for calls that feed nothing.

    Such calls return and raise what they did; others, such as those with options, are as before.
    """
    run, made = session.run, dict[Any, Any]()

    def run_prepared(
        fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        # A monitored session always passes options, and metadata that only options fill.
        is_plain = not feed_dict and (options is None or not options.ByteSize())
        key = _find_key(fetches) if is_plain else None
        if key is None or (key not in made and len(made) == _MOST):
            return run(fetches, feed_dict, options, run_metadata)
        if key not in made:
            made[key] = session.make_callable(fetches)
        # A callable alone raises errors that name no line of Python.
        return session._do_call(made[key])

    session.run = run_prepared


def _find_key(fetches: Any) -> Any:
    """Return what tells fetches apart: their structure, and what is fetched; None where unknown."""
    if isinstance(fetches, tf.Operation):
        return fetches
    if isinstance(fetches, tf.Tensor):
        return fetches.op, fetches.value_index
    if isinstance(fetches, (list, tuple)):
        keys = [type(fetches), *map(_find_key, fetches)]
    elif isinstance(fetches, Mapping):
        keys = [type(fetches), *fetches, *map(_find_key, fetches.values())]
    else:
        return None
    return None if None in keys else tuple(keys)
