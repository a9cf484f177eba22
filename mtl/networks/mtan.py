"""Attention of each task on every stage of a shared network, for vectors and for images.

networks.MTAN.units = [128, 64]                  # of dense stages; filters where there is an image
"""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from mtl import checks, layers, types
from mtl.layers import precision
from mtl.networks import trunk

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MTAN(types.Network):
    """h[j][t] = mask[j][t] * p[j], mask = sigmoid(norm(W2 relu(norm(W1 [u[j], f(h[j-1][t])])))).

    S. Liu, E. Johns, A. J. Davison, "End-to-End Multi-Task Learning with Attention", CVPR 2019,
    arXiv:1803.10704. A shared stage has two layers, u[j] and on it p[j]; a task takes of p[j] what
    its mask lets through, and f passes it on to the mask of the next stage.

    Images run through convolutions of 3 x 3, and masks through such of 1 x 1; f is a convolution,
    and a max-pooling of 2 lies between stages. A task's tower is the mean over the pixels of its
    last stage, with the other columns joined to it. Where no column is an image, all are joined and
    all layers are fully connected.

    Attributes:
      units: the units, or filters, of each stage, one at least; variables in
        `stage_<j>/shared/layer_<i>`, `stage_<j>/task_<task>/attention_<i>` and
        `stage_<j>/task_<task>/passed` (f).
      tower: built for each task on its last stage; variables in `tower_<task>`. None hands the
        stage to the head.
    """

    units: Sequence[int] = (128, 64)
    tower: trunk.Trunk | None = None

    def __post_init__(self):
        trunk.check_sizes("MTAN.units", self.units)
        checks.require(len(self.units) > 0, "MTAN.units", "hold a stage", self.units)
        trunk.check_tower("MTAN.tower", self.tower)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, D] or [B, H, W, C]} -> {task: [B, H]}.

        What the tasks read of every stage is what they share.
        """
        is_image = any(value.shape.rank == 4 for value in inputs.values())
        others: types.Tensors = {}
        if is_image:
            hidden, others = trunk.join_images("MTAN", inputs)
        else:
            hidden = trunk.join_columns("MTAN", inputs)
        shared: list[tf.Tensor] = []
        masked: dict[str, tf.Tensor] = {}
        for index, size in enumerate(self.units):
            if index and is_image:
                hidden = layers.max_pool(hidden, 2)
                masked = {task: layers.max_pool(value, 2) for task, value in masked.items()}
            with tf1.variable_scope(f"stage_{index}"):
                hidden, seen = self._share_stage(hidden, size, training, shared)
                for task in tasks:
                    with tf1.variable_scope(f"task_{task}"):
                        masked[task] = _attend(seen, masked.get(task), training)
        last = [self._flatten(masked[task], others) for task in tasks]
        return types.Towers(trunk.build_towers(self.tower, last, tasks, training), shared=shared)

    def _share_stage(
        self, inputs: tf.Tensor, size: int, training: bool, shared: list[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Build both layers of a stage: return what the next one reads, and what tasks do."""
        seen, hidden = [], inputs
        with tf1.variable_scope("shared"):
            for index in range(2):
                hidden = _layer(hidden, size, f"layer_{index}", training, tf.nn.relu, kernel_size=3)
                # Tasks read copies: gradients at them do not count what later stages do.
                of_tasks, outside = precision.share_output(tf.identity(hidden))
                seen.append(of_tasks)
                shared.append(outside)
        return hidden, seen

    def _flatten(self, hidden: tf.Tensor, others: types.Tensors) -> tf.Tensor:
        if hidden.shape.rank == 2:
            return hidden
        pooled = tf.reduce_mean(hidden, axis=[1, 2])
        return trunk.join_columns("MTAN", {"images": pooled, **others})


def _attend(seen: Sequence[tf.Tensor], before: tf.Tensor | None, training: bool) -> tf.Tensor:
    """Return what a task takes of a stage, whose layers it sees, after its stage before."""
    first, second = seen
    width = second.shape[-1]
    given = first
    if before is not None:
        passed = _layer(before, first.shape[-1], "passed", training, tf.nn.relu, kernel_size=3)
        given = tf.concat([first, passed], axis=-1)
    hidden = _layer(given, width, "attention_0", training, tf.nn.relu)
    return second * _layer(hidden, width, "attention_1", training, tf.sigmoid)


def _layer(
    inputs: tf.Tensor,
    size: int,
    name: str,
    training: bool,
    activation: Callable[[tf.Tensor], tf.Tensor],
    kernel_size: int = 1,
) -> tf.Tensor:
    """Apply a layer with batch norm: dense on vectors, a convolution on images."""
    if inputs.shape.rank == 2:
        outputs = layers.dense(inputs, size, name, use_bias=False)
    else:
        outputs = layers.conv(inputs, size, name, kernel_size, use_bias=False)
    return activation(layers.batch_norm(outputs, f"{name}_norm", training))
