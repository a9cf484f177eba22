"""Functions for sources of examples, such as `Csv`, `Idx`, `TfRecord` and `Tfds`.

pipeline.Pipeline.source = @csv.Csv()
csv.Csv.files = {"train": "data/train-*.csv.gz", "test": "data/test.csv"}
csv.Csv.columns = ("age", "workclass", "income")
"""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.deferred import tf, tf1

# The number of batches made ahead. Checkpoints hold them; AUTOTUNE would make up to 2,048.
AHEAD = 2
# Images of so many rows fit into memory.
_ROWS_AT_ONCE = 256

# (Numbers of rows, int64 [B]; their raw records) -> True for rows of a split, bool [B].
Chooser = Callable[["tf.Tensor", Any], "tf.Tensor"]


def list_refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions with which TensorFlow refuses an example.

    UnicodeDecodeError comes if the message quotes an example that is not UTF-8.
    """
    return tf.errors.InvalidArgumentError, UnicodeDecodeError


def check(where: str, value: Any) -> None:
    """Fail unless `value` is a source."""
    rule = "be a source, such as @csv.Csv()"
    checks.has(where, value, ("records", "decode", "scan"), rule)


def check_order(source: Any, sampler: Any) -> None:
    """Fail if a sampler, or a source around it, would ignore the order that a source decides."""
    if types.read_member(source, types.Source, "orders_rows"):
        name = type(source).__name__
        rule = f"be left out, as {name} decides how often rows come up"
        checks.require(sampler is None, "Pipeline.sampler", rule, type(sampler).__name__)
        return
    inner = getattr(source, "source", None)
    while inner is not None:
        is_fit = not types.read_member(inner, types.Source, "orders_rows")
        rule = f"hold {type(inner).__name__} directly, as it decides how often rows come up"
        fix = f"Put {type(source).__name__} around its sources."
        checks.require(is_fit, "Pipeline.source", rule, type(source).__name__, fix)
        inner = getattr(inner, "source", None)


def batch(
    records: tf.data.Dataset, batch_size: int, drop_remainder: bool = False
) -> tf.data.Dataset:
    """Return batches of raw records; tensors whose sizes differ become ragged."""
    shapes = [spec.shape for spec in tf.nest.flatten(records.element_spec)]
    if all(shape.is_fully_defined() for shape in shapes):  # Records without lists.
        return records.batch(batch_size, drop_remainder)
    return records.ragged_batch(batch_size, drop_remainder)


def read_batches(source: types.Source, split: str, batch_size: Any) -> tf.data.Dataset:
    """Return all raw records of a split in batches; tensors whose sizes differ become ragged."""
    blocks = types.read_member(source, types.Source, "blocks")(split)
    if blocks is None:
        return batch(source.records(split), batch_size)
    if is_ragged(blocks):
        return batch(blocks.unbatch(), batch_size)
    return blocks.rebatch(batch_size)


def names_files(source: Any) -> bool:
    """Return True if decoding a record of a source, or of a source inside it, reads other files."""
    if types.read_member(source, types.Source, "names_files"):
        return True
    inner = getattr(source, "source", None)
    return inner is not None and names_files(inner)


def is_ragged(batches: tf.data.Dataset) -> bool:
    """Return True if the records in a batch may differ in size."""
    specs = tf.nest.flatten(batches.element_spec)
    return any(isinstance(spec, tf.RaggedTensorSpec) for spec in specs)


def repeat_value(value: Any) -> tf.data.Dataset:
    """Repeat a value without end, to zip it with records; `map` would cost 40 us a record."""
    return tf.data.Dataset.from_tensors(value).repeat()


class ChosenRows(types.Source):
    """A source that chooses rows from one split of another source, and keeps the other splits.

    Attributes:
      source: the other source.
      split: the split from which rows are chosen.
    """

    source: types.Source
    split: str

    @abc.abstractmethod
    def chooser(self, split: str) -> Chooser | None:
        """Return a function that chooses the rows of a split; None for an uncut split."""

    def records(self, split: str) -> tf.data.Dataset:
        """Return the raw records of a split, in the order of the source."""
        choose = self.chooser(split)
        if choose is None:
            return self.source.records(split)
        # Choosing row by row would take 20 to 90 microseconds for each row.
        return _choose(choose, batch(self.source.records(self.split), _ROWS_AT_ONCE)).unbatch()

    def blocks(self, split: str) -> tf.data.Dataset | None:
        """Return the raw records of a split in blocks; None if the source has no blocks."""
        choose = self.chooser(split)
        read = types.read_member(self.source, types.Source, "blocks")
        blocks = read(split if choose is None else self.split)
        return blocks if choose is None or blocks is None else _choose(choose, blocks)

    def list_rows(self, split: str) -> np.ndarray | None:
        """Return the numbers of the chosen rows; None if the source does not list its rows."""
        choose = self.chooser(split)
        theirs = types.read_member(self.source, types.Source, "list_rows")
        if choose is None:
            return theirs(split)
        if split not in self._chosen_numbers:
            numbers = theirs(self.split)
            self._chosen_numbers[split] = None if numbers is None else self._choose(choose, numbers)
        return self._chosen_numbers[split]

    def _choose(self, choose: Chooser, numbers: np.ndarray) -> np.ndarray:
        """Return those of the numbers of rows, int64 [N], that are chosen."""

        def read() -> tf.data.Dataset:
            blocks = tf.data.Dataset.from_tensor_slices(numbers).batch(_ROWS_AT_ONCE)
            pairs = blocks.map(lambda rows: (rows, self.source.take_rows(self.split, rows)))
            return _choose(lambda first, pair: choose(first, pair[1]), pairs).map(lambda n, _: n)

        found = list(iterate(read))
        for error in filter(lambda each: isinstance(each, Exception), found):
            raise error
        return np.concatenate([np.zeros([0], np.int64), *found])

    @functools.cached_property
    def _chosen_numbers(self) -> dict[str, np.ndarray | None]:
        """The numbers of the chosen rows, by split."""
        return {}

    def take_rows(self, split: str, rows: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Return the raw records of rows with these numbers, int64 [B]."""
        return self.source.take_rows(split if self.chooser(split) is None else self.split, rows)

    def decode(self, batch: Any, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """Decode a batch as the source does."""
        return self.source.decode(batch, spec, with_labels)


def _choose(choose: Chooser, blocks: tf.data.Dataset) -> tf.data.Dataset:
    """Return the chosen rows of blocks, in blocks."""

    @tf.autograph.experimental.do_not_convert
    def cut(first: tf.Tensor, part: Any) -> tuple[tf.Tensor, Any]:
        rows = tf.cast(types.count_rows({"": tf.nest.flatten(part)[0]}), tf.int64)
        chosen = tf.squeeze(tf.where(choose(first + tf.range(rows), part)), 1)
        return first + rows, tf.nest.map_structure(lambda each: tf.gather(each, chosen), part)

    return blocks.scan(tf.constant(0, tf.int64), cut)


def options() -> tf.data.Options:
    """Return the options of all iterators of a run."""
    made = tf.data.Options()
    # The pipeline divides records among workers; a strategy must not divide them again.
    made.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # The tuning thread may miss that its session closes; the session then waits up to a minute.
    # Without tuning, AUTOTUNE means one call on each core, up to 16, and reading is as fast.
    made.autotune.enabled = False
    return made


def iterate(make_dataset: Callable[[], tf.data.Dataset]) -> Iterator[Any]:
    """Yield the elements as NumPy values, then the error if one ended them; works in any graph."""
    graph = tf.Graph()
    with graph.as_default():
        iterator = tf1.data.make_initializable_iterator(make_dataset().with_options(options()))
        following = iterator.get_next()
    # `with` only closes: a generator must not leave its graph on the caller's stack.
    with contextlib.closing(tf1.Session(graph=graph)) as session:
        session.run(iterator.initializer)
        read = session.make_callable(following)
        while True:
            try:
                element = read()
            except tf.errors.OutOfRangeError:
                return
            except (tf.errors.OpError, UnicodeDecodeError) as error:
                yield error
                return
            yield element


def unreadable(error: Exception) -> str:
    """Return the text of an error that ended the reading of a file."""
    return f"the file cannot be read further: {explain_unreadable(error)}."


def error_text(error: Exception) -> str:
    """Return the message of an error, even if TensorFlow quotes bytes that are not UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="replace")
    return error.message if isinstance(error, tf.errors.OpError) else str(error)


def explain_unreadable(error: Exception) -> str:
    """Return the reason from an error in one line, without the place in a graph or program."""
    in_tensorflow = isinstance(error, (*list_refusals(), tf.errors.OpError))
    text = error_text(error)
    lines = [line for line in text.splitlines() if line.strip() and "[[{{" not in line]
    if not lines:
        return type(error).__name__
    # TensorFlow names the place before the reason; other libraries add hints behind it.
    return lines[-1 if in_tensorflow else 0].strip()


def cut_batches(batches: tf.data.Dataset, count: int, size: int) -> tf.data.Dataset:
    """Cut each batch (features, labels), [count * size, ...], into `count` batches, in order."""

    def cut_one(*values: Any) -> tf.data.Dataset:
        def take(index: tf.Tensor) -> Any:
            return tf.nest.map_structure(lambda value: _take_part(value, index, size), values)

        return tf.data.Dataset.range(count).map(take)

    return batches.flat_map(cut_one)


def _take_part(value: Any, index: tf.Tensor, size: int) -> Any:
    """Return the rows of a part of a tensor or of lists."""
    if not isinstance(value, tf.RaggedTensor):
        part = value[index * size : (index + 1) * size]
        return tf.ensure_shape(part, [size, *value.shape[1:]])
    splits = value.row_splits[index * size : (index + 1) * size + 1]
    values = value.values[splits[0] : splits[-1]]
    splits = tf.ensure_shape(splits - splits[0], [size + 1])
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def set_batch_size(values: Mapping[str, Any], size: int) -> None:
    """Set the static number of rows of lists, which slices and replicas need."""
    for value in values.values():
        if isinstance(value, tf.RaggedTensor):
            value.row_splits.set_shape([size + 1])


def mask_labels(spec: spec_lib.Spec, labels: dict[str, Any], is_row: tf.Tensor) -> dict[str, Any]:
    """Return {label: [B, ...]} with missing labels for padding; keys stay as they are."""
    found = dict(labels)
    for name, field in spec.label_fields.items():
        value, missing = labels[name], tf.constant(field.missing, labels[name].dtype)
        if isinstance(value, tf.RaggedTensor):
            lengths = value.row_lengths()
            kept = tf.boolean_mask(value.values, tf.repeat(is_row, lengths))
            own = tf.RaggedTensor.from_row_lengths(kept, tf.where(is_row, lengths, 0))
            padding = tf.cast(~is_row, lengths.dtype)
            fill = tf.RaggedTensor.from_row_lengths(
                tf.fill([tf.reduce_sum(padding)], missing), padding
            )
            found[name] = tf.concat([own, fill], axis=1)
        else:
            mask = tf.reshape(is_row, [-1, *[1] * (value.shape.rank - 1)])
            found[name] = tf.where(mask, value, missing)
    return found
