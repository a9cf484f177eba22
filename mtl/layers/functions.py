"""Layers as functions that create variables by `get_variable`, in scopes with the layers' names.

hidden = layers.dense(inputs, 64, "hidden_0", activation=tf.nn.relu)      # [B, D] -> [B, 64]
hidden = layers.batch_norm(hidden, "hidden_0_norm", training)
hidden = layers.dropout(hidden, 0.1, "hidden_0_dropout", training)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from mtl.deferred import tf, tf1
from mtl.layers import half_tables, straight_through
from mtl.step import draws, layer_hooks, replicas
from mtl.variables import freezing, pruned, sharding


def _show_outputs(activation: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the activation function, changed so that layer hooks get its outputs."""

    def activate(sums: tf.Tensor) -> tf.Tensor:
        outputs = activation(sums)
        layer_hooks.take_outputs(sums, outputs)
        return outputs

    return activate


def _activate_sums(
    activation: Callable[[tf.Tensor], tf.Tensor] | None, sums: tf.Tensor
) -> tf.Tensor:
    """Apply the activation of a layer, and pass the outputs to the hooks of layers."""
    if activation in (None, ACTIVATIONS["linear"]):
        return tf.identity(sums)
    outputs = activation(sums)
    layer_hooks.take_outputs(sums, outputs)
    return outputs


ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "relu": _show_outputs(lambda sums: tf.nn.relu(sums)),
    "gelu": _show_outputs(lambda sums: tf.nn.gelu(sums)),
    "elu": _show_outputs(lambda sums: tf.nn.elu(sums)),
    "selu": _show_outputs(lambda sums: tf.nn.selu(sums)),
    "swish": _show_outputs(lambda sums: tf.nn.swish(sums)),
    "tanh": _show_outputs(lambda sums: tf.tanh(sums)),
    "sigmoid": _show_outputs(lambda sums: tf.sigmoid(sums)),
    "linear": lambda sums: tf.identity(sums),
}


def dense(
    inputs: tf.Tensor,
    units: int,
    name: str,
    activation: Callable[[tf.Tensor], tf.Tensor] | None = None,
    use_bias: bool = True,
    bias_initializer: Callable | None = None,
) -> tf.Tensor:
    """Apply a dense layer: `activation(inputs @ kernel + bias)`, variables in the scope `name`.

    The initial kernel is Glorot-uniform.

    Args:
      inputs: [B, D] of a known D.
      units: the number of outputs for each row.
      name: the scope of the variables.
      activation: the activation function, such as a value of `ACTIVATIONS`; None for a linear
        layer.
      use_bias: False leaves out the bias.
      bias_initializer: the initializer of the bias; None for zeros.

    Returns:
      [B, units], in the type of the inputs.
    """
    with tf1.variable_scope(name):
        inputs = layer_hooks.take_inputs(inputs)
        # With 16-bit inputs, the variable is still float32, and cast to 16 bits; see `precision`.
        kernel = tf1.get_variable("kernel", [inputs.shape[-1], units], inputs.dtype)
        outputs = tf.linalg.matmul(inputs, kernel)
        if use_bias:
            initializer = bias_initializer or tf1.zeros_initializer()
            outputs += tf1.get_variable("bias", [units], inputs.dtype, initializer)
        return _activate_sums(activation, outputs)


def conv(  # noqa: PLR0913  Callers pass arguments by name.
    inputs: tf.Tensor,
    filters: int,
    name: str,
    size: int = 3,
    stride: int = 1,
    activation: Callable[[tf.Tensor], tf.Tensor] | None = None,
    use_bias: bool = True,
    padding: str = "same",
    bias_initializer: Callable | None = None,
) -> tf.Tensor:
    """Apply a convolution of square kernels, with variables in the scope `name`.

    The initial kernel is He-normal.

    Args:
      inputs: images [B, H, W, D] of a known D.
      filters: the number of output channels.
      name: the scope of the variables.
      size: height and width of the kernel, in pixels.
      stride: the stride of the kernel, in pixels.
      activation: the activation function; None for a linear layer.
      use_bias: False leaves out the bias.
      padding: "same" adds zeros around the image; "valid" reduces H and W by size - 1.
      bias_initializer: the initializer of the bias; None for zeros.

    Returns:
      [B, H / stride, W / stride, filters], with height and width rounded up.
    """
    with tf1.variable_scope(name):
        inputs = layer_hooks.take_inputs(inputs)
        shape = [size, size, inputs.shape[-1], filters]
        kernel = tf1.get_variable(
            "kernel", shape, inputs.dtype, tf1.variance_scaling_initializer(2.0)
        )
        outputs = tf.nn.conv2d(inputs, kernel, strides=stride, padding=padding.upper())
        if use_bias:
            initializer = bias_initializer or tf1.zeros_initializer()
            outputs += tf1.get_variable("bias", [filters], inputs.dtype, initializer)
        return _activate_sums(activation, outputs)


