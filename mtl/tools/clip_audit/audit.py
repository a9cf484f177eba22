"""Settings of a clip audit, and the ops that record training steps for the audit.

from mtl.tools import clip_audit
experiment.Experiment.clip_audit = @clip_audit.ClipAudit()
clip_audit.ClipAudit.percentile = 95.0
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from mtl import checks, types
from mtl import features as features_lib
from mtl import spec as spec_lib
from mtl.data import pipeline
from mtl.deferred import tf, tf1
from mtl.tools.clip_audit import measures, numbered, visits

if TYPE_CHECKING:
    from mtl import model as model_lib

_log = logging.getLogger(__name__)


@checks.dataclass
class Settings:
    """The settings of `ClipAudit`.

    Attributes:
      key: the field, of integers or strings, that identifies samples; None identifies a sample by
        the number of its row in the training split, from 0.
      percentile: the percentile of previous gradient norms that becomes the threshold, in [0, 100].
        The clipping threshold for examples is this percentile of the examples' gradient norms in
        the previous batches; the threshold for batches is this percentile of the batches' gradient
        norms.
      window: the number of previous batches that decide the thresholds.
      max_norm: a fixed threshold for examples and batches, in place of the percentile; for example
        the norm at which the run clips.
      first_visits: the number of visits of a sample that count as its first visits.
    """

    key: str | None = None
    percentile: Annotated[float, checks.In("[0, 100]")] = 90.0
    window: checks.Count = 50
    max_norm: checks.Bound | None = None
    first_visits: checks.Count = 3

    def _where(self, setting: str) -> str:
        return f"ClipAudit.{setting}"

    def check_experiment(self, experiment: Any) -> None:
        """Fail unless the audit can measure the samples of an experiment.

        Args:
          experiment: an `Experiment`.

        Raises:
          UserError: the model mixes rows, or `key` is not a field that can identify samples.
        """
        rule = "be None if MultiTaskModel.mixing mixes rows"
        # A mixed row combines two samples, so its norm would say nothing about either sample.
        checks.require(experiment.model.mixing is None, "Experiment.clip_audit", rule, self)
        self.check_key(experiment.data.spec)

    def check_key(self, spec: spec_lib.Spec) -> None:
        """Fail unless `key` is None or a field that can identify samples.

        Args:
          spec: the fields of the run.

        Raises:
          UserError: the field does not exist, or is not one int64 or string in each row.
        """
        if self.key is None:
            return
        checks.one_of("ClipAudit.key", self.key, spec.fields)
        field = spec.fields[self.key]
        is_fit = field.dtype in ("int64", "string") and field.shape == ()
        kind = f"{field.dtype} of shape {field.shape}"
        checks.require(is_fit, f"ClipAudit.key {self.key!r}", "be one int64 or string", kind)

    def number_rows(
        self, data: pipeline.Pipeline, shuffle: tuple[int, int] | None = None
    ) -> pipeline.Pipeline:
        """Return a pipeline with numbered rows, as `numbered.number_rows` does.

        Args:
          data: the pipeline that reads the rows.
          shuffle: (number of records in the shuffle buffer, seed); None keeps the order of the
            source.
        """
        return numbered.number_rows(data, shuffle)

    def sample_ids(self, features: types.Tensors, labels: types.Tensors) -> tf.Tensor:
        """Return the ids of the samples in a batch, [B] int64 or string.

        Args:
          features: {field: [B, ...]}.
          labels: {field: [B, ...]}.
        """
        return {**features, **labels}[self.key or numbered.ROW]

    def make_observer(
        self,
        model: model_lib.MultiTaskModel,
        statistics: features_lib.Statistics,
        record: visits.Record,
    ) -> Callable[..., None]:
        """Return a function that `MultiTaskModel.model_fn` calls to observe a training step.

        Args:
          model: the model with fitted heads.
          statistics: the statistics of the columns.
          record: the record to which each step adds a row for each sample.
        """

        def observe(features: types.Tensors, labels: types.Tensors, weights: types.Tensors) -> None:
            def measure() -> measures.Measured:
                return measures.measure(model, statistics, features, labels, lambda _: weights)

            # Take the weights of the losses from the update, so that the weighting runs only once.
            record_step(record, self.sample_ids(features, labels), measure)

        return observe


def record_step(
    record: visits.Record, ids: tf.Tensor, measure: Callable[[], measures.Measured]
) -> None:
    """Add an op to UPDATE_OPS that records the batch of a training step.

    Args:
      record: the record of the audit, to which the batch is added.
      ids: the ids of the samples, [B] int64 or string.
      measure: a function that adds ops to the graph which measure the batch, and returns the
        measurements; called once.
    """
    # Measure after the moving averages of normalisations are updated, and before the weights are
    # updated.
    with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        # Without this dependency, the measuring pass could read the averages before or after their
        # update, because TensorFlow orders two ops only by the data that they exchange.
        measured = measure()
        record_op = _record_batch(record, ids, measured)
    warn_of_unknown(measured)
    warn_of_left_out(measured)
    # The update depends on UPDATE_OPS, so the batch is recorded with the weights before the step.
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, record_op)


def _record_batch(record: visits.Record, ids: tf.Tensor, measured: measures.Measured) -> tf.Tensor:
    """Build the op that adds the measurements of a batch to the record."""

    def add(step: int, ids: np.ndarray, examples: np.ndarray, batch: np.ndarray) -> np.int64:
        # `numpy_function` passes tensors without names; their order is the order of the dictionary.
        columns = dict(zip(measured.examples, examples, strict=True))
        record.add(int(step), ids, columns, dict(zip(measured.batch, batch, strict=True)))
        return np.int64(0)

    values = [
        tf.stack(list(columns_of.values())) for columns_of in (measured.examples, measured.batch)
    ]
    step = tf1.train.get_global_step().read_value()
    return tf.numpy_function(add, [step, ids, *values], tf.int64)


def warn_of_unknown(measured: measures.Measured) -> None:
    """Warn if an audit is slow, because some variables need a backward pass for each example."""
    if measured.unknown:
        names = ", ".join(measured.unknown[:3]) + ", ..." * (len(measured.unknown) > 3)
        _log.warning("Clip audit: %s need a pass for each example, which is slow.", names)


def warn_of_left_out(measured: measures.Measured) -> None:
    """Warn about each auxiliary loss that the audit does not measure, with the reason."""
    for name, reason in measured.left_out.items():
        _log.warning("Clip audit: the loss %r is left out, because %s.", name, reason)
