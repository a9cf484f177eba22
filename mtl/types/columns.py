"""Columns encode features as inputs of a network; their parts are here, too."""

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
        """Return the JSON values that the accumulator of this name saved."""

    @abc.abstractmethod
    def path(self, name: str) -> str:
        """Return the path of a file that an accumulator wrote."""


class Accumulator(Protocol):
    """Gathers statistics for a column or a head, in one pass over the training split.

    Its `repr` must show its settings: a later start reuses statistics only if this text is equal.
    """

    @abc.abstractmethod
    def update(self, fields: values.Tensors) -> None:
        """Take in one batch.

        Args:
          fields: {field: [B, ...]} of eager tensors; the last batch may be smaller.
        """

    @abc.abstractmethod
    def save(self, directory: str, column: str) -> dict[str, values.Json]:
        """Save the statistics; called once, after the last batch.

        Args:
          directory: the folder of the statistics, for files such as vocabularies.
          column: the name by which the statistics are kept.

        Returns:
          JSON values for statistics.json, which `Statistics.for_column` gives back.
        """


class RowNames(NamedTuple):
    """Names for the rows of a variable, or for its columns.

    Attributes:
      names: the names in order, or the path of a file with a name on each line.
      axis: the axis of the names: 0 for tables, -1 for last layers, whose columns are classes.
      and_unknown: True if rows of unknown names may follow.
      first, last: the range of the names for this variable; `last` None includes all from `first`.
      are_grouped: True if a row stands for several names, by their order; its meaning changes if
        any name changes.
      are_a_set: True if the order of grouped names does not matter, and added names do not change
        the meaning of a row.
    """

    names: Sequence[str] | str
    axis: int
    and_unknown: bool = False
    first: int = 0
    last: int | None = None
    are_grouped: bool = False
    are_a_set: bool = False


class Column(emitting.Emitting, Protocol):
    """Encodes some of the features; its variables live in `features/<column>`."""

    @property
    @abc.abstractmethod
    def columns(self) -> Mapping[str, Sequence[str]]:
        """The fields that each column reads, {column: fields}; one object may make several."""

    @abc.abstractmethod
    def __call__(self, features: values.Tensors, fitted: Statistics) -> values.Tensors:
        """Encode fields as inputs of the network.

        It runs in the scope `features`, and must open a scope with the column's name.

        Args:
          features: {field: [B, ...]}, of all fields of the batch.
          fitted: the statistics of the training split.

        Returns:
          {column: [B, D], or [B, H, W, C] for images}, for the names in `columns`.
        """

    def encode_training(self, features: values.Tensors, fitted: Statistics) -> values.Tensors:
        """Encode fields as `__call__` does, but for a training step, which may change them.

        Columns of the events of a history encode them by `__call__` alone.
        """
        return self(features, fitted)

    def accumulators(self) -> Mapping[str, Accumulator]:
        """Return the accumulators of its statistics, {name in the statistics: accumulator}."""
        return {}

    @property
    def reads_files(self) -> bool:
        """True if the texts of its fields are the bytes of files, such as images."""
        return False

    def row_names(self, fitted: Statistics) -> Mapping[str, RowNames]:
        """Return the names of the rows of its tables, {column: names}."""
        del fitted
        return {}

    def check(self, features: Mapping[str, values.PythonValue]) -> str | None:
        """Check the fields of a record, texts as bytes; return an error text, or None."""
        del features
        return None

    @property
    def files(self) -> Mapping[str, str]:
        """The files that the settings name, {column: path}; a run keeps their checksums."""
        return {}

    @property
    def trainable(self) -> bool:
        """True if training may change the variables of the column."""
        return True

    def keys(self, features: values.Tensors) -> Mapping[str, tf.Tensor]:
        """Return the keys of a batch in growing tables, {table: keys [N], int64}."""
        del features
        return {}

    @property
    def limited_fields(self) -> Sequence[str]:
        """The fields with a limited set of known values, such as a vocabulary."""
        return ()

    def find_unknown(self, features: values.Tensors, fitted: Statistics) -> values.Tensors:
        """Find the values that this column does not know.

        An empty text counts as missing, not as unknown.

        Args:
          features: {field: [B, ...]}.
          fitted: the statistics of the training split, such as vocabularies.

        Returns:
          {limited field: bool [N]}, True for each of the N values of the batch that is unknown.
        """
        del features, fitted
        return {}

    @property
    def coded_columns(self) -> Mapping[str, str]:
        """The columns whose ids depend on each value of a field alone, {column: field}."""
        return {}

    def find_ids(self, column: str, values: tf.Tensor, fitted: Statistics) -> tf.Tensor:
        """Look up the ids of values of a field.

        Training looks each distinct value up once, when it reads the rows. The column then finds
        the ids in `mtl.step.codes`.

        Args:
          column: a coded column.
          values: distinct values of its field, [N].
          fitted: the statistics of the training split.

        Returns:
          Ids, int64 [N].
        """
        raise NotImplementedError(type(self).__name__)

    @property
    def parts(self) -> Sequence[Column]:
        """The columns inside this column; empty if it reads only fields."""
        return ()

    @property
    def reads_columns(self) -> Sequence[str]:
        """The other columns whose outputs this column reads, the third argument of a call."""
        return ()


