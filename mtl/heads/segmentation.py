"""Semantic segmentation: a class for each pixel.

kind/heads.Segmentation.name = "kind"
kind/heads.Segmentation.classes = ["sky", "floor", "wall"]
kind/heads.Segmentation.ignored = 255                    # means missing, like -1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from mtl import checks, spec, types
from mtl.deferred import tf
from mtl.heads import base, classes, dense, metrics, objectives, softmax


@checks.dataclass
class Segmentation(dense.Dense, classes.Classes):
    """Semantic segmentation: softmax regression at each pixel, `p = softmax(logits)`.

    Labels are maps of class ids, int64 [H, W], or of class names, string [H, W]. Predicts
    `class_id` int64 [B, H, W], and `probabilities` [B, H, W, C] if `predict_probabilities` is set.

    `miou` is the mean over classes of `hits / (labelled + predicted - hits)`: the intersection over
    the union of the labelled and the predicted pixels of a class in the whole split (Everingham et
    al., "The PASCAL Visual Object Classes Challenge", 2010; Long, Shelhamer and Darrell,
    arXiv:1411.4038). The mean over classes omits classes that are neither labelled nor predicted
    anywhere.

    Attributes:
      ignored: a class id that marks missing labels, in addition to -1; None adds no id.
      objective: the loss of a pixel; see `mtl.heads.softmax` for class weights, label smoothing and
        focal loss. Parts that need the number of rows of each class, such as margins, are not
        allowed.
      predict_probabilities: True adds the probability of each class at each pixel to predictions
        and exports. The probabilities have C times as many numbers as `class_id`.
      iou_limit: the largest number of classes for which the metrics include `iou/<class>` of each
        class.
    """

    ignored: int | None = None
    objective: Annotated[
        softmax.CrossEntropy,
        checks.Part("softmax.CrossEntropy", arguments=3),
        checks.Rule(
            "not need the number of rows of each class, as pixels are not counted",
            lambda value: not value.needs_counts,
        ),
    ] = softmax.CrossEntropy()
    predict_probabilities: bool = False
    iou_limit: checks.Natural = 32

    directions: ClassVar[Mapping[str, bool]] = {
        "miou": True,
        "pixel_accuracy": True,
        "iou/*": True,
        **base.Base.directions,
    }

    has_one_class: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        self.objective.check(self.class_names)

    @property
    def size(self) -> int:
        """The number of logits: one logit for each class."""
        return len(self.class_names)

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse maps of classes.

        Args:
          label: int64 or string [B, H, W].

        Returns:
          Class ids, int64 [B, H W], with 0 for missing labels, and a mask of present labels, bool
          [B, H W].

        Raises:
          UserError: labels are int64, but only some of the class names are numbers.
          InvalidArgumentError: when the op runs, if a label is neither missing nor the label of a
            class.
        """
        label = dense.flatten_places(label)
        if self.ignored is not None and label.dtype == tf.int64:
            missing = tf.constant(spec.MISSING["int64"], tf.int64)
            label = tf.where(tf.equal(label, self.ignored), missing, label)
        return super().targets(label)

    def find_present(self, given: Sequence[Any]) -> Sequence[Any]:
        """Return the label values of a record that are neither missing nor equal to `ignored`."""
        present = super().find_present(given)
        return [value for value in present if self.ignored is None or value != self.ignored]

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every pixel: [B, n, C], [B, n] -> [B, n]."""
        return self.objective(logits, targets, softmax.Classes(self.class_names))

    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Average the divergences of two predictions over pixels: [B, H, W, C] twice -> [B]."""
        return tf.reduce_mean(objectives.categorical_divergence(logits, others), [1, 2])

    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the mean over all pixels of the entropy of classes: [B, H, W, C] -> [B]."""
        return tf.reduce_mean(objectives.categorical_entropy(logits), [1, 2])

    def recover_logits(self, predictions: types.Tensors) -> tf.Tensor:
        """Return the logarithms of the predicted `probabilities`, in the shape [B, H, W, C]."""
        return tf.math.log(tf.maximum(predictions["probabilities"], objectives.LEAST))

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits [B, H, W, C].

        Returns:
          `class_id` int64 [B, H, W], and `probabilities` [B, H, W, C] if `predict_probabilities` is
          set.
        """
        predictions = {"class_id": tf.argmax(logits, axis=-1)}
        if self.predict_probabilities:
            predictions["probabilities"] = tf.nn.softmax(logits)
        return predictions

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor]:
        """Sum the weights of the pixels for each pair of a labelled and a predicted class.

        Returns:
          `confusion`, float64 [C, C]; the entry in row i and column j is the weight of the pixels
          of class i for which class j is predicted.
        """
        logits, targets, weights = examples
        cells = targets * self.size + tf.argmax(logits, axis=-1)
        flat = tf.cast(tf.reshape(cells, [-1]), tf.int32)
        counts = metrics.count_in_bins(flat, tf.reshape(weights, [-1]), self.size**2)
        return {"confusion": tf.reshape(counts, [self.size, self.size])}

    def summary(self, sums: types.Tensors) -> dict[str, tf.Tensor]:
        """Compute the metrics.

        Returns:
          `miou`; `pixel_accuracy`; `accuracy_baseline`, the accuracy of always predicting the most
          frequent class; and `iou/<class>` of each class if C is at most `iou_limit`. The `iou` is
          NaN for a class that is neither labelled nor predicted anywhere; all metrics are NaN
          without labelled pixels.
        """
        confusion, weight = sums["confusion"], sums["weight"]
        hits, class_weights = tf.linalg.diag_part(confusion), tf.reduce_sum(confusion, 1)
        # Rows of the matrix are labels, and columns are predictions: the union of a class is the
        # sum of its row and its column, minus the hits.
        ious = metrics.ratio(hits, class_weights + tf.reduce_sum(confusion, 0) - hits)
        summary = {
            "miou": metrics.mean_defined(ious),
            "pixel_accuracy": metrics.ratio(tf.reduce_sum(hits), weight),
            "accuracy_baseline": metrics.ratio(tf.reduce_max(class_weights), weight),
        }
        if self.size <= self.iou_limit:
            for name, iou in zip(self.class_names, tf.unstack(ious), strict=True):
                summary[f"iou/{name}"] = iou
        return summary
