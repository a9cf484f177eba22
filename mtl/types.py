"""The parts of a run as types: all one has to read to write a column, a head or a source.

A part derives from its protocol, or has the same members:

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Halves(types.Weighting):
        reads_losses = False

        def __call__(self, losses, step):
            return {task: 0.5 * loss for task, loss in losses.items()}

A member with `abstractmethod` is required. The others have defaults, and a part that does not
derive from its protocol may leave them out: `read_member` then takes the default.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import tensorflow as tf

from mtl import spec as spec_lib

Tensors = Mapping[str, tf.Tensor]
"""Named tensors; by task where the name is plural (`losses`), by field for features and labels."""

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None
"""The gradient of one variable: sparse where it was looked up, None where nothing depends on it."""

Connected: TypeAlias = tf.Tensor | tf.IndexedSlices
"""The gradient of a variable that something depends on."""

GradientsAndVariables = list[tuple[tf.Tensor | tf.IndexedSlices | None, tf.Variable]]

Metrics = Mapping[str, tuple[tf.Tensor, tf.Operation]]
"""{name: (value, update)} as `EstimatorSpec.eval_metric_ops` takes them."""

Observe: TypeAlias = Callable[[Tensors, Tensors, Tensors], None]
"""Takes features, labels and {task: its weight} of a training step, before its update."""

Nested: TypeAlias = Any
"""Tensors, IndexedSlices and None, in any nesting of tuples, lists and dicts."""

Json: TypeAlias = Any
"""What JSON can hold: numbers, text, lists and dicts of them."""

PythonValue: TypeAlias = object
"""What one field of one record holds in Python: a number, text, an array, or a list of them."""


def read_member(part: object, protocol: type, name: str) -> Any:
    """Return a member of a part; where the part lacks it, the default that `protocol` declares."""
    if hasattr(part, name):
        return getattr(part, name)
    return vars(protocol)[name].__get__(part, type(part))


def walk_parts(part: object) -> Iterator[Any]:
    """Yield a part, or each of a list or map of parts, and all parts that their settings hold."""
    if isinstance(part, Mapping):
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        for item in part:
            yield from walk_parts(item)
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        yield part
        for field in dataclasses.fields(part):
            yield from walk_parts(getattr(part, field.name, None))


def count_rows(fields: Tensors) -> tf.Tensor:
    """Count the rows of a batch, {field: [B, ...]} -> B, an int32 scalar; there has to be one."""
    first = next(iter(fields.values()))
    is_list = isinstance(first, tf.RaggedTensor)
    return tf.cast(first.nrows(), tf.int32) if is_list else tf.shape(first)[0]


class Statistics(Protocol):
    """What columns, heads and samplers learned of the training split before the first step."""

    @abc.abstractmethod
    def for_column(self, column: str) -> Mapping[str, Json]:
        """Return what the accumulator of this name saved, as it is read from JSON."""

    @abc.abstractmethod
    def path(self, name: str) -> str:
        """Return where a file lies that an accumulator wrote."""


class Accumulator(Protocol):
    """Gathers what a column or a head has to know of the training split, in one pass over it.

    Its `repr` tells its settings: statistics that were gathered by other ones are not taken.
    """

    @abc.abstractmethod
    def update(self, fields: Tensors) -> None:
        """Take in one batch, {field: [B, ...]} of eager tensors."""

    @abc.abstractmethod
    def save(self, directory: str, column: str) -> dict[str, Json]:
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


class Column(Protocol):
    """Encodes some of the features; its variables live in `features/<column>`."""

    @property
    @abc.abstractmethod
    def columns(self) -> Mapping[str, Sequence[str]]:
        """The fields that each column reads, {column: fields}; one object may make several."""

    @abc.abstractmethod
    def __call__(self, features: Tensors, fitted: Statistics) -> Tensors:
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

    def check(self, features: Mapping[str, PythonValue]) -> str | None:
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

    def keys(self, features: Tensors) -> Mapping[str, tf.Tensor]:
        """Return what a batch looks up in tables that grow: {table: keys [N], int64}."""
        del features
        return {}

    @property
    def emitted_losses(self) -> Mapping[str, "float | Schedule"]:
        """The auxiliary losses that it hands to `mtl.step.emitted`, {name: weight}."""
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
    """How ids become vectors; its variables lie in the scope that it is called in."""

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

    def name_losses(self, history: str) -> Mapping[str, "float | Schedule"]:
        """Return {name: weight} of what it hands to `mtl.step.emitted` in such a history."""
        del history
        return {}

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

    def accumulator(self, field: str, read: Callable[[Tensors], tf.Tensor]) -> Accumulator | None:
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


class Mixture(NamedTuple):
    """Rows of a batch, each mixed with a partner.

    Attributes:
      inputs: {column: [B, ...]}, mixed where a column takes part and the row's own elsewhere.
      partners: [B] int32, a permutation: the partner of each row.
      share: scalar in [0, 1], which of each row is its own; that of its partner is 1 - share.
    """

    inputs: Tensors
    partners: tf.Tensor
    share: tf.Tensor


class Mixing(Protocol):
    """Mixes the rows of a batch in training, between columns and network.

    The loss of a task becomes `share loss(labels) + (1 - share) loss(labels of the partners)`. As
    partners are a permutation, both losses have the same sum of weights below them.
    """

    @abc.abstractmethod
    def __call__(self, inputs: Tensors) -> Mixture:
        """Draw partners and mix, {column: [B, D] or [B, H, W, C]} -> the mixture."""


class Towers(dict[str, tf.Tensor]):
    """{task: [B, H]}, with the outputs that tasks share and all of them are made of.

    Attributes:
      shared: tensors [B, ...] that separate what tasks share from what each has of its own; a
        network takes them from `precision.share_output`, which have 32 bits.
    """

    def __init__(self, towers: Tensors, shared: Sequence[tf.Tensor] = ()):
        super().__init__(towers)
        self.shared = tuple(shared)


class Network(Protocol):
    """The shared network; its variables live in `network`.

    It asks `get_variable` for them in the type of its inputs, which need not be float32.
    """

    @abc.abstractmethod
    def __call__(self, inputs: Tensors, tasks: Sequence[str], training: bool) -> Towers:
        """Run the network, {column: [B, D] or [B, H, W, C]} -> {task: [B, H]}."""

    @property
    def emitted_losses(self) -> Mapping[str, "float | Schedule"]:
        """The auxiliary losses that it hands to `mtl.step.emitted`, {name: weight}."""
        return {}

    @property
    def starts_from_run(self) -> bool:
        """Whether a new run of it makes no sense without a warm start."""
        return False

    def hold(self, freezing: Any) -> Any:
        """Return the `Freezing` of a run, with what this network needs to stay as it is."""
        return freezing


class LossInputs(NamedTuple):
    """Logits, targets and weights of a batch, aligned: [B] or [B, n], logits maybe [B, C].

    Where the weight is 0, the label is missing or does not count: the target is a harmless value
    and the logits are 0, so that no infinity or NaN gets from there into a sum or a gradient.
    """

    logits: tf.Tensor
    targets: tf.Tensor
    weights: tf.Tensor


class Head(Protocol):
    """One task: from the tower to logits, loss, predictions and metrics; scope `head/<task>`."""

    name: str

    @abc.abstractmethod
    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute the logits of a tower, [B, H] -> [B, C]."""

    @abc.abstractmethod
    def loss(self, logits: tf.Tensor, labels: Tensors) -> tf.Tensor:
        """Return the weighted mean over labelled rows: [B, C], {label: [B, ...]} -> scalar."""

    @abc.abstractmethod
    def label_weight(self, labels: Tensors) -> tf.Tensor:
        """Sum the weights that the mean is divided by: {label: [B, ...]} -> scalar."""

    @abc.abstractmethod
    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict, [B, C] -> {name: [B, ...]}, such as probabilities and class names."""

    @abc.abstractmethod
    def metrics(self, logits: tf.Tensor, labels: Tensors) -> Metrics:
        """Return the task's metrics over the labelled rows, `average_loss` among them."""

    @abc.abstractmethod
    def export_outputs(self, logits: tf.Tensor) -> dict[str, object]:
        """Return {kind: `tf.estimator.export.ExportOutput`}, of predict, classify and regress."""

    @abc.abstractmethod
    def check(self, labels: Mapping[str, PythonValue]) -> str | None:
        """Check the label values of one record (Python values); return what is wrong, or None."""

    def accumulators(self) -> Mapping[str, Accumulator]:
        """Return what gathers statistics of the labels, by the name they are kept under."""
        return {}

    def fitted(self, statistics: Statistics) -> "Head":
        """Return the head with what its accumulators gathered."""
        del statistics
        return self

    @property
    def directions(self) -> Mapping[str, bool]:
        """{metric: whether a higher value is better}, the one that tells most first.

        A name may hold "*". A metric without an order, such as a mean, is left out.
        """
        return {"average_loss": False}

    @property
    def field(self) -> str:
        """The label field."""
        return self.name

    @property
    def weight(self) -> str | None:
        """The label field that weighs the examples; None where each weighs 1."""
        return None

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes in the order of their ids; none where there are no classes."""
        return ()

    @property
    def has_one_class(self) -> bool:
        """Whether each of its rows has one class of several."""
        return bool(self.class_names)

    @property
    def class_counts(self) -> Sequence[int] | Mapping[str, int] | None:
        """How many rows of the training split every class has; None where that is not known."""
        return None

    @property
    def balances(self) -> str | None:
        """The label field whose rare classes the loss counts for more; None where it does not."""
        return None

    @property
    def row_names(self) -> RowNames | None:
        """What the columns of its last layer stand for; None where they have no names."""
        return None

    @property
    def trainable(self) -> bool:
        """Whether its variables may move."""
        return True


@runtime_checkable
class ExampleHead(Protocol):
    """A head that also knows the loss of every example, as the clip audit and `refit` need it."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The task."""

    @property
    @abc.abstractmethod
    def field(self) -> str:
        """The label field."""

    @abc.abstractmethod
    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Split labels [B, ...] into targets and whether they are present, [B] or [B, n] each."""

    @abc.abstractmethod
    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits, [B, C] -> {name: [B, ...]}."""

    @abc.abstractmethod
    def examples(self, logits: tf.Tensor, labels: Tensors) -> LossInputs:
        """Align logits [B, C] and {label: [B, ...]}, for the losses to be computed from them."""

    @abc.abstractmethod
    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the loss of every example: [B, ...] and [B] or [B, n] -> [B] or [B, n]."""


@runtime_checkable
class WeighingHead(ExampleHead, Protocol):
    """A head that knows what rows weigh before it knows their logits, for auxiliary losses."""

    @abc.abstractmethod
    def row_weights(self, labels: Tensors) -> tf.Tensor:
        """Sum the weights of each row, {label: [B, ...]} -> [B]."""


@runtime_checkable
class ComparableHead(Protocol):
    """A head that knows how far two predictions for a row are apart."""

    @abc.abstractmethod
    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Return how far predictions are from the ones of `logits`: [B, C], [B, C] -> [B].

        It is at least 0, and 0 where both are the same; gradients go through both.
        """


