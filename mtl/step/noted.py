"""Notes tensors of the step that is being built, for reports and pictures.

with noted.note_outputs() as outputs: ...         # {layer: the outputs of its activation}
with noted.look_at_gradients(look): ...           # look(gradients, variables), before they move
noted.add_output(sums, hidden)                    # activations call this
noted.show_gradients(gradients, variables)        # the update calls this

Outside of these contexts the calls do nothing, and add no op to the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from mtl import ambient, types
from mtl.deferred import tf, tf1

Look = Callable[[Sequence[types.Connected], Sequence["tf.Variable"]], None]
"""Gets N gradients as the optimizer gets them, and their N variables, before they move."""


@contextlib.contextmanager
def note_outputs() -> Iterator[dict[str, tf.Tensor]]:
    """Note the outputs of activations within the context; yield {layer: outputs}."""
    found: dict[str, tf.Tensor] = {}
    with _OUTPUTS.set(found):
        yield found


def look_at_gradients(look: Look | None) -> contextlib.AbstractContextManager[Look | None]:
    """Let an update within the context call `look` with its gradients."""
    return _LOOK.set(look)


def add_output(sums: tf.Tensor, outputs: tf.Tensor) -> None:
    """Note the outputs of an activation, under the name of the layer that made its inputs."""
    found = _OUTPUTS.get()
    if found is None or any(outputs is other for other in found.values()):
        return
    scope, layer = tf1.get_variable_scope().name, sums.op.name.rpartition("/")[0]
    # Several copies of a layer are built as a single op, outside the scopes of the copies.
    name = layer if layer.startswith(f"{scope}/") or layer == scope else scope
    taken, number = name, 1
    while taken in found:
        taken, number = f"{name}_{number}", number + 1
    found[taken] = outputs


def show_gradients(gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]) -> None:
    """Show the final gradients to `look_at_gradients`, before any variable moves."""
    look = _LOOK.get()
    if look is not None:
        look(gradients, variables)


_OUTPUTS: ambient.Ambient[dict[str, tf.Tensor] | None] = ambient.Ambient(
    "noted outputs", default=None
)
_LOOK: ambient.Ambient[Look | None] = ambient.Ambient("look at gradients", default=None)
