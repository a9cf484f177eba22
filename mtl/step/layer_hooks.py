"""Hooks that act on the inputs and outputs of layers from outside.

with layer_hooks.attach(hook): ...            # the hook acts on networks that are built here
inputs = layer_hooks.take_inputs(inputs)      # `layers.dense` and `layers.conv` call this
layer_hooks.take_outputs(sums, outputs)       # activations call this

Quantisation, pruning and TensorBoard attach hooks. Most runs have none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mtl import ambient
from mtl.deferred import tf, tf1


class LayerHook:
    """Acts on the layers of a network that is being built; each member does nothing by default.

    Attributes:
      takes_inputs: True if the hook changes or notes inputs. Several copies of a layer are then
        built one by one, each in its own scope, and not as a single product.
    """

    takes_inputs = False

    def take_inputs(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the inputs, [..., D], of the layer whose variable scope is open."""
        return inputs

    def take_outputs(self, sums: tf.Tensor, outputs: tf.Tensor) -> None:
        """Look at the sums of a layer and the outputs of its activation, in the same shape."""


class NoteOutputs(LayerHook):
    """Notes the outputs of activations: `found` is {layer: outputs}."""

    def __init__(self) -> None:
        self.found: dict[str, tf.Tensor] = {}

    def take_outputs(self, sums: tf.Tensor, outputs: tf.Tensor) -> None:
        """Note outputs, each tensor once, under the name of the layer that computed the sums."""
        if any(outputs is other for other in self.found.values()):
            return
        scope, layer = tf1.get_variable_scope().name, sums.op.name.rpartition("/")[0]
        # Several copies of a layer are built as a single op, outside the scopes of the copies.
        name = layer if layer.startswith(f"{scope}/") or layer == scope else scope
        unique_name, number = name, 1
        while unique_name in self.found:
            unique_name, number = f"{name}_{number}", number + 1
        self.found[unique_name] = outputs


class NoteInputs(LayerHook):
    """Notes the inputs of kernels: `found` is {kernel: its inputs, [..., D]}."""

    takes_inputs = True

    def __init__(self) -> None:
        self.found: dict[str, tf.Tensor] = {}

    def take_inputs(self, inputs: tf.Tensor) -> tf.Tensor:
        """Note the first inputs of a layer, and return them."""
        kernel = f"{tf1.get_variable_scope().name}/kernel"
        if kernel not in self.found:
            self.found[kernel] = tf.stop_gradient(inputs)
        return inputs


@contextlib.contextmanager
def attach(hook: LayerHook) -> Iterator[LayerHook]:
    """Let a hook act on the layers that are built within the context."""
    with _HOOKS.set((hook, *_HOOKS.get())):
        yield hook


def take_inputs(inputs: tf.Tensor) -> tf.Tensor:
    """Return the inputs of the layer whose scope is open, after the changes of all hooks.

    The hook that was attached last acts first, as it is the nearest to the caller of the layer.
    """
    for hook in _HOOKS.get():
        inputs = hook.take_inputs(inputs)
    return inputs


def take_outputs(sums: tf.Tensor, outputs: tf.Tensor) -> None:
    """Show the outputs of an activation to the hooks."""
    for hook in _HOOKS.get():
        hook.take_outputs(sums, outputs)


def need_inputs() -> bool:
    """Return True if a hook changes or notes the inputs of layers."""
    return any(hook.takes_inputs for hook in _HOOKS.get())


_HOOKS: ambient.Ambient[tuple[LayerHook, ...]] = ambient.Ambient("layer hooks", default=())
