"""Hooks that read or change the inputs and outputs of layers, without code in the network.

with layer_hooks.attach(hook): ...            # build a network here; the hook acts on its layers
inputs = layer_hooks.take_inputs(inputs)      # called by `layers.dense` and `layers.conv`
layer_hooks.take_outputs(sums, outputs)       # called by activations

Quantisation, pruning and TensorBoard attach hooks. Most runs have no hooks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mtl import ambient
from mtl.deferred import tf, tf1


class LayerHook:
    """A hook on the layers of a network that is being built; by default, it does nothing.

    Attributes:
      takes_inputs: True if the hook changes or records inputs. With a hook that takes inputs, equal
        layers, such as experts, are built one by one in separate scopes, and not as a single matrix
        product.
    """

    takes_inputs = False

    def take_inputs(self, inputs: tf.Tensor) -> tf.Tensor:
        """Change or record the inputs of the layer whose variable scope is open.

        Args:
          inputs: [..., D].

        Returns:
          The inputs from which the layer computes its outputs, in the shape of `inputs`.
        """
        return inputs

    def take_outputs(self, sums: tf.Tensor, outputs: tf.Tensor) -> None:
        """Receive the outputs of an activation.

        Args:
          sums: the inputs of the activation.
          outputs: the outputs of the activation, in the same shape.
        """


class NoteOutputs(LayerHook):
    """Records the outputs of activations in `found`, {layer: outputs}."""

    def __init__(self) -> None:
        self.found: dict[str, tf.Tensor] = {}

    def take_outputs(self, sums: tf.Tensor, outputs: tf.Tensor) -> None:
        """Record `outputs`, if they are new, under the name of the layer that computed `sums`."""
        if any(outputs is other for other in self.found.values()):
            return
        scope, layer = tf1.get_variable_scope().name, sums.op.name.rpartition("/")[0]
        # Equal layers may be built as a single op, whose name is outside the scope of each layer.
        name = layer if layer.startswith(f"{scope}/") or layer == scope else scope
        unique_name, number = name, 1
        while unique_name in self.found:
            unique_name, number = f"{name}_{number}", number + 1
        self.found[unique_name] = outputs


class NoteInputs(LayerHook):
    """Records the inputs of layers in `found`, {name of the kernel: inputs [..., D]}."""

    takes_inputs = True

    def __init__(self) -> None:
        self.found: dict[str, tf.Tensor] = {}

    def take_inputs(self, inputs: tf.Tensor) -> tf.Tensor:
        """Record the inputs of the first call of a layer, and return the inputs unchanged."""
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
    """Let all hooks change the inputs of the layer whose scope is open.

    The hook that was attached last acts first.

    Args:
      inputs: [..., D].

    Returns:
      The inputs from which the layer computes its outputs, in the shape of `inputs`.
    """
    for hook in _HOOKS.get():
        inputs = hook.take_inputs(inputs)
    return inputs


def take_outputs(sums: tf.Tensor, outputs: tf.Tensor) -> None:
    """Show the outputs of an activation to all hooks.

    Args:
      sums: the inputs of the activation.
      outputs: the outputs of the activation, in the same shape.
    """
    for hook in _HOOKS.get():
        hook.take_outputs(sums, outputs)


def need_inputs() -> bool:
    """Return True if a hook changes or records the inputs of layers."""
    return any(hook.takes_inputs for hook in _HOOKS.get())


_HOOKS: ambient.Ambient[tuple[LayerHook, ...]] = ambient.Ambient("layer hooks", default=())
