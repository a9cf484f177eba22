"""Functions for sources of examples, such as `Csv`, `Idx`, `TfRecord` and `Tfds`.

pipeline.Pipeline.source = @csv.Csv()
csv.Csv.files = {"train": "data/train-*.csv.gz", "test": "data/test.csv"}
csv.Csv.columns = ("age", "workclass", "income")
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.deferred import tf, tf1

# The number of batches to prefetch. AUTOTUNE would prefetch up to 2,048 batches, and checkpoints
# hold all prefetched batches.
AHEAD = 2
# `read_field` reads this number of rows at once.
_ROWS_AT_ONCE = 4096


def list_refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions that TensorFlow raises for a bad example.

    UnicodeDecodeError is raised if the error message quotes an example that is not UTF-8.
    """
    return tf.errors.InvalidArgumentError, UnicodeDecodeError


def check(where: str, value: Any) -> None:
    """Fail unless `value` is a source.

    Args:
      where: the name of the setting, with which the error message begins.
      value: the value of the setting.

    Raises:
      UserError: the value lacks `records`, `decode` or `scan`, or is a class in place of a source.
    """
    rule = "be a source, such as @csv.Csv()"
    checks.has(where, value, ("records", "decode", "scan"), rule)


def name_columns(columns: Sequence[str], rename: Mapping[str, str]) -> list[str]:
    """Return the names of columns, renamed to the names of their fields.

    Args:
      columns: the columns of a file, in order.
      rename: {field: column} of the fields whose columns have other names.
    """
    fields = {column: field for field, column in rename.items()}
    return [fields.get(column, column) for column in columns]


def list_columns(source: Any) -> Sequence[str]:
    """Return the column names of a source or of its inner source; [] if there are none."""
    while source is not None:
        names = getattr(source, "names", ()) or getattr(source, "column_names", ())
        if names:
            return names
        source = getattr(source, "source", None)
    return []


def check_order(source: Any, sampler: Any) -> None:
    """Fail if a sampler, or a source around a mixture, would override the order of the mixture.

    Args:
      source: the source of a pipeline, or of a mixture.
      sampler: the sampler of the pipeline; None without a sampler.

    Raises:
      UserError: the source orders its rows, and there is a sampler; or an inner source of the
        source orders its rows.
    """
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
    """Batch raw records; tensors of different sizes become ragged.

    Args:
      records: a dataset of single raw records.
      batch_size: the number of records in a batch.
      drop_remainder: True drops a last batch that is not full.
    """
    shapes = [spec.shape for spec in tf.nest.flatten(records.element_spec)]
    if all(shape.is_fully_defined() for shape in shapes):  # No record has a list.
        return records.batch(batch_size, drop_remainder)
    return records.ragged_batch(batch_size, drop_remainder)


def read_batches(source: types.Source, split: str, batch_size: Any) -> tf.data.Dataset:
    """Read all raw records of a split in batches; tensors of different sizes become ragged.

    Args:
      source: the source of the records.
      split: the name of the split, such as "train".
      batch_size: the number of records in a batch; the last batch may be smaller.
    """
    blocks = types.read_shortcut(source, "blocks")(split)
    if blocks is None:
        records, rule = source.records(split), "return a tf.data.Dataset"
        checks.is_a(f"{type(source).__name__}.records", records, tf.data.Dataset, rule)
        return batch(records, batch_size)
    if is_ragged(blocks):
        return batch(blocks.unbatch(), batch_size)
    return blocks.rebatch(batch_size)


def names_files(source: Any) -> bool:
    """Return True if the records of a source, or of its inner source, name files to read."""
    if types.read_member(source, types.Source, "names_files"):
        return True
    inner = getattr(source, "source", None)
    return inner is not None and names_files(inner)


def is_ragged(batches: tf.data.Dataset) -> bool:
    """Return True if batches contain ragged tensors."""
    specs = tf.nest.flatten(batches.element_spec)
    return any(isinstance(spec, tf.RaggedTensorSpec) for spec in specs)


def repeat_value(value: Any) -> tf.data.Dataset:
    """Repeat a value without end, to zip it with records; `map` would cost 40 µs per record."""
    return tf.data.Dataset.from_tensors(value).repeat()


def options() -> tf.data.Options:
    """Return the tf.data options for all iterators of a run."""
    dataset_options = tf.data.Options()
    # Pipeline divides the records among workers, so a strategy must not divide them again.
    dataset_options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    # Autotuning may delay the end of a session by up to a minute, because its thread may miss that
    # the session closes. If autotuning is off, `tf.data.AUTOTUNE` makes one parallel call per core,
    # up to 16, which is as fast as autotuning.
    dataset_options.autotune.enabled = False
    return dataset_options


def iterate(make_dataset: Callable[[], tf.data.Dataset]) -> Iterator[Any]:
    """Yield the elements of a dataset as NumPy values.

    Args:
      make_dataset: a function that makes the dataset; it is called in a new graph.

    Yields:
      The elements. If reading fails, the last element is the error, an OpError or
      UnicodeDecodeError; the error is not raised.
    """
    graph = tf.Graph()
    with graph.as_default():
        iterator = tf1.data.make_initializable_iterator(make_dataset().with_options(options()))
        next_element = iterator.get_next()
    # `with session` would leave its graph on the caller's stack between elements, but `closing`
    # does not.
    with contextlib.closing(tf1.Session(graph=graph)) as session:
        session.run(iterator.initializer)
        read_next = session.make_callable(next_element)
        while True:
            try:
                element = read_next()
            except tf.errors.OutOfRangeError:
                return
            except (tf.errors.OpError, UnicodeDecodeError) as error:
                yield error
                return
            yield element


