"""Data files: the fast reading path gives what its slow twin gives, or both refuse a line."""

import dataclasses
import gzip
import math
import random
import re
import struct

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import csv, files, idx, pipeline, tfrecord
from mtl.data import source as source_lib
from tests.fuzz import cases

pytestmark = pytest.mark.medium

NUMBERS = ("1e39", "-1e300", "1_0", "0x1F", "0x1p3", "nan(1)", "-nan", "\u0661", "1\u00a0")
FIELDS = {
    "f": "float32",
    "i": "int64",
    "u": "uint8",
    "b": "bool",
    "s": "string",
    "array": ("float32", (2, 2)),
    "pair": ("string", (2,)),
    "ints": ("int64", (None,)),
    "floats": ("float32", (None,)),
    "words": ("string", (None,)),
    "items": ("string", (None, None)),
    "counts": ("int64", (None, None)),
    "topics": ("string", (None,)),
    "ids": ("int64", (None,)),
}
# Lists with weights, in the same column or in a separate column.
WEIGHTED = ("topics", "ids")
LABELS = {"y": "float32", "z": "int64", "n": "string"}
GOOD = {
    "float32": (
        "0",
        "1",
        "-2.5",
        "1e3",
        ".5",
        "3.",
        "+7",
        "1e-40",
        "nan",
        "inf",
        "-Infinity",
        "-0",
    ),
    "int64": ("0", "1", "-7", "+7", "5.0", "5.", "9223372036854775807", "true", "False", "007"),
    "uint8": ("0", "255", "7.0", "+3"),
    "bool": ("0", "1", "true", "FALSE", "1.0"),
    "string": ("a", "Ab c", "é", "\u2028x", "'q'", "\u00a0", "\x85", "\x0c", "1", "\\", "\ufeff"),
}
SPECS = (
    spec.Spec(features={"s": "string", "f": "float32"}, labels={"z": "int64"}),
    spec.Spec(features={"words": ("string", (None,))}, labels={}),
    spec.Spec(features={"i": "int64"}, labels={"n": "string"}, defaults={"i": 3}),
    spec.Spec(features={"items": ("int64", (None, None))}, labels={"z": "int64"}),
    spec.Spec(
        features={"topics": ("string", (None,)), "topics/weights": ("float32", (None,))}, labels={}
    ),
)
ODD = (
    *("", " ", "?", "NA", "-1", "256", "1.5", "x", "1e5", "9223372036854775808", "-", "+", "e"),
    *(
        "1" * 400,
        "\0",
        "a\0b",
        "1\0",
        "\t",
        '"',
        '""',
        'a"b',
        ",",
        ";",
        "|",
        "a|b",
        "|",
        "#",
        "1 2",
    ),
    *("$1,234.50", "(1,5)", "1.5%", "10+", "<.5", "\u22121.234,5", "1\u202f234.5", "12-", "nan %"),
    *("--1", "1,5", "infinite", "in", "tru", "yes", "None", "null", "1.0.0", "1e", "\r", "\x0b1"),
)
WEIRD = ODD + NUMBERS
# Between the values of an item in a list of lists.
_WITHIN = "~"


def _spec(draw: random.Random) -> spec.Spec:
    names = draw.sample(list(FIELDS), draw.randrange(1, 4))
    labels = draw.sample(list(LABELS), draw.randrange(2))
    defaults = {"f": 0.5, "i": 3, "u": 7, "b": True, "s": "none", "array": 1.5, "pair": "p", "z": 9}
    chosen = {k: v for k, v in defaults.items() if k in names + labels and draw.random() < 0.5}
    if draw.random() < 0.2 and "f" in chosen:
        chosen["f"] = "nan"
    weights = [spec.weights_name(name) for name in names if name in WEIGHTED]
    return spec.Spec(
        features={name: FIELDS.get(name, ("float32", (None,))) for name in [*names, *weights]},
        labels={name: LABELS[name] for name in labels},
        defaults=chosen,
    )


