"""Looks up the ids of texts once, when training rows are read into memory, and not in each step.

training.Training(experiment, "runs/a", on_start, observers=[*observers, text_codes.observe])

An exported model still takes texts as input. Training and serving get the same ids from
`Column.find_ids`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from mtl import deferred, types
from mtl import experiment as experiment_lib
from mtl.data import pipeline
from mtl.deferred import tf
from mtl.runs import fitting

with deferred.imports():  # Imported only if texts are replaced by ids.
    from mtl.data import coded_rows


def observe(run: types.ObservedRun) -> Coding | None:
    """Return an observer that replaces texts in the training data by ids.

    Returns:
      The observer; None if the columns of the run look up no values, if the pipeline takes no
      decoded rows, or if a step has micro-batches or added rows.
    """
    experiment = run.experiment
    # Ids are looked up for the tensor of the whole batch, and not for tensors of micro-batches.
    if experiment.run.micro_batches > 1 or any(map(_adds_rows, experiment.model.heads)):
        return None
    encoders = list_encoders(experiment, functools.partial(fitting.load_statistics, run.model_dir))
    return Coding(encoders) if encoders and experiment.data.takes_decoded_rows else None


def _adds_rows(head: types.Head) -> bool:
    return bool(types.read_member(head, types.AddingHead, "rows_added"))


class Coding(types.RunObserver):
    """Observes a training whose input has ids of values in place of texts.

    Args:
      encoders: {field: {column: function}}, the functions that look up the ids of values.
    """

    def __init__(self, encoders: coded_rows.Encoders):
        self._encoders = encoders
        self._data: coded_rows.CodedPipeline | None = None

    def change_data(self, data: pipeline.Pipeline) -> pipeline.Pipeline:
        self._data = coded_rows.code_texts(data, self._encoders)
        return self._data

    def wrap_model_fn(self, model_fn: Callable[..., Any]) -> Callable[..., Any]:
        def build(features: Any, labels: Any, *args: Any, **settings: Any) -> Any:
            return model_fn(self._unpack(features), labels, *args, **settings)

        # Estimator decides by the names of the parameters which arguments it passes.
        return functools.update_wrapper(build, model_fn, ("__module__",))

    def _unpack(self, features: Any) -> Any:
        data = self._data
        assert data is not None  # `change_data` comes first.
        return _Iterator(features, data) if hasattr(features, "get_next") else data.unpack(features)


class _Iterator:
    """Iterates over batches in which ids, in the form that columns read, replace texts.

    Args:
      iterator: an iterator of the packed batches of a `CodedPipeline`.
      data: the pipeline.
    """

    def __init__(self, iterator: Any, data: coded_rows.CodedPipeline):
        self._iterator, self._data = iterator, data

    def get_next(self) -> tuple[Any, Any]:
        """Return features and labels of the next batch."""
        features, labels = self._iterator.get_next()
        return self._data.unpack(features), labels


def list_encoders(
    made: experiment_lib.Experiment, load: Callable[[], types.Statistics]
) -> coded_rows.Encoders:
    """List the functions that look up ids of values, {field: {column: function}}.

    A field of texts is left out if another column, or the sampler, reads its texts.

    Args:
      made: the settings of the run.
      load: returns the statistics of the training split; called when rows are read.
    """
    load = functools.cache(load)
    spec, columns = made.data.spec, made.model.columns
    other_fields = {made.data.order_field, *itertools.chain(*_list_others(columns))}
    encoders: dict[str, dict[str, coded_rows.Encode]] = {}
    for column in columns:
        for output, field in types.read_member(column, types.Column, "coded_columns").items():
            spec_field = spec.feature_fields.get(field)
            if spec_field is None or spec_field.is_nested or field in spec.keys:
                continue
            if spec_field.dtype == "string" and field in other_fields:
                continue
            encode = functools.partial(_encode, column, output, load)
            encoders.setdefault(field, {})[output] = encode
    return encoders


def _encode(
    column: types.Column, output: str, load: Callable[[], types.Statistics], values: tf.Tensor
) -> tf.Tensor:
    return column.find_ids(output, values, load())


def _list_others(columns: Iterable[types.Column]) -> Iterable[Iterable[str]]:
    """Yield the fields of columns without ids, and of columns inside other columns."""
    for column in columns:
        coded_outputs = types.read_member(column, types.Column, "coded_columns")
        yield from (
            fields for output, fields in column.columns.items() if output not in coded_outputs
        )
        for part in types.read_member(column, types.Column, "parts"):
            # Some columns, such as `Weighted`, hand ids to the columns inside them.
            yield from (
                fields
                for fields in part.columns.values()
                if not set(fields) <= set(coded_outputs.values())
            )
