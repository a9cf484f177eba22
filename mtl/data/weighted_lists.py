"""Lists with weights in one column, as two fields of equal length: the keys and the weights.

fields = weighted_lists.mark_parts(spec.fields, columns)    # "topics" and "topics/weights"
weighted_lists.take_part(fields["topics/weights"], {"a": 0.3, "b": 0.7})             # [0.3, 0.7]

A column holds texts such as a:0.3|b:0.7, objects, pairs, or maps and structs of Arrow. A column of
the name `topics/weights` makes both of them plain lists. Readers call this module only for a Spec
with such a field.
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

# A number holds these characters: between a key and its weight, they would be ambiguous.
_IN_NUMBERS = "0123456789.+-eE"


class Cells(Protocol):
    """The settings of `csv.Csv` for texts with weights."""

    @property
    def list_delimiter(self) -> str:
        """The character between the values of a list."""

    @property
    def weight_delimiter(self) -> str:
        """The character between a value of a list and its weight."""


def check_delimiter(where: str, delimiter: Any) -> None:
    """Fail unless a setting is a character that stands in no number."""
    is_character = isinstance(delimiter, str) and len(delimiter) == 1
    fits = is_character and delimiter not in f'"\r\n{_IN_NUMBERS}'
    checks.require(fits, where, "be one character that stands in no number", delimiter)


def mark_parts(
    fields: Mapping[str, spec_lib.Field], columns: Collection[str] = ()
) -> dict[str, spec_lib.Field]:
    """Return fields, of which those of weighted lists name the list that they are parts of.

    Args:
      fields: {name: field}.
      columns: the columns of the data. Weights with a column are plain numbers.
    """
    marked = dict(fields)
    for weights, name in spec_lib.find_weighted(fields).items():
        if weights not in columns:
            for part in (name, weights):
                marked[part] = dataclasses.replace(fields[part], part_of=name)
    return marked


def find_form(field: spec_lib.Field, cells: Cells) -> written_numbers.Form:
    """Return the patterns that leave only the keys, or only the weights, of a text.

    Raises:
      UserError: the delimiters of the settings are equal.
    """
    where, other = "Csv.weight_delimiter", cells.list_delimiter
    rule = f"differ from list_delimiter in lists with weights, such as {field.part_of!r}"
    checks.require(cells.weight_delimiter != other, where, rule, cells.weight_delimiter)
    return make_form(other, cells.weight_delimiter, _find_place(field))


@functools.cache
def make_form(between: str, before: str, place: int) -> written_numbers.Form:
    """Return the patterns of a part.

    Args:
      between: the character between the values of a list.
      before: the character between a value and its weight.
      place: 0 for the keys, 1 for the weights.
    """
    separator, part = re.escape(between), _match_part(between, before)
    pattern = rf"^(?:{part})?(?:{separator}(?:{part})?)*$"
    # The last delimiter of a value stands before its weight: a key may hold others.
    number = _match_number(between)
    of_keys = (rf"{re.escape(before)}{number}({separator}|$)", r"\1")
    of_weights = (rf"[^{separator}]*{re.escape(before)}({number})", r"\1")
    # The mark is no number, so the weights of a text of another form are an error.
    mark = f"{between}without a weight"
    return written_numbers.Form(pattern, (of_weights if place else of_keys,), mark)


def _match_part(between: str, before: str) -> str:
    """Return a pattern of a value with its weight."""
    return rf"[^{re.escape(between)}]+{re.escape(before)}{_match_number(between)}"


def _match_number(between: str) -> str:
    """Return a pattern of a number with spaces around it, of which none separates values."""
    spaces = "[{}]*".format(" \t".replace(between, ""))
    return f"{spaces}{literals.FINITE}{spaces}"


def check_text(text: str, cells: Cells) -> None:
    """Fail unless each value of a text has a weight.

    Raises:
      ValueError: the message continues a sentence that starts with the field's name.
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
    """Fail if a cell of a line is not UTF-8: then the patterns match in Python alone.

    Raises:
      ValueError: the message continues a sentence that starts with the field's name.
    """
    if "\ufffd" in cell:  # It replaces bytes that are not UTF-8, and may be a character.
        try:
            line.decode()
        except UnicodeDecodeError:
            raise ValueError("must be text in UTF-8") from None


def take_member(field: spec_lib.Field, row: Mapping[str, Any]) -> Any:
    """Return a part of a weighted list in a JSON object; None if it is absent.

    Raises:
      ValueError: the list has another form, or the object has other weights than values.
    """
    name, value = field.part_of, row.get(field.part_of)
    weights = row.get(spec_lib.weights_name(name))
    if weights is None:
        return None if value is None else take_part(field, value)
    sizes = [len(own) if isinstance(own, list) else 1 for own in (value or [], weights)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"must have a weight for each of {sizes[0]} values, got {sizes[1]}")
    return row.get(field.name)


def take_part(field: spec_lib.Field, value: Any) -> list[Any]:
    """Return the keys or the weights of a list in Python or JSON.

    Args:
      field: the part.
      value: {key: weight}, or a list of pairs, each a list or an object of two members.

    Raises:
      ValueError: the message continues a sentence that starts with the field's name.
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
    """Return [key, weight] for each value of a list in Python or JSON; None for other forms."""
    if isinstance(value, Mapping):
        value = list(value.items())
    if not isinstance(value, (list, tuple)):
        return None
    pairs = [list(one.values()) if isinstance(one, Mapping) else one for one in value]
    fits = all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs)
    return [[_to_plain(part) for part in pair] for pair in pairs] if fits else None


def format_list(value: Any) -> str:
    """Return the text of a list in Python or JSON, such as a:0.3|b:0.7; "" for an absent one."""
    return "|".join(f"{key}:{weight}" for key, weight in list_pairs(value) or ())


def _to_plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_weight(value: Any) -> bool:
    try:
        return math.isfinite(literals.parse_literal("float32", value))
    except (TypeError, ValueError):
        return False


def take_column(field: spec_lib.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the lists of keys or of weights in a column of maps, or of lists of structs.

    Columns of texts stay as they are: `find_form` splits them.

    Raises:
      ValueError: the column has another form, or only `take_part` can tell.
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
    """Return lists of the keys, place 0, or of the weights, place 1; a null becomes empty."""
    lengths = pc.fill_null(pc.list_value_length(chunk), 0).to_numpy(zero_copy_only=False)
    values = pc.struct_field(chunk.flatten(), [place])
    # Only `take_part` names the row of a weight that is NaN or infinite, or of an empty key.
    is_good = pc.is_finite(values) if place else None
    if pa.types.is_string(values.type) and not place:
        is_good = pc.not_equal(values, "")
    if is_good is not None and not pc.all(is_good, min_count=0).as_py():
        raise ValueError
    return pa.LargeListArray.from_arrays(packed.count_splits(lengths), values)


def _find_place(field: spec_lib.Field) -> int:
    """Return the place of a part in a pair: 0 for keys, 1 for weights."""
    return int(field.name != field.part_of)