class Table(NamedTuple):
    """The table of a plain embedding, which an `Embedding` may replace by smaller tables.

    Attributes:
      size: the number of ids, which are in [0, size).
      dimension: the width of a vector.
      stddev: the standard deviation of first values; None for `dimension ** -0.5`.
      counts: the number of occurrences in the training split of the ids of each block of
        `Embedding.block_ends`; empty if unknown.
    """

    size: int
    dimension: int
    stddev: float | None = None
    counts: Sequence[int] = ()

    @property
    def first_deviation(self) -> float:
        """The standard deviation of first values."""
        return self.dimension**-0.5 if self.stddev is None else self.stddev


class Embedding(Protocol):
    """Turns ids into vectors; its variables lie in the scope of the caller.

    It creates all tables itself, so columns and networks do not know the number of rows.
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
        """The end ids of all blocks of rows but the last; empty if a row stands for several ids.

        The rows of block n lie in the scope `block_<n>`. Ids must be sorted by falling frequency.
        """
        return ()


class Augmentation(Protocol):
    """Changes images at random in training, by draws that the caller makes."""

    @property
    @abc.abstractmethod
    def num_draws(self) -> int:
        """The number of random draws that an image takes."""

    @abc.abstractmethod
    def __call__(self, pixels: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        """Change each image by its own draws.

        Args:
          pixels: images [B, H, W, C], with values in [0, 1].
          draws: uniform numbers in [0, 1), [B, num_draws].

        Returns:
          Images of the same shape and range.
        """

    @property
    def moves_pixels(self) -> bool:
        """True if it may move pixels; labels that are maps would not move with them."""
        return True


class HistoryEncoder(Protocol):
    """Makes one vector of the events of a row; its variables live in `features/<history>`."""

    @abc.abstractmethod
    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Encode the events of each row.

        Args:
          events: [B, (L), D]; a row may be without events.
          target: a vector that events are compared with, [B, T]; None if the history has no target.

        Returns:
          [B, H].
        """

    @property
    def needs_target(self) -> bool:
        """True if the encoder compares events with a target, such as an item offered to a user."""
        return False

    def name_losses(self, history: str) -> Mapping[str, float | training.Schedule]:
        """Return the losses that a history emits to `mtl.step.outlets`, {name: weight}."""
        del history
        return {}

    @property
    def are_emitted_rows_apart(self) -> bool:
        """True if the emitted loss of a row depends only on that row."""
        return True

    @property
    def weighs_events(self) -> bool:
        """True if it hands the weights of events to `mtl.step.outlets`, as "attention" [B, L]."""
        return False


class Tokenizer(Protocol):
    """Cuts texts into tokens in the graph, so the served model takes raw texts."""

    @abc.abstractmethod
    def __call__(self, texts: tf.Tensor, name: str, fitted: Statistics) -> tf.RaggedTensor:
        """Cut texts into tokens.

        Args:
          texts: strings [B], bytes in UTF-8.
          name: the key of its statistics.
          fitted: the statistics of the training split.

        Returns:
          The ids of tokens, int64 [B, (L)], in [0, num_tokens).
        """

    @abc.abstractmethod
    def num_tokens(self, name: str, fitted: Statistics) -> int:
        """Return the number of ids, including the ids of unknown tokens."""

    def accumulator(
        self, field: str, read: Callable[[values.Tensors], tf.Tensor]
    ) -> Accumulator | None:
        """Return an accumulator over the texts [N] that `read` takes from a batch, or None."""
        del field, read
        return None

    def row_names(self, name: str, fitted: Statistics) -> RowNames | None:
        """Return the tokens of the ids; None if they have no names."""
        del name, fitted
        return None

    @property
    def file(self) -> str | None:
        """The file that the settings name, or None; a run keeps its checksum."""
        return None