@runtime_checkable
class UncertainHead(Protocol):
    """A head that knows how uncertain a prediction is."""

    @abc.abstractmethod
    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the entropy of the prediction in nats, [B, C] -> [B]."""


@runtime_checkable
class TeachableHead(ComparableHead, Protocol):
    """A head that can learn from the predictions of another model."""

    @abc.abstractmethod
    def recover_logits(self, predictions: Tensors) -> tf.Tensor:
        """Return logits that give predictions, {name: [B, ...]} of `Head.predictions` -> [B, C]."""


class Activations(Protocol):
    """What the network of a training step computed for its rows, for an auxiliary loss to read.

    Attributes:
      features: {field: [B, ...]}.
      labels: the same.
      inputs: the encoded columns, {column: [B, D] or [B, H, W, C]}.
      towers: {task: [B, H]}, and what tasks share.
      logits: {task: [B, C]}.
      heads: {task: its head}.
      draws_by_step: whether the network draws numbers, such as for dropout; known after `run`.
      emitted: {name: [B]}, the losses that columns and networks emit, as their `emitted_losses`
        say; those of the plain pass.
    """

    features: Tensors
    labels: Tensors
    inputs: Tensors
    towers: Towers
    logits: Tensors
    heads: Mapping[str, "Head"]
    draws_by_step: bool
    emitted: Tensors

    @abc.abstractmethod
    def run(
        self,
        inputs: Tensors,
        draw: int = 0,
        replace: Callable[[tf.Variable], tf.Tensor] | None = None,
    ) -> "Activations":
        """Run the network once more, by the same variables: {column: ...} -> what it computes.

        No average of a normalisation moves, and nothing else of UPDATE_OPS runs again.

        Args:
          inputs: in place of the encoded columns.
          draw: 0 drops out what the pass before dropped out; any other number draws anew.
          replace: trainable variable -> what is read in its place.
        """


class Attack(Protocol):
    """Moves the inputs of an evaluation to where the losses of the labels are large."""

    @abc.abstractmethod
    def attack(self, activations: Activations) -> Activations:
        """Return what the network makes of the inputs that were moved."""

    @abc.abstractmethod
    def check(self, heads: Mapping[str, "Head"]) -> None:
        """Fail unless it can attack a model with these heads, {task: head}."""


class AuxiliaryLoss(Protocol):
    """A named loss without a head, in training alone; its variables live in `auxiliary/<name>`.

    Weighting, surgery, clipping and summaries treat it as they treat the loss of a task.
    """

    name: str

    @abc.abstractmethod
    def __call__(self, activations: Activations) -> tf.Tensor:
        """Compute the losses of rows, [B], or [B, P] of P parts that count on their own.

        The loss is the sum over the parts of the mean by `row_weights`.
        """

    def row_weights(self, labels: Tensors, heads: Mapping[str, "Head"]) -> tf.Tensor:
        """Return what rows weigh in the mean of each part, [B] or [B, P]; by default 1 each.

        {label: [B, ...]}, {task: head} -> weights. Nothing but labels decides, since what a slice
        of a batch weighs is known before it goes through the network. Where the data has no label
        at all, these are the features.
        """
        del heads
        return tf.ones([count_rows(labels)])

    def check(self, heads: Mapping[str, "Head"]) -> None:
        """Fail unless it can be computed for a model with these heads, {task: head}."""
        del heads

    @property
    def weight(self) -> "float | Schedule":
        """What its loss is multiplied by beside the balancing; with 0 none of it is built."""
        return 1.0

    @property
    def own_heads(self) -> Sequence["Head"]:
        """The heads that it builds itself, whose labels are checked as those of tasks are."""
        return ()

    @property
    def label_fields(self) -> Sequence[str]:
        """The label fields that it reads itself, beside those of the model's heads."""
        read = []
        for head in read_member(self, AuxiliaryLoss, "own_heads"):
            weight = read_member(head, Head, "weight")
            read += [read_member(head, Head, "field"), *([weight] if weight else [])]
        return read

    @property
    def reads_average(self) -> bool:
        """Whether it reads the averages of the weights, which `Update.average` keeps."""
        return False

    @property
    def reads_labels(self) -> bool:
        """Whether a label has to belong to its row, so that rows cannot be mixed."""
        return bool(read_member(self, AuxiliaryLoss, "label_fields"))

    @property
    def are_rows_apart(self) -> bool:
        """Whether the loss of a row depends on that row alone."""
        return True

    @property
    def files(self) -> Mapping[str, str]:
        """The files that its settings name, {what for: path}. Their checksums are kept."""
        return {}

    @property
    def trainable(self) -> bool:
        """Whether its variables may move."""
        return True


