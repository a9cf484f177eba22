"""FinalMLP: two MLPs on differently gated inputs, and a bilinear product of both outputs.

networks.SharedBottom.trunk = @networks.FinalMLP()
networks.FinalMLP.streams = [@first/networks.MLP(), @second/networks.MLP()]
networks.FinalMLP.contexts = [["hashed_user"], ["hashed_item"]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.networks import fields, trunk
from mtl.variables import freezing


@checks.dataclass
class FinalMLP:
    """Two trunks on differently gated inputs, and a bilinear product of both outputs.

    With the outputs o1 and o2 of two streams, `h = [o1, o2, o1[k]' W[k] o2[k] for each head k]`;
    each output is `o = stream(2 sigmoid(gate(context)) * x)`. K. Mao et al., "FinalMLP: An Enhanced
    Two-Stream MLP Model for CTR Prediction", AAAI 2023, arXiv:2304.00902. o[k] is the k-th part of
    a stream's output. In the paper, the logit is `b + w1' o1 + w2' o2 + sum_k o1[k]' W[k] o2[k]`.
    Here a linear head sums the terms of the logit, and also learns a weight for each bilinear
    product.

    Attributes:
      streams: two trunks on the gated columns; variables in `stream_<i>`.
      contexts: names of the columns that each gate reads, in which `*` matches any text. If a list
        is empty, the gate reads a learned vector, the same for all rows, as in the paper. Variables
        in `gate_<i>`.
      gate_units: the number of hidden units of a gate, at least 1.
      num_heads: the number of parts of each stream's output; must divide the units of both streams.
      trainable: False freezes all variables of the trunk.
    """

    streams: Annotated[
        Sequence[trunk.Trunk],
        trunk.check_trunks,
        checks.Rule("hold two trunks", lambda value: len(value) == 2),
    ]
    contexts: Annotated[
        Sequence[Annotated[Sequence[str], fields.check_patterns]],
        checks.Rule("be two lists of columns", lambda value: len(value) == 2),
    ] = ((), ())
    gate_units: checks.Count = 64
    num_heads: checks.Count = 1
    trainable: bool = True

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, ...]} -> [B, H1 + H2 + num_heads].

        Raises:
          UserError: a context matches none of the columns, or `num_heads` does not divide the
            units of a stream.
        """
        vectors = trunk.join_columns("FinalMLP", inputs)
        with freezing.hold_part(self.trainable):
            outputs = []
            for index, (stream, patterns) in enumerate(
                zip(self.streams, self.contexts, strict=True)
            ):
                context = fields.choose_columns("FinalMLP.contexts", patterns, inputs)
                with tf1.variable_scope(f"gate_{index}"):
                    # A new gate is about sigmoid(0) = 1/2, so a factor of 2 hardly changes the
                    # inputs.
                    gated_inputs = vectors * 2 * self._gate_inputs(vectors, context)
                with tf1.variable_scope(f"stream_{index}"):
                    outputs.append(stream({"gated": gated_inputs}, training))
            return tf.concat([*outputs, self._multiply(*outputs)], axis=1)

    def _gate_inputs(self, vectors: tf.Tensor, context: types.Tensors) -> tf.Tensor:
        """Compute the weights of a stream's inputs, [B, D] or [1, D] in (0, 1)."""
        if context:
            gate_inputs = trunk.join_columns("FinalMLP", context)
        else:
            normal = tf1.random_normal_initializer()
            gate_inputs = tf1.get_variable("context", [1, self.gate_units], vectors.dtype, normal)
        hidden = layers.dense(gate_inputs, self.gate_units, "hidden", tf.nn.relu)
        return layers.dense(hidden, vectors.shape[-1], "scale", tf.sigmoid)

    def _multiply(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        """Compute the bilinear product of each head, [B, H1], [B, H2] -> [B, num_heads]."""
        count, parts = self.num_heads, []
        for output in (first, second):
            units = output.shape[-1]
            checks.require(units % count == 0, "FinalMLP.num_heads", f"divide {units} units", count)
            parts.append(tf.reshape(output, [-1, count, units // count]))
        widths = [part.shape[-1] for part in parts]
        kernel = tf1.get_variable("products/kernel", [count, *widths], first.dtype)
        # W[k], [H1 / K, H2 / K], is the bilinear form of part k of both streams.
        return tf.einsum("bkd,kde,bke->bk", parts[0], kernel, parts[1])
