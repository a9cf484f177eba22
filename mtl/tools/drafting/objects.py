"""Reads JSON lines as columns of text: each key of the objects becomes a column.

dialect = objects.read_dialect(["train.jsonl"])
for path, table in objects.read_blocks(dialect): ...            # a pa.Table of strings

A draft works on texts. So a number is converted to its text, null and an absent key to "", true to
"1", and a list to its values, joined by "|". A list with weights becomes a:0.3|b:0.7. In training,
`json_lines.JsonLines` reads the same files.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from mtl import checks
from mtl.data import arrow, json_lines, weighted_lists
from mtl.tools.drafting import lines

ENDINGS = (".jsonl", ".ndjson", ".jsonlines")
_ROWS_OF_BLOCK = 20_000
# Some writers, such as JavaScript, write 1.0 as 1, so a column of floats may contain integers.
_NUMBERS = ({"bool"}, {"int"}, {"float"}, {"int", "float"}, {"bool", "int"})
_WEIGHTS = "weights"
_LISTS = {"list of text": "string", "list of int": "int64", _WEIGHTS: "string with weights"}


def are_json_lines(path: str) -> bool:
    """Return True if the ending of a path means JSON lines."""
    return arrow.find_ending(path.removesuffix(".gz")) in ENDINGS


def read_dialect(paths: Sequence[str]) -> lines.Dialect:
    """Find the format of the files: the keys of all objects, and the types of their values.

    Args:
      paths: the paths of the files.

    Raises:
      UserError: a line is not an object, or there are no lines.
    """
    kinds = _gather_kinds(paths)
    checks.require(bool(kinds), paths[0], "hold a row", "blank lines")
    uses = {name: _choose_kind(names) for name, names in kinds.items()}
    return lines.Dialect(
        paths=tuple(paths),
        delimiter="",
        columns=tuple(name for name, kind in uses.items() if kind),
        is_json=True,
        numbers=[name for name, kind in uses.items() if kind == "number"],
        lists={name: _LISTS[kind] for name, kind in uses.items() if kind in _LISTS},
        unreadable={n: " and ".join(sorted(kinds[n])) for n, kind in uses.items() if not kind},
    )


def _choose_kind(kinds: set[str]) -> str:
    """Return the one kind of a column: "number", "text" or a kind of lists; "" for mixed kinds."""
    if kinds in _NUMBERS:
        return "number"
    fits = len(kinds) < 2 and kinds <= {"text", *_LISTS}
    return min(kinds, default="text") if fits else ""


def _read_keys(value: Any) -> set[str]:
    return {key for key, _ in weighted_lists.list_pairs(value) or ()}


def _gather_kinds(paths: Sequence[str]) -> dict[str, set[str]]:
    """Return {key: kinds of its values}; empty lists count only if there is no other kind."""
    kinds: dict[str, set[str]] = {}
    # `first_keys` holds, for each column, the keys of its first list with weights. `varied` holds
    # the columns in which the keys differ between lists with weights.
    first_keys: dict[str, set[str]] = {}
    varied: set[str] = set()
    for path in paths:
        for row in _read_rows(path):
            for name, value in row.items():
                kind = _name_kind(value)
                kinds.setdefault(name, set()).add(kind)
                if kind == _WEIGHTS and name not in varied:
                    keys = _read_keys(value)
                    varied |= {name} if first_keys.setdefault(name, keys) != keys else set()
    for name in first_keys.keys() - varied:  # Keys that are equal in all rows name fields.
        kinds[name] = {"object" if kind == _WEIGHTS else kind for kind in kinds[name]}
    # An empty list fits lists of any type.
    return {name: own - {"", "list"} or own - {""} for name, own in kinds.items()}


def _read_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the object of each line."""
    for number, line in json_lines.read_lines(path):
        where = f"{path} line {number}"
        if isinstance(line, str):
            raise checks.UserError(f"{where} {line}")
        try:
            yield json_lines.parse_object(line)
        except ValueError as error:
            raise checks.UserError(f"{where} {error}.") from error


def _name_kind(value: Any) -> str:
    """Return the kind of a value, such as "int"; "" for null, and "list" for an empty list."""
    if value is None:
        return ""
    if _has_weights(value):
        return _WEIGHTS
    if isinstance(value, list) or value == {}:
        kinds = {_name_kind(one) for one in value}
        if not kinds:
            return "list"
        return f"list of {kinds.pop()}" if len(kinds) == 1 else "list of mixed values"
    names = {bool: "bool", int: "int", float: "float", str: "text"}
    return names.get(type(value), "object")


def _has_weights(value: Any) -> bool:
    """Return True for lists with weights, such as {"a": 0.3} and [["a", 0.3]]."""
    pairs = weighted_lists.list_pairs(value) or []
    return bool(pairs) and all(type(k) is str and type(w) in (int, float) for k, w in pairs)


def read_blocks(dialect: lines.Dialect) -> Iterator[tuple[str, pa.Table]]:
    """Yield (path, table) for each block, as `lines.read_blocks` does.

    Args:
      dialect: the format of the files, from `read_dialect`.

    Raises:
      UserError: a line is not an object.
    """
    for path in dialect.paths:
        rows = _read_rows(path)
        while block := list(itertools.islice(rows, _ROWS_OF_BLOCK)):
            columns = {
                name: pa.chunked_array([[_to_text(row.get(name)) for row in block]], pa.string())
                for name in dialect.columns
            }
            yield path, pa.table(columns)


def _to_text(value: Any) -> str:
    if value is None or value == {}:
        return ""
    if _has_weights(value):
        return weighted_lists.format_list(value)
    if isinstance(value, list):
        return "|".join(map(_to_text, value))
    if isinstance(value, bool):
        return str(int(value))
    return value.strip() if isinstance(value, str) else repr(value)