def read_field(
    source: types.Source, split: str, rows: np.ndarray, spec: spec_lib.Spec
) -> np.ndarray:
    """Return the values of a single field for row numbers, [N].

    Args:
      source: a source that takes rows by number.
      split: the name of the split, such as "train".
      rows: the row numbers, int64 [N].
      spec: a specification with one field that has one value in each row.

    Raises:
      InvalidArgumentError: a record is malformed.
    """
    (field,) = spec.fields.values()

    # AutoGraph is off, because it would change the errors that sources raise.
    @tf.autograph.experimental.do_not_convert
    def decode(numbers: tf.Tensor) -> tf.Tensor:
        return source.decode(source.take_rows(split, numbers), spec, True)[field.name]

    def read() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(rows).batch(_ROWS_AT_ONCE).map(decode)

    parts = list(iterate(read))
    for error in parts:
        if isinstance(error, Exception):
            raise error
    return np.concatenate(parts)


def unreadable(error: Exception) -> str:
    """Return the message about an error that ended the reading of a file."""
    return f"the file cannot be read further: {explain_unreadable(error)}."


def error_text(error: Exception) -> str:
    """Return the message of an error; TensorFlow may quote bytes that are not UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="replace")
    return error.message if isinstance(error, tf.errors.OpError) else str(error)


def explain_unreadable(error: Exception) -> str:
    """Return the reason of an error in one line, without locations in a graph or in code.

    Args:
      error: an error of TensorFlow or of Python.

    Returns:
      The line; the name of the error's class if the error has no message.
    """
    in_tensorflow = isinstance(error, (*list_refusals(), tf.errors.OpError))
    text = error_text(error)
    lines = [line for line in text.splitlines() if line.strip() and "[[{{" not in line]
    if not lines:
        return type(error).__name__
    # The reason is in the last line of a TensorFlow error, and in the first line of other errors.
    return lines[-1 if in_tensorflow else 0].strip()


def cut_batches(batches: tf.data.Dataset, count: int, size: int) -> tf.data.Dataset:
    """Cut each batch into several smaller batches.

    Args:
      batches: (features, labels), [count * size, ...] each.
      count: the number of smaller batches into which each batch is cut.
      size: the number of rows in a smaller batch.
    """

    def cut_one(*values: Any) -> tf.data.Dataset:
        def take(index: tf.Tensor) -> Any:
            return tf.nest.map_structure(lambda value: _take_part(value, index, size), values)

        return tf.data.Dataset.range(count).map(take)

    return batches.flat_map(cut_one)


def _take_part(value: Any, index: tf.Tensor, size: int) -> Any:
    """Return one part of the rows of a tensor or a ragged tensor."""
    if not isinstance(value, tf.RaggedTensor):
        part = value[index * size : (index + 1) * size]
        return tf.ensure_shape(part, [size, *value.shape[1:]])
    splits = value.row_splits[index * size : (index + 1) * size + 1]
    values = value.values[splits[0] : splits[-1]]
    splits = tf.ensure_shape(splits - splits[0], [size + 1])
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def set_batch_size(values: Mapping[str, Any], size: int) -> None:
    """Set the static number of rows of a batch, which micro-batches need.

    Args:
      values: {name: [B, ...]}; the tensors are changed in place.
      size: B, the number of rows in a batch.
    """
    for value in values.values():
        if isinstance(value, tf.RaggedTensor):
            value.row_splits.set_shape([size + 1])
        else:
            value.set_shape([size, *value.shape[1:]])


def append_value(lists: tf.RaggedTensor, is_row: tf.Tensor, value: Any) -> tf.RaggedTensor:
    """Append a value to the lists of selected rows.

    Args:
      lists: the lists of B rows, [B, (L)].
      is_row: True for the lists to extend, bool [B].
      value: a scalar of the type of the lists.
    """
    lengths = tf.cast(is_row, lists.row_splits.dtype)
    values = tf.fill([tf.reduce_sum(lengths)], tf.convert_to_tensor(value, lists.dtype))
    return tf.concat([lists, tf.RaggedTensor.from_row_lengths(values, lengths)], axis=1)


def mask_labels(spec: spec_lib.Spec, labels: dict[str, Any], is_row: tf.Tensor) -> dict[str, Any]:
    """Replace the labels of padding rows by missing labels; keys are unchanged.

    Args:
      spec: the specification of the fields of the rows.
      labels: {label or key: [B, ...]}.
      is_row: bool [B], False for padding rows.

    Returns:
      {label or key: [B, ...]}.
    """
    masked_labels = dict(labels)
    for name, field in spec.label_fields.items():
        value, missing = labels[name], tf.constant(field.missing, labels[name].dtype)
        if isinstance(value, tf.RaggedTensor):
            lengths = value.row_lengths()
            row_values = tf.boolean_mask(value.values, tf.repeat(is_row, lengths))
            row_lists = tf.RaggedTensor.from_row_lengths(row_values, tf.where(is_row, lengths, 0))
            masked_labels[name] = append_value(row_lists, ~is_row, missing)
        else:
            mask = tf.reshape(is_row, [-1, *[1] * (value.shape.rank - 1)])
            masked_labels[name] = tf.where(mask, value, missing)
    return masked_labels
