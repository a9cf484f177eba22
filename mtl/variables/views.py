"""Views, which change the values that a network reads from its variables, in a fixed order.

with views.enter(views.Stage.PRUNED, mask):      # `mask` is a custom getter of `get_variable`
    towers = network(inputs)                     # reads masked variables

If a variable has several views, they apply in the order of their stages, not in the order of their
contexts. For example, pruning comes before quantisation, so quantisation gets masked weights. Later
views get a tensor and not the variable, so views that need the variable itself come first.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any

from mtl import ambient
from mtl.deferred import tf, tf1

View = Callable[..., Any]
"""A function (getter, name, **settings) -> value; `getter` applies earlier views."""


class Stage(enum.IntEnum):
    """The kinds of views; if a variable has several views, they change its value in this order."""

    REPLACED = enum.auto()
    """Replaces the variable by another value, such as its average."""
    MOVED = enum.auto()
    """Adds a shift to the variable's value in one forward pass."""
    PRUNED = enum.auto()
    """Sets pruned entries of the variable to 0."""
    SHARED_OUT = enum.auto()
    """Keeps only the variable's entries that belong to a task."""
    QUANTIZED = enum.auto()
    """Rounds the variable's entries to few values."""
    SELECTED = enum.auto()
    """Keeps only the variable's rounded entries that belong to a task."""
    CAST = enum.auto()
    """Casts the value to the type in which the network computes."""


@contextlib.contextmanager
def enter(stage: Stage, view: View) -> Iterator[Any]:
    """Let `get_variable` return the view of a variable within the context.

    Yields:
      The open variable scope.
    """
    scope_outside = tf1.get_variable_scope()
    with (
        _VIEWS.set((*_VIEWS.get(), (stage, view))),
        # Keras takes the names of weights from name scopes, so a new name scope would change the
        # names.
        tf1.variable_scope(
            scope_outside, custom_getter=_read_views, auxiliary_name_scope=False
        ) as scope,
    ):
        yield scope


def read_as(variable: tf.Variable, name: str, **settings: Any) -> Any:
    """Apply the open views (see `enter`) to a variable that was created outside of the open scope.

    Args:
      variable: an existing variable, such as a weight of a Keras layer.
      name: the name under which views get the variable.
      **settings: settings of `get_variable`, which views may read.
    """
    getter = tf1.get_variable_scope().custom_getter
    if getter is None:
        return variable

    def get(variable_name: str, **variable_settings: Any) -> Any:
        if variable_name == name:
            return variable
        # A view may create a further variable, such as a mask.
        return _create_variable(variable_name, **variable_settings)

    return getter(get, name, **settings)


def _create_variable(name: str, **settings: Any) -> Any:
    scope = tf1.VariableScope(reuse=tf1.AUTO_REUSE, name="")
    with tf1.variable_scope(scope, auxiliary_name_scope=False):
        return tf1.get_variable(name, **settings)


def _read_views(getter: Callable[..., Any], name: str, **settings: Any) -> Any:
    for _, view in sorted(_VIEWS.get(), key=lambda pair: pair[0]):
        getter = functools.partial(view, getter)
    # Each open context calls this function, one inside another. The outermost call applies all
    # views, so the inner calls must apply none.
    with _VIEWS.set(()):
        return getter(name, **settings)


_VIEWS: ambient.Ambient[tuple[tuple[Stage, View], ...]] = ambient.Ambient("views", default=())
