"""Objectives of a `MultiClass` head: cross-entropy, with more weight for rare classes.

from mtl.heads import softmax
digit/heads.MultiClass.objective = @softmax.CrossEntropy()
softmax.CrossEntropy.margin = @softmax.LogitAdjustment()        # balanced softmax

Class weights and margins change only the loss, not predictions or exported models. If the objective
needs the number of rows of each class, the head counts them in the training split, unless
`MultiClass.class_counts` gives the counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, cast

import numpy as np

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.heads import objectives, values


class Classes(NamedTuple):
    """C classes, possibly with the number of training rows of each class.

    Attributes:
      names: the C names, in the order of the class ids.
      counts: the number of training rows of each class; None if unknown.
    """

    names: Sequence[str]
    counts: Sequence[int] | None = None


class Margin(Protocol):
    """Shifts the logits in the loss, so that some classes need a larger margin."""

    balances: bool
    """True if the margin compensates for unequal class shares, as a balanced sampler does."""

    def __call__(self, logits: tf.Tensor, targets: tf.Tensor, counts: np.ndarray) -> tf.Tensor:
        """Shift logits: logits [B, C], targets [B] and counts [C] -> logits [B, C]."""


@checks.dataclass
class LogitAdjustment:
    """Logit adjustment, or balanced softmax: shifts logits by `tau log(n_c / sum(n))`.

    This margin is from Menon et al., "Long-tail learning via logit adjustment", 2020,
    arXiv:2007.07314. With tau = 1, logit adjustment equals the balanced softmax of Ren et al.,
    "Balanced Meta-Softmax for Long-Tailed Visual Recognition", 2020, arXiv:2007.10740. So the
    network learns the logits of a distribution in which all classes are equally frequent.

    Attributes:
      tau: the strength of the adjustment, above 0. With a strength of 1, a perfect fit maximises
        the balanced accuracy.
    """

    tau: checks.Positive = 1.0

    balances = True

    def __call__(self, logits: tf.Tensor, targets: tf.Tensor, counts: np.ndarray) -> tf.Tensor:
        # The shift depends on the classes alone.
        del targets
        return logits + tf.constant(self.tau * np.log(counts / counts.sum()), logits.dtype)


@checks.dataclass
class LDAM:
    """LDAM: lowers the label's logit by the margin `scale max_margin (min(n) / n_y)^(1/4)`.

    LDAM is from Cao, Wei, Gaidon, Arechiga and Ma, "Learning Imbalanced Datasets with
    Label-Distribution-Aware Margin Loss", 2019, arXiv:1906.07413. Use LDAM with the classifier
    `classifiers.Cosine`, which multiplies logits by the scale; in the paper, the loss multiplies
    the logits by the scale.

    Attributes:
      max_margin: the margin of the rarest class, in units of the cosine; 0.5 is the paper's choice.
      scale: the scale of the classifier, by which margins are multiplied; 30 is the paper's choice.
    """

    max_margin: checks.Positive = 0.5
    scale: checks.Positive = 30.0

    balances = False

    def __call__(self, logits: tf.Tensor, targets: tf.Tensor, counts: np.ndarray) -> tf.Tensor:
        # The rarest class gets the largest margin.
        margins = self.scale * self.max_margin * (counts.min() / counts) ** 0.25
        is_target = tf.one_hot(targets, len(counts), dtype=logits.dtype)
        return logits - is_target * tf.constant(margins, logits.dtype)


@checks.dataclass
class EffectiveNumber:
    """Class-balanced weights, `w_c ~ (1 - beta) / (1 - beta^n_c)` for n_c rows of a class.

    These weights are from Cui, Jia, Lin, Song and Belongie, "Class-Balanced Loss Based on Effective
    Number of Samples", 2019, arXiv:1901.05555. All class weights are 1 before `start_step`, as in
    Cao et al., 2019, arXiv:1906.07413. Class weights are scaled to a mean of 1 over the training
    rows, so the learning rate need not change. The code of Cao et al. instead divides the loss of a
    batch by the sum of its weights.

    Attributes:
      beta: the number beta of the formula, in [0, 1). With beta = 0, all class weights are equal;
        with beta near 1, they become proportional to 1 / n_c. The weight of a class with more than
        1 / (1 - beta) rows hardly depends on its number of rows.
      start_step: the global step from which the class weights apply.
    """

    beta: checks.Rate = 0.9999
    start_step: checks.Natural = 0

    balances = True

    def __call__(self, counts: np.ndarray) -> tf.Tensor:
        """Compute class weights from the number of rows of each class, [C] -> [C]."""
        weights = (1 - self.beta) / (1 - self.beta**counts)
        # Weights are scaled so that the mean weight of a training row is 1.
        weights = tf.constant(weights * counts.sum() / (weights * counts).sum(), tf.float32)
        if not self.start_step:
            return weights
        step = tf1.train.get_or_create_global_step()
        has_started = step >= tf.constant(self.start_step, step.dtype)
        return tf.where(has_started, weights, tf.ones_like(weights))


@checks.dataclass
class CrossEntropy:
    """Cross-entropy, `w_y (1 - p_y)^gamma CE(p, (1 - s) onehot(y) + s / C)`.

    p is `softmax(margin(z))` for the logits z; see `objectives.softmax_cross_entropy`.

    Attributes:
      class_weights: the weight w of each class, above 0: a list, {class name: weight} with 1 for
        absent names, or an `EffectiveNumber`.
      label_smoothing: the strength s of label smoothing, in [0, 1); 0.1 is the paper's choice.
      focal_gamma: the exponent gamma of the focal loss, at least 0; 2 is the paper's choice.
      margin: a part that shifts the logits in the loss, such as `LogitAdjustment` or `LDAM`. With
        `margin = None`, the loss uses the logits unchanged.
    """

    class_weights: float | Sequence[float] | Mapping[str, float] | EffectiveNumber | None = None
    label_smoothing: checks.Rate = 0.0
    focal_gamma: checks.NotNegative = 0.0
    margin: Annotated[Margin, checks.Part("softmax.LogitAdjustment", arguments=3)] | None = None

    def __post_init__(self):
        if callable(self.class_weights):
            example = "softmax.EffectiveNumber"
            checks.require_part("CrossEntropy.class_weights", self.class_weights, example, 1)
            rule = f"be weights or a part such as @{example}()"
            checks.has("CrossEntropy.class_weights", self.class_weights, ["balances"], rule)
        elif self.class_weights is not None:
            rule = "be a list or a map from class names"
            weights, kinds = self.class_weights, (int, float, list, tuple, Mapping)
            checks.is_a("CrossEntropy.class_weights", weights, kinds, rule)
            values.check_numbers("CrossEntropy.class_weights", weights)

    def check(self, names: Sequence[str]) -> None:
        """Fail unless the settings suit a head with these classes.

        Args:
          names: the names of the classes, in the order of their ids.

        Raises:
          UserError: `class_weights` is a map with an unknown name, a list of the wrong length, or
            holds a number that is not above 0.
        """
        self._fixed_weights(names)

    @property
    def classifier_scale(self) -> float | None:
        """The scale that the margin needs the classifier to have; None if any scale suits."""
        return getattr(self.margin, "scale", None)

    @property
    def _counting_parts(self) -> list[Any]:
        """The class weights and the margin, if they need the number of rows of each class."""
        weights = self.class_weights if callable(self.class_weights) else None
        return [part for part in (weights, self.margin) if part is not None]

    @property
    def needs_counts(self) -> bool:
        """True if the objective needs the number of rows of each class."""
        return bool(self._counting_parts)

    @property
    def balances(self) -> bool:
        """True if the objective compensates for unequal class shares."""
        return any(part.balances for part in self._counting_parts)

    def __call__(self, logits: tf.Tensor, targets: tf.Tensor, classes: Classes) -> tf.Tensor:
        """Compute the loss of every example: [B, C], [B] -> [B]."""
        if self.margin is not None:
            logits = self.margin(logits, targets, self._check_counts(classes))
        return objectives.softmax_cross_entropy(
            logits, targets, self._find_weights(classes), self.label_smoothing, self.focal_gamma
        )

    def _find_weights(self, classes: Classes) -> Any:
        if callable(self.class_weights):
            return self.class_weights(self._check_counts(classes))
        return self._fixed_weights(classes.names)

    def _fixed_weights(self, names: Sequence[str]) -> list[float] | None:
        weights = self.class_weights
        if weights is None or callable(weights):
            return None
        return values.per_class("CrossEntropy.class_weights", weights, names)

    def _check_counts(self, classes: Classes) -> np.ndarray:
        counts = cast(Sequence[int], classes.counts)  # `needs_counts` requests the counts.
        empty = [name for name, n in zip(classes.names, counts, strict=True) if n == 0]
        fix = "Set MultiClass.class_counts if the class has rows."
        rule = "have a row in the training split"
        checks.require(not empty, f"class {', '.join(empty[:3])}", rule, "none", fix)
        return np.asarray(counts, np.float64)
