"""Relations between tasks: the tower of a task reads the towers of earlier tasks.

networks.DBMTL.network = @networks.SharedBottom()
networks.DBMTL.after = {"order": ["click"]}              # {task: earlier tasks}
networks.DBMTL.relation = @relation/networks.MLP()
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.networks import trunk


@checks.dataclass
class DBMTL(types.Network):
    """Towers that read the towers of earlier tasks in a graph of tasks.

    `h[t] = relation[t]([q[t], h[s] of the tasks s before t])` for the towers q of `network`. Q.
    Wang et al., "Multi-task Deep Learning: Deep Bayesian Multi-Target Learning", CIKM 2019,
    arXiv:1902.09154. The relation of a task without earlier tasks reads only the task's own tower
    q[t].

    `Towers.shared` comes from `network`. The loss of a task also trains towers of earlier tasks;
    a surgery detects from the graph which losses train a tower.

    Attributes:
      network: the network that builds the towers q; its variables have the same names as without
        DBMTL.
      after: {task: an earlier task or a list of earlier tasks}, without a cycle.
      relation: the trunk of each relation; variables in `relation_<task>`.
    """

    network: types.Network
    after: Mapping[str, str | Sequence[str]]
    relation: Annotated[trunk.Trunk, checks.Part("networks.MLP", arguments=2)]

    def __post_init__(self):
        _check_relations("DBMTL", self.network, self.after)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        Raises:
          UserError: `after` names an unknown task.
        """
        before = _sort_tasks("DBMTL.after", self.after, tasks)
        inner = self.network(inputs, tasks, training)
        relations: dict[str, tf.Tensor] = {}
        for task, predecessors in before.items():
            relation_inputs = {
                task: inner[task],
                **{task_before: relations[task_before] for task_before in predecessors},
            }
            with tf1.variable_scope(f"relation_{task}"):
                relations[task] = self.relation(relation_inputs, training)
        return _with_towers(inner, relations)


@checks.dataclass
class AITM(types.Network):
    """Towers with attention to the towers of earlier tasks, for sequences of conversions.

    `z[t] = sum_u w[u] h3(u)` with `w = softmax_u(<h1(u), h2(u)> / sqrt(H))`, where u runs over q[t]
    and g(z[s]). D. Xi et al., "Modeling the Sequential Dependence among Audience Multi-step
    Conversions with Multi-task Learning in Targeted Display Advertising", KDD 2021,
    arXiv:2105.08489. q are the towers of `network`, s the tasks before t, and H the number of units
    of q[t]. A task attends to q[t] and to g(z[s]) of each task s; g is a dense layer with ReLU.
    Each task has linear maps h1, h2 and h3, which are applied to every vector u. For a task t
    without earlier tasks, the output z[t] is the tower q[t] itself.

    The paper also penalises predictions in which the label of a task is more probable than the
    label of the task before it. `auxiliary.Calibrator` adds a penalty on a task that is more
    probable than the task before it.

    `Towers.shared` comes from `network`. The loss of a task also trains towers of earlier tasks,
    unless `stop_gradient` is True.

    Attributes:
      network: the network that builds the towers q; its variables have the same names as without
        AITM.
      after: {task: an earlier task or a list of earlier tasks}, without a cycle.
      stop_gradient: True stops the gradient of a task's loss at the towers of earlier tasks. In the
        paper, the loss of a task also trains the towers of earlier tasks.
    """

    network: types.Network
    after: Mapping[str, str | Sequence[str]]
    stop_gradient: bool = False

    def __post_init__(self):
        _check_relations("AITM", self.network, self.after)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        The variables of a task are in `transfer_<task>`: the linear maps h1, h2 and h3 in `query`,
        `key` and `value`, and the layer g in `from_<earlier task>`.

        Raises:
          UserError: `after` names an unknown task.
        """
        before = _sort_tasks("AITM.after", self.after, tasks)
        inner = self.network(inputs, tasks, training)
        relations: dict[str, tf.Tensor] = {}
        for task, predecessors in before.items():
            earlier_towers = {task_before: relations[task_before] for task_before in predecessors}
            with tf1.variable_scope(f"transfer_{task}"):
                relations[task] = (
                    self._attend_to_towers(inner[task], earlier_towers)
                    if earlier_towers
                    else inner[task]
                )
        return _with_towers(inner, relations)

    def _attend_to_towers(self, task_tower: tf.Tensor, earlier_towers: types.Tensors) -> tf.Tensor:
        """Attend to the task's tower and earlier towers, [B, H], {task: [B, G]} -> [B, H]."""
        units, vectors = task_tower.shape[-1], [task_tower]
        for task_before, tower in earlier_towers.items():
            source = tf.stop_gradient(tower) if self.stop_gradient else tower
            vectors.append(layers.dense(source, units, f"from_{task_before}", tf.nn.relu))
        # Each map applies to all vectors, so a single matrix product is enough.
        flat = tf.reshape(tf.stack(vectors, axis=1), [-1, units])
        query, key, value = (
            tf.reshape(layers.dense(flat, units, name), [-1, len(vectors), units])
            for name in ("query", "key", "value")
        )
        # Use 32 bits, as a softmax of 16 bits would lose small weights.
        scores = tf.cast(tf.reduce_sum(query * key, axis=-1), tf.float32) / math.sqrt(units)
        weights = tf.cast(tf.nn.softmax(scores), value.dtype)
        return tf.reduce_sum(weights[..., tf.newaxis] * value, axis=1)


