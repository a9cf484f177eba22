"""Defines the fields of an example: types, shapes, defaults, missing labels, and parsing."""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

import numpy as np

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.spec import literals

# {type of a field: type in a tf.Example}. A tf.Example has only three types.
_WIRE = {
    "float32": "float32",
    "int64": "int64",
    "uint8": "int64",
    "bool": "int64",
    "string": "string",
}
# {type: value of a missing label}. A missing label has no weight in the loss and the metrics of its
# task. A missing int64 label is the least integer, because -1 may be a valid value.
MISSING = {"float32": math.nan, "int64": -(2**63), "string": ""}
# In int64 labels of ids, -1 also marks a missing label, unless a setting of the head names -1.
NO_ID = -1
_LIST, _LIST_OF_LISTS = (None,), (None, None)
_WEIGHTS = "/weights"
_NO_DEFAULT = "be left out, as an absent list of variable length is empty"


def counts_name(field: str) -> str:
    """Return the name of the field that counts the values of each item in a list of lists."""
    return f"{field}/values_per_item"


def weights_name(field: str) -> str:
    """Return the name of the field that holds the weights of the values of a list."""
    return f"{field}{_WEIGHTS}"


def find_weighted(fields: Mapping[str, Field]) -> dict[str, str]:
    """Find the lists with weights among fields.

    Args:
      fields: {name: field}.

    Returns:
      {field of weights: field of the list}, for each list of shape (None,) with a field
      `weights_name(list)`; {} without such lists.
    """
    lists = [name.removesuffix(_WEIGHTS) for name in fields if name.endswith(_WEIGHTS)]
    return {weights_name(n): n for n in lists if n in fields and fields[n].shape == _LIST}


class AbsentError(ValueError):
    """An example lacks a value for a field that has no default."""

    def __init__(self):
        super().__init__("must be present, as it has no default")


