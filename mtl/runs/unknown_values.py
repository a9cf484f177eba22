"""Reports the share of unknown values in each field, such as words outside the vocabulary.

The graphs of evaluation and prediction also count the unknown values in their rows.

watch = unknown_values.watch_evaluation(columns, statistics, "of split 'test'", tell)
with unknown_values.count_in(model, experiment, "runs/income", tell) as model: ...      # for files
unknown_values.describe_training(experiment, "runs/income")            # when a run continues
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mtl import experiment as experiment_lib
from mtl import features as features_lib
from mtl import spec as spec_lib
from mtl import types
from mtl.deferred import compat, tf, tf1
from mtl.features import unknown
from mtl.runs import diagnosis, fitting

_log = logging.getLogger(__name__)

# A continued run checks at most this many rows of its training split.
_MOST_ROWS = 10_000

Tell = Callable[[Sequence[str]], None]


def warn(lines: Sequence[str]) -> None:
    """Log a warning for each line."""
    for line in lines:
        _log.warning("Warning: %s", line)


def watch_evaluation(
    columns: Sequence[types.Column], statistics: types.Statistics, where: str, tell: Tell
) -> types.EvaluationHooks:
    """Return a function that builds the hook which counts and reports unknown values.

    Args:
      columns: the columns of the model.
      statistics: the statistics of the training split, such as vocabularies.
      where: the name of the rows in the report, such as "of split 'test'".
      tell: a function to call with the lines that report unknown values.
    """

    def watch(features: Any, labels: Any, logits: Any) -> Sequence[Any]:
        del labels, logits
        return list_hooks(columns, features, statistics, where, tell)

    return watch


def list_hooks(
    columns: Sequence[types.Column],
    features: types.Tensors,
    statistics: types.Statistics,
    where: str,
    tell: Tell,
) -> list[tf.compat.v1.train.SessionRunHook]:
    """Return the hook that counts the unknown values of a graph; [] if no field can be counted.

    Args:
      columns: the columns of the model.
      features: {field: [B, ...]} in the graph that the hook joins.
      statistics: the statistics of the training split, such as vocabularies.
      where: the name of the rows in the report, such as "of split 'test'".
      tell: a function to call with the lines that report unknown values.
    """
    if not unknown.list_fields(columns):
        return []
    counts = unknown.count_unknown(columns, features, statistics)
    return [_Counting(unknown.list_fields(columns), counts, where, tell)]


class _Counting(tf.compat.v1.train.SessionRunHook):
    """Counts unknown values in the first pass of a graph over its rows, then reports them once."""

    def __init__(self, fields: Sequence[str], counts: tf.Tensor, where: str, tell: Tell):
        self._fields, self._counts, self._where, self._tell = fields, counts, where, tell
        self._shares: unknown.Shares | None = unknown.Shares(fields)

    def begin(self):
        if self._shares is not None:
            self._shares = unknown.Shares(self._fields)

    def before_run(self, run_context):
        return None if self._shares is None else tf1.train.SessionRunArgs(self._counts)

    def after_run(self, run_context, run_values):
        if self._shares is not None:
            self._shares.add(run_values.results)

    def end(self, session):
        if self._shares is not None:
            self._tell(self._shares.describe(self._where))
            self._shares = None


def count_in_predictions(
    model_fn: Callable[..., Any],
    columns: Sequence[types.Column],
    statistics: types.Statistics,
    where: str,
    tell: Tell,
) -> Callable[..., Any]:
    """Return a `model_fn` whose predictions also count unknown values.

    Args:
      model_fn: takes features, labels and a mode, and returns an EstimatorSpec.
      columns: the columns of the model.
      statistics: the statistics of the training split, such as vocabularies.
      where: the name of the rows in the report, such as "that are predicted".
      tell: called with the lines of the report, after the first pass over rows.
    """

    def count_values(features: Any, labels: Any, mode: str, **others: Any) -> Any:
        estimator_spec = model_fn(features, labels, mode, **others)
        if mode != compat.estimator.ModeKeys.PREDICT:
            return estimator_spec
        hooks = list_hooks(columns, features, statistics, where, tell)
        return estimator_spec._replace(
            prediction_hooks=[*(estimator_spec.prediction_hooks or ()), *hooks]
        )

    return count_values


class Counted:
    """A model of `mtl.tools.scoring` that also counts unknown values in its inputs.

    Args:
      model: a function that predicts for serialized tf.Examples.
      fields: the F fields with a limited set of known values.
      count: counts unknown values of these fields in tf.Examples [B]; None turns counting off.
      tell: a function to call with the lines that report unknown values.
    """

    def __init__(
        self,
        model: Any,
        fields: Sequence[str],
        count: Callable[[np.ndarray], np.ndarray] | None,
        tell: Tell,
    ):
        self._model, self._count, self._tell = model, count, tell
        self._shares, self._lock = unknown.Shares(fields), threading.Lock()
        self.identity, self.digest = model.identity, model.digest

    def __call__(self, examples: Sequence[bytes] | np.ndarray) -> dict[str, np.ndarray]:
        """Predict for serialized tf.Examples [B], and return {output: [B, ...]}."""
        predictions = self._model(examples)  # Predict before counting, to report errors in rows.
        if self._count is not None:
            counts = self._count(np.asarray(examples, object))
            with self._lock:
                self._shares.add(counts)
        return predictions

    def tell_new(self) -> None:
        """Report fields with many unknown values since the last report, each field at most once."""
        with self._lock:
            lines = self._shares.describe_new("in the input")
        self._tell(lines)


@contextlib.contextmanager
def count_in(
    model: Any, experiment: experiment_lib.Experiment, model_dir: str, tell: Tell
) -> Iterator[Counted]:
    """Yield a model that also counts unknown values in tf.Examples; report the counts at the end.

    Args:
      model: a function that predicts for serialized tf.Examples; may be a remote model.
      experiment: the settings of the run, which has the same columns as the model.
      model_dir: the folder of the run; without its vocabularies, nothing is counted.
      tell: a function to call with the lines that report unknown values.
    """
    columns, statistics = experiment.model.columns, fitting.load_statistics(model_dir)
    fields = unknown.list_fields(columns)
    with contextlib.ExitStack() as stack:
        count = None
        if fields and not features_lib.missing_statistics(columns, statistics.directory):
            session, *tensors = _build_counts(columns, fields, experiment.data.spec, statistics)
            stack.enter_context(contextlib.closing(session))
            # A callable is faster than `session.run`, which analyses the fetches at each call.
            count = session.make_callable(*tensors)
        counted = Counted(model, fields, count, tell)
        yield counted
        counted.tell_new()


def _build_counts(
    columns: Sequence[types.Column],
    fields: Sequence[str],
    spec: spec_lib.Spec,
    statistics: types.Statistics,
) -> tuple[tf.compat.v1.Session, tf.Tensor, list[tf.Tensor]]:
    """Return a session, the tensor of the counts, and the placeholders for tf.Examples.

    The graph parses only `fields`.
    """
    names = [*fields, *(name for name, of in spec.counted.items() if of in fields)]
    part_spec = dataclasses.replace(
        spec,
        features={name: spec.features[name] for name in names},
        labels={},
        keys=(),
        defaults={name: default for name, default in spec.defaults.items() if name in names},
    )
    with tf.Graph().as_default() as graph:
        examples = tf1.placeholder(tf.string, [None])
        features = part_spec.drop_empty_texts(part_spec.parse(examples, with_labels=False))
        counts = unknown.count_unknown(columns, features, statistics)
        initializer = tf1.tables_initializer()
    session = tf1.Session(graph=graph)
    session.run(initializer)
    return session, counts, [examples]


def describe_training(experiment: experiment_lib.Experiment, model_dir: str) -> list[str]:
    """Return lines about unknown values in the first rows of the training split.

    The files of a continued run may have changed since its columns were fitted.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run, with the statistics of the training split.

    Returns:
      A line for each field with many unknown values; [] if there is none.
    """
    columns, statistics = experiment.model.columns, fitting.load_statistics(model_dir)
    fields = unknown.list_fields(columns)
    if not fields:
        return []
    split = experiment.data.train_split
    data = experiment.data.in_large_batches(split)
    max_batches, shares = math.ceil(_MOST_ROWS / data.batch_size), unknown.Shares(fields)
    with tf.Graph().as_default(), tf1.Session() as session:
        batches = data.one_pass(split, with_labels=False).take(max_batches)
        iterator = tf1.data.make_initializable_iterator(batches)
        counts = unknown.count_unknown(columns, iterator.get_next(), statistics)
        session.run([iterator.initializer, tf1.tables_initializer()])
        # Ignore a bad record here: the training reports it.
        with contextlib.suppress(tf.errors.OutOfRangeError, *diagnosis.list_run_errors()):
            while True:
                shares.add(session.run(counts))
    return shares.describe(f"in the first rows of split {split!r}")
