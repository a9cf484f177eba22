"""Embedding tables that grow in training: keys get rows when they occur, and may lose the rows.

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
# A larger capacity is an error, because some ops have row numbers in int32.
_MAX_CAPACITY = 2**31 - 2**20


@checks.dataclass
class Growing(tables.Ids):
    """Gives each new string or integer a separate row: fields [B], [B, n] or [B, (L)] -> [B, D].

    Nothing is fitted before training, and keys never share a row. In the training step in which a
    key first occurs, the key counts as unknown; from the next step on, the key has a row. The empty
    string, such as an empty cell of a CSV file, is always unknown. Evaluation, prediction and
    exports use the keys of the checkpoint, and treat all other keys as unknown.

    Attributes:
      names: the fields; each field has a separate table.
      capacity: the largest number of keys in a table, rounded up to a multiple of 8. A continued
        run may raise the capacity.
      min_count: the number of occurrences after which a key gets a row. A sketch of `4 capacity`
        counters counts keys without a row (Cormode and Muthukrishnan, "Count-Min Sketch", 2005). As
        keys can share counters, a key may get a row too early, but never too late, unless a
        continued run raises the capacity: then all counts start at 0.
      admission_rate: the probability, at each occurrence of a new key, that the key gets a row, in
        (0, 1].
      eviction: the rule that selects the key to remove if a new key finds no free row. The rule
        "age" removes the key that has not occurred for the longest time. The rule "count" removes
        the key with the fewest occurrences, unless this key has more occurrences than the new key.
        The rule "norm" removes the key with the shortest vector. Keys of the current batch are
        never removed. The weights and the optimizer state of the removed key's row are reset.
        Without a rule (None), no key is removed, so the new key stays unknown.
      num_unknown: the number of rows for unknown keys; a hash chooses one of these rows.
      dimension: the length of the embedding's vectors.
      pooling: how the vectors of several values in a row are combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's initial values, above 0; None means
        `dimension ** -0.5`. The initial values come from a normal distribution that is truncated at
        two standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16", which halves the memory.
      prefix: the start of the column's name, `<prefix>_<field>`.
      table: the name of a table, in `features/<table>`. Columns with equal table names share the
        table. Without a name (None), each field gets a separate table.
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
        """The number of rows for known keys; the rows behind them are for unknown keys."""
        return self.num_buckets * key_table.PLACES

    @property
    def tables(self) -> dict[str, Growing]:
        """The tables of the columns, {name of a table: this column object}."""
        return {self._name(output): self for output in self.columns}

    def keys(self, features: types.Tensors) -> dict[str, tf.Tensor]:
        """Return the keys in a batch {field: [B, ...]} by table, {table: keys [N]}."""
        keys_by_table: dict[str, list[tf.Tensor]] = {}
        for output, (field,) in self.columns.items():
            tokens = column.flat(column.tokens("Growing", features, field))
            keys_by_table.setdefault(self._name(output), []).append(key_table.make_keys(tokens))
        return {table: tf.concat(keys, 0) for table, keys in keys_by_table.items()}

    def create_keys(self) -> tf.Variable:
        """Return the variable that holds the key of each row, in the scope of the table."""
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
        """Return the rows of tokens [...]; the rows of unknown tokens follow the rows of keys."""
        keys = key_table.make_keys(tf.reshape(tokens, [-1]))
        rows, is_known = key_table.find_rows(table, keys)
        # Keys are hashes, so their remainders spread unknown keys evenly.
        ids = tf.where(is_known, rows, self.num_rows + keys % self.num_unknown)
        return tf.reshape(ids, tf.shape(tokens))
