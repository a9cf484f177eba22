"""Layers as small functions on `get_variable`: no object holds state, scopes name everything.

hidden = layers.dense(inputs, 64, "hidden_0", activation=tf.nn.relu)      # [B, D] -> [B, 64]
hidden = layers.batch_norm(hidden, "hidden_0_norm", training)
hidden = layers.dropout(hidden, 0.1, "hidden_0_dropout", training)
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from mtl.layers import half_tables, quantization, straight_through
from mtl.step import draws, noted, replicas
from mtl.variables import freezing, pruned, sharding

tf1 = tf.compat.v1


def _noted(activation: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return an activation whose outputs are noted for who shows them."""

    def activate(sums: tf.Tensor) -> tf.Tensor:
        outputs = activation(sums)
        noted.add_output(sums, outputs)
        return outputs

    return activate


def _activate(activation: Callable[[tf.Tensor], tf.Tensor], sums: tf.Tensor) -> tf.Tensor:
    """Apply the activation of a layer, which may be one of a user's own."""
    outputs = activation(sums)
    if activation is not tf.identity:
        noted.add_output(sums, outputs)
    return outputs


ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "relu": _noted(tf.nn.relu),
    "gelu": _noted(tf.nn.gelu),
    "elu": _noted(tf.nn.elu),
    "selu": _noted(tf.nn.selu),
    "swish": _noted(tf.nn.swish),
    "tanh": _noted(tf.tanh),
    "sigmoid": _noted(tf.sigmoid),
    "linear": tf.identity,
}


def dense(
    inputs: tf.Tensor,
    units: int,
    name: str,
    activation: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
    use_bias: bool = True,
    bias_initializer: Callable | None = None,
) -> tf.Tensor:
    """Apply a dense layer, [B, D] -> [B, units]: `activation(inputs @ kernel + bias)`.

    The kernel starts Glorot-uniform.
    """
    with tf1.variable_scope(name):
        inputs = pruned.watch_inputs(quantization.quantize_inputs(inputs))
        # Asked for in 16 bits, a variable stays float32 and comes cast; see `precision`.
        kernel = tf1.get_variable("kernel", [inputs.shape[-1], units], inputs.dtype)
        outputs = tf.linalg.matmul(inputs, kernel)
        if use_bias:
            initializer = bias_initializer or tf1.zeros_initializer()
            outputs += tf1.get_variable("bias", [units], inputs.dtype, initializer)
        return _activate(activation, outputs)


def conv(
    inputs: tf.Tensor,
    filters: int,
    name: str,
    size: int = 3,
    stride: int = 1,
    activation: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
    use_bias: bool = True,
    padding: str = "same",
    bias_initializer: Callable | None = None,
) -> tf.Tensor:
    """Apply a convolution, [B, H, W, D] -> [B, H / stride, W / stride, filters].

    It is padded to keep the borders. With the padding "valid" H and W lose `size - 1` first.
    """
    with tf1.variable_scope(name):
        inputs = pruned.watch_inputs(quantization.quantize_inputs(inputs))
        shape = [size, size, inputs.shape[-1], filters]
        kernel = tf1.get_variable(
            "kernel", shape, inputs.dtype, tf1.variance_scaling_initializer(2.0)
        )
        outputs = tf.nn.conv2d(inputs, kernel, strides=stride, padding=padding.upper())
        if use_bias:
            initializer = bias_initializer or tf1.zeros_initializer()
            outputs += tf1.get_variable("bias", [filters], inputs.dtype, initializer)
        return _activate(activation, outputs)


def replace_kernel(op: tf.Operation, kernel: tf.Tensor) -> tf.Tensor:
    """Return a Conv2D, padded as "SAME" or "VALID", of the same images with another kernel."""
    settings = {name: op.get_attr(name) for name in ("strides", "dilations")}
    return tf.nn.conv2d(op.inputs[0], kernel, padding=op.get_attr("padding").decode(), **settings)


def max_pool(images: tf.Tensor, size: int) -> tf.Tensor:
    """Take the largest of each square, [B, H, W, C] -> [B, H / size, W / size, C], rounded up."""
    names = {"MaxPool": _MAX_POOL}
    with tf1.get_default_graph().gradient_override_map(names):
        return tf.nn.max_pool2d(images, size, size, "SAME")


_MAX_POOL = "MaxPoolBesideItsGradient"


