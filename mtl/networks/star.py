"""One network for several domains, such as sites or markets, with weights that all of them share.

networks.SharedBottom.trunk = @networks.STAR()
networks.STAR.domain = "identity_site"           # one-hot: features.Identity.dimension = None
networks.STAR.layers = [128, 64]
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from mtl import checks, layers, types
from mtl.layers import partitioned_norm
from mtl.networks import fields, trunk
from mtl.variables import freezing

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class STAR:
    """h[l] = activation((W[l] * W[l, d]) h[l-1] + b[l] + b[l, d]) in the domain d of the row.

    X. Sheng et al., "One Model to Serve All: Star Topology Adaptive Recommender for Multi-Domain
    Click-Through Rate Prediction", CIKM 2021, arXiv:2101.11427. `*` is by element. W[l, d] starts
    at 1 and b[l, d] at 0, so all domains start alike. The inputs are normalised by the moments of
    the rows of their domain in the batch, as batches here mix domains and those of the paper hold
    one each (see `mtl.layers.partitioned_norm`).

    It is a trunk, and works under several tasks. The paper adds the logit of its auxiliary network
    to that of this one. Here the outputs of both are joined, and the linear layer of each head adds
    them up.

    A step computes each layer for all domains and keeps what is a row's own: N domains cost N times
    the products of an MLP.

    Attributes:
      domain: the column that tells the domain, one-hot [B, N]: an Identity or a Categorical with
        `dimension = None`. A row of several domains takes the sum of their weights.
      layers: the number of units of each layer, one at least; variables in `hidden_<l>/shared`,
        and in `hidden_<l>/domains` with a first axis of N.
      activation: a name in `mtl.layers.ACTIVATIONS`, after every layer.
      dropout: the share of the units that are zeroed in training, in [0, 1).
      norm: whether the inputs are normalised by domain; variables in `norm`.
      auxiliary: a trunk on all columns, the domain included; variables in `auxiliary`. None for no
        such network.
      trainable: False leaves all of it as it is.
    """

    domain: str
    layers: Sequence[int] = (128, 64)
    activation: str = "relu"
    dropout: float = 0.0
    norm: bool = True
    auxiliary: trunk.Trunk | None = None
    trainable: bool = True

    def __post_init__(self):
        freezing.check_trainable(self)
        checks.is_a("STAR.domain", self.domain, str, "name a column")
        trunk.check_settings("STAR", self.layers, self.activation, self.dropout, self.norm)
        checks.require(len(self.layers) > 0, "STAR.layers", "hold a layer", self.layers)
        trunk.check_tower("STAR.auxiliary", self.auxiliary)

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, ...]} -> [B, layers[-1]], with the auxiliary's [B, H] behind.

        Raises:
          UserError: there is no such column, or no other.
        """
        checks.one_of("STAR.domain", self.domain, list(inputs))
        domains = inputs[self.domain]
        fields.require_vectors("STAR", self.domain, domains)
        others = {column: value for column, value in inputs.items() if column != self.domain}
        with freezing.hold_part(self.trainable):
            hidden = trunk.join_columns("STAR", others)
            if self.norm:
                hidden = partitioned_norm.normalise(hidden, domains, "norm", training)
            for index, size in enumerate(self.layers):
                hidden = _dense(hidden, domains, size, f"hidden_{index}")
                hidden = layers.ACTIVATIONS[self.activation](hidden)
                hidden = layers.dropout(hidden, self.dropout, f"hidden_{index}_dropout", training)
            if self.auxiliary is None:
                return hidden
            with tf1.variable_scope("auxiliary"):
                return tf.concat([hidden, self.auxiliary(inputs, training)], axis=1)


def _dense(inputs: tf.Tensor, domains: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """Apply the layer of each row's domain: [B, D], [B, N] -> [B, units]."""
    width, count, dtype = inputs.shape[-1], domains.shape[-1], inputs.dtype
    zeros, ones = tf1.zeros_initializer(), tf1.ones_initializer()
    with tf1.variable_scope(name):
        with tf1.variable_scope("shared"):
            kernel = tf1.get_variable("kernel", [width, units], dtype)
            bias = tf1.get_variable("bias", [units], dtype, zeros)
        with tf1.variable_scope("domains"):
            kernels = tf1.get_variable("kernel", [count, width, units], dtype, ones)
            biases = tf1.get_variable("bias", [count, units], dtype, zeros)
    # All domains side by side, [D, N * units]: one product.
    wide = tf.reshape(tf.transpose(kernel * kernels, [1, 0, 2]), [width, count * units])
    of_all = tf.reshape(tf.linalg.matmul(inputs, wide), [-1, count, units])
    own = tf.linalg.matmul(domains[:, tf.newaxis], of_all)[:, 0]
    return own + bias + tf.linalg.matmul(domains, biases)
