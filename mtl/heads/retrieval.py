"""Retrieval: find the items of a query by the dot product of two vectors.

clicked/heads.Retrieval.name = "clicked"
clicked/heads.Retrieval.label = "click"
clicked/heads.Retrieval.item = "item"                # a label field, or a feature in Spec.keys
networks.SharedBottom.trunk = @networks.TwoTower()
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

import numpy as np

from mtl import checks, networks, types
from mtl import spec as spec_lib
from mtl.data import drawn_items
from mtl.deferred import compat, tf, tf1
from mtl.heads import base, buffers, groups, item_frequency, metrics, objectives, values
from mtl.networks import fields as fields_lib
from mtl.spec import literals

# The number of queries that are compared with all items at once.
_TOGETHER = 256
# The least expected number of rows, as 0 has no logarithm.
_LEAST = 1e-20


@checks.dataclass
class Retrieval(base.Labelled):
    """Retrieval by vectors q of queries and v of items: `score = q v / |q| |v|`.

    The tower must be [q, v], the output of `networks.TwoTower`; the head adds no layer. With s =
    score / temperature, and sums over the rows j of the batch with a label above 0, row i has the
    loss:

        loss_i = -log(exp(s_ii - log Q_i) / sum_j exp(s_ij - log Q_j))

    The loss of a batch is the weighted mean over rows with a label above 0. Q_j is the share of
    item j among the rows with a label above 0 in the training split. Without Q, popular items would
    get too low scores, as popular items are negatives more often. Yi et al.,
    "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019,
    estimate Q from the stream of batches. The sum over j in loss_i omits other rows that have the
    same item or the same query as row i.

    With `negatives`, the sum also has N random items j, drawn with probabilities P_j, except the
    item of row i. With n rows with a label above 0, the loss uses n Q_j + N P_j in place of the
    share Q_j: the expected number of times that item j is in the sum over rows and random items.
    Yang et al., "Mixed Negative Sampling for Learning Two-tower Neural Networks in
    Recommendations", WWW 2020 companion, draw items with equal probabilities.

    The negatives of a row come only from the same slice (`Run.micro_batches`) and the same replica.
    So more slices or replicas mean fewer negatives.

    Metrics use the rows of the split with a label above 0. The different items of the rows with a
    label above 0 are the candidates, and the metric `ranked_items` is their number. For each row
    with a label above 0, all candidates are ranked by score. `recall_at_<k>` is the share of rows
    with their item among the first k candidates, and `mrr` is the mean of 1 / the rank of the row's
    item. `average_loss` is the cross entropy over all candidates, without the correction by Q. The
    metrics store both vectors of every row with a label above 0. If the features of an item differ
    between its rows, its vector is the mean over its rows, normalised again if `normalizes` is set.

    Predicts `query` [B, D], `item` [B, D] and `score` [B].

    Attributes:
      item: the label field that holds the item, int64 or string. Rows with a label above 0 need an
        item.
      query: the label field that holds the query, such as a user. Items of rows with the same query
        are not negatives of each other. With `query = None`, all other items of the batch are
        negatives.
      temperature: the temperature of the softmax, above 0. With a smaller temperature, the loss
        depends more on the hardest negatives.
      normalizes: True divides vectors by their length.
      corrects_popularity: True subtracts `log Q`.
      frequency: estimates Q from the batches, for training splits that cannot be counted. With
        `frequency`, Q is the probability that a batch has the item, in a row or among the drawn
        items. With `frequency = None`, the share Q of an item comes from counts over the training
        split.
      negatives: draws items of the training split as additional negatives; None draws none.
      cutoffs: the ranks k of the metrics `recall_at_<k>`.
      item_counts: {item: the number of training rows with this item and a label above 0}. By
        default, a run counts the rows of each item before the first training step.
    """

    item: Annotated[str, checks.Is(str, "name a label field")]
    query: Annotated[str, checks.Is(str, "name a label field")] | None = None
    temperature: checks.Positive = 0.05
    normalizes: bool = True
    corrects_popularity: bool = True
    cutoffs: Annotated[Sequence[int], groups.check_cutoffs] = (10, 100)
    item_counts: Mapping[int | str, int] | None = dataclasses.field(default=None, repr=False)
    frequency: item_frequency.StreamedFrequency | None = None
    negatives: (
        Annotated[
            drawn_items.DrawnItems,
            checks.Is(drawn_items.DrawnItems, "be built, such as @drawn_items.DrawnItems()"),
        ]
        | None
    ) = None

    directions: ClassVar[Mapping[str, bool]] = {
        "mrr": True,
        "recall_at_*": True,
        **base.Labelled.directions,
    }
    are_rows_apart: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        if self.item_counts is not None:
            self._is_a("item_counts", Mapping, "map items to their rows")
            for item, count in self.item_counts.items():
                checks.whole(self._where(f"item_counts[{item!r}]"), count, 1)
        if self.frequency is not None:
            rule = "be built, such as @heads.StreamedFrequency()"
            self._is_a("frequency", item_frequency.StreamedFrequency, rule)
            where, fix = self._where("frequency"), "Set only one of both."
            checks.require(
                self.item_counts is None, where, "be None if item_counts is set", "both", fix
            )
            rule = "be None if corrects_popularity is False"
            checks.require(self.corrects_popularity, where, rule, self.frequency)

    def accumulators(self) -> dict[str, Any]:
        """Return accumulators that count items, as needed to compute Q and to draw items."""
        counters = self.negatives.accumulators(self.name, self.item) if self.negatives else {}
        if not self._counts_items:
            return counters
        counts = ItemCounts(label=self.field, item=self.item, missing=tuple(self.missing))
        return {self._counts_name: counts, **counters}

    @property
    def _counts_items(self) -> bool:
        is_known = self.item_counts is not None or self.frequency is not None
        return self.corrects_popularity and not is_known

    @property
    def _counts_name(self) -> str:
        return f"items/{self.name}"

    def fitted(self, statistics: types.Statistics) -> Retrieval:
        """Return a copy of the head with the counts of items in the training split."""
        changes: dict[str, Any] = {}
        if self._counts_items:
            entry = statistics.for_column(self._counts_name)
            changes["item_counts"] = dict(zip(entry["items"], entry["counts"], strict=True))
        if self.negatives is not None:
            changes["negatives"] = self.negatives.fitted(self.name, statistics)
        return dataclasses.replace(self, **changes)

    def check_model(self, model: Any) -> None:
        """Fail if a network of mtl mixes the columns of queries and items.

        Networks of other packages are not checked.

        Args:
          model: the `MultiTaskModel` that has this head.

        Raises:
          UserError: the network is not a `SharedBottom` of a `TwoTower` without a tower, or a
            column of `TwoTower.item_columns` reads a feature that `negatives` does not draw.
        """
        if not type(model.network).__module__.startswith("mtl."):
            return
        trunk, tower = (getattr(model.network, name, None) for name in ("trunk", "tower"))
        fits = isinstance(model.network, networks.SharedBottom) and tower is None
        fits = fits and isinstance(trunk, networks.TwoTower)
        rule = "be a SharedBottom of a TwoTower, without a tower, for the head Retrieval "
        rule += repr(self.name)
        fix = "Otherwise the vector of a query would depend on the item that it is compared with."
        network_name = type(model.network).__name__
        checks.require(fits, "MultiTaskModel.network", rule, network_name, fix)
        if self.negatives is not None:
            columns = {name: of for part in model.columns for name, of in part.columns.items()}
            self._check_drawn(self.negatives, cast(networks.TwoTower, trunk), columns)

    def _check_drawn(
        self,
        negatives: drawn_items.DrawnItems,
        trunk: networks.TwoTower,
        columns: Mapping[str, Sequence[str]],
    ) -> None:
        """Fail unless `negatives` draws every feature that `TwoTower.item_columns` read."""
        of_item = fields_lib.choose_columns("TwoTower.item_columns", trunk.item_columns, columns)
        where, drawn_features = (
            f"DrawnItems.features of task {self.name!r}",
            list(negatives.features),
        )
        for field in (field for fields in of_item.values() for field in fields):
            rule = f"name {field!r}, which a column of TwoTower.item_columns reads"
            checks.require(field in drawn_features, where, rule, drawn_features)

    def check_fields(self, spec: spec_lib.Spec) -> None:
        """Fail unless the specification has the features of the drawn items.

        Raises:
          UserError: a feature is absent, or is a list of lists.
        """
        if self.negatives is not None:
            self.negatives.check(spec)

    @property
    def rows_added(self) -> int:
        """The number of items that are drawn for a batch."""
        return self.negatives.num if self.negatives else 0

    def add_rows(
        self, batches: tf.data.Dataset, spec: spec_lib.Spec, reading: types.Reading
    ) -> tf.data.Dataset:
        """Return the training batches; if `negatives` is set, rows of drawn items are added."""
        if self.negatives is None:
            return batches
        return self.negatives.append(self.name, batches, spec, reading)

    def see_batch(self, labels: types.Tensors) -> types.Tensors:
        """Add the logarithm of each item's frequency Q to the labels, if `frequency` is set.

        Args:
          labels: {field: [B, ...]}.

        Returns:
          The labels, with `<task>/log_frequency` [B] if `frequency` is set. The field
          `<task>/log_frequency` is meaningless in rows that have neither a label above 0 nor a
          drawn item.
        """
        if self.frequency is None:
            return labels
        counts = self._row_weights(labels) > 0
        keys, is_drawn = self._read_items(labels, counts)
        with tf1.variable_scope(f"head/{self.name}"):
            log_share = self.frequency.update(keys, counts | is_drawn)
        return {**labels, self._frequency_field: log_share}

    @property
    def _frequency_field(self) -> str:
        return f"{self.name}/log_frequency"

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels.

        Args:
          label: the labels of the rows, numbers [B].

        Returns:
          1.0 for labels above 0, else 0.0, float32 [B]; and a mask of present labels, bool [B].

        Raises:
          InvalidArgumentError: when the op runs, if a label that is not missing is below 0 or
            infinite.
        """
        present = self.are_present(label)
        numbers = tf.where(present, tf.cast(label, tf.float32), 0.0)
        valid = (numbers >= 0) & tf.math.is_finite(numbers)
        return self.checked(
            tf.cast(numbers > 0, tf.float32), valid, label, self.rule(None)
        ), present

    def accepts(self, value: Any) -> bool:
        """Return True if the value is a finite number of at least 0."""
        return 0 <= value < math.inf

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: a label must be a number of at least 0."""
        del dtype
        return "be a finite number of at least 0"

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return an error message about label, weight, item or query of a record, or None."""
        problem = super().check(labels)
        label_values = values.flatten_values(labels.get(self.field, []))
        if problem or not any(value > 0 for value in self.find_present(label_values)):
            return problem
        keys = filter(None, (self.item, self.query))
        return next(filter(None, (groups.check_key(self, key, labels) for key in keys)), None)

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Return the tower [B, 2 D], with both vectors scaled to length 1 if `normalizes` is set.

        Raises:
          UserError: the tower does not consist of two vectors of the same width.
        """
        where, rule = f"the tower of head {self.name!r}", "hold two vectors, as from TwoTower"
        checks.require(tower.shape[1] % 2 == 0, where, rule, tuple(tower.shape))
        if not self.normalizes:
            return tower
        return tf.concat([tf.math.l2_normalize(part, 1) for part in tf.split(tower, 2, 1)], 1)

    def loss(self, logits: tf.Tensor, labels: types.Tensors) -> tf.Tensor:
        """Compute the loss: logits [B, 2 D] and labels {field: [B]} -> a scalar.

        Raises:
          InvalidArgumentError: when the op runs, if a label or weight is out of range, or an item
            is missing.
        """
        rows = self._read_rows(logits, labels)
        counts = rows.weights > 0
        scores = tf.matmul(rows.queries, rows.items, transpose_b=True) / self.temperature
        if self.frequency is not None:
            # In training, `see_batch` adds a label field with log Q, the logarithm of each item's
            # frequency; an evaluation does not use Q.
            scores -= labels.get(self._frequency_field, 0.0)
        elif self.corrects_popularity:
            scores -= self._log_share(labels, counts, rows.is_drawn)
        is_same_row = tf.eye(tf.shape(scores)[0], dtype=tf.bool)
        # [B, B]: True if column j is a negative of row i, which needs a different item.
        is_other = tf.not_equal(rows.keys[:, tf.newaxis], rows.keys)
        is_other &= counts | rows.is_drawn
        if self.query is not None:
            queries = groups.read_keys(self, self.query, labels, counts)
            is_other &= tf.not_equal(queries[:, tf.newaxis], queries) | rows.is_drawn
        # Use -1e9 for masked scores: with the lowest float, rows without other scores get a
        # gradient.
        scores = tf.where(is_same_row | is_other, scores, -1e9)
        losses = tf.reduce_logsumexp(scores, 1) - tf.linalg.diag_part(scores)
        return objectives.weighted_mean(losses, rows.weights)

    def _log_share(
        self, labels: types.Tensors, counts: tf.Tensor, is_drawn: tf.Tensor
    ) -> tf.Tensor:
        """Return the logarithm of each item's share or, with drawn items, expected number, [B].

        The result is `log Q` or, if random items are drawn, `log(n Q + N P)`; the docstring of
        `Retrieval` defines Q, n, N and P. An item without a count gets the share Q of an item with
        a count of 1.
        """
        if self.item_counts is None:
            fix = "Set item_counts, or train: a run counts items before the first step."
            checks.fail(self._where("item_counts"), "be known", None, fix)
        names = list(self.item_counts)
        numbers = np.array(list(self.item_counts.values()), np.float64)
        total = math.log(numbers.sum())
        drawn_keys = labels.get(drawn_items.drawn_field(self.name))
        items = labels[self.item]
        if drawn_keys is None:
            return self._look_up(items, names, np.log(numbers) - total, -total)
        items = tf.where(is_drawn, drawn_keys, items)
        # Only a head that was fitted to the training split has drawn items, so the shares of the
        # items are not None.
        shares = cast(Mapping, cast(drawn_items.DrawnItems, self.negatives).shares)
        expected_count = tf.add_n(
            [
                tf.reduce_sum(tf.cast(mask, tf.float32)) * self._look_up(items, *table)
                for mask, table in (
                    (counts, (names, numbers / numbers.sum(), math.exp(-total))),
                    (is_drawn, (list(shares), list(shares.values()), 0.0)),
                )
            ]
        )
        return tf.math.log(tf.maximum(expected_count, _LEAST))

    def _look_up(
        self, items: tf.Tensor, names: Sequence[Any], numbers: Any, default: float
    ) -> tf.Tensor:
        """Look up a number for each item, [B]; `default` for unknown items."""
        table_keys = values.as_held(
            items, names, self._where("item_counts"), f"label {self.item!r}"
        )
        with tf.init_scope():  # `tf.while_loop` cannot create lookup tables.
            entries = tf.lookup.KeyValueTensorInitializer(
                tf.constant(table_keys, items.dtype), tf.constant(numbers, tf.float32)
            )
            table = tf.lookup.StaticHashTable(entries, default_value=default)
        return table.lookup(items)

    def label_weight(self, labels: types.Tensors) -> tf.Tensor:
        """Sum the weights of the rows with a label above 0: {field: [B]} -> a scalar."""
        return tf.reduce_sum(self._row_weights(labels))

    def _row_weights(self, labels: types.Tensors) -> tf.Tensor:
        """Return the weights of the rows, [B]: 0 unless the label is above 0."""
        targets, present = self.targets(self.label_of(labels))
        return self.weights(labels, present) * targets

    def _read_items(self, labels: types.Tensors, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the item key of each row, and a mask of rows with a randomly drawn item."""
        keys = groups.read_keys(self, self.item, labels, counts)
        field = drawn_items.drawn_field(self.name)
        if field not in labels:
            return keys, tf.zeros_like(counts)
        is_drawn = values.are_ids_present(labels[field])
        return tf.where(is_drawn, groups.read_keys(self, field, labels, is_drawn), keys), is_drawn

    def _read_rows(self, logits: tf.Tensor, labels: types.Tensors) -> _Rows:
        weights = self._row_weights(labels)
        counts = weights > 0
        keys, is_drawn = self._read_items(labels, counts)
        logits = tf.where((counts | is_drawn)[:, tf.newaxis], logits, 0.0)
        queries, items = tf.split(logits, 2, 1)
        return _Rows(keys, queries, items, weights, is_drawn)

    def metrics(self, logits: tf.Tensor, labels: types.Tensors) -> types.Metrics:
        """Build the metrics, which rank all items of the split.

        Args:
          logits: the vectors of query and item, [B, 2 D].
          labels: {field: [B, ...]}.

        Returns:
          {metric: (value, update)}: `average_loss`, `mrr`, `ranked_items`, `recall_at_<k>` for each
          cutoff, and `nan_predictions`, the number of rows with a label above 0 and a NaN in a
          vector.
        """
        rows = self._read_rows(logits, labels)
        sums = {
            "ranks": AllItems(rows, self.temperature, tuple(self.cutoffs), self.normalizes),
            base.NAN_PREDICTIONS: base.nan_rows([logits], rows.weights > 0),
        }

        def summarize(sums: Mapping[str, Any]) -> dict[str, tf.Tensor]:
            return base.or_nan(sums["ranks"], sums[base.NAN_PREDICTIONS], ())

        return metrics.stream_sums(sums, summarize)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits: [B, 2 D] -> query [B, D], item [B, D] and score [B]."""
        query, item = tf.split(logits, 2, 1)
        return {"query": query, "item": item, "score": tf.reduce_sum(query * item, 1)}

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export outputs: predictions, and the score as regression output."""
        predictions = self.predictions(logits)
        return {
            "predict": compat.estimator.export.PredictOutput(predictions),
            "regress": compat.estimator.export.RegressionOutput(predictions["score"]),
        }


