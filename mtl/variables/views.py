"""What a network reads in the place of its variables, in one order for everything that has a say.

with views.enter(views.Stage.PRUNED, mask):      # `mask` is a custom getter of `get_variable`
    towers = network(inputs)                     # whatever it asks for comes masked

Several views of one variable are taken in the order of their stages, wherever each was entered: a
teacher that reads averages gets the masked average, and quantisation gets what masks have left. A
view hides the variable itself, so that views that have to know it come first.
"""

import contextlib
import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from mtl import ambient

tf1 = tf.compat.v1

View = Callable[..., Any]
"""(getter, name, **settings of `get_variable`) -> what is read; `getter` has all earlier stages."""


class Stage(enum.IntEnum):
    """What a view does, in the order in which views are taken."""

    REPLACED = enum.auto()
    """Another value stands for the variable, such as its average."""
    MOVED = enum.auto()
    """The variable lies elsewhere for one pass."""
    PRUNED = enum.auto()
    """Some of its entries are cut."""
    SHARED_OUT = enum.auto()
    """A task has some of its entries."""
    QUANTIZED = enum.auto()
    """It has few values."""
    SELECTED = enum.auto()
    """A task chooses some of those values."""
    CAST = enum.auto()
    """It is of the numbers that the network computes in."""


@contextlib.contextmanager
def enter(stage: Stage, view: View) -> Iterator[Any]:
    """Have `get_variable` within it give what a view makes of a variable.

    Yields:
      The variable scope that is open within it.
    """
    here = tf1.get_variable_scope()
    with (
        _VIEWS.set((*_VIEWS.get(), (stage, view))),
        # Keras names its weights by name scopes: none is to be entered anew.
        tf1.variable_scope(here, custom_getter=_read, auxiliary_name_scope=False) as scope,
    ):
        yield scope


def read_as(variable: tf.Variable, name: str, **settings: Any) -> Any:
    """Return what the scope that is open reads for a variable that was created without it.

    Args:
      variable: such as a weight of Keras.
      name: by which views know it.
      **settings: of `get_variable`, which views may look at.
    """
    getter = tf1.get_variable_scope().custom_getter
    if getter is None:
        return variable

    def get(asked: str, **own: Any) -> Any:
        # What views create beside the variable, such as its mask, has a name of its own.
        return variable if asked == name else _create(asked, **own)

    return getter(get, name, **settings)


def _create(name: str, **settings: Any) -> Any:
    scope = tf1.VariableScope(reuse=tf1.AUTO_REUSE, name="")
    with tf1.variable_scope(scope, auxiliary_name_scope=False):
        return tf1.get_variable(name, **settings)


def _read(getter: Callable[..., Any], name: str, **settings: Any) -> Any:
    for _, view in sorted(_VIEWS.get(), key=lambda entered: entered[0]):
        getter = functools.partial(view, getter)
    # Each `enter` has put this function around the getter once more: one of them does all.
    with _VIEWS.set(()):
        return getter(name, **settings)


_VIEWS: ambient.Ambient[tuple[tuple[Stage, View], ...]] = ambient.Ambient("views", default=())