def replace_kernel(op: tf.Operation, kernel: tf.Tensor) -> tf.Tensor:
    """Convolve the images of a Conv2D op with another kernel, with the settings of the op.

    Args:
      op: an op with the padding "SAME" or "VALID", on images [B, H, W, D].
      kernel: [height, width, D, filters].

    Returns:
      The output of the new convolution, with the images, strides, dilations and padding of `op`.
    """
    settings = {name: op.get_attr(name) for name in ("strides", "dilations")}
    return tf.nn.conv2d(op.inputs[0], kernel, padding=op.get_attr("padding").decode(), **settings)


def max_pool(images: tf.Tensor, size: int) -> tf.Tensor:
    """Apply max-pooling to squares of pixels.

    Args:
      images: [B, H, W, C].
      size: the side of a square, in pixels. At the lower and right edge of an image, the squares of
        pixels may be smaller.

    Returns:
      [B, H / size, W / size, C], with height and width rounded up.
    """
    _register_gradient()
    names = {"MaxPool": _MAX_POOL}
    with tf1.get_default_graph().gradient_override_map(names):
        return tf.nn.max_pool2d(images, size, size, "SAME")


_MAX_POOL = "MaxPoolBesideItsGradient"


@functools.cache  # TensorFlow refuses to register a name twice.
def _register_gradient() -> None:
    tf.RegisterGradient(_MAX_POOL)(_max_pool_gradient)


