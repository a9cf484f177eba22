"""Cross-stitch and sluice networks: learned weights mix the layers of all tasks' networks.

networks.CrossStitch.stages = [@stage_0/networks.MLP(), @stage_1/networks.MLP()]
networks.CrossStitch.own = 0.9

update.Update.rates = {"/stitch_": 10.0}         # a higher learning rate, as in the paper
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.layers import precision
from mtl.networks import trunk
from mtl.step import penalties


@checks.dataclass
class CrossStitch(types.Network):
    """A network for each task, with learned mixtures of the tasks' outputs after each stage.

    `h[l][t] = sum_s a[l][t, s] f[l][s](h[l-1][s])` for the stages l and the tasks t and s. I.
    Misra, A. Shrivastava, A. Gupta, M. Hebert, "Cross-stitch Networks for Multi-task Learning",
    CVPR 2016, arXiv:1604.03539. The initial weight of the task's own stage is `own`, the largest
    weight as in the paper; the stages of all other tasks have equal initial weights with the sum
    `1 - own`.

    Attributes:
      stages: a trunk for each stage, in order. Each stage is built once for each task; variables in
        `stage_<l>/task_<task>`. The mixing weights a of stage l are in the variable `stitch_<l>`.
      own: the initial weight of the output of a task's own stage, in (0, 1].
      per_unit: True learns a weight for each unit, as in the paper. With `per_unit = False`, the
        stage learns a single weight for each pair of tasks.
    """

    ordered_variables = "^network/stitch_"
    stages: Annotated[Sequence[trunk.Trunk], trunk.check_trunks]
    own: Annotated[float, checks.In("(0, 1]")] = 0.9
    per_unit: bool = True

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        `Towers.shared` holds the outputs of the last stage before they are mixed.
        """
        stage_inputs: types.Tensors | list[tf.Tensor] = inputs
        for level, stage in enumerate(self.stages):
            hidden = _build_stage(stage, stage_inputs, level, tasks, training)
            hidden, shared = precision.share_output(hidden)
            stage_inputs = tf.unstack(self._stitch_level(hidden, level), len(tasks), axis=1)
        return types.Towers(dict(zip(tasks, stage_inputs, strict=True)), shared=[shared])

    def _stitch_level(self, hidden: tf.Tensor, level: int) -> tf.Tensor:
        """Mix the tasks' outputs, [B, T, H] -> [B, T, H]."""
        count, units = hidden.shape[1:]
        start = _initial_weights(count, 1, self.own)
        if not self.per_unit:
            weights = _get_weights(f"stitch_{level}", start, hidden.dtype)
            return tf.linalg.matmul(weights, hidden)
        # Initial weights are equal for all units of a pair of tasks.
        start = np.tile(start[..., np.newaxis], [1, 1, units])
        weights = _get_weights(f"stitch_{level}", start, hidden.dtype)
        return tf.einsum("tsh,bsh->bth", weights, hidden)


@checks.dataclass
class Sluice(types.Network):
    """A network for each task, with learned mixtures of subspaces and of stages.

    S. Ruder, J. Bingel, I. Augenstein, A. Søgaard, "Latent Multi-task Architecture Learning", AAAI
    2019, arXiv:1705.08142. The units of each stage are split into g subspaces for each of T tasks,
    and a [T g, T g] matrix mixes all subspaces. A task's tower is `sum_l b[t, l] h[l][t]`; the
    initial b is 1 for the last stage, and 0 for other stages. A penalty in REGULARIZATION_LOSSES
    makes the subspaces of a task orthogonal: `orthogonality * sum |G_i' G_j|^2` over all pairs of
    subspaces i and j. In the paper, the matrix G_i holds the weights of subspace i. Here a stage
    may be any trunk, so G_i holds the outputs of subspace i in the batch, centred and divided by
    the square root of the batch size.

    Attributes:
      stages: a trunk for each stage, in order, with equal numbers of units. Each stage is built
        once for each task. Variables in `stage_<l>/task_<task>`, `stitch_<l>` and `mixture`.
      num_subspaces: the number g of subspaces of a task, at least 1, which must divide the number
        of units.
      own: the initial weight of a subspace in its own mixture, in (0, 1].
      orthogonality: the factor of the penalty that makes subspaces orthogonal, at least 0.
    """

    ordered_variables = "^network/(stitch_|mixture)"
    stages: Annotated[Sequence[trunk.Trunk], trunk.check_trunks]
    num_subspaces: checks.Count = 2
    own: Annotated[float, checks.In("(0, 1]")] = 0.9
    orthogonality: checks.NotNegative = 0.0

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        `Towers.shared` holds the outputs of the last stage before they are mixed.

        Raises:
          UserError: the stages have different numbers of units, or `num_subspaces` does not divide
            the number of units.
        """
        stage_inputs: types.Tensors | list[tf.Tensor] = inputs
        outputs: list[tf.Tensor] = []
        for level, stage in enumerate(self.stages):
            hidden = _build_stage(stage, stage_inputs, level, tasks, training)
            self._check_units(hidden.shape[2], outputs)
            hidden, shared = precision.share_output(hidden)
            # Collect the outputs of all stages, as each tower is a mixture of all stages.
            outputs.append(self._stitch_level(hidden, level, training))
            stage_inputs = tf.unstack(outputs[-1], len(tasks), axis=1)
        mixtures = self._mix_stages(outputs)
        towers = dict(zip(tasks, tf.unstack(mixtures, len(tasks), axis=1), strict=True))
        return types.Towers(towers, shared=[shared])

    def _check_units(self, units: int, earlier_outputs: Sequence[tf.Tensor]) -> None:
        where, fix = "Sluice.stages", "A tower is a mixture of all stages."
        is_same = all(hidden.shape[2] == units for hidden in earlier_outputs)
        checks.require(is_same, where, "have equally many units", units, fix)
        fits = units % self.num_subspaces == 0
        checks.require(fits, "Sluice.num_subspaces", f"divide {units} units", self.num_subspaces)

    def _stitch_level(self, hidden: tf.Tensor, level: int, training: bool) -> tf.Tensor:
        """Mix the subspaces of all tasks, [B, T, H] -> [B, T, H]."""
        count, units = hidden.shape[1:]
        parts = tf.reshape(hidden, [-1, count * self.num_subspaces, units // self.num_subspaces])
        if training and self.orthogonality and self.num_subspaces > 1:
            penalties.add_of_means(
                self._penalise_overlap, _compute_moments(parts, self.num_subspaces)
            )
        start = _initial_weights(count, self.num_subspaces, self.own)
        weights = _get_weights(f"stitch_{level}", start, hidden.dtype)
        return tf.reshape(tf.linalg.matmul(weights, parts), [-1, count, units])

    def _penalise_overlap(self, means: types.Tensors) -> tf.Tensor:
        """Compute the penalty, a scalar, from the first and second moments of the subspaces."""
        covariances = means["products"] - _multiply_pairs(means["values"], self.num_subspaces)
        return self.orthogonality * tf.cast(tf.reduce_sum(covariances**2), tf.float32)

    def _mix_stages(self, outputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Mix the L stages of each task, with learned weights: L of [B, T, H] -> [B, T, H]."""
        count, last = outputs[-1].shape[1], len(outputs) - 1
        # Initial weights, [T, L]: 1 for the last stage, 0 for all other stages.
        start = np.eye(len(outputs))[[last] * count]
        weights = _get_weights("mixture", start, outputs[-1].dtype)
        return tf.einsum("tl,lbth->bth", weights, tf.stack(outputs))


