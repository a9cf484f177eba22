"""An encoder-decoder against NumPy, by the layers that `mtan_test` has."""

import numpy as np
import pytest

from mtl import checks, networks
from tests.networks import built

IMAGES = {"picture": np.random.default_rng(0).normal(size=[3, 5, 7, 2]).astype(np.float32)}


def _pool(x):
    padded = np.pad(x, [(0, 0), (0, 1), (0, 1), (0, 0)], constant_values=-np.inf)
    height, width = ((side + 1) // 2 for side in x.shape[1:3])
    squares = padded[:, : 2 * height, : 2 * width]
    return squares.reshape(len(x), height, 2, width, 2, -1).max(axis=(2, 4))


def _convolve(values, scope, x):
    for name in ("first", "second"):
        kernel, bias = (values[f"{scope}/{name}/{part}"] for part in ("kernel", "bias"))
        height, width = x.shape[1:3]
        padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
        places = [(i, j) for i in range(3) for j in range(3)]
        x = bias + sum(padded[:, i : i + height, j : j + width] @ kernel[i, j] for i, j in places)
        x = np.tanh(x)
    return x


@pytest.mark.medium
def test_what_comes_up_meets_what_went_down():
    part = networks.UNet(filters=[3, 4, 5], activation="tanh", batch_norm=False)
    found, values = built.build_trunk(
        part, IMAGES, change=lambda drawn: {n: v + 0.1 for n, v in drawn.items()}
    )
    x, down = IMAGES["picture"], []
    for level in range(3):
        x = _convolve(values, f"encoder_{level}", _pool(x) if level else x)
        down.append(x)
    for level in (1, 0):
        kept = down[level]
        enlarged = x.repeat(2, 1).repeat(2, 2)[:, : kept.shape[1], : kept.shape[2]]
        x = _convolve(values, f"decoder_{level}", np.concatenate([enlarged, kept], -1))
    assert found.shape == (3, 5, 7, 3)
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"filters": []}, "UNet.filters must hold a size, got []"),
        ({"filters": [3, 0]}, "UNet.filters must be above 0"),
        ({"pool": 1}, "UNet.pool must be at least 2, got 1"),
        ({"activation": "rleu"}, "Did you mean 'relu'?"),
    ],
)
def test_a_wrong_setting_is_one_line(settings, says):
    with pytest.raises(checks.UserError) as caught:
        networks.UNet(**settings)
    assert says in str(caught.value)
