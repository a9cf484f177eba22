"""Class-balanced sampling: sets how often training draws the rows of each class.

from mtl.data import sampling
pipeline.Pipeline.sampler = @sampling.Power()
sampling.Power.label = "digit"
sampling.Power.exponent = 0.0                    # class-balanced; 0.5 is square-root
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from mtl import checks, deferred, types
from mtl import spec as spec_lib
from mtl.data import source as source_lib
from mtl.deferred import tf, tf1

with deferred.imports():
    from mtl.data import class_order, filled_fields, label_counts

# Labels are decoded for this number of records at once.
_RECORDS = 128
# The values of a missing label.
_ABSENT = {spec_lib.MISSING["int64"], b""}


@checks.dataclass
class Power:
    """Draws each of n_j rows of class j with probability `p_j / n_j`, `p_j = n_j^q / sum_i n_i^q`.

    Kang et al., "Decoupling Representation and Classifier for Long-Tailed Recognition", 2020,
    arXiv:1910.09217, call sampling with q = 1 instance-balanced, with q = 0 class-balanced, and
    with q = 1/2 square-root sampling.

    One pass draws about as many records as the split has. Records without a label are drawn as
    often as they occur.

    | the source | a record with r expected draws in a pass |
    | -- | -- |
    | has its rows in memory | is drawn once in 1 / r passes: each class is an endless stream |
    | is read in order | is drawn floor(r) times, and once more with probability r - floor(r) |

    With rows in memory, a row is drawn again only after all other rows of its class, the number of
    draws of each class is exact up to one row, and batches do not depend on the number of workers.
    With rows that are read in order, n_j is counted once, when the run starts: a run that goes on
    with other training rows keeps the n_j of the earlier rows.

    Attributes:
      label: the field that holds the class.
      exponent: q, the exponent of the class counts, in [0, 1].
      missing: labels that count as missing; set [] if -1 is a class.
    """

    label: Annotated[str, checks.Is(str, "name a label field")]
    exponent: Annotated[float, checks.In("[0, 1]")] = 0.0
    # The repr leaves out this setting, because a resumed run compares the repr with the saved
    # repr, which lacks the setting if an older version saved it.
    missing: Annotated[Sequence[Any], checks.Is((list, tuple), "be a list of labels")] = (
        dataclasses.field(default=(spec_lib.NO_ID,), repr=False)
    )

    def check_experiment(self, experiment: Any) -> None:
        """Fail unless the sampler and the heads treat the same label values as missing.

        Args:
          experiment: the experiment that contains the model whose heads are checked.

        Raises:
          UserError: a head of the field `label` names a missing label as a class, or treats a label
            as missing that the sampler would draw like a class.
        """
        where = f"{type(self).__name__}.missing"
        for head in experiment.model.heads:
            class_names = getattr(head, "named_values", ())
            for value in self.missing if class_names and self.label == head.field else ():
                fix, rule = f"Head {head.name!r} names it as a class.", f"leave out {value!r}"
                checks.require(value not in class_names, where, rule, list(self.missing), fix)
            for value in getattr(head, "missing", ()) if self.label == head.field else ():
                fix = f"Head {head.name!r} takes it for a missing label."
                is_known = value in self.missing
                checks.require(is_known, where, f"hold {value!r}", list(self.missing), fix)

    @property
    def balances(self) -> str | None:
        """The label whose classes the sampler balances; None if `exponent` is 1."""
        return self.label if self.exponent < 1 else None

    def require_classes(self, classes: Collection[Any]) -> None:
        """Fail if no row of the training split has a label.

        Args:
          classes: the labels in the split that are not missing.
        """
        where = f"label {self.label!r} of the training split"
        checks.require(bool(classes), where, f"be in a row, for {type(self).__name__}", 0)

    def accumulators(self) -> dict[str, Any]:
        """Return {name in the statistics: accumulator that counts the rows of each class}."""
        return label_counts.accumulators(self.label)

    @property
    def order_field(self) -> str | None:
        """The label by which row numbers are ordered; None if a subclass overrides `__call__`."""
        return self.label if type(self).__call__ is Power.__call__ else None

    def order_by_field(
        self,
        rows: np.ndarray,
        values: np.ndarray,
        *,
        batch_size: int,
        parts: int,
        seed: int,
        is_shuffled: bool,
    ) -> class_order.ClassOrder:
        """Return the order of training rows, given row numbers [N] and labels [N].

        Raises:
          UserError: no row has a label, or a share is negative or not finite.
        """
        del parts
        classes, unlabelled = _split_classes(rows, values, self.missing)
        self.require_classes(classes)
        counts = np.array([len(class_rows) for class_rows in classes.values()], np.float64)

        def find_due(first: int, stop: int) -> np.ndarray:
            class_dues = self._evaluate_shares(counts, first, stop) * counts.sum()
            unlabelled_dues = np.full([stop - first, 1], float(len(unlabelled)))
            return (
                np.concatenate([class_dues, unlabelled_dues], axis=1)
                if len(unlabelled)
                else class_dues
            )

        streams = [*classes.values(), unlabelled] if len(unlabelled) else [*classes.values()]
        names = [*map(repr, classes), "unlabelled"][: len(streams)]
        return class_order.ClassOrder(
            streams, names, find_due, batch_size=batch_size, seed=seed, is_shuffled=is_shuffled
        )

    def _evaluate_shares(self, counts: np.ndarray, first: int, stop: int) -> np.ndarray:
        """Return the shares of C classes in the passes from `first` up to `stop`, [passes, C]."""

        @tf.autograph.experimental.do_not_convert
        def evaluate(epoch: tf.Tensor) -> tf.Tensor:
            return tf.cast(self.shares(counts, epoch), tf.float64)

        with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
            epochs = tf.range(first, stop, dtype=tf.int64)
            shares = session.run(tf.map_fn(evaluate, epochs, fn_output_signature=tf.float64))
        fits = bool(np.isfinite(shares).all() and (shares >= 0).all() and shares.sum(1).all())
        rule = "return numbers of at least 0, with one above 0"
        checks.require(fits, f"{type(self).__name__}.shares", rule, shares.tolist())
        return shares

    def shares(self, counts: np.ndarray, epoch: tf.Tensor) -> tf.Tensor:
        """Return the share of each class in the draws of one pass.

        Args:
          counts: the number of rows of each class, float64 [C].
          epoch: the number of the pass, an int64 scalar.

        Returns:
          The shares p_j of the C classes, float64 [C], which sum to 1.
        """
        del epoch
        return _normalise_powers(counts, self.exponent)

    def __call__(
        self,
        records: tf.data.Dataset,
        source: types.Source,
        field: spec_lib.Field,
        counts: Mapping[Any, int],
        seed: int,
        epoch: tf.Tensor,
    ) -> tf.data.Dataset:
        """Return one pass over the records that repeats and drops records by the shares of classes.

        Args:
          records: raw records, in the order of the source.
          source: the source that decodes the records.
          field: the field that contains the label.
          counts: {label: number of rows in the training split}.
          seed: the seed of the draws, which also depend on the pass and on the position in the
            pass.
          epoch: the number of the pass, an int64 scalar.
        """
        rows = np.array(list(counts.values()), np.float64)
        # The expected number of draws of each row of class j in a pass of n rows, p_j n / n_j, [C].
        times = self.shares(rows, epoch) * rows.sum() / rows
        spec = filled_fields.specify_field(field)

        @tf.autograph.experimental.do_not_convert
        def repeated(index: tf.Tensor, *batch: Any) -> tf.data.Dataset:
            labels = source.decode(batch[0], spec, False)[field.name]
            dues = _find_dues(labels, list(counts), times)
            draws = tf.random.stateless_uniform(
                tf.shape(dues), [seed + epoch * 1_000_003, index], dtype=tf.float64
            )
            # Random rounding: a row with 1.3 expected draws is drawn twice with a probability of
            # 0.3.
            copies = tf.repeat(tf.range(tf.size(dues)), tf.cast(dues + draws, tf.int32))
            repeats = tf.nest.map_structure(lambda part: tf.gather(part, copies), batch[0])
            return tf.data.Dataset.from_tensor_slices(repeats)

        return source_lib.batch(records, _RECORDS).enumerate().flat_map(repeated)


@checks.dataclass
class Progressive(Power):
    """Class j gets the share `(1 - t) p_j(instance-balanced) + t p_j(class-balanced)`, t in [0, 1].

    As in Kang et al., 2020, arXiv:1910.09217, t is the number of the pass over the records, divided
    by the number of all passes.

    Attributes:
      label: the field that holds the class.
      exponent: the exponent q of the class counts at t = 1; 0 (equal class shares) in the paper.
      epochs: the number of the pass at which t reaches 1; usually the number of passes of the run.
    """

    epochs: checks.Count

    def shares(self, counts: np.ndarray, epoch: tf.Tensor) -> tf.Tensor:
        """Return the share of each class in the draws of one pass, like `Power.shares`."""
        progress = tf.minimum(tf.cast(epoch, tf.float64) / self.epochs, 1)
        return (1 - progress) * _normalise_powers(counts, 1) + progress * _normalise_powers(
            counts, self.exponent
        )


def _normalise_powers(counts: np.ndarray, exponent: float) -> np.ndarray:
    return counts**exponent / (counts**exponent).sum()


def _split_classes(
    rows: np.ndarray, labels: np.ndarray, missing: Collection[Any]
) -> tuple[dict[Any, np.ndarray], np.ndarray]:
    """Return {label: row numbers}, sorted by label, and the numbers of rows without a label."""
    texts = {value.encode() if isinstance(value, str) else value for value in missing}
    absent = texts | _ABSENT
    encoding = pa.array(labels).dictionary_encode()
    names = encoding.dictionary.to_pylist()
    numbers = encoding.indices.to_numpy(zero_copy_only=False)
    # Sort rows by class; the stable sort keeps the order of the source within a class.
    by_class = np.argsort(numbers, kind="stable")
    parts = np.split(rows[by_class], np.cumsum(np.bincount(numbers, minlength=len(names)))[:-1])
    rows_by_label = dict(zip(names, parts, strict=True))
    absent_names = [name for name in names if name in absent or name != name]
    other_rows = np.concatenate(
        [np.zeros(0, np.int64), *(rows_by_label.pop(name) for name in absent_names)]
    )
    return {name: rows_by_label[name] for name in sorted(rows_by_label)}, np.sort(other_rows)


def _find_dues(labels: tf.Tensor, class_labels: list[Any], times: tf.Tensor) -> tf.Tensor:
    """Return the expected number of draws for each label, [B]; 1 for an unknown label."""
    # True if a label equals a class, [B, C].
    hits = tf.equal(labels[:, tf.newaxis], tf.constant(class_labels, labels.dtype))
    dues = tf.gather(tf.convert_to_tensor(times), tf.argmax(hits, axis=1))
    return tf.where(tf.reduce_any(hits, axis=1), dues, tf.ones_like(dues))