def _compute_moments(parts: tf.Tensor, num_subspaces: int) -> dict[str, tf.Tensor]:
    """Compute the means of units, and of products of units in subspaces of the same task."""
    values = tf.cast(parts, tf.float32)
    means = tf.reduce_mean(values, axis=0)
    deviations = tf.reshape(values - means, [-1, *_split_shape(parts, num_subspaces)])
    size = tf.cast(tf.shape(values)[0], tf.float32)
    products = tf.einsum("btik,btjl->tijkl", deviations, deviations) / size
    # In float32, rounding would lose covariances that are small relative to the means.
    means = tf.cast(means, tf.float64)
    products = tf.cast(products, tf.float64) * _choose_pairs(num_subspaces)
    return {"values": means, "products": products + _multiply_pairs(means, num_subspaces)}


def _multiply_pairs(means: tf.Tensor, num_subspaces: int) -> tf.Tensor:
    """Multiply the means of each pair of subspaces of a task, [T g, K] -> [T, g, g, K, K]."""
    means = tf.reshape(means, _split_shape(means, num_subspaces))
    return tf.einsum("tik,tjl->tijkl", means, means) * _choose_pairs(num_subspaces)


def _choose_pairs(num_subspaces: int) -> np.ndarray:
    """Return a mask below the diagonal, which has each pair of subspaces once: [g, g, 1, 1]."""
    return np.tril(np.ones([num_subspaces, num_subspaces]), -1)[:, :, np.newaxis, np.newaxis]


def _split_shape(parts: tf.Tensor, num_subspaces: int) -> list[int]:
    """Return the sizes T, g and K of a tensor [..., T g, K]."""
    count, units = parts.shape[-2:]
    return [count // num_subspaces, num_subspaces, units]


def _build_stage(
    stage: trunk.Trunk,
    inputs: types.Tensors | Sequence[tf.Tensor],
    level: int,
    tasks: Sequence[str],
    training: bool,
) -> tf.Tensor:
    """Build a stage once for each task, {column: [B, ...]} or T of [B, D] -> [B, T, H]."""
    with tf1.variable_scope(f"stage_{level}"):
        scopes = [f"task_{task}" for task in tasks]
        return trunk.stack_vectors(trunk.build_copies(stage, inputs, scopes, training))


def _initial_weights(count: int, parts: int, own_weight: float) -> np.ndarray:
    """Return initial weights of the g = `parts` subspaces of T tasks, [T g, T g]; rows sum to 1."""
    size = count * parts
    # The only subspace of the only task gets the weight 1.
    if size == 1:
        return np.ones([1, 1])
    other_weight = (1 - own_weight) / (size - 1)
    return np.full([size, size], other_weight) + (own_weight - other_weight) * np.eye(size)


def _get_weights(name: str, start: np.ndarray, dtype: tf.DType) -> tf.Tensor:
    return tf1.get_variable(name, start.shape, dtype, tf1.constant_initializer(start))
