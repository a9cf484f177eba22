"""Tables that grow: a key gets a row of its own while the model trains, and may lose it again.

features.Growing.names = ["item", "last_item"]
features.Growing.table = "items"                         # one table for both
features.Growing.capacity = 1_000_000
features.Growing.eviction = "age"                        # of a full table the stalest key goes
"""

import dataclasses

import tensorflow as tf

from mtl import checks, types
from mtl.features import column, growth, key_table, tables

tf1 = tf.compat.v1

EVICTIONS = ("age", "count", "norm")
# A table of so many rows or more is a mistake: their numbers no longer fit an int32 of an op.
_MAX_CAPACITY = 2**31 - 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Growing(tables.Ids):
    """Strings or integers, each with a row of its own once it has come: [B], [B, n], [B, (L)].

    Nothing is fitted before training, and no two keys share a row. A key that a training step sees
    for the first time counts as unknown in that step, and has a row from the next one on. The empty
    string, an empty cell of a CSV file too, stays unknown. Evaluation, prediction and exports know
    the keys that the checkpoint holds, and count all others as unknown.

    Attributes:
      names: the fields; each has its own table.
      capacity: the most keys that a table holds, rounded up to a multiple of 8. A run that goes on
        may have a larger one.
      min_count: how often a key must have come to get a row. Keys without one are counted in a
        sketch of `4 capacity` numbers (Cormode and Muthukrishnan, "Count-Min Sketch", 2005), which
        may let a key in too early, and never too late.
      admission_rate: in (0, 1]: the probability that a key gets a row, each time that it comes.
      eviction: which key gives its row to a new one that finds its places taken: the one that has
        not come for longest ("age"), the one that came least often, if not more often than the new
        one ("count"), or the one whose vector is the shortest ("norm"); never one of the batch.
        Weights and optimizer state of the row start anew. None evicts nothing: the new one stays
        unknown.
      num_unknown: rows for unknown keys, which a hash spreads over them.
      dimension: of the embedding.
      pooling: of fields with several values: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's first values, drawn from a normal
        distribution that is cut off at two of them; above 0, None for `dimension ** -0.5`.
      storage: the type of the table's numbers, "float32" or "bfloat16", which takes half as much.
      prefix: starts the column's name, `<prefix>_<field>`.
      table: the name of a table that all columns share that name it, in `features/<table>`. None
        gives each field its own.
    """

    capacity: int
    min_count: int = 1
    admission_rate: float = 1.0
    eviction: str | None = None
    num_unknown: int = 1
    prefix: str = "growing"

    step_extension = growth.Growth

    _of_table = ("capacity", "min_count", "admission_rate", "eviction", "num_unknown")

    def __post_init__(self):
        super().__post_init__()
        rule = "be a whole number: what grows is an embedding"
        checks.is_a("Growing.dimension", self.dimension, int, rule)
        checks.whole("Growing.capacity", self.capacity, key_table.PLACES)
        rule = f"be at most {_MAX_CAPACITY:,}"
        checks.require(self.capacity <= _MAX_CAPACITY, "Growing.capacity", rule, self.capacity)
        checks.whole("Growing.min_count", self.min_count, 1)
        where, rate = "Growing.admission_rate", self.admission_rate
        checks.number(where, rate, "be a number in (0, 1]")
        checks.require(0 < rate <= 1, where, "be in (0, 1]", rate)
        if self.eviction is not None:
            checks.one_of("Growing.eviction", self.eviction, EVICTIONS)
        checks.whole("Growing.num_unknown", self.num_unknown, 1)

    @property
    def num_buckets(self) -> int:
        """The number of buckets of 8 rows."""
        return -(-self.capacity // key_table.PLACES)

    @property
    def num_rows(self) -> int:
        """The number of rows that keys may have; those of the unknown come behind them."""
        return self.num_buckets * key_table.PLACES

    @property
    def tables(self) -> dict[str, "Growing"]:
        """{table, or column: this part}."""
        return {self._name(output): self for output in self.columns}

    def keys(self, features: types.Tensors) -> dict[str, tf.Tensor]:
        """Return what a batch looks up: {field: [B, ...]} -> {table: keys [N]}."""
        found: dict[str, list[tf.Tensor]] = {}
        for output, (field,) in self.columns.items():
            tokens = column.flat(column.tokens("Growing", features, field))
            found.setdefault(self._name(output), []).append(key_table.make_keys(tokens))
        return {table: tf.concat(keys, 0) for table, keys in found.items()}

    def create_keys(self) -> tf.Variable:
        """Return the variable of the keys by row, in the scope of the table."""
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
        """Return rows of tokens [...], of unknown ones behind those of the keys."""
        keys = key_table.make_keys(tf.reshape(tokens, [-1]))
        rows, is_known = key_table.find_rows(table, keys)
        ids = tf.where(is_known, rows, self.num_rows + keys % self.num_unknown)
        return tf.reshape(ids, tf.shape(tokens))
