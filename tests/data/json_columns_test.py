"""JSON lines that Arrow reads mean the same as lines that Python parses one by one."""

import gzip
import json

import numpy as np
import pytest

from mtl import spec, types
from mtl.data import in_memory, json_columns, json_lines, pipeline

pytestmark = pytest.mark.medium

SPEC = spec.Spec(
    features={
        "age": "float32",
        "size": "int64",
        "word": "string",
        "town": "string",
        "tags": ("string", (None,)),
        "numbers": ("float32", (None,)),
        "pair": ("int64", (2,)),
        "seen": "bool",
        "level": "uint8",
    },
    labels={"y": "int64", "z": "float32", "kinds": ("int64", (None,))},
    defaults={"age": "nan", "size": 7, "seen": False, "level": 3, "town": " none "},
)
ROW = {
    "age": 1.5,
    "size": 2,
    "word": "a",
    "town": "b",
    "tags": ["x", "y"],
    "numbers": [1, 2.5],
    "pair": [3, 4],
    "seen": True,
    "level": 255,
    "y": 1,
    "z": 0.25,
    "kinds": [1],
}


def _line(**changes):
    return json.dumps({name: value for name, value in {**ROW, **changes}.items() if value != "-"})


PLAIN = {
    "a row": _line(),
    "absent keys": _line(
        age="-", size="-", tags="-", numbers="-", seen="-", y="-", z="-", kinds="-"
    ),
    "nulls": _line(age=None, size=None, tags=None, level=None, y=None, z=None, kinds=None),
    "other keys": _line(other={"a": [1, {"b": "}"}]}, more=[[[]]]),
    "another order": json.dumps(dict(reversed(ROW.items()))),
    "blank lines": f"\n\n{_line()}\n\n{_line()}\n",
    "carriage returns": f"{_line()}\r\n{_line()}\r\n",
    "spaces inside": _line().replace(":", " : ").replace(",", " ,\t"),
    "empty texts": _line(word="", town=""),
    "texts of spaces": _line(word=" ", town="\t "),
    "spaces in texts": _line(word=" a ", tags=[" x", "", "y "]),
    "escapes": _line(word='"\\ \n \u00e9 \U0001f600 \u0000 {[', tags=["}\n{"]),
    "letters": json.dumps({**ROW, "word": "é 日本 😀"}, ensure_ascii=False),
    "whole numbers as floats": _line(age=3, z=16777217, numbers=[2**24 + 1, 10**18]),
    "ties of two roundings": _line(
        age=1.00000017881393432617187499, z=1.00000017881393432617187501
    ),
    "small and large": _line(age=1e-46, z=3.4028234e38, size=-(2**63) + 1, y=2**63 - 1),
    "empty lists": _line(tags=[], numbers=[], kinds=[]),
    "marks of other formats": _line(word="NA", tags=["null", "a|b"]),
    "negative zero": _line(age=-0.0, size=0),
}
ODD = {
    "no json": "{",
    "a list": "[1]",
    "two objects in a line": _line() + _line(),
    "an object in two lines": _line().replace(",", ",\n", 1),
    "both": _line().replace(", ", ",\n", 1) + "\n" + _line() * 2,
    "a number in quotes": _line(size="2"),
    "a float in quotes": _line(age="2.5"),
    "a whole number with a point": _line(size=2.0),
    "a number for a text": _line(word=1),
    "a text for a list": _line(tags="a|b"),
    "a list for a number": _line(size=[1]),
    "a null in a list": _line(tags=["a", None]),
    "no text": _line(word=None),
    "an array too short": _line(pair=[1]),
    "no array": _line(pair=None),
    "beyond uint8": _line(level=256),
    "beyond int64": _line(size=2**63),
    "beyond float32": _line(age=1e39),
    "beyond float64": _line().replace("1.5", "1e999"),
    "nan": _line(age=float("nan")),
    "a sign that python drops": _line(age=3).replace('"age": 3', '"age": -0'),
    "inf in a key that is ignored": _line(other=1).replace('"other": 1', '"other": Inf'),
    "a truth for a number": _line(size=True),
    "a number for a truth": _line(seen=1),
    "a key twice": _line().replace('"age"', '"size": 3, "age"'),
    "half a pair": _line().replace('"a"', '"\\ud800"'),
    "no utf-8": _line().replace('"a"', '"\udcff"'),
    "a control character": _line().replace('"a"', '"a\tb"'),
    "a comment": _line() + "// ok",
    "a trailing comma": _line().replace("}", ",}"),
    "a leading zero": _line().replace('"size": 2', '"size": 02'),
    "spaces around": " " + _line() + " ",
    "a mark of utf-8": "\ufeff" + _line(),
    "very deep": _line(other=1).replace('"other": 1', '"other": ' + "[" * 2000 + "]" * 2000),
}


