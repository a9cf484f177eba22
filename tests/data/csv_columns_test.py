"""Text that Arrow reads means the same as text that TensorFlow decodes line by line."""

import gzip

import numpy as np
import pytest
import tensorflow as tf

from mtl import spec, types
from mtl.data import csv, csv_columns, in_memory, memory_rows, source

FIELDS = {
    "features": {
        "age": "float32",
        "size": "int64",
        "word": "string",
        "tags": ("string", (None,)),
        "numbers": ("float32", (None,)),
        "pair": ("int64", (2,)),
        "seen": "bool",
    },
    "labels": {"y": "int64", "z": "float32"},
}
SPEC = spec.Spec(**FIELDS, defaults={"age": "nan", "size": 7})
HEADER = "age,size,word,tags,numbers,pair,seen,y,z\n"
ROW = "1.5,2,a,x|y,1|2.5,3|4,true,1,0.25\n"
PLAIN = {
    "a row": ROW,
    "no line feed at the end": ROW.rstrip(),
    "absent values": ",,,,,1|2,0,,\n",
    "spaces": " 1.5 , 2 ,\ta , x| y , 1 | 2 , 3|4 , TRUE , 1 , 0.25 \n",
    "blank lines": "\n\n" + ROW + "\n\n" + ROW,
    "carriage returns": ROW.replace("\n", "\r\n") * 2,
    "quotes": '"1.5","2","a,b ""c""","x|y","1|2","3|4","1","1","0.25"\n',
    "empty quotes": '"","","","","","3|4","1","",""\n',
    "a lone carriage return": ROW.replace(",a,", ",a\rb,"),
    "signs and points": "+1.5,+2,a,,,1|2,1.0,1.0,-1e-3\n",
    "nan and inf": "nan,2,nan,,inf|-inf,1|2,1,1,inf\n",
    "empty parts": "1,2,a,x||y|,|1|,3|4,1,1,1\n",
    "other letters": "1,2,é ß 日本,ü|ö,,3|4,1,1,1\n",
    "a null byte in no line": ROW,
}
ODD = {
    "too few values": "1,2\n",
    "too many values": ROW.rstrip() + ",3\n",
    "no number": ROW.replace("1.5", "x"),
    "a number too large": ROW.replace("1.5", "1e39"),
    "hexadecimal": ROW.replace(",2,", ",0x10,"),
    "thousands": ROW.replace("1.5", '"1,000"'),
    "a quote inside": ROW.replace(",a,", ',a"b,'),
    "text behind a quote": ROW.replace(",a,", ',"a"b,'),
    "a space before a quote": ROW.replace(",a,", ', "a",'),
    "an open quote": ROW.replace(",a,", ',"a,') + ROW,
    "a line break in quotes": ROW.replace(",a,", ',"a\nb",'),
    "an array too short": ROW.replace("3|4", "3"),
    "a line of spaces": ROW + "   \n" + ROW,
    "a null byte": ROW.replace(",a,", ",a\0b,"),
    "no utf-8": ROW.replace(",a,", ",a\udcffb,"),
}


def _source(folder, text, header=HEADER, **settings):
    (folder / "a.csv").write_bytes((header + text).encode(errors="surrogateescape"))
    return csv.Csv(files={"train": "a.csv"}, data_dir=str(folder), **settings)


def _rows(blocks, fields):
    """Plain values of all rows, by `memory_rows`."""
    from mtl.data import packed

    layout = memory_rows.Layout(fields)
    joined = {
        name: packed.join([block[name] for block in blocks], field)
        for name, field in fields.items()
    }
    rows = memory_rows.Rows(layout, joined)
    numbers = tf.constant(range(len(rows)), tf.int64)
    values = memory_rows.take(layout, lambda split: rows, tf.zeros_like(numbers), numbers)
    return {
        name: value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
        for name, value in values.items()
    }


def _read(made, fields=SPEC):
    """The blocks that Arrow reads; None if it leaves them to the other reader."""
    try:
        return list(csv_columns.read_split(made, "train", fields.fields))
    except types.DecodeOnlyError:
        return None


def _compare(made, fields=SPEC):
    """Fail unless both readers agree; return True if Arrow has read the rows."""
    fast = _read(made, fields)
    if fast is None:
        return False
    slow = list(in_memory._decode_blocks(made, "train", fields))
    assert repr(_rows(fast, fields.fields)) == repr(_rows(slow, fields.fields))
    return True


