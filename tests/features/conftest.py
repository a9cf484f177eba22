"""Fits columns on a training split and encodes a batch, in the graph mode of an Estimator."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import features

tf1 = tf.compat.v1


def _tensor(values):
    if isinstance(values, list) and values and isinstance(values[0], list):
        dtype = tf.string if any(isinstance(v, str) for row in values for v in row) else tf.int64
        return tf.ragged.constant(values, dtype=dtype, ragged_rank=1, row_splits_dtype=tf.int64)
    return tf.constant(values)


@pytest.fixture
def fit(tmp_path):
    """fit(columns, {field: values}, ...) fits on one batch per dict and loads the statistics."""

    def run(columns, *batches):
        directory = str(tmp_path / "statistics")
        tensors = [
            ({name: _tensor(values) for name, values in batch.items()}, {}) for batch in batches
        ]
        features.fit_columns(columns, tensors, directory)
        return features.load_statistics(directory)

    return run


@pytest.fixture
def encode(fit):
    """encode(columns, training split, batch) -> {column: array}, variables at ones of their id."""

    def run(columns, training, batch=None):
        statistics = fit(columns, training)
        with tf.Graph().as_default():
            fed = {name: _tensor(values) for name, values in (batch or training).items()}
            inputs = features.encode_columns(columns, fed, statistics)
            with tf1.Session() as session:
                session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
                for variable in tf1.global_variables():
                    variable.load(_rows_count_up(variable.shape), session)
                return session.run(inputs)

    return run


def _rows_count_up(shape):
    """Row i of an embedding holds (i, 1, 1, ...): the first element shows the id, pooled."""
    table = np.ones(shape, np.float32)
    table[:, 0] = np.arange(shape[0])
    return table
