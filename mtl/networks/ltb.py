"""A tree of nodes whose branches are learned: which tasks part ways, and at which level.

networks.LTB.stages = [@stage_0/networks.MLP(), @stage_1/networks.MLP()]
networks.LTB.num_nodes = [2, 3]
networks.LTB.temperature = @schedules.Exponential()
"""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from mtl import checks, types
from mtl.layers import precision
from mtl.networks import trunk
from mtl.step import draws, monitors

tf1 = tf.compat.v1

_LEAST = 1e-20


@dataclasses.dataclass(frozen=True, kw_only=True)
class LTB(types.Network):
    """h[l][j] = f[l][j](sum_i d[l][j, i] h[l-1][i]), d[l][j] a sample of one parent i of node j.

    P. Guo, C.-Y. Lee, D. Ulbricht, "Learning to Branch for Multi-Task Learning", ICML 2020,
    arXiv:2006.01895. Nodes of the first level read the columns. Every node of a later level, and at
    the end every task, has a parent in the level above, drawn from learned probabilities by a
    Gumbel softmax at each training step: `softmax((logits + noise) / temperature)`. All rows of a
    batch get the same draw. Outside of training the most probable parent alone is read.

    A high temperature mixes parents, so what is evaluated early in training is not what was
    trained: let it fall to 0.5 or less, by a schedule. `branch/<child>/<parent>` in TensorBoard
    shows the probabilities.

    Attributes:
      stages: one trunk for each level, from the first; variables in `level_<l>/node_<j>`.
      num_nodes: the nodes of each level, at least 1 each; the logits of the children of level l are
        in `branch_<l>`.
      temperature: above 0, or a schedule of the global step such as `@schedules.Exponential()`.
      tower: built for each task on its parent; variables in `tower_<task>`. None hands the parent
        to the head.
    """

    stages: Sequence[trunk.Trunk]
    num_nodes: Sequence[int]
    temperature: float | Callable[[tf.Tensor], tf.Tensor] = 0.5
    tower: trunk.Trunk | None = None

    def __post_init__(self):
        trunk.check_trunks("LTB.stages", self.stages)
        trunk.check_sizes("LTB.num_nodes", self.num_nodes)
        rule = f"hold {len(self.stages)} numbers, one for each stage"
        is_one = len(self.num_nodes) == len(self.stages)
        checks.require(is_one, "LTB.num_nodes", rule, self.num_nodes)
        if not callable(self.temperature):
            checks.positive("LTB.temperature", self.temperature)
        trunk.check_tower("LTB.tower", self.tower)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        The nodes of the last level are what tasks share.
        """
        given: types.Tensors | list[tf.Tensor] = inputs
        for level, (stage, count) in enumerate(zip(self.stages, self.num_nodes, strict=True)):
            scopes = [f"node_{index}" for index in range(count)]
            with tf1.variable_scope(f"level_{level}"):
                made = trunk.build_copies(stage, given, scopes, training)
            nodes = tf.stack(made, axis=1)  # [B, nodes, H]
            if level < len(self.stages) - 1:
                children = [f"node_{index}" for index in range(self.num_nodes[level + 1])]
                given = self._branch(nodes, level, children, training)
        nodes, shared = precision.share_output(nodes)
        mixed = self._branch(nodes, len(self.stages) - 1, list(tasks), training)
        return types.Towers(trunk.build_towers(self.tower, mixed, tasks, training), shared=[shared])

    def _branch(
        self, nodes: tf.Tensor, level: int, children: Sequence[str], training: bool
    ) -> list[tf.Tensor]:
        """Give every child a parent among the nodes of a level, [B, P, H] -> C of [B, H]."""
        count = nodes.shape[1]
        if count == 1:
            return [nodes[:, 0]] * len(children)
        # A variable for each child: one of a task belongs to it alone.
        zeros = tf1.zeros_initializer()
        with tf1.variable_scope(f"branch_{level}"):
            logits = tf.stack(
                [tf1.get_variable(child, [count], tf.float32, zeros) for child in children]
            )
            if training:
                self._monitor(logits, level, children)
                weights = self._draw(logits)
            else:
                weights = tf.one_hot(tf.argmax(logits, axis=1), count)
        weights = tf.cast(weights, nodes.dtype)
        return [tf.linalg.matvec(nodes, own, transpose_a=True) for own in tf.unstack(weights)]

    def _draw(self, logits: tf.Tensor) -> tf.Tensor:
        """Draw a parent for each child, softly: [C, P] -> [C, P]."""
        with draws.draw_for_slice(0):  # All slices of a batch take the same branches.
            seed = draws.make_step_seed("parent")
        uniform = tf.random.stateless_uniform(tf.shape(logits), seed, minval=_LEAST)
        noise = -tf.math.log(-tf.math.log(uniform))
        temperature = self.temperature
        if callable(temperature):
            temperature = tf.cast(temperature(tf1.train.get_global_step()), tf.float32)
        return tf.nn.softmax((logits + noise) / temperature)

    def _monitor(self, logits: tf.Tensor, level: int, children: Sequence[str]) -> None:
        probabilities = tf.nn.softmax(logits)
        for row, child in enumerate(children):
            for column in range(logits.shape[1]):
                name = f"branch/level_{level}/{child}/node_{column}"
                monitors.add(name, probabilities[row, column])