@tf.RegisterGradient(_MAX_POOL)
def _max_pool_gradient(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """Return the gradient of `max_pool`; a branch pools once more.

    oneDNN's kernel is 15 times as fast, and needs the pooling in the same graph.
    """
    (images,) = op.inputs
    settings = {name: op.get_attr(name) for name in ("ksize", "strides")}
    settings["padding"] = op.get_attr("padding").decode()
    is_apart = upstream.graph is not op.graph
    pooled = tf.raw_ops.MaxPool(input=images, **settings) if is_apart else op.outputs[0]
    return tf.raw_ops.MaxPoolGrad(orig_input=images, orig_output=pooled, grad=upstream, **settings)


def enlarge(images: tf.Tensor, factor: int, height: int, width: int) -> tf.Tensor:
    """Make a square of each pixel, [B, h, w, C] -> [B, height, width, C]: what `max_pool` undoes.

    `max_pool` rounds up, so that what is enlarged may be larger than what was pooled: it is cut.
    """
    if factor == 1:
        return images
    sizes = [factor * size for size in images.shape[1:3]]
    enlarged = tf.raw_ops.ResizeNearestNeighbor(images=images, size=sizes)
    is_whole = sizes == [height, width]
    return enlarged if is_whole else enlarged[:, :height, :width]


def batch_norm(
    inputs: tf.Tensor, name: str, training: bool, momentum: float = 0.99, epsilon: float = 1e-3
) -> tf.Tensor:
    """Normalise by the batch over all axes but the last (Ioffe, Szegedy 2015, arXiv:1502.03167).

    In training the batch's own mean and variance are used and their moving averages are updated by
    ops in `UPDATE_OPS`, which the update runs first; otherwise, and where the averages are frozen
    (see `mtl.variables.freezing`), the averages are used. Replicas that train in step take the
    moments of all their rows together, unless `mtl.step.replicas.separate_replicas` says otherwise.
    The averages follow `average += (1 - momentum) * (batch - average)`, with the biased variance;
    moments that are not finite leave them as they are.
    """
    with tf1.variable_scope(name):
        shape = [inputs.shape[-1]]
        # Scales, offsets and averages have 32 bits in any network; outputs are cast at the end.
        gamma = tf1.get_variable("gamma", shape, tf.float32, tf1.ones_initializer())
        beta = tf1.get_variable("beta", shape, tf.float32, tf1.zeros_initializer())
        averages = [
            create_average("moving_mean", shape, tf1.zeros_initializer()),
            create_average("moving_variance", shape, tf1.ones_initializer()),
        ]
        moving = freezing.averages_move(averages[0]) if training else False
        # The fused op knows images alone, and the moments of no rows but its own.
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
    """Normalise each example over its last axis, [B, ..., D] -> [B, ..., D].

    `gamma * (x - mean) / sqrt(variance + epsilon) + beta` with the biased variance (J. L. Ba, J. R.
    Kiros, G. E. Hinton, "Layer Normalization", 2016, arXiv:1607.06450), in 32 bits.
    """
    with tf1.variable_scope(name):
        shape = [inputs.shape[-1]]
        gamma = tf1.get_variable("gamma", shape, tf.float32, tf1.ones_initializer())
        beta = tf1.get_variable("beta", shape, tf.float32, tf1.zeros_initializer())
        values = tf.cast(inputs, tf.float32)
        mean, variance = tf.nn.moments(values, axes=[-1], keepdims=True)
        scale = gamma * tf.math.rsqrt(variance + epsilon)
        return tf.cast((values - mean) * scale + beta, inputs.dtype)


def _scale_channels(values: tf.Tensor, scale: tf.Tensor, is_constant: bool) -> tf.Tensor:
    """Multiply values by a scale of their last axis.

    If they come of a convolution, scale its kernel instead, where that is less work.
    """
    if tf.executing_eagerly():  # There, no tensor knows where it comes from.
        return values * scale
    op = values.op
    while op.type == "Identity":
        op = op.inputs[0].op
    count = values.shape.num_elements()
    # A scale that follows from the batch's moments needs the outputs of the convolution first.
    if is_constant and op.type == "Conv2D" and count is not None:
        kernel = op.inputs[1]
        if count > kernel.shape.num_elements():
            return replace_kernel(op, kernel * scale)
    return values * scale


def _normalise_fused(
    images: tf.Tensor, gamma: tf.Variable, beta: tf.Variable, epsilon: float
) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
    """Return normalised images and the moments of their batch, by one op.

    It takes a third of the time of the single ops.
    """
    outputs, mean, variance = tf1.nn.fused_batch_norm(images, gamma, beta, epsilon=epsilon)
    count = tf.cast(tf.size(images) / images.shape[3], tf.float32)
    return outputs, (mean, variance * (count - 1) / count)  # TensorFlow's is the unbiased one.


def create_average(name: str, shape: Sequence[int], initializer: Callable) -> tf.Variable:
    """Create a moving average, a variable of 32 bits that is not trainable."""
    return tf1.get_variable(
        name,
        shape,
        tf.float32,
        initializer,
        trainable=False,
        # Every replica moves averages of its own, and a checkpoint holds the mean of them.
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )


def update_averages(
    averages: Sequence[tf.Variable], moments: Sequence[tf.Tensor], momentum: float | tf.Tensor
) -> None:
    """Have UPDATE_OPS move averages: `average += (1 - momentum) * (moment - average)`."""
    # Where layers share averages, one moves them after the other.
    is_shared = tf1.get_variable_scope().reuse
    before = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS) if is_shared else []
    with tf.control_dependencies(before):
        values = [average.read_value() for average in averages]
    for average, value, moment in zip(averages, values, moments, strict=True):
        # Where the average itself stands in for the moment, the change is 0.
        change = (1 - momentum) * (value - moment)
        change = tf.where(tf.math.is_finite(change), change, tf.zeros_like(change))
        update = average.assign_sub(change)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)


