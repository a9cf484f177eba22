"""Fully connected layers, as a trunk or as a tower.

networks.MLP.layers = [128, 64]
networks.MLP.activation = "relu"
networks.MLP.dropout = 0.1
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from mtl import types
from mtl.layers import copies
from mtl.networks import trunk
from mtl.variables import freezing


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP:
    """h[i] = dropout(activation(norm(W[i] h[i-1] + b[i]))), on all inputs flattened and joined.

    Attributes:
      layers: the number of units of each layer; [] passes the joined inputs on.
      activation: a name in `mtl.layers.ACTIVATIONS`, after every layer.
      dropout: share of the units that are zeroed in training, in [0, 1); 0 for none.
      batch_norm: normalises before each activation, in place of the bias.
      trainable: False leaves all of it as it is, as `mtl.variables.freezing` does by name.
    """

    layers: Sequence[int] = (128, 64)
    activation: str = "relu"
    dropout: float = 0.0
    batch_norm: bool = False
    trainable: bool = True

    def __post_init__(self):
        freezing.check_trainable(self)
        trunk.check_settings("MLP", self.layers, self.activation, self.dropout, self.batch_norm)

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, ...]} -> [B, layers[-1]]."""
        hidden = trunk.join_columns("MLP", inputs)
        with freezing.hold_part(self.trainable):
            return trunk.dense_layers(
                hidden, self.layers, self.activation, self.dropout, self.batch_norm, training
            )

    def build_copies(
        self, inputs: types.Tensors | Sequence[tf.Tensor], scopes: Sequence[str], training: bool
    ) -> list[tf.Tensor]:
        """Build one in each scope: {column: [B, ...]} for all, or N of [B, D] -> N of [B, H]."""
        hidden: copies.Inputs
        hidden = trunk.join_columns("MLP", inputs) if isinstance(inputs, Mapping) else inputs
        with freezing.hold_part(self.trainable):
            for index, size in enumerate(self.layers):
                name = f"hidden_{index}"
                hidden = copies.dense(hidden, size, name, scopes, use_bias=not self.batch_norm)
                finish = functools.partial(self._finish_layer, name=name, training=training)
                hidden = copies.for_each(finish, hidden, scopes)
        if isinstance(hidden, tf.Tensor):  # No layers: every copy passes the inputs on.
            return [hidden] * len(scopes)
        return list(hidden)

    def _finish_layer(self, hidden: tf.Tensor, name: str, training: bool) -> tf.Tensor:
        return trunk.finish_layer(
            hidden, name, self.activation, self.dropout, self.batch_norm, training
        )
