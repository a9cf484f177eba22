"""Base classes of columns whose embedding tables are compact, or shared by several columns.

item/features.Hashed.names = ["item", "last_item"]
item/features.Hashed.table = "item"                      # one table for both
item/features.Hashed.embedding = @embeddings.QuotientRemainder()
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mtl import checks, types
from mtl.deferred import tf
from mtl.features import column
from mtl.step import codes

# Rows in memory store ids in 32 bits.
_MOST_IDS = 2**31


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ids(column.Lookup, column.PerField):
    """The base class of columns of ids, which may share a table with other columns.

    Attributes:
      table: the name of a table, in `features/<table>`. Columns with equal table names share the
        table. Without a name (None), each field gets a separate table.
    """

    table: str | None = None

    def __post_init__(self):
        super().__post_init__()
        self._check_lookup()
        if self.table is not None:
            where = f"{type(self).__name__}.table"
            checks.scope_name(where, self.table)
            rule = f"be None if {type(self).__name__}.dimension is None"
            checks.require(self.dimension is not None, where, rule, self.table)

    @property
    def shared(self) -> dict[str, Any]:
        """{setting: value} of the settings that columns with a common table must agree on."""
        names = ("dimension", "initial_stddev", "storage", "trainable", *self._of_table)
        return {name: getattr(self, name) for name in names}

    @property
    @abc.abstractmethod
    def _of_table(self) -> Sequence[str]:
        """The names of the settings that determine the meaning of an id."""

    def _name(self, output: str) -> str:
        """Return the name of the embedding table, and of the statistics, of the column `output`."""
        return self.table or output

    def _open_scope(self, output: str) -> contextlib.AbstractContextManager[Any]:
        # The first column with a shared table creates the table, and other columns reuse it.
        reuse = tf.compat.v1.AUTO_REUSE if self.table else None
        return tf.compat.v1.variable_scope(self._name(output), reuse=reuse)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coded(Ids):
    """The base class of columns in which the id of a value depends only on this value."""

    @property
    def coded_columns(self) -> dict[str, str]:
        """The field of each column, {column: field}; {} if ids do not fit into 32 bits."""
        if self._num_ids > _MOST_IDS:
            return {}
        return {output: field for output, (field,) in self.columns.items()}

    @property
    def _num_ids(self) -> int:
        """The number of ids that the settings determine; 0 if the data determine the number."""
        return 0

    @abc.abstractmethod
    def find_ids(self, column: str, values: tf.Tensor, fitted: types.Statistics) -> tf.Tensor:
        """Return the ids of values [N] of a column's field, int64 [N]."""

    def _read_ids(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> column.Values:
        """Return the ids of a field, which may have been looked up when the rows were read."""
        values = column.read_categories(type(self).__name__, features, field)
        ids = codes.find_ids(values, output)
        # `mtl.data.coded_rows` looks ids up when it reads rows into memory.
        if ids is not None:
            return ids
        return tf.ragged.map_flat_values(lambda flat: self.find_ids(output, flat, fitted), values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedded(column.Lookup):
    """The base class of columns whose tables may have fewer rows than ids.

    Attributes:
      embedding: a smaller table from `mtl.features.embeddings`; None gives each id a separate row.
    """

    embedding: types.Embedding | None = None

    _is_ranked = False
    """True if ids are sorted by descending frequency."""

    def _check_lookup(self) -> None:
        super()._check_lookup()
        if self.embedding is None:
            return
        where = f"{type(self).__name__}.embedding"
        checks.require_part(where, self.embedding, "embeddings.QuotientRemainder", arguments=2)
        rule = f"be None if {type(self).__name__}.dimension is None"
        checks.require(self.dimension is not None, where, rule, self.embedding)
        rule = "not group ids by frequency, which only Categorical knows"
        checks.require(self._is_ranked or not self._block_ends, where, rule, self.embedding)

    @property
    def _block_ends(self) -> Sequence[int]:
        """The ids at which blocks of the embedding end; empty without blocks."""
        if self.embedding is None:
            return ()
        return types.read_member(self.embedding, types.Embedding, "block_ends")

    def _name_groups(self, names: Iterable[str], settings: Iterable[str]) -> dict[str, Any]:
        """Return {name: names of rows} for tables in which a row stands for several ids.

        The names of the rows are texts that describe `settings`, because other settings would give
        an id another row.
        """
        if self.embedding is None:
            return {}
        settings_texts = tuple(f"{setting} = {getattr(self, setting)!r}" for setting in settings)
        return dict.fromkeys(names, types.RowNames(names=settings_texts, axis=0, are_grouped=True))

    def _look_up(
        self,
        output: str,
        ids: column.Values,
        size: int,
        initializer: Callable[..., tf.Tensor] | None = None,
        counts: Sequence[int] = (),
    ) -> tf.Tensor:
        """Turn ids in [0, size) into vectors, [B, D]; see `types.Table` for `counts`."""
        if self.embedding is None or self.dimension is None:
            return super()._look_up(output, ids, size, initializer)
        embedding, stddev = self.embedding, self.initial_stddev
        table = types.Table(size=size, dimension=self.dimension, stddev=stddev, counts=counts)
        with self._store():
            return column.embed(
                ids, lambda flat_ids: embedding(flat_ids, table), self.dimension, self.pooling
            )
