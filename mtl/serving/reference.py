"""Predicts rows in memory with an Estimator's `model_fn`, in a graph that is built once.

predict = reference.Reference(estimator, spec)
predictions, takes_no_rows = predict(checkpoint, held_out)
predictions["income/probability"]                        # [N]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mtl import spec as spec_lib
from mtl.deferred import compat, tf, tf1
from mtl.serving import rows as rows_lib


class Reference:
    """Runs the `model_fn` of an Estimator on rows; each call restores a checkpoint.

    Args:
      estimator: the Estimator, whose predictions and export outputs are computed.
      spec: the features of the rows that `model_fn` gets.
    """

    def __init__(self, estimator: compat.estimator.Estimator, spec: spec_lib.Spec):
        self._graph = tf.Graph()
        # {feature: its placeholder}; a feature of lists has two placeholders.
        self._inputs: dict[str, Any] = {}
        with self._graph.as_default():
            tf1.train.get_or_create_global_step()
            features = {name: self._input(field) for name, field in spec.feature_fields.items()}
            mode = compat.estimator.ModeKeys.PREDICT
            result = estimator.model_fn(features, None, mode, estimator.config)
            self._outputs = {**result.predictions, **_list_calls(result.export_outputs)}
            self._saver = result.scaffold.saver or tf1.train.Saver(sharded=True)
            self._tables = tf1.tables_initializer()
            self._graph.finalize()

    def _input(self, field: spec_lib.Field) -> tf.Tensor | tf.RaggedTensor:
        if not field.is_ragged:
            self._inputs[field.name] = tf1.placeholder(field.dtype, [None, *field.shape])
            return self._inputs[field.name]
        values, lengths = tf1.placeholder(field.dtype, [None]), tf1.placeholder(tf.int64, [None])
        # A session can feed only plain tensors, so feed the values of all lists and the lengths.
        self._inputs[field.name] = (values, lengths)
        # Skip the validation, because `Rows.ragged` returns values that fit the lengths.
        return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)

    def save_variables(self, checkpoint: str, prefix: str) -> None:
        """Save the variables of a checkpoint in the format of a SavedModel.

        Args:
          checkpoint: the path of a checkpoint, without ".index".
          prefix: the common prefix of the paths of the written files.
        """
        with tf1.Session(graph=self._graph, config=rows_lib.on_cpu()) as session:
            self._saver.restore(session, checkpoint)
            self._saver.save(session, prefix, write_meta_graph=False, write_state=False)

    def __call__(self, checkpoint: str, rows: rows_lib.Rows) -> tuple[dict[str, np.ndarray], bool]:
        """Predict rows with a checkpoint.

        Args:
          checkpoint: the path of a checkpoint, without ".index".
          rows: the N rows to predict.

        Returns:
          Predictions {"<task>/<name>": [N, ...]}, and True if the model can predict an empty batch.
          The outputs of Classify and Regress signatures have names such as
          "<task>/classify/scores".
        """
        with tf1.Session(graph=self._graph, config=rows_lib.on_cpu()) as session:
            session.run(self._tables)
            self._saver.restore(session, checkpoint)
            predictions = session.run(self._outputs, self._feed_rows(rows))
            try:
                session.run(self._outputs, self._feed_rows(rows.first(0)))
            except tf.errors.OpError:  # A convolution with oneDNN fails on 0 rows, for example.
                return predictions, False
            return predictions, True

    def _feed_rows(self, rows: rows_lib.Rows) -> dict[tf.Tensor, np.ndarray]:
        feed: dict[tf.Tensor, np.ndarray] = {}
        for name, tensor in self._inputs.items():
            if isinstance(tensor, tuple):
                feed.update(zip(tensor, rows.ragged(name), strict=True))
            else:
                feed[tensor] = rows.dense(name)
        return feed


def _list_calls(export_outputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Return {"<signature>/<output>": [N, ...]} for all Classify and Regress signatures."""
    export, tensors = compat.estimator.export, dict[str, tf.Tensor | None]()
    for name, output in export_outputs.items():
        if isinstance(output, export.ClassificationOutput):
            tensors |= {f"{name}/scores": output.scores, f"{name}/classes": output.classes}
        elif isinstance(output, export.RegressionOutput):
            tensors[f"{name}/outputs"] = output.value
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}