@dataclasses.dataclass(kw_only=True)
class ItemCounts:
    """An accumulator that counts the items of rows with a label above 0.

    Attributes:
      label, item: the names of the label fields.
      missing: label values that mark a missing label.
    """

    label: str
    item: str
    # Omit `missing` from the repr: a run compares reprs to decide if its statistics are up to date.
    missing: Sequence[Any] = dataclasses.field(default=(), repr=False)

    def __post_init__(self):
        self._counts = collections.Counter()

    def update(self, fields: types.Tensors) -> None:
        """Count the items of a batch of eager tensors."""
        label = fields[self.label].numpy()
        counts = (np.nan_to_num(label) > 0) & ~np.isin(label, self.missing)
        item_keys = fields[self.item].numpy()[counts]
        self._counts.update(item_keys.tolist())

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Return the counts of the items.

        Returns:
          {"items": the items in ascending order, "counts": the number of rows of each item}.

        Raises:
          UserError: all labels are missing or at most 0, or an item is not UTF-8.
        """
        del directory, column
        where = f"label {self.item!r}"
        plain = {literals.decode_text(where, key): count for key, count in self._counts.items()}
        where = f"labels {self.label!r} of the training split"
        checks.require(bool(plain), where, "be above 0 in some row, to count items", 0)
        items = sorted(plain)
        return {"items": items, "counts": [plain[item] for item in items]}


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows of a batch: item keys [B], two vectors [B, D], weights [B], mask of drawn items [B].

    The weight of a row is 0 unless its label is above 0. Rows of weight 0 have vectors of zeros,
    except for rows of drawn items.
    """

    keys: tf.Tensor
    queries: tf.Tensor
    items: tf.Tensor
    weights: tf.Tensor
    is_drawn: tf.Tensor


