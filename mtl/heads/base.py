"""Base classes of heads: labels, weights, missing labels, loss and metrics.

income/heads.Binary.name = "income"           # the task
income/heads.Binary.label = "income_bracket"  # the field; the name of the task by default
income/heads.Binary.weight = "fnlwgt"         # a label field that weighs the examples
order/heads.Binary.within = "click"           # uses only rows with label click 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from mtl import checks, layers, spec, types
from mtl.deferred import compat, tf, tf1
from mtl.heads import metrics, objectives, spaces, values

NAN_PREDICTIONS = "nan_predictions"


@checks.dataclass
class Labelled(types.Head):
    """The base class of heads with a linear layer on the tower, and a label for each row.

    A label is missing if it is absent, NaN (float32) or "" (string). A missing label does not
    affect the loss, the gradients or the metrics. If labels are ids, such as classes and grades, an
    int64 label of -1 is missing, too, unless a setting of the head names -1 as a label. If labels
    are numbers, such as prices, -1 is an ordinary label.

    Attributes:
      name: the name of the task, with which the names of its metrics and predictions begin.
        Variables are in `head/<name>`.
      label: the name of the label field; the name of the task by default.
      weight: the label field with the weight of each example, finite and at least 0. By default
        every example weighs 1. The loss and the metrics use the same weights of examples.
      missing: additional label values that mark a missing label, such as [-999].
      trainable: False freezes the last layer. `mtl.variables.freezing` freezes variables by name.
    """

    name: checks.Name
    label: Annotated[str, checks.Is(str, "name a label field")] | None = None
    weight: Annotated[str, checks.Is(str, "name a label field")] | None = None
    trainable: bool = True
    missing: Annotated[Sequence[Any], checks.Is((list, tuple), "be a list of label values")] = ()

    def __post_init__(self):
        for value in self.missing:
            rule = "hold label values"
            checks.is_a(self._where("missing"), value, (str, int, float), rule)
            is_one = value in self.named_values
            checks.require(not is_one, self._where("missing"), "hold no class", value)

    def _is_a(self, setting: str, kind: Any, rule: str) -> None:
        checks.is_a(self._where(setting), getattr(self, setting), kind, rule)

    def _where(self, setting: str) -> str:
        of = "" if setting == "name" else f" of task {self.name!r}"
        return f"{type(self).__name__}.{setting}{of}"

    @property
    def field(self) -> str:
        """The name of the label field."""
        return self.label or self.name

    # Subclasses define the members below.

    has_ids: ClassVar[bool] = True
    """True if -1 in an int64 label marks a missing label, unless a setting names -1."""

    @property
    def named_values(self) -> Sequence[Any]:
        """The label values that settings of the head name; -1 may be among these values."""
        return ()

    @property
    def size(self) -> int:
        """The number of logits."""
        raise checks.UserError(f"{type(self).__name__} must define size, the number of its logits.")

    label_types: ClassVar[tuple[str, ...]] = ("int64", "float32")
    """The types that the label field may have."""

    @property
    def label_shape(self) -> tuple[int | None, ...]:
        """The shape of the label in one example."""
        return ()

    directions: ClassVar[Mapping[str, bool]] = {"average_loss": False}
    """{metric: True if a higher value is better}, the most important metric first.

    A name may contain "*". A metric is absent if neither higher nor lower values are better, as for
    a mean.
    """

    def initial_bias(self) -> Any:
        """Return the initial bias of the logits: one number for all logits, or a list."""
        return 0.0

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels into targets and a mask of present labels.

        Args:
          label: the label field, [B, ...].

        Returns:
          Targets [B], [B, n] or [B, n, C], and a mask of present labels, bool [B] or [B, n]. The
          target of a missing label may be any valid value.

        Raises:
          InvalidArgumentError: when the op runs, if a label is out of range; `checked` builds this
            check.
        """
        raise NotImplementedError

    def accepts(self, value: Any) -> bool:
        """Return True if a Python value is a valid label.

        Args:
          value: a label value that is not missing, a number or a text. For a value of the wrong
            type, the method may raise a `TypeError`; `check` then rejects the value.
        """
        raise NotImplementedError

    def rule(self, dtype: Any) -> str:
        """Return the rule for labels that error messages state, such as `be in [0, 10)`.

        Args:
          dtype: the type of a label tensor, or the class of a Python value; None if unknown.
        """
        raise NotImplementedError

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits.

        Logits [B, ...] -> {name of a prediction: [B, ...]}, such as probabilities and class names.
        """
        raise NotImplementedError

    # All heads share the members below.

    @property
    def leaves_out_minus_one(self) -> bool:
        """True if -1 in an int64 label marks a missing label."""
        return self.has_ids and spec.NO_ID not in self.named_values

    def are_present(self, label: tf.Tensor) -> tf.Tensor:
        """Return True for each label that is present.

        Args:
          label: int64, float32 or string, any shape.

        Returns:
          bool, in the same shape.

        Raises:
          UserError: the type of the label cannot hold a value of `missing`.
        """
        present = (
            values.are_ids_present(label)
            if self.leaves_out_minus_one
            else values.are_present(label)
        )
        if not self.missing:
            return present
        field = f"label {self.field!r}"
        marks = values.as_held(label, self.missing, self._where("missing"), field)
        return present & ~values.is_any(label, marks)

    def is_missing(self, value: Any) -> bool:
        """Return True if one Python value marks a missing label."""
        is_mark = values.is_id_missing if self.leaves_out_minus_one else values.is_missing
        return is_mark(value) or value in self.missing

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute logits: [B, H] -> [B, size]."""
        initializer = tf1.constant_initializer(self.initial_bias())
        return layers.dense(tower, self.size, "logits", bias_initializer=initializer)

    def label_of(self, labels: types.Tensors) -> tf.Tensor:
        """Return the label field.

        Args:
          labels: {field: [B, ...]}.

        Returns:
          The label, [B, *label_shape], of a type in `label_types`.

        Raises:
          UserError: the label field is absent, or has a type or shape that the head does not
            accept.
        """
        return self.read_field(labels, self.field, self.label_types, self.label_shape)

    def weights(self, labels: types.Tensors, present: tf.Tensor) -> tf.Tensor:
        """Return the weight of each label.

        Args:
          labels: {field: [B, ...]}.
          present: a mask of the labels that count, bool [B] or [B, n].

        Returns:
          The weights, float32 in the shape of `present`; 0 for labels that do not count.

        Raises:
          UserError: the weight field is absent, or does not hold one number for each example.
          InvalidArgumentError: when the op runs, if a label that counts has a weight that is below
            0, NaN or infinite.
        """
        weights = tf.cast(present, tf.float32)
        if self.weight:
            weights *= self._example_weights(self.weight, labels, present)
        return weights

    def _example_weights(self, field: str, labels: types.Tensors, present: tf.Tensor) -> tf.Tensor:
        """Return the weight field as [B] or [B, 1], with 0 for missing labels."""
        label_weights = self.read_field(labels, field, (tf.float32, tf.int64), ())
        weights = tf.cast(label_weights, tf.float32)
        # A row of n labels has one weight, [B, 1], for all n labels.
        if present.shape.rank == 2:
            weights = weights[:, tf.newaxis]
        # A row without a label may have any weight, even NaN.
        row_weights = tf.where(present, weights, 0.0)
        valid = (row_weights >= 0) & tf.math.is_finite(row_weights)
        return self.checked(row_weights, valid, row_weights, _WEIGHT_RULE, field)

    def read_field(
        self, labels: types.Tensors, field: str, kinds: Sequence[Any], shape: tuple
    ) -> tf.Tensor:
        """Read a label field.

        Args:
          labels: {field: [B, ...]}.
          field: the name of the label field.
          kinds: the types that the field may have.
          shape: the shape of the label in one example.

        Returns:
          The label in all rows, [B, *shape].

        Raises:
          UserError: the field is absent, or has a type or shape that is not allowed.
        """
        if field not in labels:
            fix = checks.nearest(field, labels) or "Heads also read the features of Spec.keys."
            rule = f"be one of {', '.join(labels)}"
            checks.fail(f"head {self.name!r}: its label field", rule, field, fix)
        label, where = labels[field], f"head {self.name!r}: label {field!r}"
        if label.dtype not in kinds:  # A tf.DType equals its name.
            names = " or ".join(tf.as_dtype(kind).name for kind in kinds)
            checks.fail(where, f"be {names}", label.dtype.name, error=checks.UserTypeError)
        fits = tf.TensorShape([None, *shape]).is_compatible_with(label.shape)
        checks.require(fits, where, f"have shape {shape} in one example", tuple(label.shape[1:]))
        return label

    def checked(
        self,
        result: tf.Tensor,
        valid: tf.Tensor,
        given: tf.Tensor,
        rule: str,
        field: str | None = None,
    ) -> tf.Tensor:
        """Return `result` as a tensor whose op fails unless all labels are valid.

        Args:
          result: the tensor to return.
          valid: bool, True for valid labels.
          given: the labels; the error message shows the first wrong label.
          rule: the condition that labels must meet, such as `be in [0, 10)`; the error message
            states it.
          field: the name of the label field; None means the property `field` of the head.

        Returns:
          The tensor `result`, which is computed only after the check has passed.
        """
        text = self.message(field or self.field, rule)
        with tf.control_dependencies([values.require(valid, given, text)]):
            return tf.identity(result)

    def message(self, field: str, rule: str) -> str:
        """Return the start of an error message about a label; the caller appends the label.

        Args:
          field: the name of the label field.
          rule: the condition that the label must meet, such as `be in [0, 10)`.
        """
        return f"head {self.name!r}: label {field!r} must {rule}, got"

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return an error message about the label or weight of a record, or None."""
        label_values = values.flatten_values(labels.get(self.field, []))
        present = self.find_present(label_values)
        weight = self.weight or ""  # No field is named "".
        counts = self.is_counted(bool(present), labels)
        weights = values.flatten_values(labels.get(weight, [])) if counts else []
        for field, field_values, (accepts, rule) in (
            (self.field, present, self.criterion(label_values)),
            (weight, weights, (_is_weight, _WEIGHT_RULE)),
        ):
            for value in field_values:
                if not _accepts_value(accepts, value):
                    hint = self._explain_minus_one(value) if field == self.field else ""
                    return f"{self.message(field, rule)} {values.show(value)}{hint}"
        return None

    def _explain_minus_one(self, value: Any) -> str:
        """Return a hint about a label of -1, which is an ordinary number to heads of numbers."""
        if self.has_ids or isinstance(value, str) or value != spec.NO_ID:
            return ""
        return f". If it marks a missing label, set {type(self).__name__}.missing = [-1]"

    def find_present(self, given: Sequence[Any]) -> Sequence[Any]:
        """Return the values of a record's label that are not missing.

        Args:
          given: the values of the record's label, in a flat list.

        Returns:
          The values that are not missing, in the same order.
        """
        return [value for value in given if not self.is_missing(value)]

    def is_counted(self, is_present: bool, labels: Mapping[str, Any]) -> bool:
        """Return True if the label of a record counts, whatever its weight is.

        Args:
          is_present: True if the record has a label value that is not missing.
          labels: {label field: its value in the record, in plain Python}.
        """
        del labels
        return is_present

    def has_weight(self, labels: Mapping[str, Any]) -> bool:
        """Return True if the record has a label that counts, with a weight other than 0.

        Args:
          labels: {label field: its value in the record, in plain Python}. A record without the
            weight field has the weight 1.
        """
        label_values = values.flatten_values(labels.get(self.field, []))
        weights = values.flatten_values(labels.get(self.weight or "", [1]))
        return self.is_counted(bool(self.find_present(label_values)), labels) and any(weights)

    def criterion(self, given: Sequence[Any]) -> tuple[Callable[[Any], bool], str]:
        """Return a check for the label values of a record.

        Args:
          given: the values of the record's label, in a flat list; some may be missing.

        Returns:
          A function that returns True for a valid label value, and the rule that error messages
          state.
        """
        return self.accepts, self.rule(type(given[0]) if given else None)


@checks.dataclass
class Base(Labelled):
    """The base class of heads whose loss is a weighted mean over the labelled rows.

    `loss = sum_i w_i loss_i / sum_i w_i`, and 0 if no row is labelled.

    Attributes:
      within: the sample space: a label field that must be 1, such as "click", or {label field:
        allowed values}. In rows outside of the sample space, and in rows that lack one of its label
        fields, the head's label counts as missing. A row outside of the sample space must not have
        an outcome: a positive label, or a number other than 0.
      has_loss: False omits the head's loss in training. With `has_loss = False`, the task learns
        only from other losses on its logits, such as the loss of a `heads.Joint` or an auxiliary
        loss.
    """

    within: spaces.Within | None = None
    has_loss: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.within is not None:
            self._space.check(self._where("within"))

    @property
    def _space(self) -> spaces.Space:
        return spaces.Space(self.within or {})

    metrics_of_labels: ClassVar[frozenset[str]] = frozenset({"accuracy_baseline", "label_mean"})
    """The metrics that depend on the labels alone."""

    # Subclasses define the members below.

    def happened(self, targets: tf.Tensor) -> tf.Tensor:
        """Return a mask of outcomes, such as positives, which only rows inside `within` may have.

        Args:
          targets: the targets that the method `targets` returns.

        Returns:
          A mask that is True for outcomes, bool in the shape of the targets; all entries are False
          by default.
        """
        return tf.zeros_like(targets, tf.bool)

    def is_outcome(self, value: Any) -> bool:
        """Return True if a Python value, which is not missing, is an outcome; False by default."""
        del value
        return False

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the loss of every example, without weights.

        Args:
          logits: [B, ...], as the method `examples` returns them.
          targets: [B, ...], as the method `examples` returns them.

        Returns:
          Losses in the shape of the weights, [B] or [B, n].
        """
        raise NotImplementedError

    def sums(self, examples: types.LossInputs) -> dict[str, tf.Tensor | metrics.Total]:
        """Return the sums and totals of a batch from which `summary` computes the metrics.

        Args:
          examples: the aligned logits, targets and weights of the batch.

        Returns:
          {name: a sum over the rows of the batch, or a `metrics.Total`}. The names "loss", "weight"
          and "nan_predictions" are reserved.
        """
        raise NotImplementedError

    def sums_by_group(
        self, examples: types.LossInputs, labels: types.Tensors
    ) -> dict[str, tf.Tensor | metrics.Total]:
        """Return additional sums for metrics that rank rows within groups, such as users.

        Args:
          examples: the aligned logits, targets and weights of a batch.
          labels: {field: [B, ...]}, including the field with the group of each row.

        Returns:
          {name: sum or `metrics.Total`}, as in `sums`; empty by default.
        """
        del examples, labels
        return {}

    def summary(self, sums: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Compute the metrics of a split from its sums.

        Args:
          sums: {name: the sum over all batches in float64, or the value of a `metrics.Total`}, with
            the names that `sums` and `sums_by_group` return, and with "loss" and "weight".

        Returns:
          {metric: scalar}. `all_metrics` adds `average_loss` and `nan_predictions`.
        """
        raise NotImplementedError

    # All heads share the members below.

    def loss(self, logits: tf.Tensor, labels: types.Tensors) -> tf.Tensor:
        """Compute the loss: logits [B, size] and labels {field: [B, ...]} -> a scalar.

        Raises:
          InvalidArgumentError: when the op runs, if a label or a weight is out of range.
        """
        examples = self.examples(logits, labels)
        losses = self._compute_losses(examples)
        return objectives.weighted_mean(losses, examples.weights)

    def _compute_losses(self, examples: types.LossInputs) -> tf.Tensor:
        """Compute the loss of every label, in the shape of the weights.

        Raises:
          UserError: `losses` returns another shape, which would be broadcast to a wrong loss.
        """
        losses, weights = self.losses(examples.logits, examples.targets), examples.weights
        where = f"the losses of head {self.name!r}, {type(self).__name__},"
        is_tensor = isinstance(losses, tf.Tensor) and losses.dtype == weights.dtype
        checks.require(is_tensor, where, f"be a {weights.dtype.name} tensor", losses)
        # A shape that is unknown while the graph is built is compatible with every shape.
        if not losses.shape.is_compatible_with(weights.shape):
            rule = f"have the shape {tuple(weights.shape)} of its weights"
            checks.fail(where, rule, tuple(losses.shape))
        return losses

    def label_weight(self, labels: types.Tensors) -> tf.Tensor:
        """Sum the weights of the labels: {field: [B, ...]} -> a scalar."""
        return tf.reduce_sum(self._targets_and_weights(labels)[1])

    def row_weights(self, labels: types.Tensors) -> tf.Tensor:
        """Sum the weights of the labels of each row: {field: [B, ...]} -> [B]."""
        weights = self._targets_and_weights(labels)[1]
        return weights if weights.shape.rank == 1 else tf.reduce_sum(weights, 1)

    def metrics(self, logits: tf.Tensor, labels: types.Tensors) -> types.Metrics:
        """Build the metrics.

        Logits [B, size] and labels {field: [B, ...]} -> the metrics of the task, including
        `average_loss`.

        `nan_predictions` counts rows with a label, a weight above 0, and NaN in a prediction or in
        the loss. A single NaN in a prediction or in the loss turns every metric into NaN, except
        for metrics that depend on labels alone.
        """
        examples = self.examples(logits, labels)
        losses = self._compute_losses(examples)
        sums = {
            "loss": metrics.sum_weighted(losses, examples.weights),
            "weight": metrics.sum_weighted(tf.ones_like(losses), examples.weights),
            "nan_predictions": nan_rows(
                [*self._list_outputs(logits), losses], examples.weights > 0
            ),
            **self._require_map("sums", self.sums(examples)),
            **self.sums_by_group(examples, labels),
        }
        return metrics.stream_sums(sums, self.all_metrics)

    def _list_outputs(self, logits: tf.Tensor) -> list[tf.Tensor]:
        """Return the predictions as tensors whose first axes are the axes of the label weights."""
        return list(self._require_map("predictions", self.predictions(logits)).values())

    def _require_map(self, method: str, result: Any) -> types.Tensors:
        """Return the result of a method; fail unless it is a map, {name: tensor}."""
        where = f"{type(self).__name__}.{method} of task {self.name!r}"
        checks.is_a(where, result, Mapping, "return a map of tensors")
        return result

    def all_metrics(self, sums: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Compute all metrics of a split from its sums.

        Args:
          sums: the sums that `summary` gets, and in addition "nan_predictions".

        Returns:
          {metric: scalar, or [T] for sums of T tasks}, including `average_loss` and
          `nan_predictions`.
        """
        average_loss = metrics.ratio(sums["loss"], sums["weight"])
        of_head = self._require_map("summary", self.summary(sums))
        summary = {"average_loss": average_loss, **of_head}
        return or_nan(summary, sums["nan_predictions"], self.metrics_of_labels)

    def examples(self, logits: tf.Tensor, labels: types.Tensors) -> types.LossInputs:
        """Return logits, targets and weights in matching shapes; logits of weight 0 are 0."""
        targets, weights = self._targets_and_weights(labels)
        counts = weights > 0
        # A weight of 0 alone does not suffice: 0 times a loss of infinity is NaN.
        mask = counts if logits.shape.rank == counts.shape.rank else counts[..., tf.newaxis]
        return types.LossInputs(tf.where(mask, logits, 0.0), targets, weights)

    def _targets_and_weights(self, labels: types.Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        parts = self.targets(self.label_of(labels))
        # Refuse a mask of numbers, which would silently become the weights of the rows.
        is_pair = isinstance(parts, (list, tuple)) and len(parts) == 2
        is_pair = is_pair and getattr(parts[1], "dtype", None) == tf.bool
        rule = "return targets, and a bool mask of the labels that are present"
        where = f"{type(self).__name__}.targets of task {self.name!r}"
        checks.require(is_pair, where, rule, parts)
        targets, present = parts
        if self.within is not None:
            inside, outside = self._space.locate(labels, self._where("within"))
            if present.shape.rank == 2:
                inside, outside = inside[:, tf.newaxis], outside[:, tf.newaxis]
            targets = self._require_within(targets, present & outside, labels)
            targets, present = self._confine(targets, present, inside, outside)
        return targets, self.weights(labels, present)

    def _require_within(
        self, targets: tf.Tensor, outside: tf.Tensor, labels: types.Tensors
    ) -> tf.Tensor:
        """Return the targets; their op fails if a row outside of the space has an outcome."""
        label = labels[self.field]
        shown_values = targets if isinstance(label, tf.RaggedTensor) else label
        has_outcome = self.happened(targets)
        # A pixel of a map may have several target numbers, such as a vector.
        has_outcome = tf.reduce_any(has_outcome, -1) if has_outcome.shape.rank > 2 else has_outcome
        return self.checked(targets, ~(outside & has_outcome), shown_values, self._space_rule)

    def _confine(
        self, targets: tf.Tensor, present: tf.Tensor, inside: tf.Tensor, outside: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the targets, and a mask of the present targets inside of the sample space."""
        del outside
        return targets, present & inside

    def _is_weighed(self, is_present: bool, place: bool | None) -> bool:
        """Return True if a label is used; `place` is True in the sample space, None if unknown."""
        return is_present and bool(place)

    @property
    def _space_rule(self) -> str:
        return f"hold no outcome unless {self._space.rule}"

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return an error message about the label or weight of a record, or None."""
        problem = super().check(labels)
        if problem or self.within is None or self._space.place(labels) is not False:
            return problem
        label_values = values.flatten_values(labels.get(self.field, []))
        for value in filter(self.is_outcome, self.find_present(label_values)):
            return f"{self.message(self.field, self._space_rule)} {values.show(value)}"
        return None

    def is_counted(self, is_present: bool, labels: Mapping[str, Any]) -> bool:
        """Return True if the label of a record counts, whatever its weight is."""
        place = True if self.within is None else self._space.place(labels)
        return self._is_weighed(is_present, place)


def nan_rows(outputs: Iterable[tf.Tensor], counts: tf.Tensor) -> tf.Tensor:
    """Count rows with a NaN in an output.

    Args:
      outputs: tensors [B, ...]; only floats can hold a NaN.
      counts: True for labels with a weight above 0, bool [B] or [B, n].

    Returns:
      The number of rows, a float64 scalar.
    """
    mask = tf.zeros_like(counts)
    for output in outputs:
        if output.dtype.is_floating:
            is_nan = tf.math.is_nan(output)
            # A prediction may have more axes than the label, such as an axis of classes.
            spare = list(range(counts.shape.rank, is_nan.shape.rank))
            mask |= counts & tf.reduce_any(is_nan, axis=spare)
    rows = mask if mask.shape.rank == 1 else tf.reduce_any(mask, axis=-1)
    return tf.reduce_sum(tf.cast(rows, tf.float64))


def or_nan(
    summary: types.Tensors, nan_predictions: tf.Tensor, of_labels: Collection[str]
) -> dict[str, tf.Tensor]:
    """Turn metrics of predictions into NaN if a prediction was NaN.

    Args:
      summary: {metric: scalar}.
      nan_predictions: the number of labelled rows with a NaN, a scalar.
      of_labels: the names of the metrics that depend on labels alone; they keep their values.

    Returns:
      {metric: scalar}, with `nan_predictions`.
    """
    names = [name for name in summary if name not in of_labels]
    values = tf.stack([tf.cast(summary[name], tf.float64) for name in names])
    values = tf.where(nan_predictions > 0, tf.constant(float("nan"), tf.float64), values)
    clean = dict(zip(names, tf.unstack(tf.cast(values, tf.float32)), strict=True))
    return {**summary, **clean, NAN_PREDICTIONS: nan_predictions}


def _accepts_value(accepts: Callable[[Any], bool], value: Any) -> bool:
    try:
        return accepts(value)
    except TypeError:  # The value has a wrong type, such as str.
        return False


def _is_weight(value: float) -> bool:
    return 0 <= value < math.inf


_WEIGHT_RULE = "be finite and at least 0"


def classification_output(scores: tf.Tensor, names: Sequence[str]) -> Any:
    """Return the export output "classify", with the score of each class.

    Args:
      scores: the score of each class, float32 [B, C].
      names: the names of the C classes.
    """
    classes = tile_names(names, scores)
    return compat.estimator.export.ClassificationOutput(scores, classes)


def tile_names(names: Sequence[str], scores: tf.Tensor) -> tf.Tensor:
    """Repeat the names of C classes for each row of a batch.

    Args:
      names: the names of the C classes.
      scores: a tensor [B, ...], of which only the number of rows is used.

    Returns:
      The names in each row, string [B, C].
    """
    return tf.tile(tf.constant(names)[tf.newaxis], [tf.shape(scores)[0], 1])


def check_share(where: str, value: float) -> None:
    """Check that a value is a number between 0 and 1, both excluded.

    Args:
      where: the name of the setting, for error messages.
      value: the value of the setting.

    Raises:
      UserError: the value is not a number, or not between 0 and 1.
    """
    checks.is_a(where, value, (int, float), "be a number between 0 and 1")
    checks.require(0 < value < 1, where, "be between 0 and 1", value)


def logit(share: float) -> float:
    """Return log(share / (1 - share)) for a share in (0, 1)."""
    return math.log(share / (1 - share))
