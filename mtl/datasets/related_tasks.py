"""Simulates two regression tasks whose relatedness is a setting.

related_tasks.RelatedTasks.correlation = 0.5
pipeline.Pipeline.source = @related_tasks.RelatedTasks()
spec.Spec.features = {"x": ("float32", (256,))}
spec.Spec.labels = {"first": "float32", "second": "float32"}
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated

import numpy as np

from mtl import checks
from mtl.datasets import simulated
from mtl.deferred import tf

TASKS = ("first", "second")


@checks.dataclass
class RelatedTasks(simulated.Simulated):
    """Labels y_k = w_k'x + sum_i sin(alpha_i w_k'x + beta_i) + noise of the tasks first and second.

    The data follow section 3.2 of Ma, Zhao, Yi, Chen, Hong, and Chi, "Modeling Task Relationships
    in Multi-task Learning with Multi-gate Mixture-of-Experts", KDD 2018,
    doi:10.1145/3219819.3220007. The weights of the two tasks are w_1 = c u_1 and w_2 = c (p u_1 +
    sqrt(1 - p^2) u_2), where u_1 and u_2 are orthogonal unit vectors. So the correlation p is the
    cosine of the angle between w_1 and w_2. Each element of the input x [D] is standard normal. The
    paper does not give the values of the scale c, of alpha_i and of beta_i. In this source, alpha_i
    = i and beta_i = (i - 1)^2 for i = 1, 2, ... and both tasks.

    A row depends only on the seed, the split and the row number, so a larger split starts with the
    rows of a smaller split. The weights w_1 and w_2 depend only on the settings. The inputs x do
    not depend on `correlation`.

    Attributes:
      correlation: p, in [-1, 1].
      dimension: D, at least 2.
      scale: c, above 0; a larger scale makes the tasks less linear.
      num_sines: the number of sines in the sum, at least 0.
      noise: the standard deviation of the noise, at least 0; in the paper, the variance is 0.01.
      rows: {split: number of rows} for the splits "train", "validation" and "test".
      seed: the seed of weights, inputs and noise, at least 0.
    """

    correlation: Annotated[float, checks.In("[-1, 1]")] = 0.5
    dimension: Annotated[int, checks.AtLeast(2)] = 256
    scale: Annotated[float, checks.positive, checks.number] = 1.0
    num_sines: checks.Natural = 4
    noise: checks.NotNegative = 0.1
    rows: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {"train": 100_000, "validation": 10_000, "test": 10_000}
    )
    seed: checks.Natural = 0

    def __post_init__(self):
        self.check_rows()

    @functools.cached_property
    def weights(self) -> np.ndarray:
        """The weights w_1 and w_2, [D, 2]."""
        directions = simulated.draw_directions(self.seed, self.dimension, self.correlation)
        return self.scale * directions

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """{field: (type, shape)}."""
        return {"x": ("float32", (self.dimension,)), **dict.fromkeys(TASKS, ("float32", ()))}

    def draw(self, split: int, part: tf.Tensor) -> dict[str, tf.Tensor]:
        """Draw a part of a split; see `Simulated.draw`."""
        shapes = ([simulated.ROWS_TOGETHER, count] for count in (self.dimension, len(TASKS)))
        x, noise = (
            # The first number of the random seed identifies the run, the split, and x or noise. The
            # second number of the random seed is the part of the split.
            tf.random.stateless_normal(shape, [6 * self.seed + 2 * split + side, part])
            for side, shape in enumerate(shapes)
        )
        sums = tf.linalg.matmul(x, tf.constant(self.weights, tf.float32))
        labels = sums + self.noise * noise
        for index in range(self.num_sines):
            labels += tf.sin((index + 1.0) * sums + float(index**2))
        return {"x": x, **dict(zip(TASKS, tf.unstack(labels, axis=1), strict=True))}