class Source(Protocol):
    """Splits of raw records, a fast way to decode them and a slow way to find what is wrong."""

    @abc.abstractmethod
    def records(self, split: str) -> tf.data.Dataset:
        """Return the raw records of a split in order, unbatched: lines, serialized protos or dicts.

        Raises:
          UserError: the split or its files do not exist.
        """

    @abc.abstractmethod
    def decode(
        self, batch: tf.Tensor | Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, tf.Tensor]:
        """Turn a batch of raw records into {name: [B, ...]}, ragged for the shape (None,).

        Raises:
          UserError: when built, if the records lack a field or hold it in another type.
          InvalidArgumentError: when run, if a record is malformed; `scan` tells which.
        """

    @abc.abstractmethod
    def scan(
        self, split: str, spec: spec_lib.Spec
    ) -> Iterator[tuple[str, dict[str, PythonValue] | str]]:
        """Yield every record in plain Python: (location, {name: value} or what is wrong)."""

    def shard(self, split: str, num_shards: int, shard: int) -> "Source | None":
        """Return a source of every `num_shards`-th file of a split, from the `shard`-th on.

        None where files cannot be dealt so: then every worker reads all records and keeps its own.
        """
        del split, num_shards, shard
        return None


class Weighting(Protocol):
    """Losses decide: scales each task's loss; state lives in `balancing`, updated by UPDATE_OPS.

    Where neither it nor the surgery reads losses, a batch in slices passes through the network
    once: losses of the first slice stand in for the batch's.
    """

    @property
    def reads_losses(self) -> bool:
        """Whether the values of the losses decide."""
        return True

    @abc.abstractmethod
    def __call__(self, losses: Tensors, step: tf.Tensor) -> Tensors:
        """Weigh the losses, {task: scalar} -> {task: scalar}.

        The derivative of each by its own loss is the weight of the task; no gradient goes from one
        task's value to another's loss. A loss of 0 may be that of a batch without a label.
        """


