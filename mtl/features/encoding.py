"""Checks lists of columns, fits the columns, and encodes batches with the columns.

features.fit_columns(columns, batches, directory)        # one pass over the training split
inputs = features.encode_columns(columns, batch, features.load_statistics(directory))

In the same pass over the training split, heads and samplers gather statistics of the labels, such
as the number of rows of each class. So a new run reads the training split only once before the
first step.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from mtl import checks, types
from mtl.deferred import tf
from mtl.features import accumulators, statistics, tables
from mtl.variables import freezing


def check_columns(columns: Sequence[types.Column], fields: Collection[str]) -> None:
    """Fail unless every column reads existing fields and has a unique name.

    Args:
      columns: the columns of the model.
      fields: the names of the existing fields, or a map with these names.

    Raises:
      UserError: `columns` is not a list or is empty, a column reads an unknown field, two columns
        or tables have the same name, or columns with a common table have different settings for it.
    """
    checks.is_a("features.columns", columns, (list, tuple), "be a list of columns")
    checks.require(len(columns) > 0, "features.columns", "hold a column", columns)
    for column in columns:
        for field in [
            field for column_fields in column.columns.values() for field in column_fields
        ]:
            checks.one_of(f"{type(column).__name__} column's field", field, fields)
    table_names = _check_tables(columns)
    names = [name for column in _with_parts(columns) for name in column.columns]
    # The names of tables must differ from the names of columns, too, because a table and a column
    # could share a variable scope.
    counts = collections.Counter([*names, *table_names])
    repeats = sorted(name for name, count in counts.items() if count > 1)
    fix = "Give one of the columns another prefix."
    checks.require(not repeats, "features.columns", "have distinct names", repeats, fix)


def _with_parts(columns: Sequence[types.Column]) -> list[types.Column]:
    """Return the columns and the columns inside of these columns."""
    parts = (types.read_member(column, types.Column, "parts") for column in columns)
    return [*columns, *itertools.chain.from_iterable(parts)]


def _check_tables(columns: Sequence[types.Column]) -> list[str]:
    """Return the tables; fail if columns with a common table have different settings for it."""
    settings_by_table: dict[str, tuple[str, dict[str, Any]]] = {}
    for column in _with_parts(columns):
        if not isinstance(column, tables.Ids) or column.table is None:
            continue
        kind, column_settings = type(column).__name__, column.shared
        first_kind, settings = settings_by_table.setdefault(column.table, (kind, column_settings))
        where = f"the table {column.table!r}"
        checks.require(kind == first_kind, where, f"belong only to {first_kind} columns", kind)
        for setting, value in column_settings.items():
            rule = f"have the same {kind}.{setting} in all columns"
            fits = value == settings[setting]
            checks.require(fits, where, rule, f"{settings[setting]!r} and {value!r}")
    return list(settings_by_table)


def missing_statistics(parts: Sequence[Any], directory: str) -> list[str]:
    """Return the names of statistics that are missing, or were fitted with other settings.

    Args:
      parts: columns, heads and samplers; an object without accumulators needs no statistics.
      directory: the folder of the statistics.
    """
    fitted = statistics.load_statistics(directory)
    return [
        name
        for name, accumulator in _list_accumulators(parts).items()
        if not fitted.holds(name, accumulator)
    ]


def fit_columns(
    columns: Sequence[types.Column],
    batches: Iterable[tuple[types.Tensors, types.Tensors]],
    directory: str,
    of_labels: Sequence[Any] = (),
    anew: bool = False,
) -> None:
    """Fit columns in one pass over a split; write either all statistics or none.

    The pass is skipped if nothing has to be learned, or if `directory` already holds all
    statistics, which a continued run keeps.

    Args:
      columns: the columns, whose accumulators get the features.
      batches: yields (features, labels) of eager tensors, [B, ...] each.
      directory: the folder of the statistics.
      of_labels: other objects with accumulators, such as heads, whose accumulators read features
        and labels.
      anew: True for a new run, which ignores old statistics, because they may come from other data.

    Raises:
      UserError: a column reads an unknown field, two columns have equal names, or the split is
        empty.
    """
    column_parts, label_accumulators = _list_accumulators(columns), _list_accumulators(of_labels)
    parts = [*columns, *of_labels]
    if not (missing_statistics(parts, directory) or (anew and _list_accumulators(parts))):
        return
    updates, num_batches = accumulators.together(list(column_parts.values())), 0
    for features, labels in batches:
        check_columns(columns, features)
        for update in updates:
            update(features)
        for accumulator in label_accumulators.values():
            accumulator.update({**features, **labels})
        num_batches += 1
    checks.require(num_batches > 0, "the training split", "hold an example", num_batches)
    statistics.save_statistics({**column_parts, **label_accumulators}, directory)


def _list_accumulators(parts: Sequence[Any]) -> dict[str, types.Accumulator]:
    """Return {name: accumulator} of all statistics to fit; names are columns or tables."""
    _check_tables([part for part in parts if hasattr(part, "columns")])
    by_name: dict[str, types.Accumulator] = {}
    for part in parts:
        for name, accumulator in types.read_member(part, types.Column, "accumulators")().items():
            earlier, kind = by_name.get(name), accumulators.Vocabulary
            # Columns with a common table count the values of all fields in one vocabulary.
            is_shared = isinstance(accumulator, kind) and isinstance(earlier, kind)
            # The `repr` of an accumulator shows its settings.
            fits = earlier is None or is_shared or repr(earlier) == repr(accumulator)
            rule, fix = "be fitted with one setting", "Give one of the columns another prefix."
            checks.require(fits, f"features.{name}", rule, [earlier, accumulator], fix)
            by_name[name] = cast(Any, earlier).join(accumulator) if is_shared else accumulator
    return by_name


def encode_columns(
    columns: Sequence[types.Column],
    features: types.Tensors,
    fitted: types.Statistics,
    training: bool = False,
) -> dict[str, tf.Tensor]:
    """Encode a batch with all columns, whose variables are in `features/<column>`.

    Fields that no column reads are left out.

    Args:
      columns: the column objects of the model.
      features: {field: [B, ...]}.
      fitted: the statistics of the training split.
      training: True lets augmentations change inputs at random.

    Returns:
      {column: [B, D] or [B, H, W, C]}, sorted by name, so that the order of columns in the settings
        does not change the network.
    """
    check_columns(columns, features)
    reads = [types.read_member(column, types.Column, "reads_columns") for column in columns]
    pairs = list(zip(columns, reads, strict=True))
    first: dict[str, tf.Tensor] = {}
    others: dict[str, tf.Tensor] = {}
    with tf.compat.v1.variable_scope("features"):
        # Columns that read other columns are encoded last.
        for column, targets in sorted(pairs, key=lambda pair: bool(pair[1])):
            with freezing.hold_part(types.read_member(column, types.Column, "trainable")):
                if not targets:
                    encode = types.read_member(column, types.Column, "encode_training")
                    first |= (encode if training else column)(features, fitted)
                    continue
                for name in targets:
                    checks.one_of(f"{type(column).__name__} column's target", name, first)
                # Only columns with `reads_columns` have a third argument, which `types.Column`
                # lacks.
                compare: Any = column
                others |= compare(features, fitted, {name: first[name] for name in targets})
    inputs = dict(sorted({**first, **others}.items()))
    for name, value in inputs.items():
        kind = getattr(value, "dtype", None)
        fits = kind not in (None, tf.float64) and (value.shape.rank or 0) > 1
        rule = "be a tensor of float32, [B, D] or [B, H, W, C]"
        checks.require(fits, f"the input {name!r} of a column", rule, value)
    return inputs
