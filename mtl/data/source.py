"""What the pipeline asks of a source of examples; `Csv`, `Idx`, `TfRecord` and `Tfds` are such.

pipeline.Pipeline.source = @csv.Csv()
csv.Csv.files = {"train": "data/train-*.csv.gz", "test": "data/test.csv"}
csv.Csv.columns = ("age", "workclass", "income")
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from mtl import checks

tf1 = tf.compat.v1

# Few enough that images of so many rows fit into memory.
_ROWS_AT_ONCE = 256

# What TensorFlow refuses an example with; the second where its message quotes one that is no text.
REFUSALS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)


def check(where: str, value: Any) -> None:
    """Fail unless `value` is a source."""
    rule = "be a source, such as @csv.Csv()"
    checks.has(where, value, ("records", "decode", "scan"), rule)


def batch(
    records: tf.data.Dataset, batch_size: int, drop_remainder: bool = False
) -> tf.data.Dataset:
    """Return batches of raw records, ragged where their sizes differ."""
    if have_one_size(records):
        return records.batch(batch_size, drop_remainder)
    return records.ragged_batch(batch_size, drop_remainder)


def have_one_size(records: tf.data.Dataset) -> bool:
    """Return whether all records have the same shapes, as those without lists do."""
    return all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(records.element_spec))


def repeat_value(value: Any) -> tf.data.Dataset:
    """Return one value without end, to zip with records: a function would cost each 40 us."""
    return tf.data.Dataset.from_tensors(value).repeat()


def choose_rows(
    records: tf.data.Dataset, choose: Callable[[tf.Tensor, Any], tf.Tensor]
) -> tf.data.Dataset:
    """Return the raw records that are chosen, in order.

    Args:
      records: raw records.
      choose: (their numbers, int64 [B]; a batch of them) -> which are taken, bool [B].
    """

    @tf.autograph.experimental.do_not_convert
    def cut(numbers: tf.Tensor, part: Any) -> tf.data.Dataset:
        chosen = tf.squeeze(tf.where(choose(numbers, part)), 1)
        taken = tf.nest.map_structure(lambda each: tf.gather(each, chosen), part)
        return tf.data.Dataset.from_tensor_slices(taken)

    # A choice that is made row by row would take 20 to 90 microseconds for each.
    return batch(records.enumerate(), _ROWS_AT_ONCE).flat_map(cut)


def iterate(make_dataset: Callable[[], tf.data.Dataset]) -> Iterator[Any]:
    """Yield the elements as NumPy values, and the error that ended them; in a graph or not."""
    graph = tf.Graph()
    with graph.as_default():
        iterator = tf1.data.make_initializable_iterator(make_dataset())
        following = iterator.get_next()
    # No `with` but for closing: a generator must not leave its graph on the caller's stack.
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
    """Return what to say of the place in a file where reading ended with an error."""
    return f"the file cannot be read further: {explain_unreadable(error)}."


def error_text(error: Exception) -> str:
    """Return all that an error says, also where TensorFlow quotes bytes that are no text."""
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="replace")
    return error.message if isinstance(error, tf.errors.OpError) else str(error)


def explain_unreadable(error: Exception) -> str:
    """Return what an error says, in one line, without where in a graph or program it arose."""
    in_tensorflow = isinstance(error, REFUSALS + (tf.errors.OpError,))
    text = error_text(error)
    lines = [line for line in text.splitlines() if line.strip() and "[[{{" not in line]
    if not lines:
        return type(error).__name__
    # TensorFlow tells the place before the reason, other libraries give hints behind it.
    return lines[-1 if in_tensorflow else 0].strip()


def set_batch_size(values: Mapping[str, Any], size: int) -> None:
    """Tell lists, which do not know it, how many rows they have: slices and replicas ask."""
    for value in values.values():
        if isinstance(value, tf.RaggedTensor):
            value.row_splits.set_shape([size + 1])
