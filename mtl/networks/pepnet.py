"""PEPNet: gates adapt the embeddings to a domain, and the towers of all tasks to a person.

networks.PEPNet.domain = ["categorical_site"]
networks.PEPNet.personal = ["hashed_user", "hashed_author"]
networks.PEPNet.layers = [128, 64]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.layers import precision
from mtl.networks import fields, trunk


@checks.dataclass
class PEPNet(types.Network):
    """Gates scale the embeddings for each domain, and the layers of towers for each person.

    The layers of a tower are `h[l] = gate[l](personal) * activation(W[l] h[l-1] + b[l])`, with the
    gated inputs `h[0] = gate(domain) * x`. J. Chang et al., "PEPNet: Parameter and Embedding
    Personalized Network for Infusing with Personalized Prior Information", KDD 2023,
    arXiv:2302.01115. A gate is `gamma * sigmoid(W' relu(W [prior, x] + b) + b')`, without a
    gradient into its input x. EPNet is the gate of the inputs, which all tasks share. PPNet has a
    gate for each layer of each task's tower.

    Columns with prior information, which `domain` and `personal` name, are inputs of gates only. To
    use a field in the towers as well, add a second column object for this field, with another
    prefix.

    Attributes:
      domain: names of the prior columns of EPNet, in which `*` matches any text. () omits EPNet.
        Variables in `embedding_gate`.
      personal: names of the prior columns of PPNet; () omits PPNet. Variables in
        `tower_<task>/gate_<l>`.
      layers: the number of units of each layer of a tower, at least one layer; variables in
        `tower_<task>/hidden_<l>`.
      activation: a name in `mtl.layers.ACTIVATIONS`, after every layer.
      dropout: the share of units that are zeroed in training, in [0, 1).
      gate_units: the number of hidden units of a gate, at least 1.
      gamma: the upper limit of a gate, above 0. With `gamma = 2`, the values of a new gate are
        about 1.
    """

    domain: Annotated[Sequence[str], fields.check_patterns] = ()
    personal: Annotated[Sequence[str], fields.check_patterns] = ()
    layers: trunk.SomeSizes = (128, 64)
    activation: trunk.Activation = "relu"
    dropout: checks.Rate = 0.0
    gate_units: checks.Count = 64
    gamma: checks.Positive = 2.0

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        `Towers.shared` holds the gated inputs.

        Raises:
          UserError: a pattern matches none of the columns, or all columns are priors.
        """
        domain = fields.choose_columns("PEPNet.domain", self.domain, inputs)
        personal = fields.choose_columns("PEPNet.personal", self.personal, inputs)
        main_columns = {c: value for c, value in inputs.items() if c not in domain | personal}
        rule = "hold a column that is not in domain or personal"
        checks.require(bool(main_columns), "PEPNet inputs", rule, list(inputs))
        hidden = trunk.join_columns("PEPNet", main_columns)
        if domain:
            hidden = self._gate_values(hidden, domain, hidden, "embedding_gate")
        hidden, shared = precision.share_output(hidden)
        towers = {}
        for task in tasks:
            with tf1.variable_scope(f"tower_{task}"):
                towers[task] = self._build_tower(hidden, personal, training)
        return types.Towers(towers, shared=[shared])

    def _build_tower(self, inputs: tf.Tensor, personal: types.Tensors, training: bool) -> tf.Tensor:
        hidden = inputs
        for index, size in enumerate(self.layers):
            hidden = layers.dense(hidden, size, f"hidden_{index}")
            hidden = layers.ACTIVATIONS[self.activation](hidden)
            if personal:
                hidden = self._gate_values(hidden, personal, inputs, f"gate_{index}")
            hidden = layers.dropout(hidden, self.dropout, f"hidden_{index}_dropout", training)
        return hidden

    def _gate_values(
        self, values: tf.Tensor, prior: types.Tensors, context: tf.Tensor, name: str
    ) -> tf.Tensor:
        """Scale values [B, H] by a gate on the prior columns and on `context`, the inputs."""
        with tf1.variable_scope(name):
            gate_inputs = trunk.join_columns("PEPNet", prior)
            # As in the paper, the gradient of the gate does not reach the inputs.
            gate_inputs = tf.concat([gate_inputs, tf.stop_gradient(context)], axis=1)
            hidden = layers.dense(gate_inputs, self.gate_units, "hidden", tf.nn.relu)
            return values * self.gamma * layers.dense(hidden, values.shape[-1], "scale", tf.sigmoid)
