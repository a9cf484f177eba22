"""Tables that grow: a key gets a separate row while the model trains, and may lose it again.

features.Growing.names = ["item", "last_item"]
features.Growing.table = "items"                         # one table for both
features.Growing.capacity = 1_000_000
features.Growing.eviction = "age"                        # a full table drops the stalest key
"""

from __future__ import annotations

from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.features import column, growth, key_table, tables

EVICTIONS = ("age", "count", "norm")
# A larger table is a mistake: its row numbers no longer fit the int32 of some ops.
_MAX_CAPACITY = 2**31 - 2**20


@checks.dataclass
class Growing(tables.Ids):
    """Strings or integers that get separate rows when they first occur: [B], [B, n] or [B, (L)].

    Nothing is fitted before training, and keys never share a row. In the training step that sees a
    key for the first time, the key counts as unknown; from the next step on it has a row. The empty
    string (also an empty cell of a CSV file) stays unknown. Evaluation, prediction and exports know
    the keys of the checkpoint, and treat all others as unknown.

    Attributes:
      names: the fields; each has its own table.
      capacity: the largest number of keys in a table, rounded up to a multiple of 8. A continued
        run may raise it.
      min_count: how often a key must occur to get a row. A sketch of `4 capacity` counters counts
        keys without a row (Cormode and Muthukrishnan, "Count-Min Sketch", 2005). The sketch may
        admit a key too early, but never too late.
      admission_rate: the probability that a key gets a row at each occurrence, in (0, 1].
      eviction: which key loses its row to a new key that finds no free row. "age": the key that has
        not occurred for the longest time. "count": the key with the fewest occurrences, unless it
        has more than the new key. "norm": the key with the shortest vector. Keys of the batch keep
        their rows. Weights and optimizer state of the row start anew. None evicts no key: the new
        key stays unknown.
      num_unknown: rows for unknown keys; a hash spreads the keys over them.
      dimension: the length of the embedding's vectors.
      pooling: how a field with several values is combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's initial values, above 0; None for
        `dimension ** -0.5`. The values come from a normal distribution that is cut off at two
        standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16" in half the memory.
      prefix: starts the column's name, `<prefix>_<field>`.
      table: the name of a table, in `features/<table>`. All columns with this table name share the
        table. None gives each field a separate table.
    """

    capacity: Annotated[
        int,
        checks.AtLeast(key_table.PLACES),
        checks.AtMost(_MAX_CAPACITY),
    ]
    min_count: checks.Count = 1
    admission_rate: Annotated[float, checks.In("(0, 1]")] = 1.0
    eviction: Annotated[str, checks.OneOf(EVICTIONS)] | None = None
    num_unknown: checks.Count = 1
    prefix: str = "growing"

    _of_table = ("capacity", "min_count", "admission_rate", "eviction", "num_unknown")

    step_extension = growth.Growth

    def __post_init__(self):
        super().__post_init__()
        rule = "be a whole number, because only an embedding can grow"
        checks.is_a("Growing.dimension", self.dimension, int, rule)

    @property
    def num_buckets(self) -> int:
        """The number of buckets of 8 rows."""
        return -(-self.capacity // key_table.PLACES)

    @property
    def num_rows(self) -> int:
        """The number of rows for keys; the rows for unknown keys come behind them."""
        return self.num_buckets * key_table.PLACES

    @property
    def tables(self) -> dict[str, Growing]:
        """{table or column: this part}."""
        return {self._name(output): self for output in self.columns}

    def keys(self, features: types.Tensors) -> dict[str, tf.Tensor]:
        """Return the keys that a batch looks up: {field: [B, ...]} -> {table: keys [N]}."""
        keys_by_table: dict[str, list[tf.Tensor]] = {}
        for output, (field,) in self.columns.items():
            tokens = column.flat(column.tokens("Growing", features, field))
            keys_by_table.setdefault(self._name(output), []).append(key_table.make_keys(tokens))
        return {table: tf.concat(keys, 0) for table, keys in keys_by_table.items()}

    def create_keys(self) -> tf.Variable:
        """Return the variable with the key of each row, in the scope of the table."""
        return tf1.get_variable(
            "keys",
            [self.num_buckets, key_table.PLACES],
            tf.int64,
            tf1.zeros_initializer(),
            trainable=False,
            partitioner=None,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        tokens = column.tokens("Growing", features, field)
        ids = tf.ragged.map_flat_values(self._find_ids, tokens, self.create_keys())
        return self._look_up(output, ids, self.num_rows + self.num_unknown)

    def _find_ids(self, tokens: tf.Tensor, table: tf.Variable) -> tf.Tensor:
        """Return the rows of tokens [...]; rows of unknown tokens lie behind the rows of keys."""
        keys = key_table.make_keys(tf.reshape(tokens, [-1]))
        rows, is_known = key_table.find_rows(table, keys)
        # A key is a hash already, so its remainder spreads unknown keys evenly.
        ids = tf.where(is_known, rows, self.num_rows + keys % self.num_unknown)
        return tf.reshape(ids, tf.shape(tokens))
