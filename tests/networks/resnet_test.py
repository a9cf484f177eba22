import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks

tf1 = tf.compat.v1


def _built(shape, **settings):
    """Return random images, the output of a ResNet for them, and {trainable variable: value}."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        output = networks.ResNet(**settings)({"image": tf.constant(images)}, training=True)
        variables = {v.op.name: v for v in tf1.trainable_variables()}
        session.run(tf1.global_variables_initializer())
        return images, *session.run([output, variables])


@pytest.mark.medium
@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85)])
def test_published_numbers_of_weights(depth, millions):
    with tf.Graph().as_default():
        networks.ResNet(depth=depth)({"image": tf.zeros([1, 32, 32, 3])}, training=True)
        weights = sum(v.shape.num_elements() for v in tf1.trainable_variables())
        layers = [v for v in tf1.trainable_variables() if v.op.name.endswith("kernel")]
    # Table 6 counts the classifier of ten classes as well.
    assert round((weights + 64 * 10 + 10) / 1e6, 2) == millions
    assert len(layers) + 1 == depth


@pytest.mark.medium
@pytest.mark.parametrize("shortcut", ["pad", "projection"])
@pytest.mark.parametrize("size", [9, 8])
def test_equals_numpy(size, shortcut):
    images, output, values = _built(
        (3, size, size, 2), depth=8, filters=[2, 3, 5], shortcut=shortcut
    )

    def convolved(inputs, name, stride):
        kernel = values[f"{name}/kernel"].astype(np.float64)
        outputs = _conv(inputs, kernel, stride)
        mean, variance = outputs.mean((0, 1, 2)), outputs.var((0, 1, 2))
        return (outputs - mean) / np.sqrt(variance + 1e-3)

    hidden = np.maximum(convolved(images, "stem", 1), 0)
    for index, filters in enumerate((2, 3, 5)):
        name, stride = f"block_{index}_0", 2 if index else 1
        branch = np.maximum(convolved(hidden, f"{name}/conv_0", stride), 0)
        branch = convolved(branch, f"{name}/conv_1", 1)
        if index and shortcut == "projection":
            hidden = convolved(hidden, f"{name}/shortcut", stride)
        elif index:
            added = filters - hidden.shape[-1]
            sides = [(0, 0)] * 3 + [(added // 2, added - added // 2)]
            hidden = np.pad(hidden[:, ::2, ::2], sides)
        hidden = np.maximum(hidden + branch, 0)
    np.testing.assert_allclose(output, hidden.mean((1, 2)), rtol=1e-3, atol=1e-4)


def _conv(inputs, kernel, stride):
    """Correlation with zeros around, the odd one behind."""
    width, count = kernel.shape[0], -(-inputs.shape[1] // stride)
    total = max((count - 1) * stride + width - inputs.shape[1], 0)
    sides = (total // 2, total - total // 2)
    padded = np.pad(inputs, [(0, 0), sides, sides, (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (width, width), (1, 2))
    return np.einsum("bhwcij,ijco->bhwo", windows[:, ::stride, ::stride], kernel)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 18}, r"ResNet.depth must be 6 n \+ 2: 8, 14, 20, 26, 32, ..., got 18"),
        ({"depth": 2}, "ResNet.depth must be 6 n"),
        ({"filters": [16, 32]}, "ResNet.filters must hold 3 numbers"),
        ({"filters": [16, 8, 32]}, "ResNet.filters must not decrease"),
        ({"shortcut": "none"}, "ResNet.shortcut must be one of pad, projection"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(checks.UserError, match=message):
        networks.ResNet(**settings)
