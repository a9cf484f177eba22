"""Losses for funnels, in which only rows with a first label (click) can have a second (order).

model.MultiTaskModel.auxiliary_losses = [@auxiliary.InversePropensity()]     # or DoublyRobust
auxiliary.InversePropensity.task = "order"                 # orders/heads.Binary.within = "click"
auxiliary.InversePropensity.propensity = "click"
order/heads.Binary.has_loss = False                        # in place of the head's loss
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

from mtl import checks, layers, types
from mtl.auxiliary import base, representation, row_losses
from mtl.deferred import tf
from mtl.networks import trunk


@checks.dataclass
class InversePropensity(base.Base):
    """`mean_i o_i loss_i / p_i`: estimates a task's mean loss over all rows from observed rows.

    The indicator o_i is 1 if row i is labelled and in the space of the task, such as the clicked
    rows (setting `within` of its head), and else 0. The probability p_i that o_i is 1 is predicted
    by another task; gradients do not go through p_i. If the probabilities p_i are right and above
    0, the expected value of the estimate is the mean loss over all rows. H. Wang et al., "ESCM2:
    Entire Space Counterfactual Multi-Task Model for Post-Click Conversion Rate Estimation", SIGIR
    2022, arXiv:2204.05125, whose loss is the sum of this loss, the loss of the click, and the loss
    of click and conversion together.

    The rows are weighted as in the task `propensity`. With `normalizes`, the sum over the rows of a
    micro-batch is divided by the sum of `o_i / p_i` and not by the number of rows.

    Attributes:
      task: the task of the loss, whose head is a `Binary` with a setting `within`.
      propensity: the task that predicts the probabilities p_i, whose head is a `Binary` or `Joint`.
      max_weight: the upper limit of the factor 1 / p_i of a row's loss, at least 1. A smaller
        `max_weight` leads to less variance and more bias.
      normalizes: True divides the weights `o_i / p_i` by their sum.
    """

    name: str = "inverse_propensity"
    task: Annotated[str, checks.Is(str, "name a task")]
    propensity: Annotated[str, checks.Is(str, "name a task")]
    max_weight: Annotated[float, checks.AtLeast(1)] = 20.0
    normalizes: bool = False

    reads_labels: ClassVar[bool] = True

    @property
    def teaches(self) -> Sequence[str]:
        """The tasks that can learn from this loss alone, if `has_loss` of their heads is False."""
        return (self.task,)

    @property
    def are_rows_apart(self) -> bool:
        """True if no other row affects a row's loss; `normalizes` divides by a sum of all rows."""
        return not self.normalizes

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Check that both tasks have binary heads, and that `propensity` predicts `within`.

        Raises:
          UserError: a task is unknown or has another head, both tasks are the same, `task` has no
            setting `within` or no tower, or the positive labels of `propensity` do not define the
            space of `task`.
        """
        super().check(heads)
        for setting in ("task", "propensity"):
            require_binary(self._where(setting), getattr(self, setting), heads)
        where, rule = self._where("propensity"), "be another task"
        checks.require(self.task != self.propensity, where, rule, self.propensity)
        within, rule = getattr(heads[self.task], "within", None), "name a task with a space"
        fix = f"Set the setting within of its head, such as to {self.propensity!r}."
        checks.require(within is not None, self._where("task"), rule, self.task, fix)
        composes = types.read_member(heads[self.task], types.ComposingHead, "composes")
        rule, fix = "name a task with a tower", "This task's head combines logits of other tasks."
        checks.require(not composes, self._where("task"), rule, self.task, fix)
        fields = [within] if isinstance(within, str) else list(within or ())
        rule = f"predict a label that defines the space of {self.task!r}: {', '.join(fields)}"
        field = types.read_member(heads[self.propensity], types.Head, "field")
        checks.require(field in fields, self._where("propensity"), rule, self.propensity)
        # If `within` names only a field, the space consists of the rows with the label 1.
        accepted = (1,) if isinstance(within, str) else cast(Mapping[str, Any], within)[field]
        positives = cast(Any, heads[self.propensity]).positives
        rule = f"have positives that are the space of {self.task!r}, {list(accepted)}"
        is_same = set(positives) == set(accepted)
        checks.require(is_same, self._where("propensity"), rule, list(positives))

    def row_weights(self, labels: types.Tensors, heads: Mapping[str, types.Head]) -> tf.Tensor:
        """Return the weights of rows in the task `propensity`, {label: [B, ...]} -> [B]."""
        return cast(types.WeighingHead, heads[self.propensity]).row_weights(labels)

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return the losses of rows, [B]."""
        head = activations.heads[self.task]
        logits = activations.logits[self.task]
        losses = row_losses.compute_of_labels(head, logits, activations.labels)
        return self._weigh_rows(activations) * losses

    def _weigh_rows(self, activations: types.Activations) -> tf.Tensor:
        """Compute the weights o / p of the rows, [B], without gradients."""
        head = cast(types.WeighingHead, activations.heads[self.task])
        observed = head.row_weights(activations.labels) > 0
        log_odds = tf.squeeze(tf.stop_gradient(activations.logits[self.propensity]), -1)
        # `1 / p` is `1 + exp(-log-odds)`. The logarithm of 1 / p is limited to the logarithm of
        # `max_weight`, because exp could overflow.
        inverse = tf.exp(tf.minimum(tf.nn.softplus(-log_odds), math.log(self.max_weight)))
        # The indicator o is 0 for rows outside of the task's sample space, because they have no
        # label of the task `self.task`.
        weights = tf.where(observed, inverse, tf.zeros_like(inverse))
        if not self.normalizes:
            return weights
        rows = self.row_weights(activations.labels, activations.heads)
        total = tf.reduce_sum(rows * weights)
        # The mean over rows later divides by the sum of the rows' weights. The factor
        # `reduce_sum(rows)` cancels this later division by the sum of weights.
        return weights * tf.math.divide_no_nan(tf.reduce_sum(rows), total)


