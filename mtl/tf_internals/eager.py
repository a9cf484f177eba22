"""Executes code eagerly in a process whose other code builds graphs.

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
    """Execute operations within the context eagerly."""
    return context.eager_mode()


@contextlib.contextmanager
def create_variables(values: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Let eager code create variables with given initial values, and reuse variables by name.

    Args:
      values: {name of a variable: initial value}.

    Raises:
      UserError: the code creates a variable with another name.
    """

    def create(next_creator: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
        name = settings["name"]
        fix = "Keras uses other names in eager code: use tf1.get_variable."
        is_in_graph = name in values
        checks.require(is_in_graph, "the eager model", "create variables of the graph", name, fix)
        return next_creator(**{**settings, "initial_value": values[name]})

    with (
        variable_scope.EagerVariableStore().as_default(),
        tf.variable_creator_scope(create),
        tf.compat.v1.variable_scope(
            tf.compat.v1.get_variable_scope(), reuse=tf.compat.v1.AUTO_REUSE
        ),
    ):
        yield