class Gaps(str):
    """The error message for an example that lacks values for `fields` without defaults.

    Attributes:
      fields: the names of the absent fields, at least one.
    """

    fields: tuple[str, ...]

    def __new__(cls, fields: Sequence[str]) -> Gaps:
        names = ", ".join(map(repr, fields))
        several = f"fields {names} must be present, as they have no default."
        gaps = super().__new__(
            cls, several if len(fields) > 1 else f"field {names} {AbsentError()}."
        )
        gaps.fields = tuple(fields)
        return gaps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A field of an example: a named value with a type and a shape.

    Attributes:
      name: the name of the field in the data, in a tf.Example and in the serving signature.
      dtype: float32, int64, uint8, bool or string.
      shape: the shape in one example: () for a scalar, (8, 8, 1) for a small image, (None,) for a
        list of any length, and (None, None) for a list of lists. In a batch, a list is a
        RaggedTensor [B, (L)]. For a list of lists, a batch holds the concatenated values of all
        items, [B, (N)], and the field `counts_name(name)` holds the number of values of each item.
      default: the value that replaces an absent value; None makes the field required. For a
        float32, "nan" means a missing number. A list of variable length is never required. An
        absent list is empty; if the default is `missing`, an absent list holds only this value.
      part_of: the name of a list with weights, if the column of this list also holds this field; ""
        for a field with a separate column. See `mtl.data.weighted_lists`.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    default: Any = None
    part_of: str = ""

    def __post_init__(self):
        checks.is_a("Spec field", self.name, str, "have a name")
        where = f"Spec field {self.name!r}"
        checks.one_of(f"{where}.dtype", self.dtype, _WIRE)
        checks.is_a(f"{where}.part_of", self.part_of, str, "name a field, or be empty")
        rule = "be a tuple of sizes, such as (8, 8)"
        checks.is_a(f"{where}.shape", self.shape, (list, tuple), rule)
        object.__setattr__(self, "shape", tuple(self.shape))
        sizes = all(type(size) is int and 0 < size < 2**63 for size in self.shape)
        rule = "be (None,), (None, None) or hold positive sizes"
        checks.require(self.is_ragged or sizes, f"{where}.shape", rule, self.shape)
        if self.default is not None:
            where += ".default"
            default = literals.parse_default(where, self.dtype, self.default)
            # `in` also finds the object `math.nan`, which is not equal to itself.
            is_mark = not self.is_nested and default in (self.missing,)
            checks.require(not self.is_ragged or is_mark, where, _NO_DEFAULT, self.default)
            object.__setattr__(self, "default", default)

    @property
    def column(self) -> str:
        """The name of the column that holds the field."""
        return self.part_of or self.name

    @property
    def is_ragged(self) -> bool:
        """True if an example may hold any number of values of the field."""
        return self.shape in (_LIST, _LIST_OF_LISTS)

    @property
    def is_nested(self) -> bool:
        """True if the field is a list of lists."""
        return self.shape == _LIST_OF_LISTS

    @property
    def is_required(self) -> bool:
        """True if every example must hold a value of the field."""
        return self.default is None and not self.is_ragged

    @property
    def missing(self) -> Any:
        """The value that marks a missing label of this type; 0 for uint8 and bool."""
        return MISSING.get(self.dtype, 0)

    @property
    def size(self) -> int:
        """The number of values of the field in one example, if the shape is fixed."""
        # Callers check that no size is None.
        return math.prod(cast(tuple[int, ...], self.shape))

    def wire_feature(self) -> Any:
        """Return the feature specification of the field for `tf.io.parse_example`."""
        wire = tf.as_dtype(_WIRE[self.dtype])
        if self.is_ragged:
            return tf.io.RaggedFeature(wire, row_splits_dtype=tf.int64)
        default = self.default
        if default is not None and self.shape:
            default = [default] * self.size
        return tf.io.FixedLenFeature(self.shape, wire, default)

    def cast(self, values: Any) -> Any:
        """Cast values to the type of the field.

        Args:
          values: a tensor of any shape, or a ragged tensor for a list.

        Returns:
          Values of the same shape, in the type `dtype`.

        Raises:
          InvalidArgumentError: when the graph runs, if an integer does not fit uint8 or bool, or a
            uint64 does not fit int64.
        """
        dtype = tf.as_dtype(self.dtype)
        if values.dtype == dtype:
            return values
        if self.is_ragged:
            return values.with_flat_values(dataclasses.replace(self, shape=()).cast(values.values))
        # Check uint64 first, because a uint64 of 2^63 or more would become negative in int64.
        is_unsigned = values.dtype == tf.uint64
        if self.dtype not in ("uint8", "bool") and not (is_unsigned and dtype == tf.int64):
            return tf.cast(values, dtype)
        values = tf.cast(values, tf.int64)
        smallest, largest = literals.RANGES[self.dtype]
        low, high = (tf.constant(n, tf.int64) for n in (0 if is_unsigned else smallest, largest))
        message = f"field {self.name!r} must be {self.dtype}"
        fits = [
            tf1.assert_greater_equal(values, low, message=message),
            tf1.assert_less_equal(values, high, message=message),
        ]
        with tf.control_dependencies(fits):
            return tf.cast(values, dtype)

    def proto(self, value: Any) -> tf.train.Feature:
        """Convert the value of one example to a feature of a tf.Example.

        Args:
          value: a scalar, a list or an array; texts are str or bytes.

        Returns:
          The feature, in which arrays are flattened row by row.
        """
        wire = _WIRE[self.dtype]
        # Keep texts as objects, because NumPy drops zero bytes at the end, such as of an encoded
        # image.
        kind: Any = object if wire == "string" else None
        values = np.asarray(value, kind).ravel().tolist()
        if wire == "string":
            return tf.train.Feature(bytes_list={"value": map(tf.compat.as_bytes, values)})
        if wire == "float32":
            return tf.train.Feature(float_list={"value": values})
        return tf.train.Feature(int64_list={"value": map(int, values)})

    def value(self, values: Sequence[Any] | None) -> Any:
        """Convert values to the value of the field in one example.

        TensorFlow ops convert a whole batch in the same way as `Field.value`, but faster.
        `Field.value` converts single examples, and also finds the bad value for an error message.

        Args:
          values: Python objects or texts; None if the field is absent.

        Raises:
          ValueError: the values do not suit the field. The message, such as "must be int64, got
            'old'", follows the name of the field.
          AbsentError: the field is required, but absent.
        """
        if values is None:
            if self.is_required:
                raise AbsentError
            if self.is_ragged:
                return [] if self.default is None else [self.default]
            return self._shape_values([self.default] * self.size)
        if not self.is_ragged and len(values) != self.size:
            raise ValueError(
                f"must hold {self.size} value{'s' * (self.size > 1)}, got {len(values)}"
            )
        return self._shape_values([self._convert_value(value) for value in values])

    def _shape_values(self, values: list[Any]) -> Any:
        return values if self.shape else values[0]

    def _convert_value(self, value: Any) -> Any:
        try:
            return literals.parse_literal(self.dtype, value)
        except ValueError:
            raise ValueError(f"must be {self.dtype}, got {value!r}") from None