class AllItems:
    """A `Total` of rows with a label above 0, which ranks each row's item among all items."""

    def __init__(self, rows: _Rows, temperature: float, cutoffs: Sequence[int], normalizes: bool):
        self._temperature, self._cutoffs = temperature, cutoffs
        self._normalizes = normalizes
        counts = rows.weights > 0
        self._keys = tf.boolean_mask(rows.keys, counts)
        parts = [rows.queries, rows.items, rows.weights[:, tf.newaxis]]
        self._vectors = tf.boolean_mask(tf.concat(parts, 1), counts)
        self._width = rows.queries.shape[1]
        self.state = buffers.rows_state(2 * self._width + 1)

    def _average_items(self, vectors: tf.Tensor, item_ids: tf.Tensor, num: tf.Tensor) -> tf.Tensor:
        """Compute the mean vector of each item, [N, D], independent of the order of rows.

        The mean of equal vectors equals these vectors in every bit.
        """
        # A normalised mean of equal vectors may differ from these vectors in the last bit.
        minima, maxima = (
            function(vectors, item_ids, num)
            for function in (tf.math.unsorted_segment_min, tf.math.unsorted_segment_max)
        )
        means = tf.math.unsorted_segment_mean(tf.cast(vectors, tf.float64), item_ids, num)
        means = tf.math.l2_normalize(means, 1) if self._normalizes else means
        varies = tf.reduce_any(tf.not_equal(minima, maxima), 1, keepdims=True)
        return tf.where(varies, tf.cast(means, vectors.dtype), minima)

    def add(self, state: Sequence[tf.Variable]) -> tf.Operation:
        """Append the rows of the batch to the variables."""
        return buffers.append(state, self._keys, self._vectors)

    def read(self, replicas: Sequence[Sequence[tf.Tensor]]) -> dict[str, tf.Tensor]:
        """Compute the metrics.

        Args:
          replicas: the values of the state on each replica.

        Returns:
          {metric: float64 scalar}: `average_loss`, `mrr`, `ranked_items` and `recall_at_<k>`.
          Without rows, `ranked_items` is 0, and the other metrics are NaN.
        """
        keys, rows = buffers.read_all(replicas)
        queries, items, weights = tf.split(rows, [self._width, self._width, 1], 1)
        weights = tf.cast(weights[:, 0], tf.float64)
        names, item_ids = tf.unique(keys)
        items = self._average_items(items, item_ids, tf.size(names))

        def add(start: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            end = start + _TOGETHER
            scores = tf.matmul(queries[start:end], items, transpose_b=True)
            row_metrics = self._measure(scores, item_ids[start:end])
            return end, total + tf.reduce_sum(row_metrics * weights[start:end], 1)

        count = 2 + len(self._cutoffs)
        _, total = tf.while_loop(
            lambda start, _: start < tf.size(item_ids),
            add,
            [tf.constant(0), tf.zeros([count], tf.float64)],
            parallel_iterations=1,
        )
        loss, mrr, *recalls = tf.unstack(metrics.ratio(total, tf.reduce_sum(weights)), count)
        pairs = zip(self._cutoffs, recalls, strict=True)
        recall_metrics = {f"recall_at_{k}": recall for k, recall in pairs}
        num_items = tf.cast(tf.size(names), tf.float64)
        return {"average_loss": loss, "mrr": mrr, "ranked_items": num_items, **recall_metrics}

    def _measure(self, scores: tf.Tensor, item_ids: tf.Tensor) -> tf.Tensor:
        """Return the loss, 1 / rank and the recalls of each row, float64 [2 + K, n].

        If several items have equal scores, 1 / rank and recalls are means over all possible orders
        of these items.
        """
        label_scores = tf.gather(scores, item_ids, batch_dims=1)[:, tf.newaxis]
        above = tf.reduce_sum(tf.cast(scores > label_scores, tf.float64), 1)
        # `level` counts the items with the score of the label, at least 1: a score of NaN does not
        # equal itself, and would give 0.
        level = tf.maximum(tf.reduce_sum(tf.cast(tf.equal(scores, label_scores), tf.float64), 1), 1)
        loss = tf.reduce_logsumexp((scores - label_scores) / self._temperature, 1)
        # The sum of 1 / rank over the ranks of equal scores is a difference of harmonic numbers.
        sums = tf.math.digamma(above + level + 1) - tf.math.digamma(above + 1)
        recalls = [tf.clip_by_value((k - above) / level, 0, 1) for k in self._cutoffs]
        return tf.stack([tf.cast(loss, tf.float64), sums / level, *recalls])
