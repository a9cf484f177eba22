"""From features to the inputs of a network: columns, and what they are made of."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from mtl.types import emitting, training, values


class Statistics(Protocol):
    """What columns, heads and samplers learned of the training split before the first step."""

    @abc.abstractmethod
    def for_column(self, column: str) -> Mapping[str, values.Json]:
        """Return what the accumulator of this name saved, as it is read from JSON."""

    @abc.abstractmethod
    def path(self, name: str) -> str:
        """Return where a file lies that an accumulator wrote."""


class Accumulator(Protocol):
    """Gathers what a column or a head has to know of the training split, in one pass over it.

    Its `repr` tells its settings: statistics that were gathered by other ones are not taken.
    """

    @abc.abstractmethod
    def update(self, fields: values.Tensors) -> None:
        """Take in one batch, {field: [B, ...]} of eager tensors."""

    @abc.abstractmethod
    def save(self, directory: str, column: str) -> dict[str, values.Json]:
        """Return what goes into statistics.json; files may be written to `directory`."""


class RowNames(NamedTuple):
    """What the rows of a variable stand for, or its columns.

    Attributes:
      names: in order; or the path of a file with one on each line.
      axis: the axis that they lie along: 0 of tables, -1 of last layers, whose columns are classes.
      and_unknown: whether rows of unknown names may follow.
      first, last: of which of the names; all of them from the first on where `last` is None.
      are_grouped: whether a row stands for several of the names, by their order: it means the same
        only where all names are the same.
      are_a_set: whether such names are in no order, and rows mean the same where more are added.
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
        """Encode {field: [B, ...]} by what was learned -> {column: [B, D] or [B, H, W, C]}.

        It is called in the scope `features`, and opens a scope of the column's name itself.
        """

    def accumulators(self) -> Mapping[str, Accumulator]:
        """Return what has to be learned of the training split, by the name it is kept under."""
        return {}

    def row_names(self, fitted: Statistics) -> Mapping[str, RowNames]:
        """Return what the rows of its tables stand for: {column: names}."""
        del fitted
        return {}

    def check(self, features: Mapping[str, values.PythonValue]) -> str | None:
        """Check the fields of one record, texts as bytes; return what is wrong, or None."""
        del features
        return None

    @property
    def files(self) -> Mapping[str, str]:
        """The files that its settings name: {column: path}. Their checksums are kept."""
        return {}

    @property
    def trainable(self) -> bool:
        """Whether its variables may move."""
        return True

    def keys(self, features: values.Tensors) -> Mapping[str, tf.Tensor]:
        """Return what a batch looks up in tables that grow: {table: keys [N], int64}."""
        del features
        return {}

    @property
    def limited_fields(self) -> Sequence[str]:
        """The fields of which it knows some values alone, such as those of a vocabulary."""
        return ()

    def find_unknown(self, features: values.Tensors, fitted: Statistics) -> values.Tensors:
        """Find what it does not know: {field: [B, ...]} -> {limited field: bool [N], each value}.

        An empty text is missing, and not unknown.
        """
        del features, fitted
        return {}

    @property
    def parts(self) -> Sequence["Column"]:
        """The columns that it is made of; none where it reads fields alone."""
        return ()

    @property
    def reads_columns(self) -> Sequence[str]:
        """The other columns that it reads, which are given to it as a third argument."""
        return ()


class Table(NamedTuple):
    """The table that a plain embedding would be, which a smaller one stands for.

    Attributes:
      size: ids are in [0, size).
      dimension: of a vector.
      stddev: the standard deviation that is set for first values; None for the usual one.
      counts: how often the training split holds the ids of each of `Embedding.block_ends`; empty
        where that is not known.
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
    """How ids become vectors; its variables lie in the scope that it is called in.

    It creates all tables itself, so neither columns nor networks know how many rows there are.
    """

    @abc.abstractmethod
    def __call__(self, ids: tf.Tensor, table: Table) -> tf.Tensor:
        """Turn ids int64 [...] into vectors [..., D]; it may be called with any number of them."""

    @property
    def block_ends(self) -> Sequence[int]:
        """The ids at which all blocks of rows but the last end, where a row stands for one id.

        The rows of block n lie in the scope `block_<n>`, and ids have to come by falling frequency.
        Empty where a row stands for several ids.
        """
        return ()


class Augmentation(Protocol):
    """Changes images at random in training; what it draws is given to it."""

    @property
    @abc.abstractmethod
    def num_draws(self) -> int:
        """How many numbers it draws for an image."""

    @abc.abstractmethod
    def __call__(self, pixels: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        """Change each image by its own draws.

        Pixels [B, H, W, C] in [0, 1] and uniform numbers in [0, 1), [B, num_draws] -> pixels.
        """

    @property
    def moves_pixels(self) -> bool:
        """Whether what was at one place may be at another, where labels that are maps are not."""
        return True


class HistoryEncoder(Protocol):
    """Makes one vector of the events of a row; its variables live in `features/<history>`."""

    @abc.abstractmethod
    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Encode events, [B, (L), D] and maybe a target [B, T] -> [B, H].

        A row without an event is a row, too.
        """

    @property
    def needs_target(self) -> bool:
        """Whether events are compared with something, such as the item that may be clicked."""
        return False

    def name_losses(self, history: str) -> Mapping[str, float | training.Schedule]:
        """Return {name: weight} of what it hands to `mtl.step.emitted` in such a history."""
        del history
        return {}

    @property
    def are_emitted_rows_apart(self) -> bool:
        """Whether such a loss of a row depends on that row alone."""
        return True

    @property
    def weighs_events(self) -> bool:
        """Whether it adds the weights of events to `mtl.step.shown`, as "attention" [B, L]."""
        return False


class Tokenizer(Protocol):
    """Cuts texts into tokens, in the graph: what is served are the texts as they are."""

    @abc.abstractmethod
    def __call__(self, texts: tf.Tensor, name: str, fitted: Statistics) -> tf.RaggedTensor:
        """Return the ids of tokens, strings [B] -> int64 [B, (L)] in [0, num_tokens).

        `name` is what was learned is kept under.
        """

    @abc.abstractmethod
    def num_tokens(self, name: str, fitted: Statistics) -> int:
        """Return how many ids there are, those of unknown tokens included."""

    def accumulator(
        self, field: str, read: Callable[[values.Tensors], tf.Tensor]
    ) -> Accumulator | None:
        """Return what learns of the texts [N] that `read` takes of a batch; None for nothing."""
        del field, read
        return None

    def row_names(self, name: str, fitted: Statistics) -> RowNames | None:
        """Return which tokens the ids stand for; None where they have no names."""
        del name, fitted
        return None

    @property
    def file(self) -> str | None:
        """The file that its settings name, whose checksum is kept."""
        return None
