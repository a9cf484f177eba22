"""Two made-up regression tasks whose relatedness is set: data without files.

related_tasks.RelatedTasks.correlation = 0.5
pipeline.Pipeline.source = @related_tasks.RelatedTasks()
spec.Spec.features = {"x": ("float32", (256,))}
spec.Spec.labels = {"first": "float32", "second": "float32"}
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import source

TASKS = ("first", "second")
SPLITS = ("train", "validation", "test")
# Rows that are drawn together: one by one costs a hundred times as much.
_ROWS_TOGETHER = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelatedTasks(types.Source):
    """y_k = w_k'x + sum_i sin(alpha_i w_k'x + beta_i) + noise, for k = first, second.

    J. Ma, Z. Zhao, X. Yi, J. Chen, L. Hong, E. H. Chi, "Modeling Task Relationships in Multi-task
    Learning with Multi-gate Mixture-of-Experts", KDD 2018, doi:10.1145/3219819.3220007, section
    3.2. With two orthogonal unit vectors u_1 and u_2, w_1 = c u_1 and
    w_2 = c (p u_1 + sqrt(1 - p^2) u_2): p is the cosine of the two weights, and every element of x
    [D] is standard normal. The paper does not give c, alpha and beta. Here alpha_i = i and
    beta_i = (i - 1)^2 for i = 1, 2, ..., and the same for both tasks.

    Every row depends on the seed, the split and its number alone: a larger split starts with the
    rows of a smaller one. The weights depend on the seed and the dimension; rows of x stay the same
    when the correlation changes.

    Attributes:
      correlation: p, in [-1, 1].
      dimension: D, at least 2.
      scale: c, above 0; a larger one bends the sines more.
      num_sines: how many sines are added, at least 0.
      noise: the standard deviation of the noise, at least 0; the paper has a variance of 0.01.
      rows: {split: how many rows it has}, of the splits "train", "validation" and "test".
      seed: of weights, inputs and noise, from 0 on.
    """

    correlation: float = 0.5
    dimension: int = 256
    scale: float = 1.0
    num_sines: int = 4
    noise: float = 0.1
    rows: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {"train": 100_000, "validation": 10_000, "test": 10_000}
    )
    seed: int = 0

    def __post_init__(self):
        where = "RelatedTasks"
        checks.number(f"{where}.correlation", self.correlation, "be a number in [-1, 1]")
        fits = -1 <= self.correlation <= 1
        checks.require(fits, f"{where}.correlation", "be in [-1, 1]", self.correlation)
        for name, least in (("dimension", 2), ("num_sines", 0), ("seed", 0)):
            checks.whole(f"{where}.{name}", getattr(self, name), least)
        checks.positive(f"{where}.scale", self.scale)
        checks.number(f"{where}.scale", self.scale)
        checks.at_least(f"{where}.noise", self.noise, 0)
        checks.mapping(f"{where}.rows", self.rows, "map splits to their number of rows")
        for split, rows in self.rows.items():
            checks.one_of(f"{where}.rows", split, SPLITS)
            checks.whole(f"{where}.rows[{split!r}]", rows, 1)

    @functools.cached_property
    def weights(self) -> np.ndarray:
        """w_1 and w_2, [D, 2]."""
        drawn = np.random.default_rng(self.seed).normal(size=[self.dimension, 2])
        first, second = np.linalg.qr(drawn)[0].T
        rest = math.sqrt(1 - self.correlation**2)
        return self.scale * np.stack([first, self.correlation * first + rest * second], axis=1)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split as {"x": [D], "first": scalar, "second": scalar}."""
        checks.one_of("RelatedTasks split", split, self.rows)
        rows, number = self.rows[split], SPLITS.index(split)

        def draw(part: tf.Tensor) -> dict[str, tf.Tensor]:
            shapes = ([_ROWS_TOGETHER, self.dimension], [_ROWS_TOGETHER, len(TASKS)])
            x, noise = (
                # A seed of two numbers: which run and which of x and noise, which rows.
                tf.random.stateless_normal(shape, [6 * self.seed + 2 * number + side, part])
                for side, shape in enumerate(shapes)
            )
            sums = tf.linalg.matmul(x, tf.constant(self.weights, tf.float32))
            labels = sums + self.noise * noise
            for index in range(self.num_sines):
                labels += tf.sin((index + 1.0) * sums + float(index**2))
            return {"x": x, **dict(zip(TASKS, tf.unstack(labels, axis=1), strict=True))}

        parts = tf.data.Dataset.range(math.ceil(rows / _ROWS_TOGETHER))
        return parts.map(draw).unbatch().take(rows)

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, tf.Tensor]:
        """Decode a batch: the fields of the specification, which must be x [D] and the tasks."""
        fields = spec.fields if with_labels else spec.feature_fields
        self._check_fields(fields)
        return {name: batch[name] for name in fields}

    def _check_fields(self, fields: Mapping[str, spec_lib.Field]) -> None:
        for name, field in fields.items():
            where = f"RelatedTasks field {name!r}"
            checks.one_of(where, name, ("x", *TASKS))
            checks.require(field.dtype == "float32", where, "be float32", field.dtype)
            shape = (self.dimension,) if name == "x" else ()
            fix = f"Make it {shape} in the Spec."
            checks.require(field.shape == shape, where, f"have shape {shape}", field.shape, fix)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Draw the split row by row."""
        self._check_fields(spec.fields)
        for row, values in enumerate(source.iterate(functools.partial(self.records, split))):
            found = {name: values[name].tolist() for name in spec.fields}
            yield f"RelatedTasks split {split!r} row {row}", found
