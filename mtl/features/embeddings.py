"""Embedding tables that save memory by fewer rows than ids, or by shorter rows for rare ids.

features.Hashed.num_buckets = 10_000_000                 # ids, many more than the table has rows
features.Hashed.embedding = @embeddings.QuotientRemainder()

features.Hashed.embedding = @embeddings.MultiHash()
embeddings.MultiHash.num_buckets = 50_000

features.Categorical.embedding = @embeddings.MixedDimensions()
embeddings.MixedDimensions.ends = [1000, 10_000]

Gradients are sparse, so the cost of a step depends only on the number of rows that the step looks
up.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1

MULTIPLY, ADD, CONCAT = "multiply", "add", "concat"
# The key of the hash functions, which other hashes of the same ids do not use.
_KEY = 0x6D75_6C74_6968_6173


@checks.dataclass
class QuotientRemainder(types.Embedding):
    """Computes `quotient[i // m] * remainder[i % m]` for id i, from two small tables.

    H.-J. M. Shi et al., "Compositional Embeddings Using Complementary Partitions for
    Memory-Efficient Recommendation Systems", 2019, arXiv:1909.02107: `size / m + m` rows serve
    `size` ids. Each id has one row in each of two tables; two ids never share both rows, but many
    ids share one row. Since several tokens share each row of a table, a warm start does not match
    rows by token.

    The tables are `features/<column>/quotient` and `features/<column>/remainder`. The initial
    vectors of ids have the same standard deviation as in a table with a row for each id.

    Attributes:
      num_remainders: `m`, the number of rows of `remainder`, at least 2 and below the number of
        ids. By default, `m` is the square root of the number of ids, which gives the smallest
        tables.
      combine: "multiply", "add", or "concat", which joins two vectors of half the dimension.
    """

    num_remainders: Annotated[int, checks.AtLeast(2)] | None = None
    combine: Annotated[str, checks.OneOf((MULTIPLY, ADD, CONCAT))] = MULTIPLY

    def __call__(self, ids: tf.Tensor, table: types.Table) -> tf.Tensor:
        """Look up ids [...] of a table; return vectors, [..., D].

        Raises:
          UserError: there are fewer ids than remainders, or "concat" gets an odd dimension.
        """
        scope = tf1.get_variable_scope().name
        # By default, the number of remainders is the square root of the number of ids, rounded up.
        remainders = self.num_remainders or math.isqrt(table.size - 1) + 1
        rule = f"be below {table.size}, the ids of {scope}"
        # The default of `num_remainders` is not checked, because for 1 or 2 ids the default equals
        # the number of ids.
        fits = self.num_remainders is None or remainders < table.size
        checks.require(fits, "QuotientRemainder.num_remainders", rule, remainders)
        dimension, stddev = self._share_of(table, scope)
        # Round up, because the last quotient may have fewer ids than the others.
        quotients = -(-table.size // remainders)
        first = layers.embedding(ids // remainders, quotients, dimension, "quotient", stddev)
        second = layers.embedding(ids % remainders, remainders, dimension, "remainder", stddev)
        if self.combine == CONCAT:
            return tf.concat([first, second], axis=-1)
        return first * second if self.combine == MULTIPLY else first + second

    def _share_of(self, table: types.Table, scope: str) -> tuple[int, float]:
        """Return size and initial standard deviation of rows in `quotient` and `remainder`."""
        stddev = table.first_deviation
        if self.combine == CONCAT:
            fix = "It joins two halves."
            rule = f"have an even dimension under {CONCAT!r}"
            checks.require(table.dimension % 2 == 0, scope, rule, table.dimension, fix)
            return table.dimension // 2, stddev
        # Standard deviations of independent factors multiply, and variances of summands add up.
        return table.dimension, stddev**0.5 if self.combine == MULTIPLY else stddev / 2**0.5


@checks.dataclass
class MultiHash(types.Embedding):
    """Adds up several rows of one table, which hashes of the id choose.

    D. Svenstrup, J. M. Hansen, O. Winther, "Hash Embeddings for Efficient Word Representations",
    2017, arXiv:1709.03933. Unlike in the paper, ids have no importance weights, which would take a
    row for each id. Two ids rarely share all rows, because two hashes can choose about
    `num_buckets ** 2 / 2` different pairs of rows. Since several tokens share each row of a table,
    a warm start does not match rows by token.

    The table is `features/<column>/embedding`. The initial vectors of ids have the same standard
    deviation as in a table with a row for each id.

    Attributes:
      num_buckets: the number of rows of the table, at least 2.
      num_hashes: the number of rows that are added up for an id, at least 2.
    """

    num_buckets: Annotated[int, checks.AtLeast(2)]
    num_hashes: Annotated[int, checks.AtLeast(2)] = 2

    def __call__(self, ids: tf.Tensor, table: types.Table) -> tf.Tensor:
        """Look up ids [...] of a table; return vectors, [..., D]."""
        rows = hash_tokens(tf.strings.as_string(ids), self.num_buckets, self.num_hashes, _KEY)
        # Scale the rows, so that their sum has the initial standard deviation of a plain table.
        stddev = table.first_deviation / self.num_hashes**0.5
        vectors = layers.embedding(rows, self.num_buckets, table.dimension, stddev=stddev)
        return tf.reduce_sum(vectors, axis=-2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedDimensions(types.Embedding):
    """Gives frequent ids long rows, and rare ids short rows that a matrix projects to full length.

    A. Ginart et al., "Mixed Dimension Embeddings with Application to Memory-Efficient
    Recommendation Systems", 2019, arXiv:1909.11810: ids of similar frequency form a block. Let p be
    the mean frequency of a block's ids in the training split, and p_0 the mean frequency in block
    0, which holds the most frequent ids. A block has the dimension
    `round(dimension * (p / p_0) ** temperature)`, at least 1, for the mean frequency p of its ids.
    A matrix projects the rows of a block to the full dimension, unless the block already has this
    dimension.

    Only `Categorical` columns can use this embedding, because their ids are sorted by descending
    frequency, or in the order of the vocabulary in the settings. The last block also holds the
    unknown categories.

    The variables are `block_<n>/embedding` and `projection_<n>` in `features/<column>`. A warm
    start copies the row of a token only if the token is in the same block; otherwise the row starts
    from a random vector.

    Attributes:
      ends: the ascending ranks, from 1 on, at which blocks end. With `ends = [100, 1000]`, the
        first block has the 100 most frequent ids, the second block the next 900 ids, and the last
        block all other ids.
      dimensions: the dimension of each block, from 1 to the dimension of the column; one entry more
        than in `ends`. By default, the dimensions follow from `temperature`; the vocabulary must
        then be learned from the training split.
      temperature: the exponent of the relative frequency of a block, in [0, 1]; 0 gives all blocks
        the full dimension, and 1 makes the dimension proportional to the frequency.
    """

    ends: Sequence[int]
    dimensions: Sequence[int] | None = None
    temperature: float = 0.3

    def __post_init__(self):
        where = "MixedDimensions"
        checks.is_a(f"{where}.ends", self.ends, (list, tuple), "be a list of ranks")
        checks.require(len(self.ends) > 0, f"{where}.ends", "hold a rank", self.ends)
        for end in self.ends:
            checks.whole(f"{where}.ends", end, 1)
        ascends = all(low < high for low, high in itertools.pairwise(self.ends))
        checks.require(ascends, f"{where}.ends", "ascend", list(self.ends))
        checks.number(f"{where}.temperature", self.temperature)
        fits = 0 <= self.temperature <= 1
        checks.require(fits, f"{where}.temperature", "be in [0, 1]", self.temperature)
        if self.dimensions is None:
            return
        checks.is_a(f"{where}.dimensions", self.dimensions, (list, tuple), "be a list")
        for dimension in self.dimensions:
            checks.whole(f"{where}.dimensions", dimension, 1)
        rule = f"have {len(self.ends) + 1} entries, one for each block"
        fits = len(self.dimensions) == len(self.ends) + 1
        checks.require(fits, f"{where}.dimensions", rule, list(self.dimensions))

    @property
    def block_ends(self) -> Sequence[int]:
        """The ids at which the blocks of the embedding end, except for the last block."""
        return self.ends

    def __call__(self, ids: tf.Tensor, table: types.Table) -> tf.Tensor:
        """Look up ids [...] of a table; return vectors, [..., D].

        Raises:
          UserError: a block has no ids, or a larger dimension than the column.
        """
        scope = tf1.get_variable_scope().name
        rule = f"be below {table.size}, the ids of {scope}"
        checks.require(self.ends[-1] < table.size, "MixedDimensions.ends", rule, self.ends[-1])
        flat = tf.reshape(ids, [-1])
        # The block number of each id.
        block = tf.add_n([tf.cast(flat >= end, tf.int32) for end in self.ends])
        count = len(self.ends) + 1
        # Each block looks up only its ids, so that other rows get no gradient.
        parts = tf.dynamic_partition(flat, block, count)
        places = tf.dynamic_partition(tf.range(tf.size(flat)), block, count)
        firsts, widths = [0, *self.ends], self._choose_dimensions(table, scope)
        vectors = [
            self._look_up(number, part - first, last - first, width, table)
            for number, (part, first, last, width) in enumerate(
                zip(parts, firsts, [*self.ends, table.size], widths, strict=True)
            )
        ]
        # Restore the original order of the ids, [N, D].
        rows = tf.dynamic_stitch(places, vectors)
        return split_last(rows, ids, table.dimension)

    def _choose_dimensions(self, table: types.Table, scope: str) -> list[int]:
        """Return the dimension of each block."""
        where, full = "MixedDimensions.dimensions", table.dimension
        if self.dimensions is not None:
            rule = f"be at most {full}, the dimension of {scope}"
            checks.require(max(self.dimensions) <= full, where, rule, list(self.dimensions))
            return list(self.dimensions)
        fix = "The default needs counts, which only a vocabulary from the training split has."
        checks.require(bool(table.counts), where, f"be set for {scope}", None, fix)
        sizes = [b - a for a, b in itertools.pairwise([0, *self.ends, table.size])]
        means = [count / size for count, size in zip(table.counts, sizes, strict=True)]
        scales = [(mean / means[0]) ** self.temperature for mean in means]
        return [min(full, max(1, round(full * scale))) for scale in scales]

    def _look_up(
        self, number: int, ids: tf.Tensor, size: int, width: int, table: types.Table
    ) -> tf.Tensor:
        """Look up ids [N] in the table of one block; return full vectors, [N, D]."""
        with tf1.variable_scope(f"block_{number}"):
            rows = layers.embedding(ids, size, width, stddev=table.first_deviation)
        if width == table.dimension:
            return rows
        initializer = tf1.variance_scaling_initializer()
        shape = [width, table.dimension]
        return rows @ tf1.get_variable(f"projection_{number}", shape, tf.float32, initializer)


def split_last(vectors: tf.Tensor, ids: tf.Tensor, width: int) -> tf.Tensor:
    """Concatenate the k vectors of each id, from [..., k, D] to [..., k D].

    Args:
      vectors: the k vectors of each id, [..., k, D].
      ids: the ids, of any shape [...].
      width: the length of the joint vector of an id, such as k D.

    Returns:
      The joint vectors of the ids, [..., width].
    """
    rows = tf.reshape(vectors, tf.concat([tf.shape(ids), [width]], 0))
    return tf.ensure_shape(rows, [*ids.shape, width])


def hash_tokens(tokens: tf.Tensor, num_buckets: int, num_hashes: int, key: int) -> tf.Tensor:
    """Hash tokens by several independent hash functions.

    Args:
      tokens: strings of any shape [...].
      num_buckets: the number of values of a hash, from 0 to `num_buckets - 1`.
      num_hashes: the number of hashes.
      key: an int64 that selects the hash functions.

    Returns:
      int64 [..., num_hashes].
    """
    hashes = [
        tf.strings.to_hash_bucket_strong(tokens, num_buckets, [key, number])
        for number in range(num_hashes)
    ]
    return tf.stack(hashes, axis=-1)