def _batch_moments(inputs: tf.Tensor) -> Sequence[tf.Tensor]:
    mean, variance = tf.nn.moments(inputs, list(range(inputs.shape.rank - 1)))
    if replicas.are_separate():
        return mean, variance
    of_all = replicas.average_over_replicas(mean)
    # The variance around the common mean: that of each replica is around a mean of its own.
    return of_all, replicas.average_over_replicas(variance + (mean - of_all) ** 2)


def dropout(inputs: tf.Tensor, rate: float, name: str, training: bool) -> tf.Tensor:
    """Zero a share `rate` of the values in training and scale up the rest.

    The draw depends only on the run's seed, the layer's scope and the global step, so a run that
    was stopped and restored draws what it would have drawn. The graph must hold a global step.
    """
    if not training or rate == 0:
        return inputs
    drawn = draws.draw_uniform(tf.shape(inputs), draws.make_step_seed(name))
    return tf.where(drawn >= rate, inputs * (1 / (1 - rate)), tf.zeros_like(inputs))


def gumbel_softmax(
    logits: tf.Tensor, temperature: tf.Tensor | float, name: str, training: bool, hard: bool = True
) -> tf.Tensor:
    """Draw one class of each distribution, [B, ..., C] -> [B, ..., C] that sum to 1.

    `softmax((logits + g) / temperature)`, g standard Gumbel; with `hard` the class where it is
    largest, one-hot, with the gradient of the softmax (E. Jang, S. Gu, B. Poole, "Categorical
    Reparameterization with Gumbel-Softmax", 2017, arXiv:1611.01144). Outside of training nothing is
    drawn: g is 0. A row draws the same numbers in whatever slice of the batch it is. The graph must
    hold a global step.
    """
    scores = tf.cast(logits, tf.float32)
    if training:
        count = math.prod(logits.shape[1:])
        drawn = draws.draw_rows(name, logits.shape[0] or tf.shape(logits)[0], count)
        # Numbers in [0, 1) have steps of 2^-23: from the middle of one a logarithm is finite.
        gumbel = -tf.math.log(-tf.math.log(drawn + 2.0**-24))
        scores += tf.reshape(gumbel, tf.shape(scores))
    soft = tf.nn.softmax(scores / temperature)
    if hard:
        chosen = tf.one_hot(tf.argmax(scores, -1), logits.shape[-1])
        soft = straight_through.replace_gradient(lambda _: chosen, tf.identity)(soft)
    return tf.cast(soft, logits.dtype)


def embedding(
    ids: tf.Tensor,
    vocabulary_size: int,
    dimension: int,
    name: str = "embedding",
    stddev: float | None = None,
    initializer: Callable[..., tf.Tensor] | None = None,
) -> tf.Tensor:
    """Look up ids in [0, vocabulary_size), [...] -> [..., dimension].

    The gradient of the table is IndexedSlices. It starts from a normal distribution of this
    standard deviation, `dimension ** -0.5` if it is None, cut off at two of them; or as
    `initializer` says.
    """
    stddev = dimension**-0.5 if stddev is None else stddev
    initializer = initializer or tf1.truncated_normal_initializer(stddev=stddev)
    table = sharding.create_table(name, [vocabulary_size, dimension], initializer)
    return pruned.mask_rows(half_tables.look_up(table, ids), table, ids)
