"""Protocols of columns, which encode features for a network, and of parts of columns."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mtl.deferred import tf
from mtl.types import emitting, training, values


class Statistics(Protocol):
    """Statistics of the training split for columns, heads and metrics, before the first step."""

    @abc.abstractmethod
    def for_column(self, column: str) -> Mapping[str, values.Json]:
        """Return the JSON values that an accumulator saved.

        Args:
          column: the name under which the statistics are saved: the name of a column or a table, or
            another key of `accumulators()`.

        Returns:
          {key: JSON value}, with the entries that `Accumulator.save` returned.
        """

    @abc.abstractmethod
    def path(self, name: str) -> str:
        """Return the path of a file that an accumulator wrote.

        Args:
          name: the name of the file in the folder of the statistics.
        """


class Accumulator(Protocol):
    """Gathers statistics for a column or a head, in one pass over the training split.

    The `repr` of an accumulator must show its settings, because a later start reuses statistics
    only if the `repr` is equal.
    """

    @abc.abstractmethod
    def update(self, fields: values.Tensors) -> None:
        """Add one batch to the statistics.

        Args:
          fields: {field: [B, ...]} of eager tensors; the last batch may be smaller.
        """

    @abc.abstractmethod
    def save(self, directory: str, column: str) -> dict[str, values.Json]:
        """Save the statistics; called once, after the last batch.

        Args:
          directory: the folder of the statistics, for files such as vocabularies.
          column: the name under which the statistics are saved.

        Returns:
          JSON values for statistics.json, which `Statistics.for_column` returns later.
        """


class RowNames(NamedTuple):
    """Names for the rows of a variable, or for its columns.

    Attributes:
      names: the names in order, or the path of a file with a name on each line.
      axis: the axis of the variable that the names describe: 0 for embedding tables, -1 for last
        layers, whose columns are classes.
      and_unknown: True if rows for unknown values may follow the rows with names.
      first: the index of the first entry of `names` that describes this variable.
      last: the index after the last entry of `names` that describes this variable; None if all
        entries from `first` on describe it.
      are_grouped: True if a row stands for a group of names, and the order of all names determines
        the groups. If one name changes, the groups may change, so every row of the variable may
        stand for a different group.
      are_a_set: True if, for rows that stand for groups of names, the order of names does not
        matter, and added names do not change the meaning of a row.
    """

    names: Sequence[str] | str
    axis: int
    and_unknown: bool = False
    first: int = 0
    last: int | None = None
    are_grouped: bool = False
    are_a_set: bool = False


class Column(emitting.Emitting, Protocol):
    """Encodes features for the network; its variables are in the scope `features/<column>`."""

    @property
    @abc.abstractmethod
    def columns(self) -> Mapping[str, Sequence[str]]:
        """The fields of each column, {column: fields}; one object may encode several columns."""

    @abc.abstractmethod
    def __call__(self, features: values.Tensors, fitted: Statistics) -> values.Tensors:
        """Encode fields as inputs of the network.

        The caller opens the scope `features`; the column must open a scope with the column's name.

        Args:
          features: {field: [B, ...]}, of all fields of the batch.
          fitted: the statistics of the training split.

        Returns:
          {column: [B, D], or [B, H, W, C] for images}, for the keys of `columns`.
        """

    def encode_training(self, features: values.Tensors, fitted: Statistics) -> values.Tensors:
        """Encode fields in a training step, where a column may augment its fields.

        Columns that encode the events of a history are called by `__call__` in training, too.

        Args:
          features: {field: [B, ...]}, of all fields of the batch.
          fitted: the statistics of the training split.

        Returns:
          Columns with the same names and shapes as in the result of `__call__`.
        """
        return self(features, fitted)

    def accumulators(self) -> Mapping[str, Accumulator]:
        """Return the accumulators of the column, {name in the statistics: accumulator}."""
        return {}

    @property
    def reads_files(self) -> bool:
        """True if the fields hold the bytes of whole files, such as images."""
        return False

    def row_names(self, fitted: Statistics) -> Mapping[str, RowNames]:
        """Return the names of the rows of embedding tables.

        Args:
          fitted: the statistics of the training split, such as vocabularies.

        Returns:
          {variable scope below `features/`, such as a column: names}; {} if rows have no names.
        """
        del fitted
        return {}

    def check(self, features: Mapping[str, values.PythonValue]) -> str | None:
        """Check the fields of one record.

        Args:
          features: {field: its value}, with texts as bytes.

        Returns:
          The text of an error; None if the column finds no error.
        """
        del features
        return None

    @property
    def files(self) -> Mapping[str, str]:
        """The files that the settings name, {column: path}; a run saves their checksums."""
        return {}

    @property
    def trainable(self) -> bool:
        """True if training may change the variables of the column."""
        return True

    def keys(self, features: values.Tensors) -> Mapping[str, tf.Tensor]:
        """Return the keys that a batch looks up in growing embedding tables.

        Args:
          features: {field: [B, ...]}.

        Returns:
          The keys that the batch looks up in each table, {table: int64 [N]}, in which a key may
          occur several times; {} if the column has no growing table.
        """
        del features
        return {}

    @property
    def limited_fields(self) -> Sequence[str]:
        """The fields with a limited set of known values, such as fields with a vocabulary."""
        return ()

    def find_unknown(self, features: values.Tensors, fitted: Statistics) -> values.Tensors:
        """Find the values of a batch that are unknown to this column.

        An empty text counts as missing, not as unknown.

        Args:
          features: {field: [B, ...]}.
          fitted: the statistics of the training split, such as vocabularies.

        Returns:
          {field: bool [N]} for the fields in `limited_fields`; True for each of the N values of the
          batch that is unknown.
        """
        del features, fitted
        return {}

    @property
    def coded_columns(self) -> Mapping[str, str]:
        """The columns that map each value of one field to an id, {column: field}."""
        return {}

    def find_ids(self, column: str, values: tf.Tensor, fitted: Statistics) -> tf.Tensor:
        """Look up the ids of values of a field.

        Training looks each distinct value up once, when it reads the rows. In the graph, the column
        reads the ids of values from `mtl.step.codes`.

        Args:
          column: the name of a column in `coded_columns`.
          values: distinct values of the column's field, [N].
          fitted: the statistics of the training split.

        Returns:
          The ids of the values, int64 [N].
        """
        raise NotImplementedError(type(self).__name__)

    @property
    def parts(self) -> Sequence[Column]:
        """The columns nested in this column; empty for a column that reads only fields."""
        return ()

    @property
    def reads_columns(self) -> Sequence[str]:
        """The other columns whose outputs this column gets as third argument of `__call__`."""
        return ()


class Table(NamedTuple):
    """The size of a plain embedding table, which an `Embedding` may replace by smaller tables.

    Attributes:
      size: the number of ids, which are in [0, size).
      dimension: the width of a vector.
      stddev: the standard deviation of initial values; None for `dimension ** -0.5`.
      counts: for each block of ids (`Embedding.block_ends`), the number of occurrences in the
        training split; empty if unknown.
    """

    size: int
    dimension: int
    stddev: float | None = None
    counts: Sequence[int] = ()

    @property
    def first_deviation(self) -> float:
        """The standard deviation of initial values."""
        return self.dimension**-0.5 if self.stddev is None else self.stddev


class Embedding(Protocol):
    """Maps ids to vectors; its variables are in the variable scope of the caller.

    Only the embedding creates tables, so columns and networks do not depend on the number of rows.
    """

    @abc.abstractmethod
    def __call__(self, ids: tf.Tensor, table: Table) -> tf.Tensor:
        """Look up vectors.

        Args:
          ids: int64 of any shape [...], in [0, table.size).
          table: the plain table that this embedding replaces.

        Returns:
          Vectors [..., D], with D = table.dimension.
        """

    @property
    def block_ends(self) -> Sequence[int]:
        """The ids at which blocks of rows end, except for the last block; empty if ids share rows.

        The scope `block_<n>` holds the rows of block n. Ids must be sorted by descending frequency.
        """
        return ()


class Augmentation(Protocol):
    """Changes images at random in training; the caller draws the random numbers."""

    @property
    @abc.abstractmethod
    def num_draws(self) -> int:
        """The number of random numbers for each image."""

    @abc.abstractmethod
    def __call__(self, pixels: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        """Change each image according to its random numbers.

        Args:
          pixels: images [B, H, W, C], with values in [0, 1].
          draws: uniform numbers in [0, 1), [B, num_draws].

        Returns:
          Images of the same shape and range.
        """

    @property
    def moves_pixels(self) -> bool:
        """True if the augmentation may move pixels, which does not suit labels that are maps."""
        return True


class HistoryEncoder(Protocol):
    """Encodes the events of a row as one vector; variables are in `features/<history>`."""

    @abc.abstractmethod
    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Encode the events of each row.

        Args:
          events: [B, (L), D]; a row may have no events.
          target: the vector with which events are compared, [B, T]; None if the history has no
            target.

        Returns:
          A vector for each row, [B, H].
        """

    @property
    def needs_target(self) -> bool:
        """True if the encoder compares events with a target, such as an item offered to a user."""
        return False

    def name_losses(self, history: str) -> Mapping[str, float | training.Schedule]:
        """Return the auxiliary losses that the encoder passes to `mtl.step.outlets`.

        Args:
          history: the name of the history, a prefix that keeps the losses of several histories
            apart.

        Returns:
          {name: weight}; {} if the encoder has no auxiliary loss.
        """
        del history
        return {}

    @property
    def are_emitted_rows_apart(self) -> bool:
        """True if the auxiliary loss of each row does not depend on other rows of the batch."""
        return True

    @property
    def weighs_events(self) -> bool:
        """True if the encoder passes weights of events to `mtl.step.outlets`, [B, L]."""
        return False