Samples: TypeAlias = Callable[[int], Sequence[Tensors]]
"""S -> the losses {task: scalar} of S samples of the rows, which have no row in common."""


class ForwardPass(Protocol):
    """What went through the network at once: a slice of the batch on one replica."""

    @property
    def losses(self) -> Tensors:
        """{task: scalar}, weighted; they add up over passes to those of the batch."""

    @property
    def shared(self) -> Sequence[tf.Tensor]:
        """`Towers.shared`, the outputs that tasks share."""

    @property
    def samples(self) -> Samples | None:
        """S -> the losses of every S-th row, from the first to the S-th on."""

    @property
    def unweighted(self) -> Tensors | None:
        """The losses before the tasks were weighted; None if they were not."""


class Batch(Protocol):
    """The forward passes that make up the batch of a step; `mtl.step.whole_batch` builds it."""

    @property
    def first(self) -> ForwardPass:
        """The first pass on this replica; the whole batch where there is no other."""

    def sum(self, function: Callable[[ForwardPass], Nested], update: bool = False) -> Nested:
        """Return the sum of what `function` gives for each `ForwardPass`, of all replicas.

        `function` returns tensors, IndexedSlices and None, in any nesting. In exactly one pass of a
        step, `update` has the UPDATE_OPS of the slices run.
        """


