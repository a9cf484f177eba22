"""Simulates impressions, clicks and orders with known probabilities.

funnel.Funnel.relatedness = 0.5
pipeline.Pipeline.source = @funnel.Funnel()
spec.Spec.features = {"x": ("float32", (8,)), "market": "string"}
spec.Spec.labels = {"click": "int64", "cart": "int64", "order": "int64", "seconds": "float32"}
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

MARKETS = ("DE", "FR", "US")
_SHARES = (0.5, 0.3, 0.2)
_OFFSETS = (0.0, 0.5, -0.5)
_DRAWS = 4


@checks.dataclass
class Funnel(simulated.Simulated):
    """Simulates impressions, which may lead to clicks, and clicks, which may lead to orders.

    x [D] is standard normal. u and v are unit vectors with the dot product `relatedness`, a = u'x,
    b = v'x, and m is the offset of the market (DE 0, FR 0.5, US -0.5):

        P(click) = sigmoid(click_bias + 1.5 a + m)
        P(cart | click) = sigmoid(b - m)
        P(order | click, cart) = sigmoid(b - bend a^2 + 0.5)
        P(order | click, no cart) = sigmoid(b - bend a^2 - 1.5)
        seconds = 0 without a click; after it exponential, with a mean of 10 exp(b / 2)

    Clicked rows mostly have a large a = u'x, and where a is large, orders become rarer as a grows.
    Where a = u'x is negative, orders become more frequent as a grows. A model of orders that is
    linear in a = u'x, and that learns from clicked rows only, therefore gets a slope that is wrong
    for rows without a click. `order_probability` is P(order | click) for every impression, clicked
    or not. `would_order` is drawn with the probability `order_probability`: a 1 means that a click
    would lead to an order, even if nobody clicked.

    A row depends only on the seed, the split and the row number, so a larger split starts with the
    rows of a smaller split. The unit vectors u and v depend only on `seed`, `dimension` and
    `relatedness`.

    The fields are x and market; the labels click, cart, order (0 without a click) and seconds; and,
    to check models, click_probability, order_probability, expected_seconds (of an impression) and
    would_order.

    Attributes:
      relatedness: the dot product u'v of the directions for clicks and orders, in [-1, 1].
      dimension: D, at least 2.
      click_bias: the log-odds of a click if all else is 0; -3 gives about one click in ten.
      bend: the factor of -a^2 in the log-odds of an order, at least 0.
      rows: {split: number of rows} for the splits "train", "validation" and "test".
      seed: the seed of vectors, inputs and labels, at least 0.
    """

    relatedness: Annotated[float, checks.In("[-1, 1]")] = 0.3
    dimension: Annotated[int, checks.AtLeast(2)] = 8
    click_bias: Annotated[float, checks.number] = -3.0
    bend: checks.NotNegative = 0.5
    rows: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {"train": 100_000, "validation": 20_000, "test": 20_000}
    )
    seed: checks.Natural = 0

    def __post_init__(self):
        self.check_rows()

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        """The unit vectors u and v, [D, 2]."""
        return simulated.draw_directions(self.seed, self.dimension, self.relatedness)

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """{field: (type, shape)}."""
        whole, number = ("int64", ()), ("float32", ())
        return {
            "x": ("float32", (self.dimension,)),
            "market": ("string", ()),
            **dict.fromkeys(("click", "cart", "order", "would_order"), whole),
            **dict.fromkeys(("seconds", "expected_seconds"), number),
            **dict.fromkeys(("click_probability", "order_probability"), number),
        }

    def draw(self, split: int, part: tf.Tensor) -> dict[str, tf.Tensor]:
        """Draw a part of a split; see `Simulated.draw`."""
        first = _DRAWS * (len(simulated.SPLITS) * self.seed + split)
        seeds = iter([(first + draw, part) for draw in range(_DRAWS)])
        x = tf.random.stateless_normal([simulated.ROWS_TOGETHER, self.dimension], next(seeds))
        of_market, thresholds, waits = (
            tf.random.stateless_uniform([simulated.ROWS_TOGETHER, count], next(seeds))
            for count in (1, 3, 1)
        )
        ends = tf.constant(np.cumsum(_SHARES[:-1]), tf.float32)
        market = tf.reduce_sum(tf.cast(of_market >= ends, tf.int32), axis=1)
        offset = tf.gather(tf.constant(_OFFSETS), market)
        a, b = tf.unstack(tf.linalg.matmul(x, tf.constant(self.vectors, tf.float32)), axis=1)
        click = tf.sigmoid(self.click_bias + 1.5 * a + offset)
        cart = tf.sigmoid(b - offset)
        with_cart, without = (tf.sigmoid(b - self.bend * a**2 + bias) for bias in (0.5, -1.5))
        mean = 10.0 * tf.exp(b / 2)
        clicks, carts = thresholds[:, 0] < click, thresholds[:, 1] < cart
        orders = thresholds[:, 2] < tf.where(carts, with_cart, without)
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