def _cell(draw: random.Random, field: spec.Field, lists: str, odd: float) -> str:
    if draw.random() < odd:
        return draw.choice(WEIRD)
    count = draw.choice((0, 1, 2, 3)) if field.is_ragged else field.size
    if field.is_nested:
        flat = dataclasses.replace(field, shape=(None,))
        return lists.join(_cell(draw, flat, _WITHIN, odd) for _ in range(count))
    return lists.join(draw.choice(GOOD[field.dtype]) for _ in range(count))


def _weighted_cell(draw: random.Random, field: spec.Field, source: csv.Csv, odd: float) -> str:
    """A list with weights, in which a key, a weight or all of it may be odd."""
    if draw.random() < odd:
        return draw.choice(WEIRD)
    one = dataclasses.replace(field, shape=())
    weight = spec.Field(name="weight", dtype="float32")
    pairs = [
        draw.choice(("", " ", "\t")).join(
            (_cell(draw, one, "", odd), source.weight_delimiter, _cell(draw, weight, "", odd))
        )
        for _ in range(draw.choice((0, 1, 2, 3)))
    ]
    return source.list_delimiter.join(pairs) + source.list_delimiter * (draw.random() < odd)


def _written(draw: random.Random, cell: str, delimiter: str) -> str:
    if delimiter in cell or '"' in cell or draw.random() < 0.1:
        return '"' + cell.replace('"', '""') + '"' if draw.random() < 0.95 else cell
    return f" {cell} " if delimiter != " " and draw.random() < 0.1 else cell


def _settings(draw: random.Random, path: str, made: spec.Spec, has_header: bool) -> csv.Csv:
    delimiter, lists = draw.choice(
        (",|", ",|", ";/", "\t|", "|/", "^|", " ,", ".;", "\0|"[1:] + "é")
    )
    named = _list_columns(made, with_weights=draw.random() < 0.3)
    columns = draw.sample(named, len(named)) + ["more"] * draw.randrange(2)
    return csv.Csv(
        files={"train": path},
        columns=() if has_header else columns,
        delimiter=delimiter,
        list_delimiter=lists,
        item_delimiter=_WITHIN,
        weight_delimiter=draw.choice(":=_"),
        missing=draw.choice((("",), ("", "?"), ("NA", "?"), ())),
        comment=draw.choice(("", "#")),
        missing_in={"f": ("NA",)} if draw.random() < 0.3 else {},
        number_forms=_draw_forms(draw),
    )


def _list_columns(made: spec.Spec, with_weights: bool) -> list[str]:
    hidden = {*made.counted} | (set() if with_weights else {*made.weighted})
    return [name for name in made.fields if name not in hidden]


def _draw_forms(draw: random.Random) -> dict[str, str]:
    """Ways to write the numbers of some fields; the fields of lists cannot have any."""
    forms = ("1,5", "1.234,5", "1 234.5", "$1,234.5", "1.5%", "<1.5")
    return {name: draw.choice(forms) for name in ("f", "i", "z") if draw.random() < 0.15}


def _line(draw: random.Random, source: csv.Csv, columns, made: spec.Spec, odd: float) -> str:
    """A line that is valid, or has a cell that may be not."""
    lists = source.list_delimiter
    cells = [
        _weighted_cell(draw, made.fields[name], source, odd)
        if name in made.weighted.values() and spec.weights_name(name) not in columns
        else _cell(draw, made.fields[name], lists, odd)
        if name in made.fields
        else "m"
        for name in columns
    ]
    if draw.random() < odd / 4:
        cells.append("x")
    return source.delimiter.join(_written(draw, cell, source.delimiter) for cell in cells)


