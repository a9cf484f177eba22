"""Simulates clicks of users with known interests, as data with histories.

click_stream.ClickStream.max_events = 50
pipeline.Pipeline.source = @click_stream.ClickStream()
spec.Spec.features = {"item": "int64", "clicked_items": ("int64", (None,))}
spec.Spec.labels = {"click": "int64", "purchase": "int64"}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from mtl import checks
from mtl.datasets import simulated
from mtl.deferred import tf

FIELDS: Mapping[str, tuple[str, tuple[int | None, ...]]] = {
    "session": ("int64", ()),
    "item": ("int64", ()),
    "category": ("int64", ()),
    "now": ("int64", ()),
    "clicked_items": ("int64", (None,)),
    "clicked_categories": ("int64", (None,)),
    "clicked_times": ("int64", (None,)),
    "click": ("int64", ()),
    "purchase": ("int64", ()),
    "click_probability": ("float32", ()),
    "purchase_probability": ("float32", ()),
}
# The number of random parts of a row; each part has a separate seed.
_DRAWS = 16
_RECENT = 3
_SECONDS = 3600.0


@checks.dataclass
class ClickStream(simulated.Simulated):
    """Simulates rows with an item that is shown to a user, and the earlier clicks of the user.

    Item i has category i mod `categories`. A user is interested in `interests` categories. A
    history has up to `max_events` clicked items. A share `noise` of the clicked items has a random
    category, and the other clicked items have one of the user's categories. About half of the shown
    items have a random category, and the other shown items have one of the user's categories. Let n
    be the number of clicked items with the category of the shown item. Let r be 1 if one of the
    last 3 clicked items has the category of the shown item, and 0 otherwise:

        P(click) = sigmoid(-1.5 + 1.2 log(1 + n))
        P(purchase) = sigmoid(-2.5 + 0.4 log(1 + n) + 2.5 r)

    So the mean of all events in a history says little, because only events with the category of the
    shown item matter. The mean time between two clicks is an hour. A session shows `shown` items to
    a user, in consecutive rows. Each user has a hidden tendency to click, which is added to the
    arguments of the sigmoids of click and purchase. A row depends only on the seed, the split and
    the row number, so a larger split starts with the rows of a smaller split.

    The fields are session, item, category and now; the lists clicked_items, clicked_categories and
    clicked_times, with the latest click at the end; the labels click and purchase; and the true
    probabilities of the labels, click_probability and purchase_probability.

    Attributes:
      items: the number of items, at least `categories`.
      categories: the number of categories of items.
      interests: the number of categories that interest a user, at most `categories`.
      max_events: the largest length of a history; lengths are uniform from 0 to `max_events`.
      noise: the share of clicked items with a random category, in [0, 1].
      rows: {split: number of rows} for the splits "train", "validation" and "test".
      shown: the number of items in a session; the last session of each 1000 rows may be shorter.
      popularity: the exponent of the item distribution, at least 1. The rank of an item in its
        category is u^popularity times the number of items, with u uniform in [0, 1). 1 makes all
        items equally likely; larger numbers favour the first items.
      spread: the standard deviation of the users' tendencies to click, at least 0.
      seed: the seed of all draws, at least 0.
    """

    items: int = 2000
    categories: checks.Count = 50
    interests: checks.Count = 3
    max_events: checks.Count = 50
    noise: Annotated[float, checks.In("[0, 1]")] = 0.2
    rows: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {"train": 100_000, "validation": 20_000, "test": 20_000}
    )
    shown: checks.Count = 1
    popularity: Annotated[float, checks.AtLeast(1)] = 1.0
    spread: checks.NotNegative = 0.0
    seed: checks.Natural = 0

    def __post_init__(self):
        where = "ClickStream"
        checks.whole(f"{where}.items", self.items, self.categories)
        rule = f"be at most {self.categories}, the categories"
        fits = self.interests <= self.categories
        checks.require(fits, f"{where}.interests", rule, self.interests)
        self.check_rows()

    @property
    def fields(self) -> Mapping[str, tuple[str, tuple[int | None, ...]]]:
        """{field: (type, shape)}."""
        return FIELDS

    def draw(self, split: int, part: tf.Tensor) -> dict[str, Any]:
        """Draw a part of a split; see `Simulated.draw`."""
        first = _DRAWS * (len(simulated.SPLITS) * self.seed + split)
        seeds = iter([(first + draw, part) for draw in range(_DRAWS)])
        rows, places = simulated.ROWS_TOGETHER, self.max_events

        def uniform(*shape: int) -> tf.Tensor:
            return tf.random.stateless_uniform([rows, *shape], next(seeds), dtype=tf.float32)

        def whole(count: int, *shape: int) -> tf.Tensor:
            # By rounding, a product with a number below 1 may equal `count`.
            return tf.minimum(tf.cast(uniform(*shape) * count, tf.int64), count - 1)

        def choose(interests: tf.Tensor, share: float, *shape: int) -> tf.Tensor:
            """Draw categories: a share is random, and the others are interests of the user."""
            favourites = tf.gather(interests, whole(self.interests, *shape), batch_dims=1)
            return tf.where(uniform(*shape) < share, whole(self.categories, *shape), favourites)

        numbers = tf.range(rows)
        firsts = numbers - numbers % self.shown  # The first row of each session.

        def of_user(values: tf.Tensor) -> tf.Tensor:
            return values if self.shown == 1 else tf.gather(values, firsts)

        ranks = tf.random.stateless_uniform([rows, self.categories], next(seeds))
        interests = of_user(tf.cast(tf.math.top_k(ranks, self.interests).indices, tf.int64))
        category = choose(interests, 0.5, 1)
        clicked = of_user(choose(interests, self.noise, places))
        length = of_user(whole(places + 1, 1))
        is_event = tf.range(places, dtype=tf.int64) < length
        is_recent = is_event & (tf.range(places, dtype=tf.int64) >= length - _RECENT)
        is_same = tf.equal(clicked, category)
        count = tf.reduce_sum(tf.cast(is_same & is_event, tf.float32), 1)
        recent = tf.cast(tf.reduce_any(is_same & is_recent, 1), tf.float32)
        thresholds = uniform(2)
        now = 1_700_000_000 + 1000 * tf.cast(part, tf.int64) + of_user(whole(1000))
        # Exponential waiting times with a mean of an hour. 1 - u is never 0.
        gaps = of_user(-_SECONDS * tf.math.log(1 - uniform(places)))
        # The time from an event to now is the sum of the gaps that follow the event.
        ages = tf.cumsum(tf.where(is_event, gaps, tf.zeros_like(gaps)), axis=1, reverse=True)
        lists = {
            "clicked_items": of_user(self._choose_items(clicked, uniform(places))),
            "clicked_categories": clicked,
            "clicked_times": now[:, tf.newaxis] - tf.cast(ages, tf.int64),
        }
        item = self._choose_items(category, uniform(1))[:, 0]
        tendency = self.spread * of_user(tf.random.stateless_normal([rows], next(seeds)))
        click = tf.sigmoid(1.2 * tf.math.log1p(count) - 1.5 + tendency)
        purchase = tf.sigmoid(0.4 * tf.math.log1p(count) + 2.5 * recent - 2.5 + tendency)
        return {
            "session": rows * tf.cast(part, tf.int64) + tf.cast(firsts, tf.int64),
            "item": item,
            "category": category[:, 0],
            "now": now,
            "click": tf.cast(thresholds[:, 0] < click, tf.int64),
            "purchase": tf.cast(thresholds[:, 1] < purchase, tf.int64),
            "click_probability": click,
            "purchase_probability": purchase,
            **{name: tf.RaggedTensor.from_tensor(v, length[:, 0]) for name, v in lists.items()},
        }

    def _choose_items(self, categories: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
        """Draw an item of each category, by random numbers in [0, 1) of the same shape."""
        shares = uniform**self.popularity if self.popularity > 1 else uniform
        # Category c has the items c, c + categories, c + 2 categories, ...
        num_items = tf.cast((self.items - 1 - categories) // self.categories + 1, tf.float32)
        rank = tf.minimum(tf.floor(shares * num_items), num_items - 1)
        return categories + self.categories * tf.cast(rank, tf.int64)
