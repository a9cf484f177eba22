"""numpy_input_fn and pandas_input_fn: batches, epochs, keys; and the queues below them."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_estimator.python.estimator.inputs.queues import feeding_functions

from mtl import compat

tf1 = tf.compat.v1
inputs = compat.estimator_v1.inputs


def _batches(make, **settings):
    """All batches of an input function, in order."""
    with tf.Graph().as_default():
        tensors = make(**{"shuffle": False, "num_epochs": 1, "batch_size": 2} | settings)()
        found = []
        with tf1.train.MonitoredSession() as session:
            while not session.should_stop():
                try:
                    found.append(session.run(tensors))
                except tf.errors.OutOfRangeError:
                    break
    return found


def _numpy(x, y):
    return lambda **settings: inputs.numpy_input_fn(x, y, **settings)


def _table(rows):
    return {"a": np.arange(rows) * 1.0, "b": np.arange(32, 32 + rows)}


@pytest.mark.parametrize(
    ("rows", "batch_size", "num_epochs", "expected"),
    [
        (4, 2, 1, [[0, 1], [2, 3]]),
        (2, 128, 2, [[0, 1, 0, 1]]),
        (4, 2, 0, []),
        (5, 2, 1, [[0, 1], [2, 3], [4]]),
        (3, 2, 3, [[0, 1], [2, 0], [1, 2], [0, 1], [2]]),
        (4, 10, 1, [[0, 1, 2, 3]]),
    ],
)
@pytest.mark.parametrize("kind", ["numpy", "pandas"])
def test_batches_and_epochs(kind, rows, batch_size, num_epochs, expected):
    x, y = _table(rows), -np.arange(rows)
    make = _numpy(x, y)
    if kind == "pandas":
        pandas = pytest.importorskip("pandas")
        index = np.arange(100, 100 + rows)
        frame, labels = pandas.DataFrame(x, index=index), pandas.Series(y, index=index)

        def make(**settings):
            return inputs.pandas_input_fn(frame, labels, **settings)

    found = _batches(make, batch_size=batch_size, num_epochs=num_epochs)
    assert [features["a"].tolist() for features, _ in found] == expected
    assert [(features["b"] - 32).tolist() for features, _ in found] == expected
    assert [(-labels).tolist() for _, labels in found] == expected
    assert all(set(features) == {"a", "b"} for features, _ in found)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.arange(4) * 1.0, np.arange(4)),
        (np.arange(16.0).reshape(4, 2, 2), np.arange(-48, -32).reshape(4, 2, 2)),
        ({"a": np.arange(8.0).reshape(4, 2), "b": np.arange(4)}, np.arange(4)),
        (_table(4), {"one": np.arange(4), "two": -np.arange(4)}),
        (np.arange(4) * 1.0, {"one": np.arange(4)}),
        (_table(4), None),
    ],
    ids=["vector", "tensor", "shapes", "several labels", "vector and dict", "no labels"],
)
def test_structures(x, y):
    first, second = _batches(_numpy(x, y))
    given = x if y is None else (x, y)
    for rows, found in ((slice(0, 2), first), (slice(2, 4), second)):
        expected = tf.nest.map_structure(lambda array, rows=rows: array[rows], given)
        tf.nest.assert_same_structure(expected, tuple(found) if y is not None else found)
        pairs = zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True)
        for array, batch in pairs:
            np.testing.assert_array_equal(array, batch)


def test_shuffling_keeps_rows_together():
    found = _batches(_numpy(_table(64), -np.arange(64)), shuffle=True, batch_size=8)
    a = np.concatenate([features["a"] for features, _ in found])
    b = np.concatenate([features["b"] for features, _ in found])
    labels = np.concatenate([labels for _, labels in found])
    assert sorted(a) == list(range(64))
    assert a.tolist() != sorted(a)
    np.testing.assert_array_equal(b, a + 32)
    np.testing.assert_array_equal(labels, -a)


def test_the_arrays_given_stay_as_they_are():
    x = {"__target_key__": np.arange(4)}
    _batches(_numpy(x, np.arange(4)))
    assert list(x) == ["__target_key__"]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (list(range(4)), np.arange(4), "x must be a dict or array"),
        ({}, np.arange(4), "x cannot be an empty dict"),
        (np.array([[], []]), np.arange(4), "x cannot be an empty array"),
        (_table(4), {}, "y cannot be empty"),
        (_table(4), np.arange(10), "Length of tensors in x and y is mismatched"),
        (_table(4) | {"a": np.arange(1)}, None, "Length of tensors in x and y is mismatched"),
        (_table(4), _table(4), "2 duplicate keys are found in both x and y"),
    ],
    ids=["list", "no features", "no rows", "no labels", "labels", "features", "keys"],
)
def test_refused_arrays(x, y, message):
    with tf.Graph().as_default(), pytest.raises((TypeError, ValueError), match=message):
        inputs.numpy_input_fn(x, y, shuffle=False)()
    with pytest.raises(ValueError, match="shuffle must be provided and explicitly"):
        inputs.numpy_input_fn(x, y)


def test_tables_of_labels():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(_table(4))
    labels = pandas.DataFrame({"a": [10, 11, 12, 13], "a_n": [50, 51, 52, 53]})
    make = inputs.pandas_input_fn
    found = _batches(lambda **settings: make(frame, labels, **settings))
    assert [features["a"].tolist() for features, _ in found] == [[0, 1], [2, 3]]
    assert [targets["a"].tolist() for _, targets in found] == [[10, 11], [12, 13]]
    assert [targets["a_n"].tolist() for _, targets in found] == [[50, 51], [52, 53]]
    features = _batches(lambda **settings: make(frame, None, **settings))
    assert [batch["b"].tolist() for batch in features] == [[32, 33], [34, 35]]
    shuffled = _batches(lambda **settings: make(frame, labels, **settings | {"shuffle": True}))
    assert sorted(np.concatenate([batch["a"] for batch, _ in shuffled])) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="Index for x and y are mismatched"):
        make(frame, pandas.Series(range(4), index=range(1, 5)), shuffle=False)
    with pytest.raises(TypeError, match="target_column must be a string type"):
        make(frame, labels["a"], shuffle=False, target_column=["one", "two"])


@pytest.mark.medium
@pytest.mark.parametrize("threads", [1, 8])
def test_queues_of_rows(threads):
    rows = np.arange(256).reshape(128, 2)
    with tf.Graph().as_default():
        queue = feeding_functions._enqueue_data(
            rows, capacity=256, num_threads=threads, shuffle=threads > 1, min_after_dequeue=8
        )
        batch = queue.dequeue_many(5)
        with tf1.train.MonitoredSession() as session:
            found = [session.run(batch) for _ in range(40)]
    for index, values in found:
        np.testing.assert_array_equal(values, rows[index])
    if threads == 1:
        np.testing.assert_array_equal(np.concatenate([i for i, _ in found]), np.arange(200) % 128)