def _table(draw: random.Random, directory, made: spec.Spec) -> csv.Csv:
    """A CSV file that is damaged as often as not."""
    path = directory / draw.choice(("x.csv", "x.csv.gz"))
    has_header = draw.random() < 0.5
    source = _settings(draw, str(path), made, has_header)
    columns = source.columns or _list_columns(made, with_weights=draw.random() < 0.3)
    lines = [_line(draw, source, columns, made, 0.02) for _ in range(draw.choice((1, 3, 12)))]
    lines = [source.delimiter.join(columns)] * has_header + lines
    if draw.random() < 0.2:
        odd = draw.choice(("", " \t", "# no", "\r"))
        lines.insert(draw.randrange(has_header, len(lines) + 1), odd)
    text = draw.choice(("\n", "\n", "\r\n")).join(lines) + draw.choice(("", "\n", "\n\n"))
    data = b"\xef\xbb\xbf" * (draw.random() < 0.1) + text.encode()
    if draw.random() < 0.4:
        data = cases.damaged(draw, data, (b'"', b",", b"\r", b"\r\n", b"\n", b"\0", b"\xff", b" "))
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
        if draw.random() < 0.3:
            data = cases.damaged(draw, data, (b"\x1f\x8b", data))
    path.write_bytes(data)
    return source


