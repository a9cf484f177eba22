"""Pulls together the representations of two views of a row, or of rows of the same class.

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
    """Finds, from one view of a row, the other view of the same row among all views.

    `-s(i, j) / t + log sum_{k != i} exp(s(i, k) / t)`, the mean of both views i and j of a row,
    with s the cosine of projected vectors and k all other views of all rows. It reads no label.
    T. Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations"
    (SimCLR, NT-Xent), 2020, arXiv:2002.05709. Here a view is the encoded row with columns of other
    rows (D. Bahri et al., "SCARF", 2021, arXiv:2106.15147), with noise, or with another dropout.
    The first view is the plain pass unless `corrupts_both`.

    A row is compared with the rows of its slice on its replica. `Run.micro_batches` and replicas
    reduce their number, and so change the loss.

    Attributes:
      corruption: the share of a row's columns that are replaced by columns of another row, in
        [0, 1]; a `Numeric` field, an image or a vector of tokens is one column.
      noise: the standard deviation of noise on the encoded columns, at least 0. Without corruption
        and noise the network must have dropout.
      corrupts_both: True corrupts the first view too, which takes one more pass.
      layers: units of the layers that project the representation, with ReLU between them; [] for
        none.
      temperature: t, above 0.
      columns: the columns that are replaced or get noise, by name; None for all.
    """

    name: str = "contrastive"
    corruption: Annotated[float, representation.check_share] = 0.6
    noise: checks.NotNegative = 0.0
    corrupts_both: bool = False
    layers: Annotated[Sequence[int], trunk.check_sizes] = (64, 64)
    temperature: checks.Positive = 0.5

    @property
    def needs_draws(self) -> bool:
        """True if the views differ only by draws of the network, such as dropout."""
        return not self.corruption and not self.noise

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return the losses of rows, [B], each the mean of its two views."""
        second = self._make_view(activations, 1)
        self._require_difference(second)
        first = self._make_view(activations, 2) if self.corrupts_both else activations
        vectors = self._read(first)
        representation.require_rows("auxiliary loss Contrastive", vectors)
        rows = perturbations.count_rows(vectors)
        # Both views form one batch, [2 B, H], so that the projection has the same weights for both.
        vectors = tf.concat([vectors, self._read(second)], 0)
        projected = representation.stack_layers(vectors, self.layers)
        losses = compute_nt_xent(projected, rows, self.temperature)
        return (losses[:rows] + losses[rows:]) / 2

    def _make_view(self, activations: types.Activations, number: int) -> types.Activations:
        corrupted = self._corrupt(f"view_{number}", activations, self.corruption, noise=self.noise)
        return activations.run(corrupted, draw=number)

    def _require_difference(self, view: types.Activations) -> None:
        """Fail if both views are the same."""
        differs = self.corruption > 0 or self.noise > 0 or view.draws_by_step
        rule, fix = "be above 0 if the network draws nothing", "Or set noise."
        checks.require(differs, self._where("corruption"), rule, self.corruption, fix)


@checks.dataclass
class SupervisedContrastive(representation.OfRepresentation):
    """Finds, for each row, the other rows of the same class.

    `-1 / |P(i)| sum_{p in P(i)} log(exp(s(i, p) / t) / sum_{a != i} exp(s(i, a) / t))`, with s the
    cosine of projected vectors, P(i) the other rows of the class of row i, and a all other rows
    that have a label. A row that is alone in its class counts as 0.
    P. Khosla et al., "Supervised Contrastive Learning", 2020, arXiv:2004.11362 (L_out), with one
    view of each row instead of two.

    A row is compared with the rows of its slice on its replica. `Run.micro_batches` and replicas
    reduce their number, and so change the loss.

    Attributes:
      head: the task whose label is the class, of `Binary`, `MultiClass` or `Ordinal`. Rows without
        a label are left out; weights of examples count.
      layers: units of the layers that project the representation, with ReLU between them; [] for
        none.
      temperature: t, above 0.
    """

    head: str
    name: str = "supervised_contrastive"
    layers: Annotated[Sequence[int], trunk.check_sizes] = (64, 64)
    temperature: checks.Positive = 0.1

    are_rows_apart: ClassVar[bool] = False
    reads_labels: ClassVar[bool] = True

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return the losses of rows, [B]; 0 without a label, or alone in the class."""
        vectors = self._read(activations)
        representation.require_rows("auxiliary loss SupervisedContrastive", vectors)
        projected = representation.stack_layers(vectors, self.layers)
        classes, counts = self._find_classes(activations)
        return compute_supervised(projected, classes, counts, self.temperature)

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Fail unless the task exists, and each of its rows has one class."""
        super().check(heads)
        checks.one_of(self._where("head"), self.head, heads)
        head = heads[self.head]
        fits = types.read_member(head, types.ClassHead, "has_one_class")
        fits = fits and isinstance(head, types.WeighingHead)
        rule = "be a task whose rows have one class of several"
        fix = f"It is {type(head).__name__}."
        checks.require(fits, self._where("head"), rule, self.head, fix)

    def row_weights(self, labels: types.Tensors, heads: Mapping[str, types.Head]) -> tf.Tensor:
        """Return the weights of rows in that task, {label: [B, ...]} -> [B]."""
        head: Any = heads[self.head]
        return head.row_weights(labels)

    def _find_classes(self, activations: types.Activations) -> tuple[tf.Tensor, tf.Tensor]:
        """Return class ids, int64 [B], and True for rows that take part, bool [B]."""
        head: Any = activations.heads[self.head]
        classes, _ = head.targets(head.label_of(activations.labels))
        return tf.cast(classes, tf.int64), head.row_weights(activations.labels) > 0


def compute_nt_xent(vectors: tf.Tensor, rows: int, temperature: float) -> tf.Tensor:
    """Compute the NT-Xent loss of each view; views i and i + B belong to the same row.

    Args:
      vectors: [2 B, D], all first views and then all second views, of any length.
      rows: B, at least 2.
      temperature: the divisor of the cosines, above 0.

    Returns:
      [2 B].
    """
    similar = _compare_pairs(vectors, temperature)
    # Row i of the first view has its partner at i + B, and the other way round.
    partners = (tf.range(2 * rows) + rows) % (2 * rows)
    partner_cosines = tf.gather(similar, partners, batch_dims=1)
    return tf.reduce_logsumexp(_leave_out(similar, tf.eye(2 * rows) > 0), 1) - partner_cosines


def compute_supervised(
    vectors: tf.Tensor, classes: tf.Tensor, counts: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Compute the supervised contrastive loss of each row.

    Args:
      vectors: [B, D], of any length.
      classes: [B], ids.
      counts: bool [B], False for rows that take part in no comparison.
      temperature: the divisor of the cosines, above 0.

    Returns:
      [B]; 0 for a row without another row of its class.
    """
    similar = _compare_pairs(vectors, temperature)
    others = counts[:, tf.newaxis] & counts & ~(tf.eye(tf.shape(similar)[0]) > 0)
    positive = others & tf.equal(classes[:, tf.newaxis], classes)
    number = tf.reduce_sum(tf.cast(positive, similar.dtype), 1)
    # A row without other rows would take log(0): it is compared with itself, and masked later.
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
    """Set the places of a mask, bool [N, N], to minus infinity, whose exponential is 0."""
    return tf.where(
        where, tf.fill(tf.shape(similar), tf.cast(float("-inf"), similar.dtype)), similar
    )
