"""Label values: find missing values, look up classes, and format values for error messages.

ids, known = values.class_ids(labels, ["cat", "dog"])    # int64 or string [...] -> int64, bool
present = values.are_present(labels)                     # bool [...]; -1 is a value
present = values.are_ids_present(labels)                 # -1 is missing
values.is_missing(float("nan"))                          # for one Python value
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, spec
from mtl.deferred import tf
from mtl.spec import literals

# Up to this number of names, compare labels with each name; for more names, use a hash table.
_MAX_COMPARED = 1000
# The largest number of names that an error lists.
_MAX_LISTED = 10
_MAX_CLASSES = 10**7


def are_present(labels: tf.Tensor) -> tf.Tensor:
    """Find the labels that are not a missing value of `mtl.spec.MISSING`.

    Args:
      labels: float32, int64 or string [...].

    Returns:
      A mask, bool [...], True for labels that are present. The label -1 counts as present.
    """
    if labels.dtype.is_floating:
        return ~tf.math.is_nan(labels)
    return tf.not_equal(labels, spec.MISSING[labels.dtype.name])


def are_ids_present(labels: tf.Tensor) -> tf.Tensor:
    """Find the labels that are neither missing nor -1 in int64.

    Args:
      labels: float32, int64 or string [...].

    Returns:
      A mask, True for labels that are present, bool [...].
    """
    present = are_present(labels)
    return present & tf.not_equal(labels, spec.NO_ID) if labels.dtype == tf.int64 else present


def is_missing(value: Any) -> bool:
    """Return True if one Python value marks a missing label.

    Args:
      value: a number or a text; bytes are never missing, so decode them first.
    """
    if isinstance(value, float):
        return math.isnan(value)
    return value in (spec.MISSING["int64"], spec.MISSING["string"])


def is_id_missing(value: Any) -> bool:
    """Return True if one Python value marks a missing label, or is the integer -1."""
    return is_missing(value) or (isinstance(value, int) and value == spec.NO_ID)


def flatten_values(value: Any) -> list[Any]:
    """List the values of a record's label.

    Args:
      value: a Python value, a NumPy array of any shape, or a list of values and arrays.

    Returns:
      A flat list of Python values. Bytes become texts, in which U+FFFD replaces bytes that are not
      UTF-8.
    """
    elements = value if isinstance(value, (list, tuple)) else [value]
    elements = [item for element in elements for item in _list_items(element)]
    return [
        element.decode(errors="replace") if isinstance(element, bytes) else element
        for element in elements
    ]


def _list_items(value: Any) -> list[Any]:
    return value.ravel().tolist() if isinstance(value, (np.ndarray, np.generic)) else [value]


def as_held(labels: tf.Tensor, given: Sequence[Any], where: str, field: str) -> list[Any]:
    """Convert values of a setting to the type of a field; for int64, 1.0 and True become 1.

    Args:
      labels: the field, to whose type the values are converted.
      given: the values to convert.
      where: the name of the setting, for error messages.
      field: the name of the field, for error messages.

    Returns:
      The converted values, in the same order.

    Raises:
      UserError: the type of the field cannot hold one of the values.
    """
    wholes = [literals.whole(value) for value in given]
    converted = wholes if labels.dtype == tf.int64 else given
    for value, result in zip(given, converted, strict=True):
        fits = isinstance(value, str) == (labels.dtype == tf.string) and result is not None
        rule = f"hold values of {labels.dtype.name}, the type of {field}"
        checks.require(fits, where, rule, value)
    return list(converted)


def is_any(labels: tf.Tensor, choices: Sequence[Any]) -> tf.Tensor:
    """Find the labels that equal one of a few values.

    Args:
      labels: the labels, of any shape [...].
      choices: one or more values, of the same type as the labels.

    Returns:
      A mask, True for labels that equal a value, bool [...].
    """
    equal = [tf.equal(labels, tf.constant(choice, labels.dtype)) for choice in choices]
    return functools.reduce(tf.logical_or, equal)


def class_names(classes: int | Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes; for a number of classes, the names are 0, 1, 2, ..."""
    return tuple(map(str, range(classes)) if isinstance(classes, int) else classes)


def check_classes(where: str, classes: int | Sequence[str]) -> None:
    """Check the classes of a head.

    Args:
      where: the name of the setting, for error messages.
      classes: the number of classes, at least 2, or a list of at least 2 different names.

    Raises:
      UserError: `classes` has another type, holds too few or too many classes, or an empty name.
    """
    checks.is_a(where, classes, (int, list, tuple), "be a number of classes or a list of names")
    if isinstance(classes, int):
        # Each class needs memory for a name and for a column of the last layer.
        checks.require(classes <= _MAX_CLASSES, where, f"be at most {_MAX_CLASSES}", classes)
    else:
        checks.unique(where, classes)
        empty = spec.MISSING["string"] in classes
        checks.require(not empty, where, "hold no empty name", list(classes))
    number = classes if isinstance(classes, int) else len(classes)
    checks.require(number >= 2, where, "be at least 2, or name at least 2 classes", classes)