def _max_pool_gradient(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """Compute the gradient of `max_pool` by oneDNN's kernel, 15 times as fast as TensorFlow's own.

    The kernel of oneDNN needs the maxima of the pooling, so the pooling must be in the same graph
    as its gradient. If the gradient is computed in another graph, such as a branch of a
    conditional, pool the images a second time.
    """
    (images,) = op.inputs
    settings = {name: op.get_attr(name) for name in ("ksize", "strides")}
    settings["padding"] = op.get_attr("padding").decode()
    is_apart = upstream.graph is not op.graph
    maxima = tf.raw_ops.MaxPool(input=images, **settings) if is_apart else op.outputs[0]
    return tf.raw_ops.MaxPoolGrad(orig_input=images, orig_output=maxima, grad=upstream, **settings)


def enlarge(images: tf.Tensor, factor: int, height: int, width: int) -> tf.Tensor:
    """Enlarge images by repeating each pixel in a square, to undo the shrinking by `max_pool`.

    Args:
      images: [B, h, w, C].
      factor: the side of a square, in pixels.
      height: the height of the enlarged images, at most h * factor; surplus pixels are cut off.
      width: the width of the enlarged images, at most w * factor.

    Returns:
      The enlarged images, [B, height, width, C].
    """
    if factor == 1:
        return images
    sizes = [factor * size for size in images.shape[1:3]]
    pixels = tf.raw_ops.ResizeNearestNeighbor(images=images, size=sizes)
    is_whole = sizes == [height, width]
    return pixels if is_whole else pixels[:, :height, :width]


def batch_norm(
    inputs: tf.Tensor, name: str, training: bool, momentum: float = 0.99, epsilon: float = 1e-3
) -> tf.Tensor:
    """Apply batch norm over all axes except the last (Ioffe, Szegedy, arXiv:1502.03167).

    Training uses the mean and the variance of the batch, and adds UPDATE_OPS for their moving
    averages, which run before the update of weights. Evaluation uses the moving averages, and so
    does training with frozen averages (see `mtl.variables.freezing`). Synchronous replicas use the
    moments over the rows of all replicas, unless `mtl.step.replicas.separate_replicas` separates
    them. The averages follow `average += (1 - momentum) * (batch - average)`, with the biased
    variance; NaN and infinity do not change an average.

    Args:
      inputs: [B, ..., C].
      name: the scope of gamma, beta and the averages.
      training: True normalises by the moments of the batch, False by the moving averages.
      momentum: the decay rate of the moving averages, in [0, 1].
      epsilon: a small number, which is added to the variance.

    Returns:
      Normalised inputs, in the same shape and type. Computations use float32.
    """
    with tf1.variable_scope(name):
        shape = [inputs.shape[-1]]
        # Scales, offsets and averages are always float32; outputs are cast at the end.
        gamma = tf1.get_variable("gamma", shape, tf.float32, tf1.ones_initializer())
        beta = tf1.get_variable("beta", shape, tf.float32, tf1.zeros_initializer())
        averages = [
            create_average("moving_mean", shape, tf1.zeros_initializer()),
            create_average("moving_variance", shape, tf1.ones_initializer()),
        ]
        moving = freezing.averages_move(averages[0]) if training else False
        # The fused op supports only images, and uses the moments of a single replica.
        if moving is True and inputs.shape.rank == 4 and replicas.are_separate():
            outputs, moments = _normalise_fused(inputs, gamma, beta, epsilon)
        else:
            values = tf.cast(inputs, tf.float32)  # Sums over a batch need more than 16 bits.
            moments = averages if moving is False else _batch_moments(values)
            if isinstance(moving, tf.Tensor):
                moments = [tf.where(moving, *pair) for pair in zip(moments, averages, strict=True)]
            mean, variance = moments
            scale = gamma * tf.math.rsqrt(variance + epsilon)
            outputs = _scale_channels(values, scale, is_constant=moving is False) + (
                beta - mean * scale
            )
        if moving is not False:
            update_averages(averages, moments, momentum)
        return tf.cast(outputs, inputs.dtype)


def layer_norm(inputs: tf.Tensor, name: str, epsilon: float = 1e-5) -> tf.Tensor:
    """Apply layer norm over the last axis.

    The output is `gamma * (x - mean) / sqrt(variance + epsilon) + beta` with the biased variance
    (J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016, arXiv:1607.06450), in 32
    bits.

    Args:
      inputs: [B, ..., D].
      name: the scope of gamma and beta.
      epsilon: a small number, which is added to the variance.

    Returns:
      The normalised inputs, in the same shape and type.
    """
    with tf1.variable_scope(name):
        shape = [inputs.shape[-1]]
        gamma = tf1.get_variable("gamma", shape, tf.float32, tf1.ones_initializer())
        beta = tf1.get_variable("beta", shape, tf.float32, tf1.zeros_initializer())
        values = tf.cast(inputs, tf.float32)
        # Use 32 bits, as squares of large values overflow in 16 bits.
        mean, variance = tf.nn.moments(values, axes=[-1], keepdims=True)
        scale = gamma * tf.math.rsqrt(variance + epsilon)
        return tf.cast((values - mean) * scale + beta, inputs.dtype)


def _scale_channels(values: tf.Tensor, scale: tf.Tensor, is_constant: bool) -> tf.Tensor:
    """Multiply values by a scale along the last axis.

    If `values` are the output of a convolution whose kernel has fewer numbers than the output,
    scale the kernel instead of the values.
    """
    if tf.executing_eagerly():  # Eager tensors have no `op`.
        return values * scale
    op = values.op
    while op.type == "Identity":
        op = op.inputs[0].op
    count = values.shape.num_elements()
    # A scale from batch moments depends on the convolution, so it cannot scale the kernel.
    if is_constant and op.type == "Conv2D" and count is not None:
        kernel = op.inputs[1]
        if count > kernel.shape.num_elements():
            return replace_kernel(op, kernel * scale)
    return values * scale


def _normalise_fused(
    images: tf.Tensor, gamma: tf.Variable, beta: tf.Variable, epsilon: float
) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
    """Normalise images by a fused op, and return outputs and batch moments.

    The fused op of TensorFlow takes a third of the time that separate ops take.
    """
    # Return the biased variance, as the branch without a fused op does.
    outputs, mean, variance = tf1.nn.fused_batch_norm(images, gamma, beta, epsilon=epsilon)
    count = tf.cast(tf.size(images) / images.shape[3], tf.float32)
    # The fused op returns the unbiased variance.
    return outputs, (mean, variance * (count - 1) / count)


def create_average(name: str, shape: Sequence[int], initializer: Callable) -> tf.Variable:
    """Create a variable for a moving average.

    Args:
      name: the name of the variable in the current scope.
      shape: the shape of the variable.
      initializer: the initializer of the variable.

    Returns:
      A float32 variable that is not trainable. Each replica has a copy of the average, and a
      checkpoint stores the mean of all copies.
    """
    return tf1.get_variable(
        name,
        shape,
        tf.float32,
        initializer,
        trainable=False,
        # Each replica updates a local copy of the variable, and a checkpoint stores the mean of all
        # copies.
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )


def update_averages(
    averages: Sequence[tf.Variable], moments: Sequence[tf.Tensor], momentum: float | tf.Tensor
) -> None:
    """Add ops to UPDATE_OPS that move averages: `average += (1 - momentum) * (moment - average)`.

    Args:
      averages: the variables that `create_average` returned.
      moments: for each average, the moment of the batch, a tensor of the same shape.
      momentum: the decay rate of the moving averages, in [0, 1].
    """
    # If several layers share averages, updates must run in sequence.
    is_shared = tf1.get_variable_scope().reuse
    before = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS) if is_shared else []
    with tf.control_dependencies(before):
        values = [average.read_value() for average in averages]
    for average, value, moment in zip(averages, values, moments, strict=True):
        # For frozen averages, the moment equals the average, and the change is 0.
        change = (1 - momentum) * (value - moment)
        change = tf.where(tf.math.is_finite(change), change, tf.zeros_like(change))
        update = average.assign_sub(change)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)


