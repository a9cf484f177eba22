"""STAR: a network with shared weights and weights for each domain, such as a site or a market.

networks.SharedBottom.trunk = @networks.STAR()
networks.STAR.domain = "identity_site"           # one-hot: features.Identity.dimension = None
networks.STAR.layers = [128, 64]
"""

from __future__ import annotations

from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.layers import partitioned_norm
from mtl.networks import fields, trunk
from mtl.step import layer_hooks
from mtl.variables import freezing


@checks.dataclass
class STAR:
    """Layers whose weights are products of shared weights and weights of a row's domain.

    `h[l] = activation((W[l] * W[l, d]) h[l-1] + b[l] + b[l, d])` in the domain d. X. Sheng et al.,
    "One Model to Serve All: Star Topology Adaptive Recommender for Multi-Domain Click-Through Rate
    Prediction", CIKM 2021, arXiv:2101.11427. `*` is an elementwise product. The initial W[l, d] is
    1 and the initial b[l, d] is 0, so all domains are equal at first. Batches may mix domains; in
    the paper, a batch has a single domain. So the inputs of each domain are normalised by the
    moments of the domain's rows in the batch; domains with few rows also use the moments of all
    rows (see `mtl.layers.partitioned_norm`).

    STAR is a trunk, and works for several tasks. In the paper, the logit is the sum of the logits
    of STAR and of an auxiliary network. Here the outputs of STAR and of the auxiliary network are
    concatenated, and the linear layer of each head sums them.

    A step computes each layer once for each domain in the batch, then selects the result of each
    row's domain: n domains take n times the products of an MLP. The gradient of the domains'
    weights is sparse, so a lazy optimizer does not change the weights of absent domains.

    Attributes:
      domain: the one-hot column [B, N] of domains, an Identity or a Categorical with
        `dimension = None`. The domain of a row is the index of the largest value in its one-hot
        vector.
      layers: the number of units of each layer, at least one layer; variables in
        `hidden_<l>/shared`, and in `hidden_<l>/domains` with a first axis of N.
      activation: a name in `mtl.layers.ACTIVATIONS`, after every layer.
      dropout: the share of units that are zeroed in training, in [0, 1).
      norm: True normalises the inputs by domain; variables in `norm`.
      auxiliary: the auxiliary network, a trunk on all columns, including the domain; variables in
        `auxiliary`. None omits this network.
      trainable: False freezes all variables of the trunk.
    """

    domain: Annotated[str, checks.Is(str, "name a column")]
    layers: trunk.SomeSizes = (128, 64)
    activation: trunk.Activation = "relu"
    dropout: checks.Rate = 0.0
    norm: bool = True
    auxiliary: Annotated[trunk.Trunk | None, trunk.check_tower] = None
    trainable: bool = True

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, ...]} -> [B, layers[-1]], or [B, layers[-1] + auxiliary H].

        Raises:
          UserError: the column `domain` is missing, or there is no other column.
        """
        checks.one_of("STAR.domain", self.domain, list(inputs))
        one_hot = inputs[self.domain]
        fields.require_vectors("STAR", self.domain, one_hot)
        domains, count = tf.argmax(one_hot, axis=1, output_type=tf.int32), one_hot.shape[-1]
        # The domain selects the weights, so the layers do not read it as an input.
        features = {column: value for column, value in inputs.items() if column != self.domain}
        with freezing.hold_part(self.trainable):
            hidden = trunk.join_columns("STAR", features)
            if self.norm:
                groups = tf.one_hot(domains, count)
                hidden = partitioned_norm.normalise(hidden, groups, "norm", training)
            for index, size in enumerate(self.layers):
                hidden = _apply_layer(hidden, domains, count, size, f"hidden_{index}")
                hidden = layers.ACTIVATIONS[self.activation](hidden)
                hidden = layers.dropout(hidden, self.dropout, f"hidden_{index}_dropout", training)
            if self.auxiliary is None:
                return hidden
            with tf1.variable_scope("auxiliary"):
                return tf.concat([hidden, self.auxiliary(inputs, training)], axis=1)


def _apply_layer(
    inputs: tf.Tensor, domains: tf.Tensor, count: int, units: int, name: str
) -> tf.Tensor:
    """Apply the layer of each row's domain, [B, D] and [B] in [0, count) -> [B, units]."""
    width, dtype = inputs.shape[-1], inputs.dtype
    zeros, ones = tf1.zeros_initializer(), tf1.ones_initializer()
    with tf1.variable_scope(name):
        inputs = layer_hooks.take_inputs(inputs)
        with tf1.variable_scope("shared"):
            kernel = tf1.get_variable("kernel", [width, units], dtype)
            bias = tf1.get_variable("bias", [units], dtype, zeros)
        with tf1.variable_scope("domains"):
            # Kernels of domains start as ones, so that their product with the shared kernel equals
            # the shared kernel.
            kernels = tf1.get_variable("kernel", [count, width, units], dtype, ones)
            biases = tf1.get_variable("bias", [count, units], dtype, zeros)
    # `tf.gather` by the domains in the batch makes the gradient sparse.
    present, places = tf.unique(domains)
    # Multiply all rows by the kernel of each of the n domains in the batch. A gather of kernels by
    # row would need a copy of the kernel for each row.
    kernels = kernel * tf.gather(kernels, present)
    products = tf.linalg.matmul(inputs[tf.newaxis], kernels)  # [n, B, H]
    # For each row, the index of its domain in `present`, and the number of the row, [B, 2].
    indices = tf.stack([places, tf.range(tf.shape(inputs)[0])], axis=1)
    return tf.gather_nd(products, indices) + bias + tf.gather(biases, domains)