def _source(folder, text, name="a.jsonl"):
    opened = gzip.open if name.endswith(".gz") else open
    with opened(folder / name, "wb") as file:
        file.write(f"{_line()}\n{text}\n".encode(errors="surrogateescape"))
    return json_lines.JsonLines(files={"train": name}, data_dir=str(folder))


def _read(source):
    """The rows that a run keeps in memory, or the line of its error."""
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=1, cache=True, shuffle_buffer=1)
    try:
        count = len(in_memory.InMemory(source, SPEC).list_rows("train"))
        made = data.dataset("train", training=True, seed=0).take(count)
        return [repr(batch) for batch in made.as_numpy_iterator()]
    except Exception as error:
        return str(error).splitlines()[0][:60]


def _read_plainly(source, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(json_lines.JsonLines, "read_values", types.Source.read_values)
        return _read(source)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_lines_are_read_alike(name, tmp_path, monkeypatch):
    source = _source(tmp_path, PLAIN[name])
    blocks = list(source.read_values("train", SPEC))
    assert len(blocks) >= 1
    found, expected = _read(source), _read_plainly(source, monkeypatch)
    assert isinstance(found, list) and found == expected and len(found) >= 2


@pytest.mark.parametrize("name", ODD)
def test_odd_lines_are_left_to_python(name, tmp_path, monkeypatch):
    source = _source(tmp_path, ODD[name])
    with pytest.raises(types.DecodeOnlyError):
        list(source.read_values("train", SPEC))


def test_the_first_object_may_not_end_in_the_next_line(tmp_path):
    broken = _line(other={}).replace('"other": {', '"other":\n{')
    (tmp_path / "a.jsonl").write_text(f"{broken}\n{_line() * 2}\n")  # As many objects as lines.
    source = json_lines.JsonLines(files={"train": "a.jsonl"}, data_dir=str(tmp_path))
    with pytest.raises(types.DecodeOnlyError):
        list(source.read_values("train", SPEC))


def test_a_file_in_several_pieces_and_compressed(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    lines = [
        _line(
            age=float(draw.normal()),
            word=f"w{draw.integers(50)}",
            tags=["t"] * int(draw.integers(4)),
        )
        for _ in range(300)
    ]
    monkeypatch.setattr("mtl.data.csv_columns._CHUNK", 1000)
    source = _source(tmp_path, "\n".join(lines), "a.jsonl.gz")
    blocks = list(source.read_values("train", SPEC))
    assert len(blocks) > 20
    assert _read(source) == _read_plainly(source, monkeypatch)
    whole = (tmp_path / "a.jsonl.gz").read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(whole[:-20])
    with pytest.raises(types.DecodeOnlyError):
        list(source.read_values("train", SPEC))


def test_lists_of_lists_and_images_are_left_to_python(tmp_path):
    for shape in ((None, None), (2, 2)):
        fields = spec.Spec(features={"a": ("int64", shape)}, labels={})
        with pytest.raises(types.DecodeOnlyError):
            list(json_columns.read_files([], fields.fields))
