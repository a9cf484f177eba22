"""Pictures for TensorBoard hold all that is drawn."""

import io

import numpy as np
import pytest

from mtl.tools.tensorboard import pictures

Image = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize("count", [1, 2, 40])
def test_curves_of_shares_lie_inside_with_their_axes_and_names(count):
    lines = {f"class {number}": [(0.0, 0.0), (1.0, 1.0)] for number in range(count)}
    made = pictures.draw_shares(lines, "recall")
    image = Image.open(io.BytesIO(made.png)).convert("L")
    assert image.size == (made.width, made.height)
    ink = np.asarray(image) < 255
    # The frame is a square with sides of 3 * 112; below it stand the ticks of its lower edge.
    longest = max((row.sum(), index) for index, row in enumerate(ink))
    assert longest[0] >= 336 and made.height >= 336
    frames = [index for index, row in enumerate(ink) if row.sum() >= 336]
    assert frames[-1] - frames[0] == 336 and ink[frames[-1] + 2 :].any()
    assert not ink[[0, -1]].any() and not ink[:, [0, -1]].any()
