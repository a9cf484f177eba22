"""Eager execution in a process that builds graphs, for code that needs it.

with eager.execute_eagerly():
    converter = tf.lite.TFLiteConverter.from_saved_model(path)
with eager.execute_eagerly(), eager.create_variables({"network/kernel": array}):
    outputs = model(inputs)                 # code of graph mode, with `tf1.get_variable`
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mtl import checks, deferred
from mtl.deferred import tf

with deferred.imports():
    from tensorflow.python.eager import context
    from tensorflow.python.ops import variable_scope


def execute_eagerly() -> contextlib.AbstractContextManager[None]:
    """Return a context in which operations run at once."""
    return context.eager_mode()


@contextlib.contextmanager
def create_variables(values: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Let eager code create variables by name with these values, and reuse them.

    Raises:
      UserError: the code creates a variable of another name.
    """

    def create(next_creator: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
        name = settings["name"]
        fix = "Keras names its weights otherwise in eager code: use tf1.get_variable."
        is_known = name in values
        checks.require(is_known, "the eager model", "create variables of the graph", name, fix)
        return next_creator(**{**settings, "initial_value": values[name]})

    with (
        variable_scope.EagerVariableStore().as_default(),
        tf.variable_creator_scope(create),
        tf.compat.v1.variable_scope(
            tf.compat.v1.get_variable_scope(), reuse=tf.compat.v1.AUTO_REUSE
        ),
    ):
        yield
