"""Contrastive losses, which make two views of a row, or rows of the same class, similar.

model.MultiTaskModel.auxiliary_losses = [
    @auxiliary.Contrastive(), @auxiliary.SupervisedContrastive(),
]
auxiliary.Contrastive.corruption = 0.6
auxiliary.SupervisedContrastive.head = "digit"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from mtl import checks, types
from mtl.auxiliary import perturbations, representation
from mtl.deferred import tf
from mtl.networks import trunk


@checks.dataclass
class Contrastive(representation.OfCorruption):
    """Makes two views of a row more similar than views of different rows.

    The loss of a view i is `-s(i, j) / t + log sum_{k != i} exp(s(i, k) / t)`, where j is the other
    view of the same row, k stands for all other views of all rows, and s is the cosine of projected
    vectors. The loss of a row is the mean of the losses of its two views. The loss needs no labels.
    T. Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (SimCLR,
    NT-Xent), 2020, arXiv:2002.05709. Here, a view is the encoded row with some columns of other
    rows (Bahri et al., "SCARF", 2021, arXiv:2106.15147), with noise, or with different dropout. The
    first view is the forward pass of the step, unless `corrupts_both` is set.

    A row is compared only with rows of the same micro-batch and replica. Therefore,
    `Run.micro_batches` and the number of replicas influence the loss.

    Attributes:
      corruption: the share of a row's columns that are replaced by columns of another row, in
        [0, 1]; a `Numeric` field, an image or a vector of tokens is one column.
      noise: the standard deviation of the noise on the encoded columns, at least 0. Without
        corruption and noise, the network must have dropout.
      corrupts_both: True also corrupts the first view, which takes a further forward pass.
      layers: the units of the layers that project the representation, with ReLU between the
        layers; [] for no layers.
      temperature: the temperature t, by which the cosines are divided, above 0.
      columns: the names of the encoded columns that are replaced or get noise; None for all columns
        of numbers.
    """

    name: str = "contrastive"
    corruption: Annotated[float, representation.check_share] = 0.6
    noise: checks.NotNegative = 0.0
    corrupts_both: bool = False
    layers: Annotated[Sequence[int], trunk.check_sizes] = (64, 64)
    temperature: checks.Positive = 0.5

    @property
    def needs_draws(self) -> bool:
        """True if the views differ only by random draws of the network, such as dropout."""
        return not self.corruption and not self.noise

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of rows, [B], each the mean of two views."""
        second = self._make_view(activations, 1)
        self._require_difference(second)
        first = self._make_view(activations, 2) if self.corrupts_both else activations
        vectors = self._read(first)
        representation.require_rows("auxiliary loss Contrastive", vectors)
        rows = perturbations.count_rows(vectors)
        # Both views are in one batch, [2 B, H], so that the projection has the same weights for
        # both.
        vectors = tf.concat([vectors, self._read(second)], 0)
        projected = representation.stack_layers(vectors, self.layers)
        losses = compute_nt_xent(projected, rows, self.temperature)
        return (losses[:rows] + losses[rows:]) / 2

    def _make_view(self, activations: types.Activations, number: int) -> types.Activations:
        corrupted = self._corrupt(f"view_{number}", activations, self.corruption, noise=self.noise)
        return activations.run(corrupted, draw=number)

    def _require_difference(self, view: types.Activations) -> None:
        """Check that the two views of a row differ."""
        differs = self.corruption > 0 or self.noise > 0 or view.draws_by_step
        rule, fix = "be above 0 if the network has no dropout", "Or set noise."
        checks.require(differs, self._where("corruption"), rule, self.corruption, fix)