def _batch_moments(inputs: tf.Tensor) -> Sequence[tf.Tensor]:
    mean, variance = tf.nn.moments(inputs, list(range(inputs.shape.rank - 1)))
    if replicas.are_separate():
        return mean, variance
    common_mean = replicas.average_over_replicas(mean)
    # The variance of a replica is relative to the replica's mean. To get the variance relative to
    # the common mean, add the squared distance of the two means.
    variance += (mean - common_mean) ** 2
    return common_mean, replicas.average_over_replicas(variance)


def dropout(inputs: tf.Tensor, rate: float, name: str, training: bool) -> tf.Tensor:
    """Apply dropout in training: zero a share of the values, and scale the rest by 1 / (1 - rate).

    Random numbers depend only on the run's seed, the layer's scope, the global step and the slice
    of the batch, so a restored run draws the same numbers as an uninterrupted run. The graph must
    hold a global step.

    Args:
      inputs: the values, of any shape.
      rate: the share of zeros, in [0, 1).
      name: the name of the random draw, unique in the current scope.
      training: False returns the inputs.

    Returns:
      The values after dropout, in the same shape.
    """
    if not training or rate == 0:
        return inputs
    uniform = draws.draw_uniform(tf.shape(inputs), draws.make_step_seed(name))
    # A product with a mask would turn infinity into NaN.
    return tf.where(uniform >= rate, inputs * (1 / (1 - rate)), tf.zeros_like(inputs))


def gumbel_softmax(
    logits: tf.Tensor, temperature: tf.Tensor | float, name: str, training: bool, hard: bool = True
) -> tf.Tensor:
    """Draw a class from each distribution by Gumbel-softmax.

    The output is `softmax((logits + g) / temperature)` with standard Gumbel numbers g. With `hard`,
    the output is the one-hot vector of the largest value, with the gradient of the softmax (E.
    Jang, S. Gu, B. Poole, "Categorical Reparameterization with Gumbel-Softmax", 2017,
    arXiv:1611.01144). The draws of a row do not depend on how a batch is split into slices. The
    graph must hold a global step.

    Args:
      logits: [B, ..., C]; all sizes except B are known.
      temperature: above 0; with a lower temperature, the softmax is closer to one-hot.
      name: the name of the random draw, unique in the current scope.
      training: True draws Gumbel numbers g; False omits g.
      hard: False returns the softmax instead of a one-hot vector.

    Returns:
      [B, ..., C]; the C numbers of each vector sum to 1.
    """
    scores = tf.cast(logits, tf.float32)
    if training:
        count = math.prod(logits.shape[1:])
        uniform = draws.draw_rows(name, logits.shape[0] or tf.shape(logits)[0], count)
        # Draws in [0, 1) are multiples of 2^-23. Add half of 2^-23 to each draw, because log(0) is
        # infinite.
        gumbel = -tf.math.log(-tf.math.log(uniform + 2.0**-24))
        scores += tf.reshape(gumbel, tf.shape(scores))
    soft = tf.nn.softmax(scores / temperature)
    if hard:
        one_hot = tf.one_hot(tf.argmax(scores, -1), logits.shape[-1])
        soft = straight_through.replace_gradient(lambda _: one_hot, tf.identity)(soft)
    return tf.cast(soft, logits.dtype)


def embedding(
    ids: tf.Tensor,
    vocabulary_size: int,
    dimension: int,
    name: str = "embedding",
    stddev: float | None = None,
    initializer: Callable[..., tf.Tensor] | None = None,
) -> tf.Tensor:
    """Look up ids in an embedding table, a variable in the current scope.

    The gradient of the table is a `tf.IndexedSlices`.

    Args:
      ids: int64 of any shape [...], in [0, vocabulary_size).
      vocabulary_size: the number of rows.
      dimension: the length of a row.
      name: the name of the table.
      stddev: the standard deviation of initial values, from a normal distribution that is cut off
        at two standard deviations; None means `dimension ** -0.5`.
      initializer: the initializer of the table, which replaces `stddev`; None for a normal
        distribution.

    Returns:
      The vectors of the ids, [..., dimension].
    """
    stddev = dimension**-0.5 if stddev is None else stddev
    initializer = initializer or tf1.truncated_normal_initializer(stddev=stddev)
    table = sharding.create_table(name, [vocabulary_size, dimension], initializer)
    return pruned.mask_rows(half_tables.look_up(table, ids), table, ids)
