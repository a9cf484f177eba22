"""A task whose rows are ranked within groups, such as the results of one query.

relevance/heads.Ranking.name = "relevance"
relevance/heads.Ranking.group = "query"              # a label field
relevance/heads.Ranking.loss_type = "softmax"
pipeline.Pipeline.sampler = @whole_groups.WholeGroups()
whole_groups.WholeGroups.group = "query"             # batches of whole groups
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from mtl import checks, layers, types
from mtl.deferred import compat, tf
from mtl.heads import base, group_metrics, groups, metrics, objectives, rank_losses


@checks.dataclass
class Ranking(base.Labelled):
    """Scores that rank the rows of a group. A score is a logit; only the order of scores matters.

    `loss = sum_g w_g loss_g / sum_g w_g`, a mean over groups. The weight w_g is the mean `weight`
    of the group's rows, or 1 without `weight`; it is 0 if all labels of the group are equal. If all
    weights are 0, the loss is 0. `mtl.heads.rank_losses` has the formulas of the losses.

    Training compares only rows that are in the same batch, slice (`Run.micro_batches`) and replica.
    So `Pipeline.sampler` has to be `whole_groups.WholeGroups`, which never splits a group. Metrics,
    including `average_loss`, always compare whole groups, even if an evaluation reads a group in
    several batches. `mtl.heads.group_metrics` has the formulas of the metrics. The metrics take 20
    bytes of memory for each row of the split.

    Labels are grades of at least 0; a row with a grade above 0 is relevant. Predicts `score`, [B].

    Attributes:
      group: the label field, int64 or string, with the group of a row, such as a query. Every row
        with a label needs a group.
      loss_type: "ranknet", "lambdarank", "softmax" or "approx_ndcg". RankNet has a loss for each
        pair of rows. LambdaRank weighs each pair by the change of NDCG if the two rows swap places.
        The softmax loss is a cross entropy over the rows of a group, and the ApproxNDCG loss is 1 -
        NDCG for smooth ranks.
      gain: the gain of a label in NDCG, "exponential" or "linear". A label y has the gain 2^y - 1
        if the gain is "exponential", and y if it is "linear".
      temperature: the temperature of the smooth ranks of "approx_ndcg", above 0. With a smaller
        temperature, the loss is closer to 1 - NDCG, but harder to minimise.
      cutoffs: the ranks k of the metrics `ndcg_at_<k>`, `recall_at_<k>` and `precision_at_<k>`.
    """

    group: Annotated[str, checks.Is(str, "name a label field")]
    loss_type: Annotated[str, checks.OneOf(rank_losses.TYPES)] = "softmax"
    gain: Annotated[str, checks.OneOf(group_metrics.GAINS)] = "exponential"
    temperature: checks.Positive = 0.1
    cutoffs: Annotated[Sequence[int], groups.check_cutoffs] = (10,)

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

    @property
    def whole_groups(self) -> str:
        """The name of the label field with the groups, which a batch must never split."""
        return self.group

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels: [B] -> float32 grades, and a mask of present labels."""
        present = self.are_present(label)
        targets = tf.where(present, tf.cast(label, tf.float32), 0.0)
        return self.checked(targets, self._in_range(targets), label, self.rule(None)), present

    def _in_range(self, grade: Any) -> Any:
        return (grade >= 0) & (grade <= self._greatest_label)

    @property
    def _greatest_label(self) -> float:
        """The greatest valid label: gains of such labels neither lose precision nor overflow."""
        return group_metrics.MAX_EXPONENT if self.gain == "exponential" else 1e30

    def accepts(self, value: Any) -> bool:
        """Return True if the value is finite, at least 0 and at most the greatest valid label."""
        return math.isfinite(value) and 0 <= value <= self._greatest_label

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: a label must be a grade in a range."""
        del dtype
        return f"be a grade in [0, {self._greatest_label:g}]"

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return an error message about the label, weight or group of a record, or None."""
        return super().check(labels) or groups.check_key(self, self.group, labels)

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute scores without a bias, which would not change the order: [B, H] -> [B, 1]."""
        return layers.dense(tower, self.size, "logits", use_bias=False)

    def loss(self, logits: tf.Tensor, labels: types.Tensors) -> tf.Tensor:
        """Compute the loss: logits [B, 1] and labels {field: [B]} -> a scalar.

        Raises:
          InvalidArgumentError: when the op runs, if a label or weight is out of range, or a group
            is missing.
        """
        scores = tf.squeeze(logits, -1)
        losses, weights = self._weigh_losses(rank_losses.of_batch(*self._read_rows(scores, labels)))
        return objectives.weighted_mean(losses, weights)

    def label_weight(self, labels: types.Tensors) -> tf.Tensor:
        """Sum the weights of the groups: {field: [B]} -> a scalar."""
        # The weights depend on the labels alone, so the values of the scores do not matter.
        scores = tf.zeros([types.count_rows(labels)])
        lists = rank_losses.of_batch(*self._read_rows(scores, labels))
        return tf.reduce_sum(rank_losses.weigh_groups(lists))

    def metrics(self, logits: tf.Tensor, labels: types.Tensors) -> types.Metrics:
        """Build the metrics of whole groups over all batches, from logits [B, 1] and labels.

        `nan_predictions` counts rows with a label, a weight above 0 and a NaN score. A single NaN
        score turns all metrics except `nan_predictions` into NaN.
        """
        scores = tf.squeeze(logits, -1)
        rows = self._read_rows(scores, labels)
        sums = {
            "rows": groups.GroupedRows(*rows),
            base.NAN_PREDICTIONS: base.nan_rows([scores], rows[-1] > 0),
        }
        return metrics.stream_sums(sums, self._summarize_sums)

    def _summarize_sums(self, sums: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        rows = sums["rows"]
        losses, weights = self._weigh_losses(rank_losses.of_split(rows))
        average = metrics.ratio(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))
        summary = group_metrics.compute_ranking(rows, self.gain, tuple(self.cutoffs))
        summary = {"average_loss": average, **summary}
        return base.or_nan(summary, sums[base.NAN_PREDICTIONS], ())

    def _weigh_losses(self, lists: rank_losses.Lists) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the loss and the weight of each group, [G] each."""
        losses = rank_losses.compute(self.loss_type, lists, self.gain, self.temperature)
        return losses, rank_losses.weigh_groups(lists)

    def _read_rows(
        self, scores: tf.Tensor, labels: types.Tensors
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return group keys, scores, grades and weights, [B] each; scores of weight 0 are 0."""
        targets, present = self.targets(self.label_of(labels))
        weights = self.weights(labels, present)
        keys = groups.read_keys(self, self.group, labels, weights > 0)
        return keys, tf.where(weights > 0, scores, 0.0), targets, weights

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits: [B, 1] -> score float32, [B]."""
        return {"score": tf.squeeze(logits, -1)}

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export outputs: predictions, and the score as regression output."""
        predictions = self.predictions(logits)
        return {
            "predict": compat.estimator.export.PredictOutput(predictions),
            "regress": compat.estimator.export.RegressionOutput(predictions["score"]),
        }