def require_counts(values: tf.RaggedTensor, counts: tf.RaggedTensor, message: str) -> tf.Operation:
    """Return an op that checks whether counts sum to the number of values in each row.

    Args:
      values: the values of all items of a list of lists, [B, (N)].
      counts: the number of values of each item, int64 [B, (L)].
      message: the beginning of the error message.

    Raises:
      InvalidArgumentError: when the graph runs, if a count is negative, or the counts of a row do
        not sum to its number of values.
    """
    item_counts, num_values = counts.flat_values, tf.size(values.flat_values, tf.int64)
    are_counts = tf.reduce_all(
        (item_counts >= 0) & (item_counts <= num_values)
    )  # Counts up to `num_values` cannot overflow in sums.
    fit = tf.reduce_all(tf.equal(tf.reduce_sum(counts, 1), values.row_lengths()))
    return tf1.assert_equal(are_counts & fit, True, message=message)


@checks.dataclass
class Spec:
    """The fields of an example.

    Attributes:
      features: {name: dtype} or {name: (dtype, shape)} of the fields that are known when a model
        predicts. A list of lists, of shape (None, None), adds a feature `<name>/values_per_item`,
        an int64 list with the number of values of each item. A list may have a feature
        `<name>/weights`, ("float32", (None,)), with the weight of each value.
      labels: {name: dtype} or {name: (dtype, shape)} of the fields that are known only in training
        and evaluation, such as targets and example weights. An absent label without a default is a
        missing label. NaN (float32), the least integer (int64) or "" (string) marks a missing
        label. Heads may use other marks of missing labels, such as -1 among class ids.
      defaults: {name: value} of the fields that may be absent. For a float32, "nan" means a missing
        number. The default None keeps a field required. For an int64 label, the default -1 has the
        same effect as no default, so an absent label is a missing label.
      type_defaults: {dtype: value}, the default of all other features of a type, except lists of
        variable length.
      keys: the features that heads read in addition to labels, such as the user whose rows a head
        ranks.
    """

    features: Annotated[
        Mapping[str, Any], checks.Map("map names to types"), checks.Filled("name a field")
    ]
    labels: Annotated[Mapping[str, Any], checks.Map("map names to types")]
    defaults: Annotated[
        Mapping[str, Any],
        checks.Map("map names to values"),
    ] = dataclasses.field(default_factory=dict)
    # The repr leaves out `type_defaults` and `keys`, which do not change the order of examples. A
    # resumed run compares the repr with the saved repr, to detect changed data. Older versions
    # saved reprs without `type_defaults` and `keys`.
    type_defaults: Annotated[
        Mapping[str, Any],
        checks.Map("map types to values"),
    ] = dataclasses.field(default_factory=dict, repr=False)
    keys: Sequence[str] = dataclasses.field(default=(), repr=False)

    def __post_init__(self):
        checks.unique("Spec.features and Spec.labels", [*self.features, *self.labels])
        for name in self.keys:
            checks.one_of("Spec.keys", name, self.features)
        for name in self.defaults:
            checks.one_of("Spec.defaults", name, [*self.features, *self.labels])
        for dtype, value in self.type_defaults.items():
            checks.one_of("Spec.type_defaults", dtype, _WIRE)
            literals.parse_default(f"Spec.type_defaults[{dtype!r}]", dtype, value)
        self._add_counts()
        for name, values_name in self.weighted.items():
            rule = f"be ('float32', (None,)): it holds a weight for each value of {values_name!r}"
            field = self.feature_fields[name]
            fits = (field.dtype, field.shape) == ("float32", _LIST)
            checks.require(fits, f"Spec.features[{name!r}]", rule, self.features[name])
        for name, field in {**self.feature_fields, **self.label_fields}.items():
            if name in self.labels:
                where = f"Spec.labels[{name!r}]"
                checks.one_of(where, field.dtype, MISSING)
                checks.require(not field.is_nested, where, "not be a list of lists", field.shape)
            elif self.labels:  # Without labels, features may be labels of another Spec.
                is_free = field.default is None or not field.is_ragged
                checks.require(is_free, f"Spec.defaults[{name!r}]", _NO_DEFAULT, field.default)

    def _add_counts(self) -> None:
        """Add a field of counts after each list of lists."""
        features: dict[str, Any] = {}
        for name, kind in self.features.items():
            features.setdefault(name, kind)
            counts, expected = counts_name(name), ("int64", _LIST)
            if not self._make_field(name, kind).is_nested:
                rule = f"be a list of lists, (None, None), as {counts!r} counts its values"
                where = f"Spec.features[{name!r}]"
                checks.require(counts not in self.features, where, rule, kind)
                continue
            kind_of_counts = self.features.get(counts, expected)
            fits = isinstance(kind_of_counts, (list, tuple)) and repr(
                tuple(kind_of_counts)
            ) == repr(expected)
            rule = f"be left out: it counts the values of each item of {name!r}"
            checks.require(fits, f"Spec.features[{counts!r}]", rule, kind_of_counts)
            checks.unique("Spec.features and Spec.labels", [counts, *self.labels])
            features[counts] = expected
        if len(features) > len(self.features):
            object.__setattr__(self, "features", features)

    @functools.cached_property
    def counted(self) -> dict[str, str]:
        """{field of counts: field of the list of lists}."""
        return {counts_name(n): n for n, field in self.feature_fields.items() if field.is_nested}

    @functools.cached_property
    def weighted(self) -> dict[str, str]:
        """{field of weights: field of the list}."""
        return find_weighted(self.feature_fields)

    @functools.cached_property
    def feature_fields(self) -> dict[str, Field]:
        """{name: field} of the features."""
        return {name: self._make_field(name, kind) for name, kind in self.features.items()}

    @functools.cached_property
    def label_fields(self) -> dict[str, Field]:
        """{name: field} of labels; a label without a default gets the mark of a missing label."""
        fields = {name: self._make_field(name, kind) for name, kind in self.labels.items()}
        absent = {"int64": NO_ID}  # In a gin file, the default -1 also means a missing label.
        return {
            name: dataclasses.replace(field, default=field.missing)
            if not field.is_nested and field.default in (None, absent.get(field.dtype))
            else field
            for name, field in fields.items()
        }

    @functools.cached_property
    def fields(self) -> dict[str, Field]:
        """{name: field} of features and labels."""
        return {**self.feature_fields, **self.label_fields}

    def without_labels(self) -> Spec:
        """Return a specification of the features alone."""
        defaults = {name: value for name, value in self.defaults.items() if name in self.features}
        return dataclasses.replace(self, labels={}, keys=(), defaults=defaults)

    def _make_field(self, name: str, kind: Any) -> Field:
        where = f"Spec field {name!r}"
        pair = (kind, ()) if isinstance(kind, str) else kind
        rule = "be a type or a pair of type and shape, such as ('uint8', (8, 8, 1))"
        checks.require(isinstance(pair, Sequence) and len(pair) == 2, where, rule, kind)
        dtype, shape = pair
        field = Field(name=name, dtype=dtype, shape=shape, default=self.defaults.get(name))
        if name in self.defaults or name in self.labels or field.is_ragged:
            return field
        return dataclasses.replace(field, default=self.type_defaults.get(dtype))

    def example(self, parts: Callable[[Field], Sequence[Any] | None]) -> dict[str, Any] | str:
        """Convert the values of one example to {name: value}, or return an error message.

        Args:
          parts: a function from a field to its values, in the form that `Field.value` takes.
        """
        values, absent = {}, []
        for name, field in self.fields.items():
            try:
                values[name] = field.value(parts(field))
            except AbsentError:
                absent.append(name)
            except ValueError as error:
                return f"field {name!r} {error}."
        return Gaps(absent) if absent else self._find_misfit(values) or values

    def _find_misfit(self, values: Mapping[str, Any]) -> str | None:
        """Return an error message if counts or weights do not match a list, or None."""
        for name, field in self.weighted.items():
            weights, count = len(values.get(name, ())), len(values.get(field, ()))
            if weights != count:
                return (
                    f"field {name!r} must hold a weight for each value of {field!r}, {count}, "
                    f"got {weights}."
                )
        for name, field in self.counted.items():
            counts, count = values.get(name, ()), len(values.get(field, ()))
            if min(counts, default=0) < 0 or sum(counts) != count:
                return (
                    f"field {name!r} must count the values of {field!r} by item, {count} in all, "
                    f"got {reprlib.repr(list(counts))}."
                )
        return None

    def parse(self, serialized: tf.Tensor, with_labels: bool) -> dict[str, Any]:
        """Parse serialized tf.Examples [B] into {name: [B, ...]}.

        Raises:
          InvalidArgumentError: when the graph runs, for a malformed tf.Example, an absent required
            field, a value of the wrong type, or counts or weights that do not match a list.
        """
        fields = self.fields if with_labels else self.feature_fields
        wire = {name: field.wire_feature() for name, field in fields.items()}
        values = tf.io.parse_example(serialized, wire)
        for counts, name in self.counted.items():
            fits = require_counts(values[name], values[counts], f"field {counts!r} must count")
            with tf.control_dependencies([fits]):
                splits = tf.identity(values[name].row_splits)
            flat = values[name].flat_values
            values[name] = tf.RaggedTensor.from_row_splits(flat, splits, validate=False)
        values = self.require_weights(values) if self.weighted else values
        return {name: field.cast(values[name]) for name, field in fields.items()}

    def require_weights(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Check that each value of a list with weights has a weight.

        Args:
          values: {field: [B, ...]}; lists and weights are ragged, [B, (L)].

        Returns:
          All values. The check of the weights runs when the graph reads the weights.

        Raises:
          InvalidArgumentError: when the graph runs, if a list and its weights differ in length.
        """
        checked_values = dict(values)
        for name, field in self.weighted.items():
            lengths = [values[part].row_lengths() for part in (name, field)]
            message = f"field {name!r} must hold a weight for each value of {field!r}"
            with tf.control_dependencies([tf1.assert_equal(*lengths, message=message)]):
                splits = tf.identity(values[name].row_splits)
            weights = tf.RaggedTensor.from_row_splits(values[name].values, splits, validate=False)
            checked_values[name] = weights
        return checked_values

    def drop_empty_texts(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Drop the empty texts in lists of features.

        The reader of CSV files also drops empty texts in lists.

        Args:
          features: {name: [B, ...]} of all features. From lists that hold ids instead of texts,
            nothing is dropped.

        Returns:
          All features. For a list of lists, the counts of values by item also leave out the empty
          texts.
        """
        filled_features = dict(features)
        for name, field in self.feature_fields.items():
            if not (field.is_ragged and field.dtype == "string"):
                continue
            if features[name].dtype != tf.string:  # Ids never stand for empty texts.
                continue
            is_text = tf.not_equal(features[name].values, "")
            # For each position, the number of texts before it that are not empty.
            before = tf.concat([[0], tf.cumsum(tf.cast(is_text, tf.int64))], 0)
            splits = tf.gather(before, features[name].row_splits)
            texts = tf.boolean_mask(features[name].values, is_text)
            filled_features[name] = tf.RaggedTensor.from_row_splits(texts, splits, validate=False)
            if field.is_nested:
                counts = features[counts_name(name)]
                ends = tf.gather(before, tf.concat([[0], tf.cumsum(counts.values)], 0))
                filled_features[counts_name(name)] = counts.with_values(ends[1:] - ends[:-1])
        return filled_features

    def serialize(self, values: Mapping[str, Any]) -> bytes:
        """Serialize one example as a tf.Example for `parse`.

        Args:
          values: {field: value} of any fields, in the forms that `Field.value` returns.

        Returns:
          The serialized tf.Example; equal values give equal bytes.
        """
        feature = {name: self.fields[name].proto(value) for name, value in values.items()}
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        return example.SerializeToString(deterministic=True)

    def split(
        self, example: Mapping[str, Any], with_labels: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split the fields of an example, or of a batch, into features and labels.

        Args:
          example: {name: value} of all fields; of the features only if `with_labels` is False.
          with_labels: False returns {} as labels.

        Returns:
          The features, and the labels. The dict of labels also contains the features in `keys`.
        """
        labels = [*self.labels, *self.keys] if with_labels else ()
        return {name: example[name] for name in self.features}, {n: example[n] for n in labels}
