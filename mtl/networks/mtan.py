"""MTAN: shared layers, and attention masks of each task that select features.

networks.MTAN.layers = [64, 32]                      # stages of dense layers, for vectors
networks.MTAN.filters = [16, 32]                     # or of convolutions, for images
networks.MTAN.decoder = True                         # with filters, for towers that are maps
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.layers import precision
from mtl.networks import trunk


@checks.dataclass
class MTAN(types.Network):
    """Multi-task attention network: each task has attention masks on shared layers.

    `h[t, j] = sigmoid(norm(W2 relu(norm(W1 [u[j]; c[t, j]])))) p[j]`, `c[t, j] = f[j](h[t, j-1])`,
    for the task t and the stage j. S. Liu, E. Johns, A. J. Davison, "End-to-End Multi-Task Learning
    with Attention", CVPR 2019, arXiv:1803.10704. A stage j has two layers that all tasks share,
    with the outputs u[j] and p[j]. In each stage, each task has a mask, computed by two layers with
    the weights W1 and W2. The mask reads the shared output u[j], and c[t, j], which a layer f
    computes from the task's output of the previous stage. All tasks share the layer f, except for
    its norm. (In the authors' code, tasks also share the norm of f, so evaluation uses moving
    averages that mix all tasks.) In the first stage, masks read only the shared output u. The
    output h of a task's last stage is the input of the task's tower.

    In stages of convolutions, the layer f and the shared layers have 3x3 kernels, the layers of
    masks have 1x1 kernels, and the outputs p and c are pooled between stages. In the paper, a stage
    has two to three shared layers. Global average pooling follows the last stage. Columns that are
    not images are concatenated with the pooled output.

    With a decoder, further stages with the same filters enlarge the output to the size of the
    image, and each task gets a map. Between its stages, the decoder enlarges the outputs p and c of
    the previous stage. The shared layers of the decoder also read the output of the encoder stage
    of equal size; the paper's network, SegNet, uses the pooling positions instead. With a decoder,
    all inputs must be images.

    Variables are in `stage_<j>/shared`, `stage_<j>/passed_on` and `stage_<j>/task_<task>`. The
    variables of the decoder are in `decoder_<j>/...`; j is the number of the encoder stage of equal
    size.

    Attributes:
      layers: the number of units of each stage of dense layers. Dense layers read all columns,
        flattened and concatenated.
      filters: the number of filters of each stage of convolutions. Set either `filters` or
        `layers`.
      pool: the factor by which pooling between stages divides height and width, rounding up. With
        `pool = 1`, there is no pooling.
      decoder: True adds a decoder to stages of convolutions, for heads of maps.
      activation: the activation of the layers f, of the shared layers and of the hidden layer of
        masks, a name in `mtl.layers.ACTIVATIONS`.
      batch_norm: True applies batch norm before each activation, in place of the bias.
      tower: the trunk on each task's output h of the last stage; variables in `tower_<task>`.
        Without a tower (None), the head reads the output h.
    """

    layers: trunk.Sizes = ()
    filters: trunk.Sizes = ()
    pool: checks.Count = 2
    decoder: bool = False
    activation: trunk.Activation = "relu"
    batch_norm: bool = True
    tower: Annotated[trunk.Trunk | None, trunk.check_tower] = None

    def __post_init__(self):
        sizes = {"layers": self.layers, "filters": self.filters}
        fix = "Vectors need stages of dense layers, and images need stages of filters."
        is_one = (len(self.layers) > 0) != (len(self.filters) > 0)
        checks.require(is_one, "MTAN", "have either layers or filters", sizes, fix)
        fits = not self.decoder or len(self.filters) > 0
        checks.require(fits, "MTAN.decoder", "be False for dense stages", self.decoder)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H], or a map with a decoder}.

        `Towers.shared` holds the outputs of all shared layers.
        """
        vectors: types.Tensors = {}
        if self.decoder:
            hidden = trunk.join_maps("MTAN", inputs)
        elif self.filters:
            hidden, vectors = trunk.join_images("MTAN", inputs)
        else:
            hidden = trunk.join_columns("MTAN", inputs)
        task_outputs: Mapping[str, tf.Tensor | None] = dict.fromkeys(tasks)
        shared: list[tf.Tensor] = []
        outputs: list[tf.Tensor] = []
        sizes = self.filters or self.layers
        for level, units in enumerate(sizes):
            with tf1.variable_scope(f"stage_{level}"):
                if level > 0:
                    hidden = self._shrink_map(hidden)
                hidden, task_outputs = self._build_stage(
                    hidden, task_outputs, units, self._shrink_map, shared, training
                )
            outputs.append(hidden)
        for level in reversed(range(len(sizes) - 1)) if self.decoder else ():
            # The decoder visits the stages in reverse order, and reads the encoder's output of each
            # stage, as in U-Net.
            enlarge = functools.partial(self._enlarge_map, like=outputs[level])
            with tf1.variable_scope(f"decoder_{level}"):
                maps = tf.concat([enlarge(hidden), outputs[level]], axis=-1)
                hidden, task_outputs = self._build_stage(
                    maps, task_outputs, sizes[level], enlarge, shared, training
                )
        ends = list(task_outputs.values())
        if not self.decoder:
            ends = [trunk.join_columns("MTAN", {"": _average_places(h), **vectors}) for h in ends]
        return types.Towers(trunk.build_towers(self.tower, ends, tasks, training), shared=shared)

    def _build_stage(
        self,
        hidden: tf.Tensor,
        task_outputs: Mapping[str, tf.Tensor | None],
        units: int,
        resize: Callable[[tf.Tensor], tf.Tensor],
        shared: list[tf.Tensor],
        training: bool,
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Build a stage: return the shared output, and {task: masked output}.

        Args:
          hidden: the input of the shared layers.
          task_outputs: {task: masked output of the previous stage}; None at the first stage.
          units: the units of every layer.
          resize: changes a task's output of the previous stage to the height and width of this
            stage.
          shared: a list to which the outputs of the shared layers are appended.
          training: True in a training step.
        """
        task_inputs = {
            # Apply f to each task alone, as joint batch moments would depend on other tasks.
            task: self._pass_on(task, task_output, units, resize, index > 0, training)
            for index, (task, task_output) in enumerate(task_outputs.items())
        }
        with tf1.variable_scope("shared"):
            first = self._build_layer(hidden, units, "first", 3, self.activation, training)
            first, shared_first = precision.share_output(first)
            hidden = self._build_layer(first, units, "second", 3, self.activation, training)
            hidden, shared_second = precision.share_output(hidden)
        shared += [shared_first, shared_second]
        return hidden, {
            task: hidden * self._build_mask(task, [first, *task_output], units, training)
            for task, task_output in task_inputs.items()
        }

    def _pass_on(
        self,
        task: str,
        task_output: tf.Tensor | None,
        units: int,
        resize: Callable[[tf.Tensor], tf.Tensor],
        is_built: bool,
        training: bool,
    ) -> list[tf.Tensor]:
        """Apply the layer f to the task's output of the previous stage; [] at the first stage."""
        if task_output is None:
            return []
        with tf1.variable_scope("passed_on", reuse=is_built or None):
            sums = self._build_sums(task_output, units, "hidden", 3)
        with tf1.variable_scope(f"task_{task}"):
            hidden = self._finish(sums, "passed_on", self.activation, training)
        # Resize after f, so the convolution reads a map of the size of the previous stage.
        return [resize(hidden)]

    def _build_mask(
        self, task: str, parts: Sequence[tf.Tensor], units: int, training: bool
    ) -> tf.Tensor:
        """Build the mask of a task, numbers in (0, 1) with the shape of the stage's output."""
        with tf1.variable_scope(f"task_{task}"):
            mask_inputs = tf.concat(parts, axis=-1)
            hidden = self._build_layer(mask_inputs, units, "hidden", 1, self.activation, training)
            return self._build_layer(hidden, units, "mask", 1, "sigmoid", training)

    def _build_layer(
        self, inputs: tf.Tensor, units: int, name: str, size: int, activation: str, training: bool
    ) -> tf.Tensor:
        """Build a dense layer on vectors, or a convolution with kernels of `size` on images."""
        return self._finish(self._build_sums(inputs, units, name, size), name, activation, training)

    def _build_sums(self, inputs: tf.Tensor, units: int, name: str, size: int) -> tf.Tensor:
        """Build a layer without norm and activation."""
        use_bias = not self.batch_norm
        if self.filters:
            return layers.conv(inputs, units, name, size, use_bias=use_bias)
        return layers.dense(inputs, units, name, use_bias=use_bias)

    def _finish(self, sums: tf.Tensor, name: str, activation: str, training: bool) -> tf.Tensor:
        return trunk.finish_layer(sums, name, activation, 0.0, self.batch_norm, training)

    def _shrink_map(self, hidden: tf.Tensor) -> tf.Tensor:
        is_pooled = self.filters and self.pool > 1
        return layers.max_pool(hidden, self.pool) if is_pooled else hidden

    def _enlarge_map(self, hidden: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        """Enlarge a map to the height and width of `like`."""
        return layers.enlarge(hidden, self.pool, *like.shape[1:3])


def _average_places(hidden: tf.Tensor) -> tf.Tensor:
    """Average images over height and width, [B, H, W, C] -> [B, C]; return vectors unchanged."""
    return tf.reduce_mean(hidden, axis=[1, 2]) if hidden.shape.rank == 4 else hidden
