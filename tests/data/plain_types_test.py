"""Newer types of Arrow are read as the plain types of the same values."""

import pyarrow as pa
import pytest

from mtl import spec
from mtl.data import arrow, frames, plain_types

TEXTS = ["a", None, "b"]
LISTS = [["a"], [], ["b", "c"]]
KINDS = [
    (pa.array(TEXTS).cast(pa.string_view()), "string"),
    (pa.array([b"ab", None, b"cd"], pa.binary(2)), "string"),
    (pa.array(LISTS, pa.list_view(pa.string())), ("string", (None,))),
    (pa.array([[1], [], [2, 3]], pa.large_list_view(pa.int64())), ("int64", (None,))),
    (pa.array(LISTS, pa.list_(pa.string_view())), ("string", (None,))),
    (pa.array(LISTS, pa.large_list(pa.string_view())), ("string", (None,))),
    (pa.array([["a"], ["b"], ["c"]], pa.list_(pa.string_view(), 1)), ("string", (None,))),
    (
        pa.DictionaryArray.from_arrays(
            pa.array([0, None, 1], pa.uint32()), pa.array(["a", "b"], pa.string_view())
        ),
        "string",
    ),
]


@pytest.mark.parametrize("column, kind", KINDS, ids=[str(column.type) for column, _ in KINDS])
def test_values_are_those_of_the_column(column, kind, tmp_path):
    path = str(tmp_path / "rows.arrow")
    table = pa.table({"x": column, "other": [1, 2, 3]})
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    schema, parts = arrow.open_file(path)
    assert schema.field("other").type == pa.int64() and schema.field("x").type != column.type
    read = arrow.read_part(path, parts[0], ["x"])
    assert read["x"].to_pylist() == column.to_pylist() and read["x"].type == schema.field("x").type
    fields = spec.Spec(
        features={"x": kind}, labels={}, defaults={"x": "?"} if kind == "string" else {}
    )
    values = arrow.read_fields(path, read, {"x": "x"}, fields.fields, frames.PLAIN_CSV)["x"]
    plain = [value if isinstance(value, list) else value or "?" for value in column.to_pylist()]
    assert [_to_python(value) for value in values] == list(map(_to_python, plain))


def _to_python(value):
    if isinstance(value, str | bytes):
        return value.decode() if isinstance(value, bytes) else value
    return [_to_python(part) if isinstance(part, str | bytes) else int(part) for part in value]


def test_a_file_of_plain_types_is_left_as_it_is():
    schema = pa.schema({"x": pa.list_(pa.string()), "y": pa.dictionary(pa.int32(), pa.string())})
    parts = [object()]
    assert plain_types.replace(schema, parts) == (schema, parts)
