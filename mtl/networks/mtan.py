"""Shared stages, of which every task takes what its own attention lets through.

networks.MTAN.layers = [64, 32]                      # stages of dense layers, for vectors
networks.MTAN.filters = [16, 32]                     # or of convolutions, for images
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from mtl import checks, layers, types
from mtl.layers import precision
from mtl.networks import trunk

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MTAN(types.Network):
    """h[t, j] = sigmoid(norm(W2 relu(norm(W1 [u[j]; c[t, j]])))) p[j], c[t, j] = f[j](h[t, j-1]).

    S. Liu, E. Johns, A. J. Davison, "End-to-End Multi-Task Learning with Attention", CVPR 2019,
    arXiv:1803.10704. A stage j has two shared layers, with the outputs u and p. The mask of a task,
    which has W1 and W2 of its own, sees u and what the task has passed on from the stage before, by
    a layer f that all tasks share. The first stage has no c; the last h is what a task gets.

    In stages of convolutions f and the shared layers are of 3x3, W1 and W2 of 1x1 pixels, and p and
    c are pooled between stages. A global average pooling ends the last one; inputs that are no
    images join there. The paper has two to three shared layers in a stage, and a decoder of such
    stages for outputs as large as the image.

    Variables lie in `stage_<j>/shared`, `stage_<j>/passed_on` and `stage_<j>/task_<task>`.

    Attributes:
      layers: units of each stage of dense layers, on all inputs flattened and joined.
      filters: of each stage of convolutions; set this or `layers`.
      pool: pooling between stages of convolutions divides height and width by this, rounding up; 1
        for none.
      activation: a name in `mtl.layers.ACTIVATIONS`, of f, the shared layers and the masks' hidden
        layer.
      batch_norm: normalises before each activation, in place of the bias.
      tower: built for each task on what it gets; variables in `tower_<task>`. None hands it to the
        head.
    """

    layers: Sequence[int] = ()
    filters: Sequence[int] = ()
    pool: int = 2
    activation: str = "relu"
    batch_norm: bool = True
    tower: trunk.Trunk | None = None

    def __post_init__(self):
        trunk.check_settings("MTAN", self.layers, self.activation, 0.0, self.batch_norm)
        trunk.check_sizes("MTAN.filters", self.filters)
        sizes = {"layers": self.layers, "filters": self.filters}
        fix = "Stages are of dense layers, for vectors, or of filters, for images."
        is_one = (len(self.layers) > 0) != (len(self.filters) > 0)
        checks.require(is_one, "MTAN", "have either layers or filters", sizes, fix)
        trunk.check_sizes("MTAN.pool", [self.pool])
        trunk.check_tower("MTAN.tower", self.tower)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        The outputs of the shared layers, which masks see and let through, are what tasks share.
        """
        others: types.Tensors = {}
        if self.filters:
            hidden, others = trunk.join_images("MTAN", inputs)
        else:
            hidden = trunk.join_columns("MTAN", inputs)
        masked: dict[str, tf.Tensor] = {}
        shared: list[tf.Tensor] = []
        for level, units in enumerate(self.filters or self.layers):
            with tf1.variable_scope(f"stage_{level}"):
                passed = self._pass_on(masked, units, training)
                if level > 0:
                    hidden = self._shrink(hidden)
                with tf1.variable_scope("shared"):
                    first = self._layer(hidden, units, "first", 3, self.activation, training)
                    first, shared_first = precision.share_output(first)
                    hidden = self._layer(first, units, "second", 3, self.activation, training)
                    hidden, shared_second = precision.share_output(hidden)
                shared += [shared_first, shared_second]
                masked = {
                    task: hidden * self._mask(task, [first, *passed.get(task, [])], units, training)
                    for task in tasks
                }
        ends = [trunk.join_columns("MTAN", {"": _average(h), **others}) for h in masked.values()]
        return types.Towers(trunk.build_towers(self.tower, ends, tasks, training), shared=shared)

    def _pass_on(
        self, masked: types.Tensors, units: int, training: bool
    ) -> dict[str, list[tf.Tensor]]:
        """Build what each task passes on from the stage before, none at the first stage."""
        passed = {}
        for index, (task, hidden) in enumerate(masked.items()):
            # One by one: moments of all tasks' rows would have each depend on the masks of others.
            with tf1.variable_scope("passed_on", reuse=index > 0 or None):
                found = self._layer(hidden, units, "hidden", 3, self.activation, training)
            passed[task] = [self._shrink(found)]
        return passed

    def _mask(self, task: str, seen: Sequence[tf.Tensor], units: int, training: bool) -> tf.Tensor:
        """Build the mask of a task, numbers in (0, 1) in the shape of a stage's output."""
        with tf1.variable_scope(f"task_{task}"):
            joined = tf.concat(seen, axis=-1)
            hidden = self._layer(joined, units, "hidden", 1, self.activation, training)
            return self._layer(hidden, units, "mask", 1, "sigmoid", training)

    def _layer(
        self, inputs: tf.Tensor, units: int, name: str, size: int, activation: str, training: bool
    ) -> tf.Tensor:
        """Build a dense layer on vectors, or a convolution of this size on images."""
        use_bias = not self.batch_norm
        if self.filters:
            hidden = layers.conv(inputs, units, name, size, use_bias=use_bias)
        else:
            hidden = layers.dense(inputs, units, name, use_bias=use_bias)
        return trunk.finish_layer(hidden, name, activation, 0.0, self.batch_norm, training)

    def _shrink(self, hidden: tf.Tensor) -> tf.Tensor:
        is_pooled = self.filters and self.pool > 1
        return layers.max_pool(hidden, self.pool) if is_pooled else hidden


def _average(hidden: tf.Tensor) -> tf.Tensor:
    """Average images over height and width, [B, H, W, C] -> [B, C]; vectors stay."""
    return tf.reduce_mean(hidden, axis=[1, 2]) if hidden.shape.rank == 4 else hidden
