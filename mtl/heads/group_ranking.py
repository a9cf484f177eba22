"""A task whose rows are ranked within groups, such as the results of one query.

relevance/heads.Ranking.name = "relevance"
relevance/heads.Ranking.group = "query"              # a label field
relevance/heads.Ranking.loss_type = "softmax"
pipeline.Pipeline.sampler = @whole_groups.WholeGroups()
whole_groups.WholeGroups.group = "query"             # batches that cut no group
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from mtl import checks, compat, layers, types
from mtl.heads import base, group_metrics, groups, metrics, objectives, rank_losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranking(base.Labelled):
    """Scores that rank the rows of a group: the score is the logit, and only its order counts.

    `loss = sum_g w_g loss_g / sum_g w_g`, a mean over groups. A group counts where two of its
    labels differ, by the mean weight of its rows, and every group counts alike without `weight`.
    There is no loss where no group counts. `mtl.heads.rank_losses` has the formulas.

    Training compares the rows of a batch, or of one slice or replica of it: `Pipeline.sampler` has
    to be `whole_groups.WholeGroups`, which cuts no group. Metrics, `average_loss` among them, are
    those of whole groups whatever batches their rows come in: `mtl.heads.group_metrics` has the
    formulas. They keep 20 bytes a row.

    Labels are grades from 0 on; above 0 is relevant. Predicts `score`, [B].

    Attributes:
      group: the label field whose equal values make a group, int64 or string; needed in every row
        that has a label.
      loss_type: "ranknet" (pairs), "lambdarank" (pairs, by what each changes in NDCG), "softmax"
        (cross entropy over the group) or "approx_ndcg" (1 - NDCG of smooth ranks).
      gain: what a label y gains in NDCG: "exponential", 2^y - 1, or "linear", y.
      temperature: of the smooth ranks of "approx_ndcg", above 0; smaller is closer to NDCG and
        harder to learn.
      cutoffs: at which ranks k there are metrics, `ndcg_at_<k>`, `recall_at_<k>` and
        `precision_at_<k>`.
    """

    group: str
    loss_type: str = "softmax"
    gain: str = "exponential"
    temperature: float = 0.1
    cutoffs: Sequence[int] = (10,)

    size: ClassVar[int] = 1
    directions: ClassVar[Mapping[str, bool]] = {
        "ndcg": True,
        "ndcg_at_*": True,
        "mrr": True,
        "gauc": True,
        "recall_at_*": True,
        "precision_at_*": True,
        **base.Labelled.directions,
    }
    are_rows_apart: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        self._is_a("group", str, "name a label field")
        checks.one_of(self._where("loss_type"), self.loss_type, rank_losses.TYPES)
        checks.one_of(self._where("gain"), self.gain, group_metrics.GAINS)
        checks.positive(self._where("temperature"), self.temperature)
        groups.check_cutoffs(self._where("cutoffs"), self.cutoffs)

    @property
    def whole_groups(self) -> str:
        """The label field of the groups."""
        return self.group

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels: [B] -> float32 grades, and which of them are present."""
        present = self.are_present(label)
        targets = tf.where(present, tf.cast(label, tf.float32), 0.0)
        return self.checked(targets, self._in_range(targets), label, self.rule(None)), present

    def _in_range(self, grade: Any) -> Any:
        return (grade >= 0) & (grade <= self._most)

    @property
    def _most(self) -> float:
        """The greatest label; beyond, exponential gains would be rounded, or have no end."""
        return group_metrics.MAX_EXPONENT if self.gain == "exponential" else 1e30

    def accepts(self, value: Any) -> bool:
        """Return whether the value is a grade."""
        return math.isfinite(value) and 0 <= value <= self._most

    def rule(self, dtype: Any) -> str:
        """Return that a label is a grade."""
        del dtype
        return f"be a grade in [0, {self._most:g}]"

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the label, weight or group of one record, or None."""
        return super().check(labels) or groups.check_key(self, self.group, labels)

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute the scores, [B, H] -> [B, 1]; a bias would change no order."""
        return layers.dense(tower, self.size, "logits", use_bias=False)

    def loss(self, logits: tf.Tensor, labels: types.Tensors) -> tf.Tensor:
        """Compute the loss: [B, 1] and {field: [B]} -> a scalar.

        Raises:
          InvalidArgumentError: when run, on a label or a weight out of range, or without a group.
        """
        scores = tf.squeeze(logits, -1)
        losses, weights = self._weigh_losses(rank_losses.of_batch(*self._rows(scores, labels)))
        return objectives.weighted_mean(losses, weights)

    def label_weight(self, labels: types.Tensors) -> tf.Tensor:
        """Sum what the groups count: {field: [B]} -> a scalar."""
        scores = tf.zeros([types.count_rows(labels)])
        lists = rank_losses.of_batch(*self._rows(scores, labels))
        return tf.reduce_sum(rank_losses.weigh_groups(lists))

    def metrics(self, logits: tf.Tensor, labels: types.Tensors) -> types.Metrics:
        """Build the metrics, of whole groups over all batches: [B, 1] and {field: [B]}.

        `nan_predictions` counts the labelled rows of a weight above 0 with a NaN as their score; it
        makes NaN of every other metric.
        """
        scores = tf.squeeze(logits, -1)
        rows = self._rows(scores, labels)
        sums = {
            "rows": groups.GroupedRows(*rows),
            base.NAN_PREDICTIONS: base.nan_rows([scores], rows[-1] > 0),
        }
        return metrics.stream_sums(sums, self._summarize)

    def _summarize(self, sums: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        ranked = sums["rows"]
        losses, weights = self._weigh_losses(rank_losses.of_split(ranked))
        average = metrics.ratio(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))
        found = group_metrics.compute_ranking(ranked, self.gain, tuple(self.cutoffs))
        found = {"average_loss": average, **found}
        return base.or_nan(found, sums[base.NAN_PREDICTIONS], ())

    def _weigh_losses(self, lists: rank_losses.Lists) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the loss of each group, and what it counts, [G] each."""
        losses = rank_losses.compute(self.loss_type, lists, self.gain, self.temperature)
        return losses, rank_losses.weigh_groups(lists)

    def _rows(
        self, scores: tf.Tensor, labels: types.Tensors
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return keys, scores, grades and weights, [B] each; scores are 0 where nothing counts."""
        targets, present = self.targets(self.label_of(labels))
        weights = self.weights(labels, present)
        keys = groups.read_keys(self, self.group, labels, weights > 0)
        return keys, tf.where(weights > 0, scores, 0.0), targets, weights

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits: [B, 1] -> score float32, [B]."""
        return {"score": tf.squeeze(logits, -1)}

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Predict, and regress to the score."""
        predictions = self.predictions(logits)
        return {
            "predict": compat.estimator.export.PredictOutput(predictions),
            "regress": compat.estimator.export.RegressionOutput(predictions["score"]),
        }