def _rows(batches) -> list[dict]:
    """Batches of {name: [B, ...]} as rows of {name: Python's value}."""
    rows = []
    for batch in batches:
        columns = {
            name: value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
            for name, value in batch.items()
        }
        rows += [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
    return rows


def _flat(value) -> list:
    return [x for part in value for x in _flat(part)] if isinstance(value, list) else [value]


def _same(fast, slow) -> bool:
    """Return True if the values that the two readers give for a field mean the same."""
    fast, slow = _flat(fast), _flat(slow)
    return len(fast) == len(slow) and all(map(_same_one, fast, slow))


def _same_one(fast, slow) -> bool:
    if isinstance(fast, bytes):
        return fast.decode(errors="replace") == slow
    if isinstance(fast, float):
        # The twin reads a float64 first, which rounds twice.
        with np.errstate(over="ignore"):
            near = np.nextafter(np.float32(slow), np.float32([-math.inf, math.inf]))
        return np.isnan(fast) and np.isnan(slow) or near[0] <= fast <= near[1]
    return fast == slow


def _fast(feed: pipeline.Pipeline) -> list[dict]:
    return _rows(
        {**features, **labels} for features, labels in feed.dataset("train", training=False, seed=0)
    )


def _twins(feed: pipeline.Pipeline) -> str:
    """Read the split by both readers: right if they agree, refused if both refuse one place."""
    try:
        fast = _fast(feed)
    except checks.UserError as error:
        cases.refused(error)
        return "refused"
    except pipeline._list_data_errors() as error:
        problem = feed.diagnose(error, "train")
        assert problem, f"the twin finds nothing: {error}"
        cases.refused(checks.UserError(problem))
        where = (
            "Idx.files['train'] row "
            if isinstance(feed.source, idx.Idx)
            else f"{feed.source.files['train']} "
        )
        assert problem.startswith(where), problem
        _check_first(feed, problem)
        return "refused"
    slow = [values for _, values in feed.source.scan("train", feed.spec)]
    assert len(slow) == len(fast), (len(slow), len(fast))
    for ours, theirs in zip(fast, slow, strict=True):
        assert isinstance(theirs, dict), f"only the twin refuses: {theirs}"
        differ = [name for name in ours if not _same(ours[name], theirs[name])]
        assert not differ, [(name, ours[name], theirs[name]) for name in differ]
    return "right"


def _check_first(feed: pipeline.Pipeline, problem: str) -> None:
    """Fail unless the record that the twin names is the first bad one."""
    before = 0
    for location, values in feed.source.scan("train", feed.spec):
        if problem.startswith(f"{location}: "):
            break
        assert isinstance(values, dict), values
        before += 1
    if isinstance(feed.source, tfrecord.TfRecord):
        assert f" record {before}" in problem, (before, problem)
    elif isinstance(feed.source, csv.Csv):
        with files.open_binary(feed.source.files["train"]) as file:
            line = file.read().split(b"\n")[int(re.search(r" line (\d+): ", problem)[1]) - 1]
        assert isinstance(feed.source.parser(feed.spec)(line.replace(b"\r", b"")), str), line
    good, both = (feed.source.records("train").take(n).batch(99) for n in (before, before + 1))
    if before:
        _rows(feed.source.decode(batch, feed.spec, True) for batch in good)
    with pytest.raises(pipeline._list_data_errors()):
        for batch in both:
            feed.source.decode(batch, feed.spec, True)


def test_lines_of_csv():
    """Read single lines of many tables; a case has 100 lines of one table."""

    def case(draw):
        made = _spec(draw)
        source = _settings(draw, "", made, has_header=False)
        parse = source.parser(made)
        decode = tf.function(
            lambda lines: source.decode(lines, made, with_labels=True),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        good, refused = [], 0
        for line in _odd_lines(draw, source, made):
            slow = parse(line)
            if isinstance(slow, dict):
                good.append((line, slow))
                continue
            cases.refused(checks.UserError(slow))
            refused += 1
            with pytest.raises(source_lib.list_refusals()):
                decode(tf.constant([line]))
                raise AssertionError(f"only the twin refuses {line} of {source}: {slow}")
        try:
            found = _rows([decode(tf.constant([line for line, _ in good], tf.string))])
        except source_lib.list_refusals():
            found = [_decoded_alone(decode, line, source) for line, _ in good]
        for (line, slow), fast in zip(good, found, strict=True):
            differ = [(n, fast[n], slow[n]) for n in slow if not _same(fast[n], slow[n])]
            assert not differ, f"{line} of {source}: {differ}"
        return "refused" if refused else "right"

    outcomes = cases.run("csv lines", 8, case)
    assert outcomes["right"] and outcomes["refused"]


def _odd_lines(draw, source, made):
    dropped = re.compile(source._dropped.encode())
    odd = draw.choice((0, 0.1))
    for _ in range(100):
        line = _line(draw, source, source.columns, made, odd).encode()
        if odd and draw.random() < 0.1:
            line = cases.damaged(draw, line, (b'"', b",", b"\0", b"|"))
        line = line.replace(b"\n", b"").replace(b"\r", b"")  # As both readers cut lines.
        if not dropped.fullmatch(line):
            yield line


def _decoded_alone(decode, line, source):
    try:
        return _rows([decode(tf.constant([line]))])[0]
    except source_lib.list_refusals() as error:
        raise AssertionError(f"only the fast path refuses {line} of {source}: {error}") from error


def test_files_of_csv(tmp_path):
    def case(draw):
        made = SPECS[draw.randrange(len(SPECS))]
        source = _table(draw, tmp_path, made)
        return _twins(
            pipeline.Pipeline(source=source, spec=made, batch_size=draw.choice((1, 5, 64)))
        )

    outcomes = cases.run("csv files", 12, case)
    assert outcomes["right"] and outcomes["refused"]


def _count_values(feature: tf.train.Feature) -> int:
    return len(getattr(feature, feature.WhichOneof("kind") or "int64_list").value)


def _example(draw: random.Random, made: spec.Spec) -> bytes:
    """A serialized tf.Example, of which a field or a byte may be wrong."""
    example = tf.train.Example()
    for name, field in made.fields.items():
        kinds = {"string": "bytes_list", "float32": "float_list"}
        kind = kinds.get(field.dtype, "int64_list")
        if draw.random() < 0.03:
            kind = draw.choice(("bytes_list", "float_list", "int64_list"))
        count = draw.choice((0, 1, 3)) if field.is_ragged else field.size
        count += draw.choice((-1, 1)) * (draw.random() < 0.02)
        if name in made.weighted and draw.random() < 0.95:
            count = _count_values(example.features.feature[made.weighted[name]])
        least, most = {"uint8": (0, 255), "bool": (0, 1)}.get(field.dtype, (-(2**63), 2**63 - 1))
        pool = {
            "bytes_list": (b"", b"a", "é".encode(), b"\xff\0", b"x" * 300),
            "float_list": (0.0, -1.5, 3e38, math.inf, math.nan, 1e-45),
            "int64_list": (
                0,
                1,
                least,
                most,
                draw.choice((2, 256, -1)) if draw.random() < 0.05 else 1,
            ),
        }[kind]
        values = [draw.choice(pool) for _ in range(max(0, count))]
        if name in made.counted and draw.random() < 0.95:
            held = _count_values(example.features.feature[made.counted[name]])
            first = draw.randint(0, held)
            kind, values = "int64_list", [first, held - first] if held else []
        if draw.random() < 0.9:
            getattr(example.features.feature[name], kind).value.extend(values)
        elif draw.random() < 0.5:
            example.features.feature[name].SetInParent()
    return example.SerializeToString()


def test_records_of_tf_examples():
    """Read single records of many specifications; a case has 100 records of one specification."""

    def case(draw):
        made, refused = _spec(draw), 0
        parse = tf.function(
            lambda records: made.parse(records, with_labels=True),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        for whole in [_example(draw, made) for _ in range(100)]:
            splice = (b"\x0a\x00", whole, b"\x1a")
            record = cases.damaged(draw, whole, splice) if draw.random() < 0.08 else whole
            slow = tfrecord.scan_record(record, made)
            try:
                (fast,) = _rows([parse(tf.constant([record]))])
            except source_lib.list_refusals():
                # If protobuf accepts the record, the pipeline asks TensorFlow.
                found_by_twin = isinstance(slow, str)
                assert found_by_twin or record != whole, f"{record} of {made}: only fast refuses"
                if found_by_twin:
                    cases.refused(checks.UserError(slow))
                refused += 1
                continue
            if slow == "must be a serialized tf.Example.":
                assert record != whole, record
                continue  # TensorFlow takes what it needs of a proto, and looks at no more.
            assert isinstance(slow, dict), f"{record} of {made}: only the twin refuses: {slow}"
            differ = [(n, fast[n], slow[n]) for n in slow if not _same(fast[n], slow[n])]
            assert not differ, f"{record} of {made}: {differ}"
        return "refused" if refused else "right"

    assert cases.run("records", 8, case)["refused"]


def test_files_of_records(tmp_path):
    def case(draw):
        made = SPECS[draw.randrange(len(SPECS))]
        path = tmp_path / draw.choice(("x.tfrecord", "x.tfrecord.gz"))
        options = "GZIP" if path.suffix == ".gz" else ""
        with tf.io.TFRecordWriter(str(path), options) as writer:
            for _ in range(draw.choice((1, 4))):
                record = _example(draw, made)
                record = cases.damaged(draw, record) if draw.random() < 0.05 else record
                writer.write(record)
        if draw.random() < 0.5:
            data = path.read_bytes()
            path.write_bytes(cases.damaged(draw, data, (data, b"\x1f\x8b")))
        compression = draw.choice(("auto", "auto", "auto", "gzip", "zlib", "none"))
        source = tfrecord.TfRecord(files={"train": str(path)}, compression=compression)
        return _twins(pipeline.Pipeline(source=source, spec=made, batch_size=draw.choice((1, 3))))

    outcomes = cases.run("record files", 12, case)
    assert outcomes["right"] and outcomes["refused"]


IDX = spec.Spec(features={"image": ("uint8", (2, 2))}, labels={"digit": "int64"})


def test_files_of_idx(tmp_path):
    def case(draw):
        end = draw.choice(("", ".gz"))
        rows = draw.choice((1, 3))
        for name, header, size in (("image", ">BBBBiii", 4), ("digit", ">BBBBi", 1)):
            shape = (rows, 2, 2) if size == 4 else (rows,)
            data = struct.pack(header, 0, 0, 8, len(shape), *shape) + draw.randbytes(rows * size)
            if draw.random() < 0.3:
                data = cases.damaged(draw, data, (b"\xff" * 4, b"\x7f\xff\xff\xff"))
            data = gzip.compress(data, mtime=0) if end else data
            if end and draw.random() < 0.3:
                data = cases.damaged(draw, data)
            (tmp_path / f"{name}{end}").write_bytes(data)
        paths = {name: str(tmp_path / f"{name}{end}") for name in ("image", "digit")}
        source = idx.Idx(files={"train": paths})
        return _twins(pipeline.Pipeline(source=source, spec=IDX, batch_size=2))

    outcomes = cases.run("idx", 20, case)
    assert outcomes["right"] and outcomes["refused"]
