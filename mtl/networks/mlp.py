"""Fully connected layers, as a trunk or as a tower.

networks.MLP.layers = [128, 64]
networks.MLP.activation = "relu"
networks.MLP.dropout = 0.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf
from mtl.layers import copies, stacked
from mtl.networks import trunk
from mtl.variables import freezing, stacks

_SWIGLU = "swiglu"


@checks.dataclass
class MLP:
    """Fully connected layers on all columns, flattened and concatenated.

    Layer i computes `h[i] = dropout(activation(norm(W[i] h[i-1] + b[i])))`.

    The activation "swiglu" multiplies by a gate that also reads the input of the layer,
    `norm(W h + b) * swish(V h + c)` (N. Shazeer, "GLU Variants Improve Transformer", 2020,
    arXiv:2002.05202, which swaps the names W and V). The variables V and c of the gate are in
    `hidden_<i>/gate`, so a layer with "swiglu" has twice as many parameters.

    Attributes:
      layers: the number of units of each layer; [] returns the concatenated columns.
      activation: a name in `mtl.layers.ACTIVATIONS`, or "swiglu", after every layer.
      dropout: the share of units that are zeroed in training, in [0, 1).
      batch_norm: True applies batch norm before each activation, in place of the bias.
      layer_norm: True applies layer norm before each activation, in place of the bias. Layer norm
        excludes `batch_norm`.
      residual: True adds h[i-1] to h[i] in each layer with as many units as inputs. Layers with
        another number of units, often the first layer, have no residual connection, because inputs
        are not projected.
      trainable: False freezes all variables of the trunk (see `mtl.variables.freezing`).
    """

    layers: trunk.Sizes = (128, 64)
    activation: Annotated[str, checks.OneOf([*layers.ACTIVATIONS, _SWIGLU])] = "relu"
    dropout: checks.Rate = 0.0
    batch_norm: bool = False
    layer_norm: bool = False
    residual: bool = False
    trainable: bool = True

    def __post_init__(self):
        fits = not (self.batch_norm and self.layer_norm)
        rule = "be False if MLP.batch_norm is True"
        checks.require(fits, "MLP.layer_norm", rule, self.layer_norm)

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, ...]} -> [B, layers[-1]]."""
        hidden = trunk.join_columns("MLP", inputs)
        with freezing.hold_part(self.trainable):
            for index, size in enumerate(self.layers):
                name = f"hidden_{index}"
                sums = layers.dense(hidden, size, name, use_bias=self._has_bias)
                is_gated = self.activation == _SWIGLU
                gate = layers.dense(hidden, size, f"{name}/gate") if is_gated else None
                hidden = self._finish_layer(hidden, sums, gate, name, training)
        return hidden

    def build_copies(
        self, inputs: types.Tensors | Sequence[tf.Tensor], scopes: Sequence[str], training: bool
    ) -> list[tf.Tensor]:
        """Build a copy of the trunk in each of N scopes.

        Args:
          inputs: the columns {column: [B, ...]} that all copies read, or a separate input [B, D]
            for each copy.
          scopes: N variable scopes, relative to the current scope.
          training: True in a training step.

        Returns:
          The outputs of the N copies, [B, H] each.
        """
        count = len(scopes)
        hidden: copies.Inputs
        hidden = trunk.join_columns("MLP", inputs) if isinstance(inputs, Mapping) else inputs
        with freezing.hold_part(self.trainable):
            for index, size in enumerate(self.layers):
                name = f"hidden_{index}"
                sums = copies.dense(hidden, size, name, scopes, training, self._has_bias)
                gates: Sequence[tf.Tensor | None] = [None] * count
                if self.activation == _SWIGLU:
                    gates = copies.dense(hidden, size, f"{name}/gate", scopes, training)
                inputs_of_copies = [hidden] * count if isinstance(hidden, tf.Tensor) else hidden
                hidden = []
                for scope, copy_inputs, products, gate in zip(
                    scopes, inputs_of_copies, sums, gates, strict=True
                ):
                    with tf.compat.v1.variable_scope(scope):
                        hidden.append(
                            self._finish_layer(copy_inputs, products, gate, name, training)
                        )
        # If `layers` is empty, every copy returns the inputs.
        return [hidden] * count if isinstance(hidden, tf.Tensor) else list(hidden)

    @property
    def can_stack(self) -> bool:
        """True if `build_stack` supports the settings of this trunk."""
        if type(self) is not MLP:  # A subclass may have other layers.
            return False
        is_plain = self.activation != _SWIGLU and not self.dropout and self._has_bias
        # `build_stack` supports only trained layers with biases, without dropout, SwiGLU and
        # residual connections.
        return bool(self.layers) and is_plain and not self.residual and self.trainable

    def build_stack(self, inputs: types.Tensors, scopes: Sequence[str]) -> list[tf.Tensor]:
        """Build a copy of the trunk in each of T scopes, with the variables of all copies stacked.

        Args:
          inputs: the columns {column: [B, ...]} that all copies read.
          scopes: T variable scopes, relative to the current scope.

        Returns:
          The outputs of the T copies, [B, H] each.
        """
        hidden = trunk.join_columns("MLP", inputs)
        # Draw seeds in the order of separate MLPs, for equal initial values.
        seeds = [stacks.draw_seeds(len(self.layers)) for _ in scopes]
        for index, size in enumerate(self.layers):
            layer_seeds = [of_scope[index] for of_scope in seeds]
            sums = stacked.dense(hidden, size, f"hidden_{index}", scopes, layer_seeds)
            hidden = layers.ACTIVATIONS[self.activation](sums)
        return tf.unstack(hidden, len(scopes), axis=1)

    @property
    def _has_bias(self) -> bool:
        return not (self.batch_norm or self.layer_norm)

    def _finish_layer(
        self,
        inputs: tf.Tensor,
        sums: tf.Tensor,
        gate: tf.Tensor | None,
        name: str,
        training: bool,
    ) -> tf.Tensor:
        """Apply norm, activation, gate, dropout and residual connection: [B, H] -> [B, H]."""
        if self.batch_norm:
            sums = layers.batch_norm(sums, f"{name}_norm", training)
        elif self.layer_norm:
            sums = layers.layer_norm(sums, f"{name}_norm")
        if gate is None:
            hidden = layers.ACTIVATIONS[self.activation](sums)
        else:
            hidden = sums * tf.nn.swish(gate)
        hidden = layers.dropout(hidden, self.dropout, f"{name}_dropout", training)
        is_residual = self.residual and inputs.shape[-1] == hidden.shape[-1]
        return inputs + hidden if is_residual else hidden
