"""Learning to branch: a tree of layers, in which each node learns its parent.

networks.LTB.levels = [@level_0/networks.MLP(), @level_1/networks.MLP()]
networks.LTB.num_nodes = [2, 3]
networks.LTB.temperature = @schedules.Polynomial()           # decreases during the run
schedules.Polynomial.value = 5.0
schedules.Polynomial.end_value = 0.5
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.layers import precision
from mtl.networks import trunk
from mtl.step import draws, outlets


@checks.dataclass
class LTB(types.Network):
    """A learned tree: every node and every task learns from which node it reads.

    `x[c] = sum_p d[c, p] h[p]` with `d[c] = softmax((log q[c] + gumbel) / temperature)` is the
    input of a child c from its possible parents p. P. Guo, C.-Y. Lee, D. Ulbricht, "Learning to
    Branch for Multi-Task Learning", ICML 2020, arXiv:2006.01895. The nodes of the first level read
    the columns, other nodes read from the previous level, and tasks read from the last level. A
    child learns the probabilities q of its parents. Every training step draws new weights d of the
    parents, the same for all examples of the batch, in all slices and on all replicas. With a lower
    temperature, the weights d of a child are closer to the choice of a single parent. In evaluation
    and exports, a child reads only its most likely parent, but all nodes are computed.

    Attributes:
      levels: a trunk for each level, in order; variables in `level_<l>/node_<i>`.
      num_nodes: the number of nodes of each level, at least 1. The log probabilities of the
        parents, up to a constant, are in the variables `level_<l>/choice_<i>` and `choice_<task>`,
        whose initial values are equal.
      tower: the trunk on each task's input x; variables in `tower_<task>`. Without a tower (None),
        the head reads the task's input x.
      temperature: a number above 0, or a schedule, clipped to at least 0.01.
      warm_steps: the number of initial steps, at least 0, that do not change the probabilities. In
        the warm steps, all parents stay equally probable, so all nodes learn.
    """

    levels: Annotated[Sequence[trunk.Trunk], trunk.check_trunks]
    num_nodes: Annotated[Sequence[int], trunk.check_sizes]
    tower: Annotated[trunk.Trunk | None, trunk.check_tower] = None
    temperature: Annotated[
        float | types.Schedule, checks.Scheduled(checks.positive, "schedules.Polynomial")
    ] = 1.0
    warm_steps: checks.Natural = 0

    def __post_init__(self):
        is_each = len(self.num_nodes) == len(self.levels)
        rule = f"hold a number for each of {len(self.levels)} levels"
        checks.require(is_each, "LTB.num_nodes", rule, self.num_nodes)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}; `shared` holds the last level."""
        node_inputs: types.Tensors | list[tf.Tensor] = inputs
        # Nodes of the first level read the inputs, so they have no parents.
        parents = tf.zeros([])
        for level, (part, count) in enumerate(zip(self.levels, self.num_nodes, strict=True)):
            with tf1.variable_scope(f"level_{level}"):
                if level > 0:
                    scopes = [f"choice_{index}" for index in range(count)]
                    node_names = [f"level_{level}/node_{index}" for index in range(count)]
                    node_inputs = self._choose(parents, scopes, node_names, training)
                scopes = [f"node_{index}" for index in range(count)]
                parents = trunk.stack_vectors(
                    trunk.build_copies(part, node_inputs, scopes, training)
                )
        parents, shared = precision.share_output(parents)
        tower_inputs: list[tf.Tensor] = []
        for group in trunk.group_tasks(tasks):
            scopes = [f"choice_{task}" for task in group]
            tower_inputs += self._choose(
                parents, scopes, [f"task_{task}" for task in group], training
            )
        return types.Towers(
            trunk.build_towers(self.tower, tower_inputs, tasks, training), shared=[shared]
        )

    def _choose(
        self, parents: tf.Tensor, scopes: Sequence[str], names: Sequence[str], training: bool
    ) -> list[tf.Tensor]:
        """Compute the inputs of C children from P parents: [B, P, H] -> C of [B, H].

        Args:
          parents: the outputs of the previous level.
          scopes: for each of C children, the name of the variable that holds its log probabilities.
          names: C names of the children, for monitors.
          training: True draws random weights; False uses the most likely parent.
        """
        count = parents.shape[1]
        if count == 1:
            return [parents[:, 0]] * len(scopes)
        logarithms = tf.stack(
            [tf1.get_variable(s, [count], tf.float32, tf1.zeros_initializer()) for s in scopes]
        )
        if not training:
            # Use no product: NaN in other parents, times weights of 0, would add NaN.
            choices = tf.gather(parents, tf.argmax(logarithms, axis=1), axis=1)
        else:
            _monitor_parents(names, logarithms)
            weights = tf.cast(self._draw(logarithms, scopes), parents.dtype)
            choices = tf.linalg.matmul(weights, parents)
        return tf.unstack(choices, len(scopes), axis=1)

    def _draw(self, logarithms: tf.Tensor, scopes: Sequence[str]) -> tf.Tensor:
        """Draw the weights of the parents of each child, [C, P]; each row sums to 1."""
        step = tf1.train.get_global_step().read_value()
        if self.warm_steps:
            is_warm = step < self.warm_steps
            # In the first `warm_steps` steps, the probabilities get no gradients.
            logarithms = tf.where(is_warm, tf.stop_gradient(logarithms), logarithms)
        temperature = self.temperature(step) if callable(self.temperature) else self.temperature
        # Draw positive numbers only, because log(0) is infinite.
        smallest = np.finfo(np.float32).tiny
        # All slices and replicas use the random numbers of slice 0, so their weights are equal.
        with draws.draw_for_slice(0):
            uniform = tf.stack(
                [
                    draws.draw_uniform(
                        logarithms.shape[1:], draws.make_step_seed(f"{scope}/draw"), minval=smallest
                    )
                    for scope in scopes
                ]
            )
        gumbel = -tf.math.log(-tf.math.log(uniform))
        return tf.nn.softmax((logarithms + gumbel) / tf.maximum(temperature, _LEAST))


# The least divisor of logits; a schedule may reach a temperature of 0.
_LEAST = 0.01


def _monitor_parents(children: Sequence[str], logarithms: tf.Tensor) -> None:
    """Add monitors of each parent's probability, `branch/<child>/node_<parent>`."""
    names = [
        f"branch/{child}/node_{parent}"
        for child in children
        for parent in range(logarithms.shape[1])
    ]
    outlets.add_scalars_where_due(names, lambda: tf.reshape(tf.nn.softmax(logarithms), [-1]))
