"""Tensors of the step that is being built, noted for what shows them.

with noted.note_outputs() as outputs: ...         # {layer: what its activation gives}
with noted.look_at_gradients(look): ...           # look(gradients, variables), before they move
noted.add_output(sums, hidden)                    # by the activation
noted.show_gradients(gradients, variables)        # by the update

Where nobody asks, nothing is noted and no op is made.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from mtl import ambient, types

tf1 = tf.compat.v1

Look = Callable[[Sequence[types.Connected], Sequence[tf.Variable]], None]
"""Takes N gradients as the optimizer gets them, and N variables, which have not moved yet."""


@contextlib.contextmanager
def note_outputs() -> Iterator[dict[str, tf.Tensor]]:
    """Note what activations give within it; yield it by layer."""
    found: dict[str, tf.Tensor] = {}
    with _OUTPUTS.set(found):
        yield found


def look_at_gradients(look: Look | None) -> contextlib.AbstractContextManager[Look | None]:
    """Have the update show its gradients within it."""
    return _LOOK.set(look)


def add_output(sums: tf.Tensor, outputs: tf.Tensor) -> None:
    """Note what an activation makes of its inputs, under the name of the layer that gave them."""
    found = _OUTPUTS.get()
    if found is None or any(outputs is other for other in found.values()):
        return
    scope, layer = tf1.get_variable_scope().name, sums.op.name.rpartition("/")[0]
    # Layers of several copies are built as one, in the scope of none.
    name = layer if layer.startswith(f"{scope}/") or layer == scope else scope
    taken, number = name, 1
    while taken in found:
        taken, number = f"{name}_{number}", number + 1
    found[taken] = outputs


def show_gradients(gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]) -> None:
    """Show gradients, once nothing changes them any more and before anything moves."""
    look = _LOOK.get()
    if look is not None:
        look(gradients, variables)


_OUTPUTS: ambient.Ambient[dict[str, tf.Tensor] | None] = ambient.Ambient(
    "noted outputs", default=None
)
_LOOK: ambient.Ambient[Look | None] = ambient.Ambient("look at gradients", default=None)
