"""The settings of an audit, and how it takes part in the steps of a run.

from mtl import clip_audit
experiment.Experiment.clip_audit = @clip_audit.ClipAudit()
clip_audit.ClipAudit.percentile = 95.0
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from mtl import checks, types
from mtl import features as features_lib
from mtl import spec as spec_lib
from mtl.clip_audit import measures, visits
from mtl.data import numbered, pipeline

if TYPE_CHECKING:
    from mtl import model as model_lib

tf1 = tf.compat.v1
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipAudit:
    """Records the gradient norm of every example at every visit, and whose norms are above a bound.

    The norms are those of a forward pass as in evaluation, on the weights before the step, so that
    an example's gradient is its own: batch norm uses its averages and nothing is dropped out. The
    gradient is the sum over tasks and auxiliary losses by weight, before surgery, regularisation
    and clipping. See docs/clipping.md.

    Attributes:
      key: the field, of integers or strings, that tells samples apart; None takes the number of
        the row in the training split, from 0.
      percentile: in [0, 100]; the bound on examples and the one on batches are this percentile of
        the norms in the batches before.
      window: how many batches before.
      max_norm: a bound for both in place of the percentile, such as that of the run's clipping.
      first_visits: how many visits of a sample count as its first ones.
    """

    key: str | None = None
    percentile: float = 90.0
    window: int = 50
    max_norm: float | None = None
    first_visits: int = 3

    def __post_init__(self):
        if self.key is not None:
            checks.is_a("ClipAudit.key", self.key, str, "name a field")
        checks.at_least("ClipAudit.percentile", self.percentile, 0)
        rule = "be at most 100"
        checks.require(self.percentile <= 100, "ClipAudit.percentile", rule, self.percentile)
        for name in ("window", "first_visits"):
            checks.is_a(f"ClipAudit.{name}", getattr(self, name), int, "be a whole number above 0")
            checks.at_least(f"ClipAudit.{name}", getattr(self, name), 1)
        if self.max_norm is not None:
            checks.bound("ClipAudit.max_norm", self.max_norm)

    def check_experiment(self, experiment: Any) -> None:
        """Fail unless the rows stay apart, and the key is a field that tells them apart."""
        rule = "be None where MultiTaskModel.mixing mixes the rows that it measures"
        checks.require(experiment.model.mixing is None, "Experiment.clip_audit", rule, self)
        self.check_key(experiment.data.spec)

    def check_key(self, spec: spec_lib.Spec) -> None:
        """Fail unless the key, if there is one, is a field that tells samples apart."""
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
        """Return the data with numbered rows; `shuffle` mixes so many of a pass, by a seed."""
        return numbered.number_rows(data, shuffle)

    def sample_ids(self, features: types.Tensors, labels: types.Tensors) -> tf.Tensor:
        """Return the ids of the samples, [B] int64 or string."""
        return {**features, **labels}[self.key or numbered.ROW]

    def make_observer(
        self,
        model: "model_lib.MultiTaskModel",
        statistics: features_lib.Statistics,
        record: visits.Record,
    ) -> Callable[..., None]:
        """Return what `MultiTaskModel.model_fn` calls to observe a training step."""

        def observe(features: types.Tensors, labels: types.Tensors, weights: types.Tensors) -> None:
            def measure() -> measures.Measured:
                return measures.measure(model, statistics, features, labels, lambda _: weights)

            record_step(record, self.sample_ids(features, labels), measure)

        return observe


def record_step(
    record: visits.Record, ids: tf.Tensor, measure: Callable[[], measures.Measured]
) -> None:
    """Have UPDATE_OPS add the batch of a step, of samples with these ids, to the record."""
    # After the averages of normalisations have moved, before the weights do.
    with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        found = measure()
        recorded = _record_batch(record, ids, found)
    warn_of_unknown(found)
    warn_of_left_out(found)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, recorded)


def _record_batch(record: visits.Record, ids: tf.Tensor, found: measures.Measured) -> tf.Tensor:
    """Build the op that adds a batch to the record."""

    def add(step: int, ids: np.ndarray, examples: np.ndarray, batch: np.ndarray) -> np.int64:
        columns = dict(zip(found.examples, examples, strict=True))
        record.add(int(step), ids, columns, dict(zip(found.batch, batch, strict=True)))
        return np.int64(0)

    values = [tf.stack(list(of.values())) for of in (found.examples, found.batch)]
    step = tf1.train.get_global_step().read_value()
    return tf.numpy_function(add, [step, ids, *values], tf.int64)


def warn_of_unknown(found: measures.Measured) -> None:
    """Warn of the variables that make an audit slow."""
    if found.unknown:
        names = ", ".join(found.unknown[:3]) + ", ..." * (len(found.unknown) > 3)
        _log.warning("Clip audit: a pass for each example, for %s: this is slow.", names)


def warn_of_left_out(found: measures.Measured) -> None:
    """Warn of each auxiliary loss that is not measured, and say why."""
    for name, why in found.left_out.items():
        _log.warning("Clip audit: without the loss %r: %s.", name, why)
