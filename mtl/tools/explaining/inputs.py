"""Lists the inputs that can be explained: fields, groups of fields, and their columns.

found = inputs.list_inputs(spec, columns, used)      # one for each field, or for an aligned history
inputs.choose_inputs(found, ["age"], [["age", "job"]])
inputs.fields_of_columns(columns)                    # {"numeric_age": ("age",)}
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl import checks, types
from mtl import features as features_lib
from mtl import spec as spec_lib
from mtl.features import numeric

# Columns that read a field as a number; in other columns, a whole number may be an id.
_OF_NUMBERS = (numeric.Numbers, features_lib.Bucketized)


class Input(NamedTuple):
    """Fields that are permuted together.

    Attributes:
      name: its name in tables.
      fields: one field, several fields of a history, or the fields of a group.
    """

    name: str
    fields: tuple[str, ...]


def list_inputs(
    spec: spec_lib.Spec, columns: Sequence[types.Column], used: Collection[str]
) -> list[Input]:
    """Return the inputs that can be permuted: each field that is `used`, in the order of the spec.

    If one column reads several fields with several values a row, these are one input: their entries
    belong together, such as the items of a history and their times. Fields of a cross stay
    separate, as it combines all values.

    Args:
      spec: the fields of the data.
      columns: the columns of the model.
      used: the fields that predictions depend on; fields of columns count in any case.
    """
    read = _list_read(columns)
    crossed = _list_read([part for part in columns if isinstance(part, features_lib.Crossed)])
    several = {name for name, field in spec.feature_fields.items() if field.shape}
    joined = _join_groups(spec.features, [several & set(own) for own in read if own not in crossed])
    # A column whose output no head uses still counts: its importance is then measured as 0.
    used = {*used, *itertools.chain.from_iterable(read)}
    found: dict[str, list[str]] = {}
    for name in spec.features:
        if name in used:
            found.setdefault(joined[name], []).append(name)
    return [Input(" + ".join(fields), tuple(fields)) for fields in found.values()]


def _list_read(columns: Sequence[types.Column]) -> list[tuple[str, ...]]:
    """Return the fields of each encoded column."""
    return [tuple(fields) for own in columns for fields in own.columns.values()]


def _join_groups(fields: Iterable[str], together: Iterable[Collection[str]]) -> dict[str, str]:
    """Return {field: a representative of its group}; the fields of a group have the same."""
    joined = {field: field for field in fields}
    for group in together:
        merged = {joined[field] for field in group}
        # Any member would do; the least name makes the choice independent of the order of sets.
        new = min(merged, default="")
        joined = {field: new if one in merged else one for field, one in joined.items()}
    return joined


def check_names(
    known: Collection[str],
    fields: Sequence[str],
    groups: Sequence[Sequence[str]],
    dependence: Sequence[str],
) -> None:
    """Fail unless the fields that flags name are known.

    Raises:
      UserError: a field is unknown, or a group is too small.
    """
    for flag, names in (("fields", fields), ("dependence", dependence)):
        for name in names:
            checks.one_of(f"--{flag}", name, known)
    for group in groups:
        for name in group:
            checks.one_of("--group", name, known)
        checks.unique("--group", group)
        checks.require(len(group) > 1, "--group", "hold several fields", list(group))


def choose_inputs(
    found: Sequence[Input], fields: Sequence[str], groups: Sequence[Sequence[str]]
) -> list[Input]:
    """Return the inputs of these fields, or all inputs, and one more input for each group.

    Args:
      found: the inputs, from `list_inputs`.
      fields: fields of inputs; all inputs if empty.
      groups: groups of fields, each permuted together.
    """
    places = {field: one for one in found for field in one.fields}
    chosen = list(dict.fromkeys(places[name] for name in fields)) if fields else list(found)
    for group in groups:
        # Fields of the same input are also permuted together within a group.
        own = dict.fromkeys(field for name in group for field in places[name].fields)
        chosen.append(Input(" + ".join(own), tuple(own)))
    # A group that equals an input is permuted once.
    return list(dict.fromkeys(chosen))


def fields_of_columns(columns: Sequence[types.Column]) -> dict[str, tuple[str, ...]]:
    """Return the fields that each encoded column is made of: {column: fields}.

    They include the fields of other columns that it reads, such as the target of a history.
    """
    own = dict(itertools.chain.from_iterable(part.columns.items() for part in columns))
    reads = {
        name: types.read_member(part, types.Column, "reads_columns")
        for part in columns
        for name in part.columns
    }

    def walk(name: str) -> Iterator[str]:
        yield from own[name]
        # Columns may read columns that read others.
        for other in reads[name]:
            yield from walk(other)

    return {name: tuple(dict.fromkeys(walk(name))) for name in own}


def is_number(spec: spec_lib.Spec, columns: Sequence[types.Column], field: str) -> bool:
    """Return whether the values of a field have an order, unlike names or ids.

    A whole number has an order if a column reads it as a number.
    """
    dtype = spec.feature_fields[field].dtype
    # A switch has two values and no order.
    if dtype in ("string", "bool"):
        return False
    if dtype == "float32":
        return True
    reading = [part for part in columns if any(field in f for f in part.columns.values())]
    return any(isinstance(part, _OF_NUMBERS) for part in reading)


def tell_value(value: Any) -> str:
    """Return the value of a field in one row as text for a table."""
    if isinstance(value, bytes):
        return value.decode(errors="replace") or "(empty)"
    if isinstance(value, np.ndarray) and value.ndim:
        few = ", ".join(tell_value(one) for one in value.reshape(-1)[:4])
        sizes = " × ".join(map(str, value.shape))
        return f"[{few}]" if value.size <= 4 else f"[{few}, ...] ({sizes})"
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def read_row(features: Mapping[str, Any], row: int) -> dict[str, str]:
    """Return the values of a row as text: {field: value}."""
    found = {}
    for name, values in features.items():
        splits = getattr(values, "row_splits", None)
        one = values[row] if splits is None else values.values[splits[row] : splits[row + 1]]
        found[name] = tell_value(one)
    return found
