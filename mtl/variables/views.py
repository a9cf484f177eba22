"""Views change the values that a network reads from its variables, in a fixed order.

with views.enter(views.Stage.PRUNED, mask):      # `mask` is a custom getter of `get_variable`
    towers = network(inputs)                     # all variables that it reads are masked

Several views of a variable apply in the order of their stages, not in the order of their contexts:
a teacher that reads averages gets the masked average, and quantisation gets masked weights. A view
hides the variable itself, so views that need the variable come first.
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
"""(getter, name, **settings of `get_variable`) -> a value; `getter` applies earlier stages."""


class Stage(enum.IntEnum):
    """The effects of views on a variable, in the order of application."""

    REPLACED = enum.auto()
    """Replaces it by another value, such as its average."""
    MOVED = enum.auto()
    """Shifts it for one pass."""
    PRUNED = enum.auto()
    """Cuts some of its entries."""
    SHARED_OUT = enum.auto()
    """Gives a task some of its entries."""
    QUANTIZED = enum.auto()
    """Rounds it to few values."""
    SELECTED = enum.auto()
    """Gives a task some of those values."""
    CAST = enum.auto()
    """Converts it to the numbers that the network computes with."""


@contextlib.contextmanager
def enter(stage: Stage, view: View) -> Iterator[Any]:
    """Make `get_variable` return the view of a variable, within the context.

    Yields:
      The open variable scope.
    """
    scope_outside = tf1.get_variable_scope()
    with (
        _VIEWS.set((*_VIEWS.get(), (stage, view))),
        # Keras names its weights by name scopes, so a new name scope would rename them.
        tf1.variable_scope(
            scope_outside, custom_getter=_read_views, auxiliary_name_scope=False
        ) as scope,
    ):
        yield scope


def read_as(variable: tf.Variable, name: str, **settings: Any) -> Any:
    """Return the views of a variable that was created outside of the open scope.

    Args:
      variable: a variable that exists already, such as a weight of a Keras layer.
      name: the name of the variable for views.
      **settings: settings of `get_variable`, which views may read.
    """
    getter = tf1.get_variable_scope().custom_getter
    if getter is None:
        return variable

    def get(variable_name: str, **variable_settings: Any) -> Any:
        if variable_name == name:
            return variable
        # A view creates another variable, such as a mask.
        return _create_variable(variable_name, **variable_settings)

    return getter(get, name, **settings)


def _create_variable(name: str, **settings: Any) -> Any:
    scope = tf1.VariableScope(reuse=tf1.AUTO_REUSE, name="")
    with tf1.variable_scope(scope, auxiliary_name_scope=False):
        return tf1.get_variable(name, **settings)


def _read_views(getter: Callable[..., Any], name: str, **settings: Any) -> Any:
    for _, view in sorted(_VIEWS.get(), key=lambda pair: pair[0]):
        getter = functools.partial(view, getter)
    # Each context wraps the getter in this function once more, but one call applies all views.
    with _VIEWS.set(()):
        return getter(name, **settings)


_VIEWS: ambient.Ambient[tuple[tuple[Stage, View], ...]] = ambient.Ambient("views", default=())
