"""Made-up impressions of which some are clicked and bought, with known probabilities.

funnel.Funnel.relatedness = 0.5
pipeline.Pipeline.source = @funnel.Funnel()
spec.Spec.features = {"x": ("float32", (8,)), "market": "string"}
spec.Spec.labels = {"click": "int64", "cart": "int64", "order": "int64", "seconds": "float32"}
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

SPLITS = ("train", "validation", "test")
MARKETS = ("DE", "FR", "US")
_SHARES = (0.5, 0.3, 0.2)
_OFFSETS = (0.0, 0.5, -0.5)
# Rows that are drawn together: one by one costs a hundred times as much.
_ROWS_TOGETHER = 1000
_DRAWS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Funnel(types.Source):
    """Impressions, clicks, carts and orders, of which each comes after the one before.

    With x [D] standard normal, two unit vectors u and v whose product is `relatedness`, a = u'x,
    b = v'x, and m the offset of the market (DE 0, FR 0.5, US -0.5):

        P(click) = sigmoid(click_bias + 1.5 a + m)
        P(cart | click) = sigmoid(b - m)
        P(order | click, cart) = sigmoid(b - bend a^2 + 0.5)
        P(order | click, no cart) = sigmoid(b - bend a^2 - 1.5)
        seconds = 0 without a click; after it exponential, with a mean of 10 exp(b / 2)

    Clicks choose impressions of a high a, where orders fall with a; among all impressions they rise
    up to a = 0. A model that is no curve in a learns of the clicked ones what is wrong of the
    others. `order_probability` is P(order | click) of every impression, clicked or not, and
    `would_order` is drawn by it: what an order would have been after a click, which nobody sees.

    Every row depends on the seed, the split and its number alone: a larger split starts with the
    rows of a smaller one. The vectors depend on the seed and the dimension.

    Fields: x and market; the labels click, cart, order (0 without a click) and seconds; and beside
    them click_probability, order_probability, expected_seconds (of an impression) and would_order.

    Attributes:
      relatedness: of clicks and orders, in [-1, 1].
      dimension: D, at least 2.
      click_bias: the log-odds of a click where all else is 0; -3 gives one in ten or so.
      bend: how fast orders fall as a leaves 0, at least 0.
      rows: {split: how many rows it has}, of the splits "train", "validation" and "test".
      seed: of vectors, inputs and labels, from 0 on.
    """

    relatedness: float = 0.3
    dimension: int = 8
    click_bias: float = -3.0
    bend: float = 0.5
    rows: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {"train": 100_000, "validation": 20_000, "test": 20_000}
    )
    seed: int = 0

    def __post_init__(self):
        where = "Funnel"
        checks.number(f"{where}.relatedness", self.relatedness, "be a number in [-1, 1]")
        fits = -1 <= self.relatedness <= 1
        checks.require(fits, f"{where}.relatedness", "be in [-1, 1]", self.relatedness)
        checks.whole(f"{where}.dimension", self.dimension, 2)
        checks.whole(f"{where}.seed", self.seed, 0)
        checks.number(f"{where}.click_bias", self.click_bias)
        checks.at_least(f"{where}.bend", self.bend, 0)
        checks.mapping(f"{where}.rows", self.rows, "map splits to their number of rows")
        for split, rows in self.rows.items():
            checks.one_of(f"{where}.rows", split, SPLITS)
            checks.whole(f"{where}.rows[{split!r}]", rows, 1)

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        """The unit vectors u and v, [D, 2]."""
        drawn = np.random.default_rng(self.seed).normal(size=[self.dimension, 2])
        first, second = np.linalg.qr(drawn)[0].T
        rest = math.sqrt(1 - self.relatedness**2)
        return np.stack([first, self.relatedness * first + rest * second], axis=1)

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """{field: its type and its shape}."""
        whole, number = ("int64", ()), ("float32", ())
        return {
            "x": ("float32", (self.dimension,)),
            "market": ("string", ()),
            **dict.fromkeys(("click", "cart", "order", "would_order"), whole),
            **dict.fromkeys(("seconds", "expected_seconds"), number),
            **dict.fromkeys(("click_probability", "order_probability"), number),
        }

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split as {field: [D], or scalar}."""
        checks.one_of("Funnel split", split, self.rows)
        rows, number = self.rows[split], SPLITS.index(split)
        parts = tf.data.Dataset.range(math.ceil(rows / _ROWS_TOGETHER))
        return parts.map(functools.partial(self._draw, number)).unbatch().take(rows)

    def _draw(self, split: int, part: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return rows that are drawn together, of a split by its number."""
        first = _DRAWS * (len(SPLITS) * self.seed + split)
        seeds = iter([(first + draw, part) for draw in range(_DRAWS)])
        x = tf.random.stateless_normal([_ROWS_TOGETHER, self.dimension], next(seeds))
        of_market, drawn, waits = (
            tf.random.stateless_uniform([_ROWS_TOGETHER, count], next(seeds)) for count in (1, 3, 1)
        )
        ends = tf.constant(np.cumsum(_SHARES[:-1]), tf.float32)
        market = tf.reduce_sum(tf.cast(of_market >= ends, tf.int32), axis=1)
        offset = tf.gather(tf.constant(_OFFSETS), market)
        a, b = tf.unstack(tf.linalg.matmul(x, tf.constant(self.vectors, tf.float32)), axis=1)
        click = tf.sigmoid(self.click_bias + 1.5 * a + offset)
        cart = tf.sigmoid(b - offset)
        with_cart, without = (tf.sigmoid(b - self.bend * a**2 + bias) for bias in (0.5, -1.5))
        mean = 10.0 * tf.exp(b / 2)
        clicks, carts = drawn[:, 0] < click, drawn[:, 1] < cart
        orders = drawn[:, 2] < tf.where(carts, with_cart, without)
        seconds = -mean * tf.math.log(1 - waits[:, 0])
        return {
            "x": x,
            "market": tf.gather(tf.constant(MARKETS), market),
            "click": tf.cast(clicks, tf.int64),
            "cart": tf.cast(clicks & carts, tf.int64),
            "order": tf.cast(clicks & orders, tf.int64),
            "would_order": tf.cast(orders, tf.int64),
            "seconds": tf.where(clicks, seconds, tf.zeros_like(seconds)),
            "expected_seconds": click * mean,
            "click_probability": click,
            "order_probability": cart * with_cart + (1 - cart) * without,
        }

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, tf.Tensor]:
        """Decode a batch: the fields of the specification."""
        fields = spec.fields if with_labels else spec.feature_fields
        self._check_fields(fields)
        return {name: batch[name] for name in fields}

    def _check_fields(self, fields: Mapping[str, spec_lib.Field]) -> None:
        for name, field in fields.items():
            where = f"Funnel field {name!r}"
            checks.one_of(where, name, self.fields)
            dtype, shape = self.fields[name]
            checks.require(field.dtype == dtype, where, f"be {dtype}", field.dtype)
            fix = f"Make it {shape} in the Spec."
            checks.require(field.shape == shape, where, f"have shape {shape}", field.shape, fix)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Draw the split row by row."""
        self._check_fields(spec.fields)
        for row, values in enumerate(source.iterate(functools.partial(self.records, split))):
            found = {name: np.asarray(values[name]).tolist() for name in spec.fields}
            yield f"Funnel split {split!r} row {row}", found
