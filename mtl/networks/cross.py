"""Cross layers of DCN: each layer multiplies a linear map of the features by the inputs.

networks.SharedBottom.trunk = @networks.Parallel()
networks.Parallel.trunks = [@networks.Cross(), @deep/networks.MLP()]     # DCN-v2
networks.Cross.rank = 32
networks.Cross.num_experts = 4                                           # DCN-Mix
"""

from __future__ import annotations

from typing import cast

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.networks import trunk
from mtl.variables import freezing


@checks.dataclass
class Cross:
    """The cross network of DCN-v2 on all columns, with explicit feature interactions.

    `x[l+1] = x[0] * (W[l] x[l] + b[l]) + x[l]`, with an elementwise product. R. Wang et al., "DCN
    V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems",
    WWW 2021, arXiv:2008.13535. If `rank` is set, each matrix W is the product U V of two smaller
    matrices. With several experts,
    `x[l+1] = sum_e g[e](x[l]) x[0] * (U[e] act(C[e] act(V[e] x[l])) + b[l]) + x[l]`; act is tanh,
    and g a softmax of a linear map.

    If `gated` is True, a layer multiplies its product with x[0] by `sigmoid(G[l] x[l])`, as in the
    gated cross network (F. Wang et al., "Towards Deeper, Lighter and Interpretable Cross Network
    for CTR Prediction", CIKM 2023, arXiv:2311.04635).

    Attributes:
      num_layers: the number of cross layers, at least 1; variables in `layer_<l>`.
      rank: the rank of the matrices W, at least 1; None for matrices of full rank.
      num_experts: the number of experts that a gate mixes; for more than 1, set `rank`. With a
        single expert, a layer is a linear map by W, without the activation act and the matrices C.
      gated: True multiplies each product by a sigmoid gate with the matrix G; needs
        `num_experts = 1`.
      trainable: False freezes all variables of the trunk.
    """

    num_layers: checks.Count = 3
    rank: checks.Count | None = None
    num_experts: checks.Count = 1
    gated: bool = False
    trainable: bool = True

    def __post_init__(self):
        has_rank = self.num_experts == 1 or self.rank is not None
        checks.require(has_rank, "Cross.rank", "be set if Cross.num_experts is above 1", self.rank)
        is_one = self.num_experts == 1 or not self.gated
        checks.require(
            is_one, "Cross.gated", "be False if Cross.num_experts is above 1", self.gated
        )

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, ...]} -> [B, sum of all D]."""
        first = trunk.join_columns("Cross", inputs)
        hidden = first
        with freezing.hold_part(self.trainable):
            for index in range(self.num_layers):
                with tf1.variable_scope(f"layer_{index}"):
                    hidden = self._build_layer(first, hidden)
        return hidden

    def _build_layer(self, first: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
        if self.num_experts > 1:
            return first * self._mix_experts(hidden) + hidden
        # Each layer multiplies by x[0] once: layer l has products of up to l + 1 inputs.
        product = first * self._map_hidden(hidden, "cross", use_bias=True)
        if self.gated:
            product *= tf.sigmoid(self._map_hidden(hidden, "gate", use_bias=False))
        return product + hidden

    def _map_hidden(self, hidden: tf.Tensor, name: str, use_bias: bool) -> tf.Tensor:
        """Apply a linear map of full or of low rank, [B, D] -> [B, D]."""
        width = hidden.shape[-1]
        if self.rank is None:
            return layers.dense(hidden, width, name, use_bias=use_bias)
        with tf1.variable_scope(name):
            low = layers.dense(hidden, self.rank, "down", use_bias=False)
            return layers.dense(low, width, "up", use_bias=use_bias)

    def _mix_experts(self, hidden: tf.Tensor) -> tf.Tensor:
        """Mix the experts, [B, D] -> [B, D]."""
        count, rank, width = self.num_experts, cast(int, self.rank), hidden.shape[-1]
        logits = layers.dense(hidden, count, "gate", use_bias=False)
        weights = tf.cast(tf.nn.softmax(tf.cast(logits, tf.float32)), hidden.dtype)
        # One matrix holds V of all experts, and another holds U, so two products are enough.
        low = tf.tanh(layers.dense(hidden, count * rank, "down", use_bias=False))
        low = tf.reshape(low, [-1, count, rank])
        initializer = tf1.glorot_uniform_initializer()
        core = tf1.get_variable("core/kernel", [count, rank, rank], hidden.dtype, initializer)
        low = tf.tanh(tf.einsum("ber,ers->bes", low, core)) * weights[..., tf.newaxis]
        # One bias serves all experts, because their weights sum to 1.
        return layers.dense(tf.reshape(low, [-1, count * rank]), width, "up")