@checks.dataclass
class ResFlow(types.Network):
    """Towers of layers with residual connections from the towers of earlier tasks.

    Layer l of task t computes `h[t, l] = f[t, l](h[t, l-1]) + sum_s h[s, l]` for the tasks s before
    t; h[t, 0] is the input of the task. C. Fu et al., "Residual Multi-Task Learner for Applied
    Ranking", 2024, arXiv:2411.09705. `network` computes the input of each task, and ResFlow builds
    towers of dense layers f on these inputs. The output of a layer is added to the outputs of the
    same layer in the towers of earlier tasks. The paper also adds the logits of earlier tasks; here
    the logits of each head are separate.

    `Towers.shared` comes from `network`. The loss of a task also trains towers of earlier tasks;
    a surgery detects from the graph which losses train a tower.

    Attributes:
      network: the network that computes the inputs of the towers, preferably a network without
        towers. The variables of `network` have the same names as without ResFlow.
      after: {task: an earlier task or a list of earlier tasks}, without a cycle.
      layers: the number of units of each layer in all towers; at least one layer. Variables in
        `flow_<task>/hidden_<l>`.
      activation: the activation of a layer before outputs of earlier tasks are added, a name in
        `mtl.layers.ACTIVATIONS`.
      dropout: the share of units of each dense layer f that are zeroed in training, in [0, 1).
      batch_norm: True applies batch norm before each activation, in place of the bias.
    """

    network: types.Network
    after: Mapping[str, str | Sequence[str]]
    layers: trunk.SomeSizes = (64, 32)
    activation: trunk.Activation = "relu"
    dropout: checks.Rate = 0.0
    batch_norm: bool = False

    def __post_init__(self):
        _check_relations("ResFlow", self.network, self.after)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, layers[-1]]}.

        Raises:
          UserError: `after` names an unknown task.
        """
        before = _sort_tasks("ResFlow.after", self.after, tasks)
        inner = self.network(inputs, tasks, training)
        outputs_by_task: dict[str, list[tf.Tensor]] = {}  # {task: outputs of all layers}.
        for task, predecessors in before.items():
            hidden, outputs_by_task[task] = inner[task], []
            with tf1.variable_scope(f"flow_{task}"):
                for level, size in enumerate(self.layers):
                    name = f"hidden_{level}"
                    hidden = layers.dense(hidden, size, name, use_bias=not self.batch_norm)
                    hidden = trunk.finish_layer(
                        hidden, name, self.activation, self.dropout, self.batch_norm, training
                    )
                    hidden = tf.add_n(
                        [
                            hidden,
                            *(outputs_by_task[task_before][level] for task_before in predecessors),
                        ]
                    )
                    outputs_by_task[task].append(hidden)
        return _with_towers(inner, {task: outputs[-1] for task, outputs in outputs_by_task.items()})


def _check_relations(
    kind: str, network: types.Network, after: Mapping[str, str | Sequence[str]]
) -> None:
    """Fail unless `after` maps tasks to tasks, without a cycle."""
    checks.require_part(f"{kind}.network", network, "networks.SharedBottom", arguments=3)
    where, rule = f"{kind}.after", "map tasks to the tasks before them"
    checks.mapping(where, after, rule)
    checks.require(len(after) > 0, where, rule, after, 'For example, {"order": ["click"]}.')
    for task, predecessors in after.items():
        setting = f"{where}[{task!r}]"
        if not isinstance(predecessors, str):
            checks.is_a(setting, predecessors, (list, tuple), "be a task or a list of tasks")
            checks.require(len(predecessors) > 0, setting, "hold a task", predecessors)
            checks.unique(setting, predecessors)
        else:
            checks.is_a(setting, predecessors, str, "be a task")
    try:
        graphlib.TopologicalSorter(_list_names(after)).prepare()
    except graphlib.CycleError as error:
        fix = "A task reads the towers of the tasks before it."
        checks.fail(where, "hold no cycle", " -> ".join(error.args[1]), fix)


def _list_names(after: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    return {
        task: [predecessors] if isinstance(predecessors, str) else list(predecessors)
        for task, predecessors in after.items()
    }


def _sort_tasks(
    where: str, after: Mapping[str, str | Sequence[str]], tasks: Sequence[str]
) -> dict[str, list[str]]:
    """Sort tasks topologically, and return {task: earlier tasks} in this order."""
    predecessors_of = _list_names(after)
    for task, names in predecessors_of.items():
        checks.one_of(where, task, tasks)
        for name in names:
            checks.one_of(f"{where}[{task!r}]", name, tasks)
    # Include tasks without relations, which also need towers.
    before = {task: predecessors_of.get(task, []) for task in tasks}
    return {task: before[task] for task in graphlib.TopologicalSorter(before).static_order()}


def _with_towers(inner: types.Towers, towers: Mapping[str, tf.Tensor]) -> types.Towers:
    """Return `towers` with the order and the shared outputs of the inner network."""
    return types.Towers({task: towers[task] for task in inner}, shared=getattr(inner, "shared", ()))
