"""A head that predicts the output of the network unchanged, as a score.

usual/heads.Score.name = "usual"
networks.SharedBottom.trunk = @networks.RBM()
networks.RBM.output = "free_energy"                      # the tower: one value for each row
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mtl import checks, types
from mtl.deferred import tf
from mtl.heads import base, metrics, unlabelled


@checks.dataclass
class Score(unlabelled.Unlabelled):
    """Predicts the tower's value for each row as `score` [B], without training.

    The head has neither a label nor variables, and its loss is 0, so `average_loss` cannot rank
    checkpoints. A weighting of tasks that divides by losses, or takes logarithms of losses, yields
    NaN.

    Attributes:
      name: the name of the task, with which the names of its metrics and predictions begin.
    """

    name: checks.Name

    directions: ClassVar[Mapping[str, bool]] = {}

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Return the tower, [B, 1].

        Raises:
          UserError: the tower has several values for each row.
        """
        where, rule = f"the tower of head {self.name!r}", "hold one value for each row"
        checks.require(tower.shape[1] == 1, where, rule, tuple(tower.shape))
        return tower

    def loss(self, logits: tf.Tensor, labels: types.Tensors) -> tf.Tensor:
        """Return a loss of 0, a scalar."""
        del logits, labels
        return tf.zeros([])

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the scores, [B, 1] -> {"score": [B]}."""
        return {"score": tf.squeeze(logits, 1)}

    def metrics(self, logits: tf.Tensor, labels: types.Tensors) -> types.Metrics:
        """Build the metrics.

        Returns:
          {metric: (value, update)}: `score_mean`, the mean of the scores over a split;
          `average_loss`, which is 0; and `nan_predictions`, the number of rows whose score is NaN.
        """
        del labels
        scores = self.predictions(logits)["score"]
        sums = {
            "score": tf.reduce_sum(tf.cast(scores, tf.float64)),
            "rows": tf.cast(tf.size(scores), tf.float64),
            base.NAN_PREDICTIONS: base.nan_rows([scores], tf.ones_like(scores, tf.bool)),
        }
        return metrics.stream_sums(sums, _summarize_sums)


def _summarize_sums(sums: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    mean = metrics.ratio(sums["score"], sums["rows"])
    return {
        "average_loss": tf.zeros([], tf.float64),
        "score_mean": mean,
        base.NAN_PREDICTIONS: sums[base.NAN_PREDICTIONS],
    }