@checks.dataclass
class DoublyRobust(representation.OfRepresentation, InversePropensity):
    """`mean_i e_i + o_i (loss_i - e_i) / p_i`: inverse propensity with a predicted loss e_i.

    The indicators o_i, the probabilities p_i and the weights of rows are as in `InversePropensity`.
    A new tower of hidden layers on the shared representation predicts the probability q_i that the
    label is 1, and the predicted loss e_i is `q_i loss(1) + (1 - q_i) loss(0)`. The expected value
    of the estimate is the mean loss over all rows if the probabilities p_i or the probabilities q_i
    are right. Gradients of the estimate do not go through the q_i of the tower. The tower learns to
    predict q_i from labels by a second term of the loss, `mean_i o_i / p_i CE(q_i, y_i)`, times
    `imputation_weight`.

    The estimate comes from the same paper as `InversePropensity`. In the paper, the tower predicts
    the loss e_i itself, so the gradient by the task's logits equals the gradient of
    `InversePropensity`. In this class, the predicted loss e_i depends on the task's logits, so the
    task also learns on rows outside of its space, with q_i as their label, as in Wang et al.,
    "Doubly Robust Joint Learning for Recommendation on Data Missing Not at Random", ICML 2019. The
    loss may be negative, so do not choose a weighting that takes logarithms or ratios of losses.

    Attributes:
      layers: the units of the hidden layers of the tower, with ReLU, in the variable scope
        `auxiliary/<name>`.
      imputation_weight: the factor of the term that trains the tower, above 0.
    """

    name: str = "doubly_robust"
    layers: Annotated[Sequence[int], trunk.check_sizes] = (64,)
    imputation_weight: checks.Positive = 1.0

    def __post_init__(self):
        super().__post_init__()
        fix = "The loss is a mean over all rows."
        checks.require(not self.normalizes, self._where("normalizes"), "be False", True, fix)

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of rows, [B], including the loss of the tower."""
        head: Any = activations.heads[self.task]
        hidden = self._read(activations)
        hidden = trunk.dense_layers(hidden, self.layers, "relu", 0.0, False, training=True)
        imputed = tf.squeeze(layers.dense(hidden, 1, "imputed"), -1)
        logits = tf.squeeze(activations.logits[self.task], -1)
        # Only the term `fit` below trains the tower that predicts q. A gradient through `expected`
        # would train q to make the task's loss small.
        chance = tf.stop_gradient(tf.sigmoid(imputed))
        expected = chance * head.losses(logits, tf.ones_like(logits))
        expected += (1 - chance) * head.losses(logits, tf.zeros_like(logits))
        weights, labels = self._weigh_rows(activations), activations.labels
        task_losses = row_losses.compute_of_labels(head, activations.logits[self.task], labels)
        targets = head.examples(activations.logits[self.task], labels).targets
        fit = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=imputed)
        # For rows outside of the task's sample space, `weights` are 0, so their `task_losses` do
        # not count.
        robust = expected + weights * (task_losses - expected)
        return robust + self.imputation_weight * weights * fit


@checks.dataclass
class Calibrator(base.Base):
    """`sum max(p_t - p_s, 0)` over tasks t and earlier tasks s: t must not be more probable than s.

    The probabilities p of both tasks must be over the same rows, such as the probability of a
    click, and the probability of a click with an order. A task with the setting `within` predicts a
    probability over only some of the rows. D. Xi et al., "Modeling the Sequential Dependence among
    Audience Multi-step Conversions with Multi-task Learning in Targeted Display Advertising", KDD
    2021, arXiv:2105.08489, with the paper's weight of 0.6. The loss is a mean over all rows,
    labelled or not. If the head of task t is a `heads.Joint` whose chain contains task s, the loss
    is always 0.

    Attributes:
      after: {task t: an earlier task s, or a list of earlier tasks}, as in `networks.AITM`.
    """

    name: str = "calibrator"
    weight: float | types.Schedule = 0.6
    after: Annotated[
        Mapping[str, str | Sequence[str]],
        checks.Map("map tasks to the tasks before them"),
        checks.Filled("hold a task"),
    ]

    def __post_init__(self):
        super().__post_init__()
        where = self._where("after")
        for task, before in self.after.items():
            setting = f"{where}[{task!r}]"
            checks.is_a(setting, before, (str, list, tuple), "be a task or a list of tasks")
            checks.texts(setting, self._list_before(task), "be a task or a list of tasks")
            checks.require(bool(before), setting, "hold a task", before)
            checks.require(task not in self._list_before(task), setting, "hold other tasks", task)

    def _list_before(self, task: str) -> Sequence[str]:
        before = self.after[task]
        return [before] if isinstance(before, str) else before

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Check that the tasks exist, have binary heads, and cover the same rows.

        Raises:
          UserError: a task is unknown or has another head, or two compared tasks have different
            settings `within`.
        """
        super().check(heads)
        where = self._where("after")
        for task in self.after:
            for name in (task, *self._list_before(task)):
                require_binary(where, name, heads)
            for before in self._list_before(task):
                rule = f"name a task over the same rows as {before!r}"
                fix = "Their spaces, within, differ."
                is_fit = _find_space(heads[task]) == _find_space(heads[before])
                checks.require(is_fit, f"{where}[{task!r}]", rule, task, fix)

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of rows, [B], summed over pairs of tasks."""

        def predict(task: str) -> tf.Tensor:
            return tf.sigmoid(tf.squeeze(activations.logits[task], -1))

        pairs = [(task, before) for task in self.after for before in self._list_before(task)]
        return tf.add_n([tf.nn.relu(predict(task) - predict(before)) for task, before in pairs])


def _find_space(head: types.Head) -> Any:
    """Return the setting `within` of a task; None if its probability is over all rows."""
    composes = types.read_member(head, types.ComposingHead, "composes")
    return None if composes else getattr(head, "within", None)


def require_binary(where: str, task: str, heads: Mapping[str, types.Head]) -> None:
    """Check that a task has a head with one logit for two classes.

    Args:
      where: the name of the setting, for error messages.
      task: the name of the task.
      heads: {task: its head}.

    Raises:
      UserError: the task is unknown, or has a head of another kind.
    """
    checks.one_of(where, task, heads)
    head: Any = heads[task]
    classes = types.read_member(head, types.ClassHead, "class_names")
    fits = isinstance(head, types.WeighingHead) and len(classes) == 2
    fits = fits and getattr(head, "size", None) == 1
    fix = f"It is {type(head).__name__}."
    checks.require(fits, where, "name a task with a head Binary", task, fix)