class Surgery(Protocol):
    """Gradients decide: one update direction from several losses.

    One that does not read losses (see `Weighting`) returns `<task>/loss` of the batch, unweighted.
    """

    @property
    def reads_losses(self) -> bool:
        """Whether the values of the losses decide."""
        return True

    @abc.abstractmethod
    def __call__(
        self,
        losses: Tensors,
        variables: Sequence[tf.Variable],
        batch: Batch | None = None,
    ) -> tuple[list[Gradient], dict[str, tf.Tensor]]:
        """Combine gradients: {task: scalar}, N variables, batch -> N gradients, monitors.

        A gradient is sparse where a variable was looked up. Gradients are those of the whole batch,
        the sum over its passes; the monitors are scalars for people to watch.
        """


class Update(Protocol):
    """From gradients to a training step: schedule, clip, apply, after UPDATE_OPS."""

    @property
    def average(self) -> object | None:
        """What keeps an average of the weights, which evaluation and export use; None if nothing.

        Such an average lies beside each variable, as `mtl.variables.averaging` saves it.
        """
        return None

    @abc.abstractmethod
    def __call__(
        self,
        gradients: Sequence[tf.Tensor | tf.IndexedSlices | None],
        variables: Sequence[tf.Variable],
        losses: Tensors | None = None,
    ) -> tuple[tf.Operation, dict[str, tf.Tensor]]:
        """Build a step: N gradients, N variables, {task: loss} -> its op, scalars to watch."""


class Clipping(Protocol):
    """Bounds the gradient between balancing and the optimizer."""

    @abc.abstractmethod
    def __call__(
        self, gradients: Sequence[Connected], variables: Sequence[tf.Variable], norm: tf.Tensor
    ) -> list[Connected]:
        """Bound N gradients (rows merged) of N variables with this global norm -> N gradients."""


class Optimizer(Protocol):
    """How a gradient moves a variable."""

    @property
    @abc.abstractmethod
    def learning_rate(self) -> "float | Schedule":
        """A number above 0, or how it changes over the steps."""

    @abc.abstractmethod
    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        """Return the optimizer of the graph, at the learning rate of this step, a scalar."""


class Schedule(Protocol):
    """A value that changes over the steps."""

    @abc.abstractmethod
    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the value at a step, int64 scalar -> float32 scalar."""
