"""Splits a column of lists with weights into two fields of equal length: keys and weights.

fields = weighted_lists.mark_parts(spec.fields, columns)    # "topics" and "topics/weights"
weighted_lists.take_part(fields["topics/weights"], {"a": 0.3, "b": 0.7})             # [0.3, 0.7]

A column of lists with weights holds texts like a:0.3|b:0.7, objects, pairs, or maps and structs of
Arrow. If the data have a separate column `topics/weights`, keys and weights are plain lists
instead. Readers call this module only if the Spec has a list with weights.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import packed, written_numbers
from mtl.spec import literals

# Characters of numbers, which would be ambiguous as delimiters.
_IN_NUMBERS = "0123456789.+-eE"


class Cells(Protocol):
    """The settings of `csv.Csv` for lists with weights."""

    @property
    def list_delimiter(self) -> str:
        """The character between the values of a list."""

    @property
    def weight_delimiter(self) -> str:
        """The character between a value and its weight."""


def check_delimiter(where: str, delimiter: Any) -> None:
    """Fail unless a delimiter suits lists with weights.

    Args:
      where: the name of the setting, with which the error message begins.
      delimiter: the value of the setting, the delimiter to check.

    Raises:
      UserError: the delimiter is not one character, or is a double quote, a line break, or a
        character of numbers, such as a digit, ".", "-" or "e".
    """
    is_character = isinstance(delimiter, str) and len(delimiter) == 1
    fits = is_character and delimiter not in f'"\r\n{_IN_NUMBERS}'
    checks.require(fits, where, "be one character that stands in no number", delimiter)


def mark_parts(
    fields: Mapping[str, spec_lib.Field], columns: Collection[str] = ()
) -> dict[str, spec_lib.Field]:
    """Set `Field.part_of` for the keys and weights of lists in one column.

    Args:
      fields: {name: field}.
      columns: the names of the columns in the data. Weights with a separate column are plain
        numbers.
    """
    marked = dict(fields)
    for weights, name in spec_lib.find_weighted(fields).items():
        if weights not in columns:
            for part in (name, weights):
                marked[part] = dataclasses.replace(fields[part], part_of=name)
    return marked


def find_form(field: spec_lib.Field, cells: Cells) -> written_numbers.Form:
    """Return the patterns that extract only the keys, or only the weights, from a text.

    Raises:
      UserError: `weight_delimiter` equals `list_delimiter`.
    """
    where, other = "Csv.weight_delimiter", cells.list_delimiter
    rule = f"differ from list_delimiter in lists with weights, such as {field.part_of!r}"
    checks.require(cells.weight_delimiter != other, where, rule, cells.weight_delimiter)
    return make_form(other, cells.weight_delimiter, _find_place(field))


@functools.cache
def make_form(between: str, before: str, place: int) -> written_numbers.Form:
    """Return the patterns that extract keys or weights from the text of a list with weights.

    Args:
      between: the character between the values of a list.
      before: the character between a value and its weight.
      place: the part to extract, 0 for the keys, 1 for the weights.
    """
    separator, part = re.escape(between), _match_part(between, before)
    pattern = rf"^(?:{part})?(?:{separator}(?:{part})?)*$"
    # In a part of the text, such as "a:b:0.5", the weight follows the last delimiter, because a key
    # may contain the delimiter.
    number = _match_number(between)
    of_keys = (rf"{re.escape(before)}{number}({separator}|$)", r"\1")
    of_weights = (rf"[^{separator}]*{re.escape(before)}({number})", r"\1")
    # The text in `mark` is not a number, so a text without weights becomes an error.
    mark = f"{between}without a weight"
    return written_numbers.Form(pattern, (of_weights if place else of_keys,), mark)


def _match_part(between: str, before: str) -> str:
    """Return a pattern that matches one value with its weight."""
    return rf"[^{re.escape(between)}]+{re.escape(before)}{_match_number(between)}"


def _match_number(between: str) -> str:
    """Return a pattern of a number with optional spaces that are not the delimiter."""
    spaces = "[{}]*".format(" \t".replace(between, ""))
    return f"{spaces}{literals.FINITE}{spaces}"


def check_text(text: str, cells: Cells) -> None:
    """Fail unless each value in a text has a weight.

    Args:
      text: the text of a list, such as a:0.3|b:0.7.
      cells: the settings with the delimiters of lists and weights.

    Raises:
      ValueError: a value lacks a weight, or its weight is not a number. The caller puts the name of
        the field in front of the message.
    """
    between, before = cells.list_delimiter, cells.weight_delimiter
    pattern = _match_part(between, before)
    for part in text.split(between):
        if part and not re.fullmatch(pattern, part):
            example = f"a{before}0.5{between}b{before}2"
            raise ValueError(
                f"must have a number as the weight of each value, such as {example!r}, got {part!r}"
            )


def check_bytes(line: bytes, cell: str) -> None:
    """Fail if a cell is not UTF-8, because TensorFlow's patterns would not match the cell.

    Args:
      line: the line that contains the cell.
      cell: the decoded cell, in which U+FFFD replaces invalid bytes.

    Raises:
      ValueError: the line is not UTF-8. The caller puts the name of the field in front of the
        message.
    """
    if "\ufffd" in cell:  # U+FFFD replaces invalid bytes, but may also be in the text.
        try:
            line.decode()
        except UnicodeDecodeError:
            raise ValueError("must be text in UTF-8") from None


def take_member(field: spec_lib.Field, row: Mapping[str, Any]) -> Any:
    """Return the keys or the weights of a list in a JSON object; None if the list is absent.

    Raises:
      ValueError: the list has another form, or the numbers of values and weights differ.
    """
    name, value = field.part_of, row.get(field.part_of)
    weights = row.get(spec_lib.weights_name(name))
    if weights is None:
        return None if value is None else take_part(field, value)
    sizes = [len(part) if isinstance(part, list) else 1 for part in (value or [], weights)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"must have a weight for each of {sizes[0]} values, got {sizes[1]}")
    return row.get(field.name)


def take_part(field: spec_lib.Field, value: Any) -> list[Any]:
    """Return the keys or the weights of a list in Python or JSON.

    Args:
      field: the field of the keys, or the field of the weights.
      value: {key: weight}, or a list of pairs; a pair is a list or an object with two members.

    Raises:
      ValueError: the value has another form, a key is empty, or a weight is not a finite number.
        The caller puts the name of the field in front of the message.
    """
    pairs = list_pairs(value)
    if pairs is None:
        rule = 'must have a weight for each value, such as {"a": 0.5} or [["a", 0.5]]'
        raise ValueError(f"{rule}, got {reprlib.repr(value)}")
    for key, weight in pairs:
        if key in ("", b""):
            raise ValueError(f"must have a value for each weight, got an empty text for {weight!r}")
        if not _is_weight(weight):
            raise ValueError(
                f"must have a number as the weight of each value, got {weight!r} for {key!r}"
            )
    return [pair[_find_place(field)] for pair in pairs]


def list_pairs(value: Any) -> list[Sequence[Any]] | None:
    """Return the pairs of a list with weights in Python or JSON.

    Args:
      value: {key: weight}, or a list of pairs; a pair is a list or an object with two members.

    Returns:
      [key, weight] for each pair, without NumPy scalars; None if `value` has another form.
    """
    if isinstance(value, Mapping):
        value = list(value.items())
    if not isinstance(value, (list, tuple)):
        return None
    pairs = [list(pair.values()) if isinstance(pair, Mapping) else pair for pair in value]
    fits = all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs)
    return [[_to_plain(part) for part in pair] for pair in pairs] if fits else None


def format_list(value: Any) -> str:
    """Write a list with weights as a text.

    Args:
      value: the list, in a form that `list_pairs` reads.

    Returns:
      Text such as a:0.3|b:0.7; "" for an empty list, and for a value of another form, such as None.
    """
    return "|".join(f"{key}:{weight}" for key, weight in list_pairs(value) or ())


def _to_plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_weight(value: Any) -> bool:
    try:
        return math.isfinite(literals.parse_literal("float32", value))
    except (TypeError, ValueError):
        return False


def take_column(field: spec_lib.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return lists of keys or of weights from a column of maps, or of lists of structs.

    Columns of texts are returned unchanged, because `find_form` handles texts.

    Args:
      field: the field of the keys, or the field of the weights.
      column: the column of maps, or of lists of structs.

    Raises:
      ValueError: the column has another form, or only `take_part` can read the column.
    """
    types, kind = pa.types, column.type
    if types.is_map(kind):
        pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _take_child(field, column.cast(pa.list_(pair)))
    if types.is_list(kind) or types.is_large_list(kind):
        return _take_child(field, column)
    if not (types.is_nested(kind) or types.is_integer(kind) or types.is_floating(kind)):
        return column
    raise ValueError


def _take_child(field: spec_lib.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    pair = column.type.value_type
    if not pa.types.is_struct(pair) or pair.num_fields != 2:
        raise ValueError
    place = _find_place(field)
    lists = [_take_lists(chunk, place) for chunk in column.chunks]
    return pa.chunked_array(lists, pa.large_list(pair.field(place).type))


def _take_lists(chunk: Any, place: int) -> Any:
    """Return the keys (`place` 0) or weights (`place` 1) of lists; null becomes an empty list."""
    lengths = pc.fill_null(pc.list_value_length(chunk), 0).to_numpy(zero_copy_only=False)
    values = pc.struct_field(chunk.flatten(), [place])
    # Leave bad weights and empty keys to `take_part`, which names the row in its error.
    is_good = pc.is_finite(values) if place else None
    if pa.types.is_string(values.type) and not place:
        is_good = pc.not_equal(values, "")
    if is_good is not None and not pc.all(is_good, min_count=0).as_py():
        raise ValueError
    return pa.LargeListArray.from_arrays(packed.count_splits(lengths), values)


def _find_place(field: spec_lib.Field) -> int:
    """Return the position in a pair: 0 for keys, 1 for weights."""
    return int(field.name != field.part_of)
