"""Lists the inputs of a model that can be explained: fields, groups of fields, and columns.

listed = inputs.list_inputs(spec, columns, used)     # an input for each field or history
inputs.choose_inputs(listed, ["age"], [["age", "job"]])
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

# Types of columns that read a field as a number; in other columns, a whole number may be an id.
_OF_NUMBERS = (numeric.Numbers, features_lib.Bucketized)


class Input(NamedTuple):
    """Fields of the data that are permuted together.

    Attributes:
      name: the name of the input in tables.
      fields: the names of the fields that are permuted together: a single field, all fields of a
        history, or all fields of a group.
    """

    name: str
    fields: tuple[str, ...]


def list_inputs(
    spec: spec_lib.Spec, columns: Sequence[types.Column], used: Collection[str]
) -> list[Input]:
    """Return the inputs that can be permuted: the `used` fields, in the order of the spec.

    If a column reads several fields with several values per row, these fields form one input,
    because their entries belong together, such as the items of a history and their times. The
    fields of a cross stay separate inputs, because a cross combines all values.

    Args:
      spec: the fields of the data.
      columns: the columns of the model.
      used: the fields that predictions depend on; all fields that `columns` read are added to them.
    """
    column_fields = _list_read(columns)
    crossed = _list_read([part for part in columns if isinstance(part, features_lib.Crossed)])
    list_fields = {name for name, field in spec.feature_fields.items() if field.shape}
    representatives = _join_groups(
        spec.features, [list_fields & set(names) for names in column_fields if names not in crossed]
    )
    # Add the fields of all columns. If no head uses a column, the importance of its fields is 0.
    used = {*used, *itertools.chain.from_iterable(column_fields)}
    groups: dict[str, list[str]] = {}
    for name in spec.features:
        if name in used:
            groups.setdefault(representatives[name], []).append(name)
    return [Input(" + ".join(fields), tuple(fields)) for fields in groups.values()]


def _list_read(columns: Sequence[types.Column]) -> list[tuple[str, ...]]:
    """Return the names of the fields of each encoded column."""
    return [tuple(fields) for column in columns for fields in column.columns.values()]


def _join_groups(fields: Iterable[str], together: Iterable[Collection[str]]) -> dict[str, str]:
    """Return {field: the field that represents its group}."""
    representatives = {field: field for field in fields}
    for group in together:
        members = {representatives[field] for field in group}
        # Any field of a group could represent the group. The first name in the alphabet is the same
        # in every run, but the order of a set is not.
        first = min(members, default="")
        representatives = {
            field: first if member in members else member
            for field, member in representatives.items()
        }
    return representatives


def check_names(
    known: Collection[str],
    fields: Sequence[str],
    groups: Sequence[Sequence[str]],
    dependence: Sequence[str],
) -> None:
    """Fail unless all fields exist that --fields, --group and --dependence name.

    Args:
      known: the names of all fields.
      fields: the value of --fields.
      groups: the values of --group.
      dependence: the value of --dependence.

    Raises:
      UserError: a field is unknown, or a group has a field twice or fewer than two fields.
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
    listed: Sequence[Input], fields: Sequence[str], groups: Sequence[Sequence[str]]
) -> list[Input]:
    """Return the inputs of the chosen fields, followed by one input for each group of fields.

    Args:
      listed: all inputs, from `list_inputs`.
      fields: the fields whose inputs are returned; all inputs if empty.
      groups: groups of fields; each group is permuted together.
    """
    places = {field: entry for entry in listed for field in entry.fields}
    choice = list(dict.fromkeys(places[name] for name in fields)) if fields else list(listed)
    for group in groups:
        # Add all fields of an input to the group, because they are always permuted together.
        members = dict.fromkeys(field for name in group for field in places[name].fields)
        choice.append(Input(" + ".join(members), tuple(members)))
    # If a group equals another input, permute it only once.
    return list(dict.fromkeys(choice))


def fields_of_columns(columns: Sequence[types.Column]) -> dict[str, tuple[str, ...]]:
    """Return {column: the fields that the encoded column depends on}.

    A column also depends on the fields of columns that it reads, such as the target of a history.
    """
    direct = dict(itertools.chain.from_iterable(part.columns.items() for part in columns))
    reads = {
        name: types.read_member(part, types.Column, "reads_columns")
        for part in columns
        for name in part.columns
    }

    def walk(name: str) -> Iterator[str]:
        yield from direct[name]
        # A column may read a column that reads further columns.
        for source in reads[name]:
            yield from walk(source)

    return {name: tuple(dict.fromkeys(walk(name))) for name in direct}


def is_number(spec: spec_lib.Spec, columns: Sequence[types.Column], field: str) -> bool:
    """Return whether the values of a field have an order, unlike names or ids.

    Whole numbers have an order if a column reads them as numbers, not as ids.

    Args:
      spec: the fields of the data.
      columns: the columns of the model.
      field: the name of a feature.
    """
    dtype = spec.feature_fields[field].dtype
    # A boolean has only two values, and no order.
    if dtype in ("string", "bool"):
        return False
    if dtype == "float32":
        return True
    reading = [part for part in columns if any(field in f for f in part.columns.values())]
    return any(isinstance(part, _OF_NUMBERS) for part in reading)


def tell_value(value: Any) -> str:
    """Return the value of a field in one row as text for a table.

    Args:
      value: bytes, a number, or an array of any shape.

    Returns:
      The text. A float has six significant digits; an array of more than four values is cut to four
      values and its shape; a missing number is "(missing)"; other values are written in full.
    """
    if isinstance(value, bytes):
        return value.decode(errors="replace") or "(empty)"
    if isinstance(value, np.ndarray) and value.ndim:
        first_values = ", ".join(tell_value(entry) for entry in value.reshape(-1)[:4])
        sizes = " × ".join(map(str, value.shape))
        return f"[{first_values}]" if value.size <= 4 else f"[{first_values}, ...] ({sizes})"
    if value != value or value == spec_lib.MISSING["int64"]:  # NaN differs from itself.
        return "(missing)"
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def read_row(features: Mapping[str, Any], row: int) -> dict[str, str]:
    """Return the values of a row as text.

    Args:
      features: {field: [N, ...]}; ragged fields are `tf1.ragged` values.
      row: the index of the row, in [0, N).

    Returns:
      {field: text}.
    """
    texts = {}
    for name, values in features.items():
        splits = getattr(values, "row_splits", None)
        value = values[row] if splits is None else values.values[splits[row] : splits[row + 1]]
        texts[name] = tell_value(value)
    return texts
