"""A column that stores the vectors of many fields in one hashed table of fixed size.

features.Unified.names = ["item", "user", "city"]
features.Unified.num_buckets = 100_000
features.Unified.num_lookups = 2
"""

from __future__ import annotations

import hashlib
from typing import Annotated, cast

from mtl import checks, layers, types
from mtl.deferred import tf
from mtl.features import column, embeddings, tables
from mtl.variables import row_names as row_names_lib


@checks.dataclass
class Unified(tables.Ids):
    """Hashes strings or integers into a table that several fields share: [B, ...] -> [B, k D].

    B. Coleman et al., "Unified Embedding: Battle-Tested Feature Representations for Web-Scale ML
    Systems", 2023, arXiv:2305.12102: for each value, hash functions that depend on the field choose
    `num_lookups` = k rows, and the vector of the value concatenates these rows. Values of different
    fields share rows only by chance. The network can distinguish the fields, because the input of
    each field has separate weights. Thus `num_buckets` alone determines the memory for all fields.
    Use more lookups for a field with many values.

    Each row of the table stands for several values.

    Attributes:
      names: the names of the fields that share the table.
      num_buckets: the number of rows of the table.
      num_lookups: the number of rows for each value, k, which may differ between columns with a
        common table.
      dimension: the length of a row, D; the output has `num_lookups` times this width.
      pooling: how the vectors of several values in a row are combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the table's initial values, above 0; None means
        `dimension ** -0.5`. The initial values come from a normal distribution that is truncated at
        two standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16", which halves the memory.
      prefix: the start of the column's name, `<prefix>_<field>`.
      table: the name of the table, `features/<table>/embedding`; None gives each field a separate
        table.
      salt: a text that replaces the column's name in the hash functions. Columns with equal salts
        give equal values the same rows, for example a shown item and the items of a history.
    """

    num_buckets: Annotated[int, checks.AtLeast(2)]
    num_lookups: checks.Count = 2
    prefix: str = "unified"
    table: str | None = "unified"
    salt: str | None = None

    _of_table = ("num_buckets",)

    def __post_init__(self):
        checks.whole("Unified.dimension", self.dimension, 1)
        super().__post_init__()

    def row_names(self, fitted: types.Statistics) -> dict[str, types.RowNames]:
        """Return {table: names of its rows}; the names are the salts of the columns."""
        del fitted
        row_names: dict[str, types.RowNames] = {}
        for output in self.columns:
            salt = output if self.salt is None else self.salt
            names = types.RowNames(names=(salt,), axis=0, are_grouped=True, are_a_set=True)
            row_names = row_names_lib.join(row_names, {self._name(output): names})
        return row_names

    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        tokens = column.tokens("Unified", features, field)
        dimension = cast(int, self.dimension)  # `__post_init__` refuses all other types.
        width = dimension * self.num_lookups
        key = _make_key(output if self.salt is None else self.salt)

        def look_up(token_part: tf.Tensor) -> tf.Tensor:
            rows = embeddings.hash_tokens(token_part, self.num_buckets, self.num_lookups, key)
            stddev = self.initial_stddev
            vectors = layers.embedding(rows, self.num_buckets, dimension, stddev=stddev)
            return embeddings.split_last(vectors, token_part, width)

        with self._store():
            return column.embed(tokens, look_up, width, self.pooling)


def _make_key(text: str) -> int:
    """Hash a text to a number in [0, 2^63) that is the same on every machine."""
    # Python's `hash` of a text differs between processes.
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