def per_class(
    where: str, numbers: float | Sequence[float] | Mapping[str, float], names: Sequence[str]
) -> list[float]:
    """Return one number for each class from a setting such as class weights.

    Args:
      where: the name of the setting, for error messages.
      numbers: one number for all classes, a list with a number for each class, or {name: number}
        with 1 for absent names. All numbers must be above 0.
      names: the names of the classes, in the order of their ids.

    Returns:
      A number for each class, in the order of `names`.

    Raises:
      UserError: a class name is unknown, a number is not above 0, or a list has too few or too many
        numbers.
    """
    rule = "be a number, a list of numbers or a map from class names"
    checks.is_a(where, numbers, (int, float, list, tuple, Mapping), rule)
    if isinstance(numbers, (int, float)):
        numbers = [numbers] * len(names)
    if isinstance(numbers, Mapping):
        for name in numbers:
            checks.one_of(where, name, names)
        numbers = [numbers.get(name, 1.0) for name in names]
    checks.require(len(numbers) == len(names), where, f"hold {len(names)} numbers", numbers)
    for number in numbers:
        checks.positive(where, number)
    return list(numbers)


def check_numbers(where: str, numbers: float | Sequence[float] | Mapping[str, float]) -> None:
    """Fail unless all values are numbers; `per_class` also checks how many there are.

    Args:
      where: the name of the setting, for error messages.
      numbers: one number, a list of numbers, or {name: number}.

    Raises:
      UserError: a value is not a finite number, or a key of the map is not a text.
    """
    if isinstance(numbers, Mapping):
        checks.texts(where, list(numbers), "map class names to numbers")
        numbers = list(numbers.values())
    for number in [numbers] if isinstance(numbers, (int, float)) else numbers:
        checks.number(where, number)


def read_number(name: str) -> int | None:
    """Parse a class name as a whole number ("1" and "true" are 1); return None for other names."""
    try:
        return literals.parse_literal("int64", name)
    except ValueError:
        return None


def class_ids(
    labels: tf.Tensor, classes: Sequence[str] | Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Look up the class ids of labels.

    Args:
      labels: int64 or string [...].
      classes: the label of each class, in the type of `labels`; `range(C)` if labels are ids.

    Returns:
      The class ids, int64 [...], and a mask of the labels that belong to a class, bool [...].
    """
    if isinstance(classes, range):
        return labels, (labels >= 0) & (labels < len(classes))
    ids = _look_labels_up(labels, classes)
    return ids, ids >= 0


def _look_labels_up(labels: tf.Tensor, classes: Sequence[str] | Sequence[int]) -> tf.Tensor:
    if len(classes) <= _MAX_COMPARED:
        hits = tf.equal(labels[..., tf.newaxis], tf.constant(classes, labels.dtype))
        return tf.where(tf.reduce_any(hits, -1), tf.argmax(hits, -1), tf.constant(-1, tf.int64))
    with tf.init_scope():  # A training loop cannot create tables.
        entries = tf.lookup.KeyValueTensorInitializer(
            tf.constant(classes, labels.dtype), tf.range(len(classes), dtype=tf.int64)
        )
        table = tf.lookup.StaticHashTable(entries, default_value=-1)
    return table.lookup(labels)


def class_rule(classes: Sequence[str] | Sequence[int]) -> str:
    """Return the rule for class labels that error messages state; see `class_ids` for `classes`."""
    return f"be in [0, {len(classes)})" if isinstance(classes, range) else one_of(classes)


def one_of(choices: Iterable[Any]) -> str:
    """Return the rule `be one of a, b, c` for error messages; long lists are shortened."""
    texts = [show(choice) for choice in choices]
    more = f", ... ({len(texts)} in all)" if len(texts) > _MAX_LISTED else ""
    return f"be one of {', '.join(texts[:_MAX_LISTED])}{more}"


def show(value: Any) -> str:
    """Format one Python value for an error message.

    Returns:
      A float with up to six digits, and the `repr` of any other value; "nothing" for the int64 that
      marks a missing label.
    """
    if isinstance(value, int) and is_missing(value):
        return "nothing"
    return f"{value:g}" if isinstance(value, float) else repr(value)


def require(valid: tf.Tensor, labels: tf.Tensor, text: str) -> tf.Operation:
    """Build an op that fails unless all labels are valid.

    A single raw op is faster than `tf.debugging.Assert`, which adds a conditional to every step.

    Args:
      valid: a mask of the valid labels, bool [...].
      labels: the labels that the mask describes, [...].
      text: the start of the error message; the first wrong label follows it.

    Returns:
      The op; add it as a control dependency of the results.
    """
    return _assert_valid(valid, tf.gather_nd(labels, tf.where(~valid)), text)


def require_each(valid: tf.Tensor, labels: tf.Tensor, texts: Sequence[str]) -> tf.Operation:
    """Build an op that fails unless the labels of all tasks are valid.

    Args:
      valid: a mask of the valid labels, bool [B, T].
      labels: the labels of the T tasks, [B, T].
      texts: the start of the error message for each of the T tasks; the first wrong label follows
        it.

    Returns:
      The op; add it as a control dependency of the results.
    """
    places = tf.where(~valid)
    text = tf.gather(tf.constant(texts), places[:1, 1])
    return _assert_valid(valid, tf.gather_nd(labels, places), text)


def _assert_valid(valid: tf.Tensor, shown_values: tf.Tensor, text: str | tf.Tensor) -> tf.Operation:
    if shown_values.dtype == tf.string:
        shown_values = tf.strings.join(["'", shown_values, "'"])
    return tf.raw_ops.Assert(condition=tf.reduce_all(valid), data=[text, shown_values], summarize=1)
