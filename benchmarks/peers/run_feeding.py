"""Times rows on their way from memory into a loop of steps, for `benchmarks.feeding`.

`mtl` comes from the checkout in PYTHONPATH, which may be an earlier revision.
"""

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import answering
import numpy as np
import tensorflow as tf
from pyarrow import parquet

tf1 = tf.compat.v1

_BUFFER, _WARM_UP_STEPS = 10_000, 20
_COLUMN, _BUCKETS = "column", 1000


@functools.cache  # TensorFlow keeps each generator, and so its rows.
def read_table(folder: str) -> dict[str, np.ndarray]:
    """Return {field: values [N]} of the Parquet file; lists are arrays of objects."""
    table = parquet.read_table(os.path.join(folder, "train.parquet"))
    return {name: column.to_numpy() for name, column in zip(table.column_names, table, strict=True)}


def make_pipeline(case: dict) -> Any:
    """Return the `Pipeline` of a case: "csv" reads the file, "memory" keeps its decoded rows."""
    from mtl import spec
    from mtl.data import csv, pipeline

    fields = spec.Spec(features=case["features"], labels=case["labels"])
    place = {"data_dir": case["folder"]}
    settings: dict[str, Any] = {"spec": fields, "batch_size": case["batch_size"]}
    if case["side"] == "windows":
        from mtl.data import arrow  # Earlier revisions have no such module.

        files = {"train": "train.parquet"}
        return pipeline.Pipeline(
            source=arrow.Arrow(files=files, window=case["window"], **place), **settings
        )
    source = csv.Csv(files={"train": "train.csv"}, **place)
    return pipeline.Pipeline(source=source, cache=case["side"] == "memory", **settings)


def read_plainly(case: dict) -> Callable[[], Any]:
    """Return a function that reads the next batch of `mtl`, with texts."""
    return _open(make_pipeline(case).dataset("train", training=True, seed=1))


def read_with_ids(case: dict) -> Callable[[], Any]:
    """Return a function that reads the next batch of `mtl`, with ids in place of texts."""
    from mtl.data import coded_rows
    from mtl.step import codes

    find = functools.partial(tf.strings.to_hash_bucket_fast, num_buckets=_BUCKETS)
    texts = [name for name, (dtype, _) in case["features"].items() if dtype == "string"]
    encoders = {name: {_COLUMN: find} for name in texts}
    data = coded_rows.code_texts(make_pipeline(case), encoders)
    get_next = _open(data.dataset("train", training=True, seed=1))

    def read() -> Any:
        features, labels = get_next()
        features = data.unpack(features)
        ids = {name: codes.find_ids(features[name], _COLUMN) for name in texts}
        return {**features, **ids}, labels

    return read


def read_tf_data(case: dict) -> Callable[[], Any]:
    """Return a function that reads the next batch of rows in memory by tf.data alone."""
    tensors = {name: _to_tensor(values) for name, values in read_table(case["folder"]).items()}
    rows = tf.data.Dataset.from_tensor_slices(tensors).shuffle(_BUFFER).repeat()
    return _open(rows.batch(case["batch_size"], drop_remainder=True).prefetch(2))


def read_pandas(case: dict) -> Callable[[], Any]:
    """Return a function that reads the next batch of a shuffled DataFrame."""
    import pandas as pd

    frame, size = pd.DataFrame(read_table(case["folder"])), case["batch_size"]

    def generate() -> Iterator[dict[str, Any]]:
        draw = np.random.default_rng(0)
        while True:
            order = draw.permutation(len(frame))
            for start in range(0, len(order) - size + 1, size):
                batch = frame.iloc[order[start : start + size]]
                yield {name: _to_tensor(batch[name].to_numpy()) for name in frame}

    return _open_generator(generate, case)


def read_grain(case: dict) -> Callable[[], Any]:
    """Return a function that reads the next batch of rows in memory by grain."""
    import grain

    table = read_table(case["folder"])

    class Rows:
        """Rows by number, as grain reads them."""

        def __len__(self) -> int:
            return len(next(iter(table.values())))

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {name: values[index] for name, values in table.items()}

    def stack(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: _to_tensor(_collect([row[name] for row in rows])) for name in table}

    def generate() -> Iterator[dict[str, Any]]:
        data = grain.MapDataset.source(Rows()).seed(0).shuffle().repeat()
        batches = data.batch(case["batch_size"], drop_remainder=True, batch_fn=stack)
        # More threads would only wait for each other, as `Rows` and `stack` are Python.
        yield from batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))

    return _open_generator(generate, case)


def _collect(values: list[Any]) -> np.ndarray:
    if not isinstance(values[0], np.ndarray):
        return np.array(values, object if isinstance(values[0], str) else None)
    lists = np.empty(len(values), object)
    lists[:] = values
    return lists


def _to_tensor(values: np.ndarray) -> Any:
    """Return a tensor of the values of a field, ragged if they are lists."""
    if not (values.dtype == object and isinstance(values[0], np.ndarray)):
        return tf.constant(values)
    flat = tf.constant(np.concatenate(values))
    return tf.RaggedTensor.from_row_lengths(flat, [len(row) for row in values], validate=False)


def _open_generator(generate: Callable[[], Iterator[Any]], case: dict) -> Callable[[], Any]:
    signature: dict[str, tf.TypeSpec] = {}
    for name, (dtype, shape) in {**case["features"], **case["labels"]}.items():
        size = case["batch_size"]
        signature[name] = (
            tf.RaggedTensorSpec([size, None], dtype, row_splits_dtype=tf.int64)
            if shape
            else tf.TensorSpec([size], dtype)
        )

    batches = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return _open(batches.prefetch(2))


def _open(batches: tf.data.Dataset) -> Callable[[], Any]:
    iterator = tf1.data.make_initializable_iterator(batches)
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next


SIDES: Mapping[str, Callable[[dict], Callable[[], Any]]] = {
    "csv": read_plainly,
    "memory": read_with_ids,
    "windows": read_with_ids,
    "tf.data": read_tf_data,
    "pandas": read_pandas,
    "grain": read_grain,
}


def measure(case: dict) -> dict[str, float]:
    """Return the time of a row in microseconds, in a loop of steps that only take their batch."""
    with tf.Graph().as_default(), tf1.Session() as session:
        read = SIDES[case["side"]](case)
        count = tf1.placeholder(tf.int32, [])

        def step(index: tf.Tensor) -> tf.Tensor:
            tensors = tf.nest.flatten(read(), expand_composites=True)
            with tf.control_dependencies(tensors):
                return index + 1

        loop = tf.while_loop(lambda index: index < count, step, [0], parallel_iterations=1)
        session.run(tf1.tables_initializer())
        session.run(loop, {count: _WARM_UP_STEPS})
        started = time.perf_counter()
        session.run(loop, {count: case["steps"]})
        secs = time.perf_counter() - started
    return {"us": 1e6 * secs / (case["steps"] * case["batch_size"])}


def main() -> None:
    """Answer all cases of the standard input."""
    answering.answer_lines(measure)


if __name__ == "__main__":
    main()