class Tokenizer(Protocol):
    """Cuts texts into tokens in the graph, so the served model takes raw texts."""

    @abc.abstractmethod
    def __call__(self, texts: tf.Tensor, name: str, fitted: Statistics) -> tf.RaggedTensor:
        """Cut texts into tokens.

        Args:
          texts: strings [B], bytes in UTF-8.
          name: the key of the tokenizer's statistics.
          fitted: the statistics of the training split.

        Returns:
          The ids of tokens, int64 [B, (L)], in [0, num_tokens).
        """

    @abc.abstractmethod
    def num_tokens(self, name: str, fitted: Statistics) -> int:
        """Return the number of ids, including the ids of unknown tokens.

        Args:
          name: the key of the tokenizer's statistics.
          fitted: the statistics of the training split.
        """

    def accumulator(
        self, field: str, read: Callable[[values.Tensors], tf.Tensor]
    ) -> Accumulator | None:
        """Return an accumulator that learns the vocabulary of a field.

        Args:
          field: the name of the field.
          read: a function that returns the texts of the field in a batch {field: [B, ...]}, strings
            [N].

        Returns:
          The accumulator; None if the tokenizer learns nothing from the training split.
        """
        del field, read
        return None

    def row_names(self, name: str, fitted: Statistics) -> RowNames | None:
        """Return the token of each id.

        Args:
          name: the key of the tokenizer's statistics.
          fitted: the statistics of the training split.

        Returns:
          The names of the rows of the embedding table; None if ids have no names.
        """
        del name, fitted
        return None

    @property
    def file(self) -> str | None:
        """The file that the settings name, or None; a run saves its checksum."""
        return None