@pytest.mark.parametrize("name", PLAIN)
def test_usual_text_is_read_by_arrow_and_means_the_same(tmp_path, name):
    assert _compare(_source(tmp_path, PLAIN[name]))


@pytest.mark.parametrize("name", ODD)
def test_odd_text_means_the_same_or_is_left_to_the_other_reader(tmp_path, name):
    made = _source(tmp_path, ODD[name])
    if name == "a line of spaces":
        assert not _compare(made) or True  # Either way is right, as `_compare` has checked.
        return
    assert _read(made) is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"delimiter": ";"}, ROW.replace(",", ";")),
        ({"delimiter": "\t"}, ROW.replace(",", "\t") + "\t \t\n" + ROW.replace(",", "\t")),
        ({"list_delimiter": ":"}, ROW.replace("|", ":")),
        ({"missing": ("", "?", "NA")}, "?,NA,x,NA,?,1|2,1,NA,?\n"),
        ({"comment": "#"}, "# one\n" + ROW + '# "two\n' + ROW + "#"),
    ],
)
def test_settings_mean_the_same(tmp_path, settings, text):
    header = HEADER.replace(",", settings.get("delimiter", ","))
    assert _compare(_source(tmp_path, text, header, **settings))


def test_an_absent_text_of_a_required_field_is_refused_as_before(tmp_path):
    made = _source(tmp_path, ROW.replace(",a,", ",?,"), missing=("", "?"))
    assert _read(made) is None
    filled = spec.Spec(**FIELDS, defaults={"age": "nan", "size": 7, "word": "none"})
    assert _compare(made, filled)


def test_files_without_header_and_compressed_files(tmp_path):
    names = tuple(HEADER.strip().split(","))
    made = _source(tmp_path, ROW * 3, header="", columns=names)
    assert _compare(made)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((HEADER + ROW * 5).encode()))
    assert _compare(csv.Csv(files={"train": "*.csv.gz"}, data_dir=str(tmp_path)))


def test_one_column_keeps_no_line_of_spaces(tmp_path):
    words = spec.Spec(features={"word": "string"}, labels={})
    made = _source(tmp_path, "a\n  \n\t\nb\n\n", header="word\n")
    assert _compare(made, words)
    assert _rows(_read(made, words), words.fields) == {"word": [b"a", b"b"]}


def test_lines_that_a_chunk_cuts_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_columns, "_CHUNK", 100)
    draw = np.random.default_rng(0)
    lines = [
        ROW.replace(",a,", f",{'w' * int(n)},").replace("1.5", str(k))
        for k, n in enumerate(draw.integers(0, 150, 60))
    ]
    made = _source(tmp_path, "".join(lines).rstrip("\n"))
    assert len(_read(made)) > 20
    assert _compare(made)


@pytest.mark.medium
def test_drawn_texts_mean_the_same(tmp_path):
    """Cells of all kinds in all places: Arrow may leave a file to the other reader."""
    cells = ["", " ", "1", "-2", "3.5", "x", "1|2", "a|", '"q"', '"a,b"', "nan", "True", "0", "[1]"]
    draw, read = np.random.default_rng(1), 0
    names = list(SPEC.fields)
    for _ in range(25):
        good = ["1", "2", "a", "x", "1", "1|2", "1", "1", "1"]
        for place in draw.integers(0, len(names), 2):
            good[place] = cells[draw.integers(len(cells))]
        made = _source(tmp_path, ",".join(good) + "\n" + ROW)
        try:
            read += _compare(made)
        except (*source.list_refusals(), UnicodeDecodeError) as error:
            raise AssertionError(f"Arrow reads {good}, which is refused: {error}") from error
    assert read > 3


def test_a_float_rounds_alike_in_both_readers(tmp_path):
    draw = np.random.default_rng(2)
    numbers = [repr(float(x)) for x in draw.normal(size=300) * 10.0 ** draw.integers(-30, 30, 300)]
    floats = spec.Spec(features={"x": "float32"}, labels={"y": "int64"})
    text = "".join(f"{number},1\n" for number in numbers)
    assert _compare(_source(tmp_path, text, header="x,y\n"), floats)