@checks.dataclass
class SupervisedContrastive(representation.OfRepresentation):
    """Makes rows of the same class more similar than rows of different classes.

    The loss of row i is `-1 / |P(i)| sum_{p in P(i)} log(exp(s(i, p) / t) / sum_{a != i} exp(s(i,
    a) / t))`, where s is the cosine of projected vectors, P(i) are the other rows of the same
    class, and a stands for all other labelled rows. The loss is 0 for a row without another row of
    its class. P. Khosla et al., "Supervised Contrastive Learning", 2020, arXiv:2004.11362 (L_out),
    with one view of each row instead of two.

    A row is compared only with rows of the same micro-batch and replica. Therefore,
    `Run.micro_batches` and the number of replicas influence the loss.

    Attributes:
      head: the task whose label is the class, with a head `Binary`, `MultiClass` or `Ordinal`. Rows
        without a label of this task are left out, and the other rows are weighted as in this task.
      layers: the units of the layers that project the representation, with ReLU between the
        layers; [] for no layers.
      temperature: the temperature t, by which the cosines are divided, above 0.
    """

    head: str
    name: str = "supervised_contrastive"
    layers: Annotated[Sequence[int], trunk.check_sizes] = (64, 64)
    temperature: checks.Positive = 0.1

    are_rows_apart: ClassVar[bool] = False
    reads_labels: ClassVar[bool] = True

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of rows, [B]; 0 if no other labelled row has the row's class."""
        vectors = self._read(activations)
        representation.require_rows("auxiliary loss SupervisedContrastive", vectors)
        projected = representation.stack_layers(vectors, self.layers)
        classes, counts = self._find_classes(activations)
        return compute_supervised(projected, classes, counts, self.temperature)

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Check that the task exists, and that each of its rows has one class.

        Raises:
          UserError: the task is unknown, its head does not give each row one class, or `at` names
            no tower.
        """
        super().check(heads)
        checks.one_of(self._where("head"), self.head, heads)
        head = heads[self.head]
        fits = types.read_member(head, types.ClassHead, "has_one_class")
        fits = fits and isinstance(head, types.WeighingHead)
        rule = "be a task whose rows have one class of several"
        fix = f"It is {type(head).__name__}."
        checks.require(fits, self._where("head"), rule, self.head, fix)

    def row_weights(self, labels: types.Tensors, heads: Mapping[str, types.Head]) -> tf.Tensor:
        """Return the weights of rows in the task `head`, {label: [B, ...]} -> [B]."""
        head: Any = heads[self.head]
        return head.row_weights(labels)

    def _find_classes(self, activations: types.Activations) -> tuple[tf.Tensor, tf.Tensor]:
        """Return class ids, int64 [B], and a mask of labelled rows, bool [B]."""
        head: Any = activations.heads[self.head]
        classes, _ = head.targets(head.label_of(activations.labels))
        return tf.cast(classes, tf.int64), head.row_weights(activations.labels) > 0


def compute_nt_xent(vectors: tf.Tensor, rows: int, temperature: float) -> tf.Tensor:
    """Compute the NT-Xent loss of each view; rows i and i + B are views of the same example.

    Args:
      vectors: the projected views, [2 B, D], all first views and then all second views; they need
        not be normalised.
      rows: B, at least 2.
      temperature: the divisor of the cosines, above 0.

    Returns:
      The losses, [2 B].
    """
    similar = _compare_pairs(vectors, temperature)
    # The partner of view i is i + B for first views, and i - B for second views.
    partners = (tf.range(2 * rows) + rows) % (2 * rows)
    partner_cosines = tf.gather(similar, partners, batch_dims=1)
    return tf.reduce_logsumexp(_leave_out(similar, tf.eye(2 * rows) > 0), 1) - partner_cosines


def compute_supervised(
    vectors: tf.Tensor, classes: tf.Tensor, counts: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Compute the supervised contrastive loss of each row.

    Args:
      vectors: the projected rows, [B, D], which need not be normalised.
      classes: class ids, [B].
      counts: bool [B], False for rows that are left out.
      temperature: the divisor of the cosines, above 0.

    Returns:
      The losses, [B]; 0 for a row without another row of its class.
    """
    similar = _compare_pairs(vectors, temperature)
    others = counts[:, tf.newaxis] & counts & ~(tf.eye(tf.shape(similar)[0]) > 0)
    positive = others & tf.equal(classes[:, tf.newaxis], classes)
    number = tf.reduce_sum(tf.cast(positive, similar.dtype), 1)
    # If the batch has no other rows with which a row can be compared, `reduce_logsumexp` would be
    # log(0). To avoid log(0), a row that no other row fits is compared with itself, and its loss is
    # masked later.
    has_others = tf.reduce_any(others, 1, keepdims=True)
    totals = tf.reduce_logsumexp(_leave_out(similar, ~others & has_others), 1)
    # -log(exp(s) / sum exp) is the logarithm of the sum minus s.
    losses = tf.where(positive, totals[:, tf.newaxis] - similar, tf.zeros_like(similar))
    return tf.math.divide_no_nan(tf.reduce_sum(losses, 1), number)


def _compare_pairs(vectors: tf.Tensor, temperature: float) -> tf.Tensor:
    """Return the cosines of all pairs divided by the temperature, [N, D] -> [N, N]."""
    unit = tf.math.l2_normalize(vectors, 1)
    return tf.linalg.matmul(unit, unit, transpose_b=True) / temperature


def _leave_out(similar: tf.Tensor, where: tf.Tensor) -> tf.Tensor:
    """Set the entries where a mask [N, N] is True to minus infinity, whose exponential is 0."""
    return tf.where(
        where, tf.fill(tf.shape(similar), tf.cast(float("-inf"), similar.dtype)), similar
    )
