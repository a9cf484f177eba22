"""Works on a list of columns: checks them, fits them, encodes with them.

features.fit_columns(columns, batches, directory)        # one pass over the training split
inputs = features.encode_columns(columns, batch, features.load_statistics(directory))

In the same pass, heads and samplers gather what they need of the labels, such as the rows of each
class. So a start reads the training split once.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from mtl import checks, types
from mtl.deferred import tf
from mtl.features import accumulators, statistics, tables
from mtl.features import column as columns_lib
from mtl.variables import freezing


def check_columns(columns: Sequence[types.Column], fields: Collection[str]) -> None:
    """Fail unless every column reads existing `fields` and has a distinct name."""
    checks.is_a("features.columns", columns, (list, tuple), "be a list of columns")
    checks.require(len(columns) > 0, "features.columns", "hold a column", columns)
    for column in columns:
        for field in [field for read in column.columns.values() for field in read]:
            checks.one_of(f"{type(column).__name__} column's field", field, fields)
    shared = _check_tables(columns)
    names = [name for column in _with_parts(columns) for name in column.columns]
    counts = collections.Counter([*names, *shared])
    twice = sorted(name for name, count in counts.items() if count > 1)
    fix = "Give one of the two another prefix."
    checks.require(not twice, "features.columns", "have a name each", twice, fix)


def _with_parts(columns: Sequence[types.Column]) -> list[types.Column]:
    """Return the columns and their parts."""
    parts = (types.read_member(column, types.Column, "parts") for column in columns)
    return [*columns, *itertools.chain.from_iterable(parts)]


def _check_tables(columns: Sequence[types.Column]) -> list[str]:
    """Fail unless columns that share a table agree in its settings; return the tables."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for column in _with_parts(columns):
        if not isinstance(column, tables.Ids) or column.table is None:
            continue
        kind, shared = type(column).__name__, column.shared
        other, settings = found.setdefault(column.table, (kind, shared))
        where = f"the table {column.table!r}"
        checks.require(kind == other, where, f"be of {other} columns alone", kind)
        for setting, value in shared.items():
            rule = f"have one {kind}.{setting}"
            fits = value == settings[setting]
            checks.require(fits, where, rule, f"{settings[setting]!r} and {value!r}")
    return list(found)


def missing_statistics(parts: Sequence[Any], directory: str) -> list[str]:
    """Return the names of statistics that are missing or were fitted with other settings."""
    fitted = statistics.load_statistics(directory)
    return [
        name
        for name, accumulator in _accumulators(parts).items()
        if not fitted.holds(name, accumulator)
    ]


def fit_columns(
    columns: Sequence[types.Column],
    batches: Iterable[tuple[types.Tensors, types.Tensors]],
    directory: str,
    of_labels: Sequence[Any] = (),
    anew: bool = False,
) -> None:
    """Fit columns in one pass over (features, labels), and write all statistics or none.

    Accumulators of `columns` see the features; accumulators of the parts `of_labels` see all
    fields.

    The pass is skipped if the parts learn nothing, or if `directory` already holds their
    statistics: a continued run keeps them. A new run sets `anew`, because old statistics may come
    from other data.
    """
    gathered, counted = _accumulators(columns), _accumulators(of_labels)
    parts = [*columns, *of_labels]
    if not (missing_statistics(parts, directory) or (anew and _accumulators(parts))):
        return
    together, num_batches = accumulators.together(list(gathered.values())), 0
    for features, labels in batches:
        check_columns(columns, features)
        for update in together:
            update(features)
        for accumulator in counted.values():
            accumulator.update({**features, **labels})
        num_batches += 1
    checks.require(num_batches > 0, "the training split", "hold an example", num_batches)
    statistics.save_statistics({**gathered, **counted}, directory)


def _accumulators(parts: Sequence[Any]) -> dict[str, types.Accumulator]:
    """Return {column or table: accumulator} of all statistics to fit."""
    _check_tables([part for part in parts if hasattr(part, "columns")])
    found: dict[str, types.Accumulator] = {}
    for part in parts:
        for name, own in types.read_member(part, types.Column, "accumulators")().items():
            other, kind = found.get(name), accumulators.Vocabulary
            is_shared = isinstance(own, kind) and isinstance(other, kind)
            found[name] = cast(Any, other).join(own) if is_shared else own
    return found


def encode_columns(
    columns: Sequence[types.Column],
    features: types.Tensors,
    fitted: types.Statistics,
    training: bool = False,
) -> dict[str, tf.Tensor]:
    """Encode columns; with `training`, augmentations change inputs at random.

    {field: [B, ...]} -> {column: [B, D] or [B, H, W, C]}; variables in `features/<column>`.

    Inputs are sorted by name, so the order of the columns does not change the network. Fields that
    no column reads are left out.
    """
    check_columns(columns, features)
    reads = [types.read_member(column, types.Column, "reads_columns") for column in columns]
    pairs = list(zip(columns, reads, strict=True))
    first: dict[str, tf.Tensor] = {}
    others: dict[str, tf.Tensor] = {}
    with tf.compat.v1.variable_scope("features"), columns_lib.train_columns(training):
        for column, read in sorted(pairs, key=lambda pair: bool(pair[1])):
            with freezing.hold_part(types.read_member(column, types.Column, "trainable")):
                if not read:
                    first |= column(features, fitted)
                    continue
                for name in read:
                    checks.one_of(f"{type(column).__name__} column's target", name, first)
                of_others: Any = column
                others |= of_others(features, fitted, {name: first[name] for name in read})
    return dict(sorted({**first, **others}.items()))
