import dataclasses
import gzip
import math
import random
import re

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from mtl import checks, spec
from mtl.data import arrow, csv, frames, pipeline

MISSING = spec.MISSING["int64"]
SPEC = spec.Spec(
    features={"age": "float32", "job": "string", "tags": ("string", (None,))},
    labels={"rich": "int64"},
    defaults={"job": "none"},
)
COLUMNS = ("age", "job", "tags", "rich")


def write(path, text, compress=False):
    data = text.encode()
    path.write_bytes(gzip.compress(data) if compress else data)
    return str(path)


def source(tmp_path, text, compress=False, **settings):
    path = write(tmp_path / ("data.csv.gz" if compress else "data.csv"), text, compress)
    return csv.Csv(files={"train": path}, **{"columns": COLUMNS, **settings})


def read(source, spec_=SPEC, with_labels=True):
    batch = next(iter(source.records("train").batch(1000)))
    return source.decode(batch, spec_, with_labels)


def problems(source, spec_=SPEC):
    return [(where, what) for where, what in source.scan("train", spec_) if isinstance(what, str)]


@pytest.mark.parametrize("compress", [False, True])
def test_reads_trimmed_quoted_and_missing_values(tmp_path, compress):
    text = '31, clerk ,a|b, 1\r\n\n 4.5,"smith, ""the"" boss",,0\n 7,?,c|,?\n\n'
    data = source(tmp_path, text, compress, missing=("", "?"))
    values = read(data)
    np.testing.assert_allclose(values["age"], [31, 4.5, 7])
    np.testing.assert_array_equal(values["job"], [b"clerk", b'smith, "the" boss', b"none"])
    assert values["tags"].to_list() == [[b"a", b"b"], [], [b"c"]]
    np.testing.assert_array_equal(values["rich"], [1, 0, MISSING])
    rows = [row for _, row in data.scan("train", SPEC)]
    assert [row["job"] for row in rows] == ["clerk", 'smith, "the" boss', "none"]
    assert [row["tags"] for row in rows] == [["a", "b"], [], ["c"]]
    assert [row["rich"] for row in rows] == [1, 0, MISSING]


LISTS = spec.Spec(
    features={
        "tags": ("string", (None,)),
        "pair": ("string", (2,)),
        "sizes": ("int64", (None,)),
        "items": ("string", (None, None)),
    },
    labels={},
)
SPACED = {"tags": "a | b|\tc |  | ", "pair": " x |y z ", "sizes": " 1 | 2", "items": "p ; q | r"}
TIGHT = {"tags": "a|b|c", "pair": "x|y z", "sizes": "1|2", "items": "p;q|r"}


@pytest.mark.parametrize("form", ["file", "cache", "scan", "frame", "parquet"])
def test_spaces_around_the_parts_of_a_list_are_dropped(tmp_path, form):
    def read_form(row):
        table = {name: [text] for name, text in row.items()}
        data = source(tmp_path, ",".join(row.values()) + "\n", columns=tuple(row))
        if form == "scan":
            return repr(dict(list(data.scan("train", LISTS))[0][1]))
        if form == "frame":
            data = frames.Frames(splits={"train": table})
        elif form == "parquet":
            parquet.write_table(pa.table(table), tmp_path / "rows.parquet")
            data = arrow.Arrow(files={"train": str(tmp_path / "rows.parquet")})
        if form == "cache":
            features = {name: LISTS.features[name] for name in ("tags", "sizes")}
            block, *_ = data.read_values("train", dataclasses.replace(LISTS, features=features))
            texts, sizes = block["tags"], block["sizes"]
            words = texts.values.distinct.take(texts.values.numbers)
            return repr([words.to_pylist(), texts.splits, sizes.values, sizes.splits])
        return repr(tf.nest.map_structure(lambda part: part.numpy(), read(data, LISTS)))

    assert read_form(SPACED) == read_form(TIGHT)


def test_scan_gives_what_decode_gives_on_every_type(tmp_path):
    everything = spec.Spec(
        features={
            "f": "float32",
            "i": "int64",
            "u": "uint8",
            "b": "bool",
            "s": "string",
            "a": ("float32", (2, 2)),
            "r": ("int64", (None,)),
        },
        labels={"y": "float32"},
        defaults={"f": 0.5, "b": True, "a": 1.0, "s": "x;y"},
    )
    names = [*everything.features, "y"]
    text = "1e3;-7;255;True;é;1|2|3|4;5|6;2\n;+7;0;;;;;\n.5;0;9;false;'q';-1|0|.1|1e-3;1;nan\n"
    data = source(tmp_path, text, columns=names, delimiter=";")
    decoded = read(data, everything)
    for index, (_, row) in enumerate(data.scan("train", everything)):
        for name, expected in row.items():
            got = decoded[name][index].numpy()
            if name == "s":
                assert got.decode() == expected
            else:
                np.testing.assert_allclose(got.reshape(-1), np.reshape(expected, -1), rtol=1e-6)
    assert index == 2
    assert decoded["a"].shape[1:] == (2, 2)
    np.testing.assert_allclose(decoded["a"][1], [[1, 1], [1, 1]])


@pytest.mark.medium
def test_header_names_the_columns_in_any_order(tmp_path):
    data = source(tmp_path, "\ufeffrich,tags,age,job\n1,a,30,x\n0,b,40,y\n", columns=())
    values = read(data)
    np.testing.assert_allclose(values["age"], [30, 40])
    np.testing.assert_array_equal(values["rich"], [1, 0])
    assert [where.rpartition(" ")[2] for where, _ in data.scan("train", SPEC)] == ["2", "3"]


@pytest.mark.medium
def test_header_without_labels_serves_prediction(tmp_path):
    data = source(tmp_path, "tags,age,job\na,30,x\n", columns=())
    assert set(read(data, with_labels=False)) == set(SPEC.features)
    with pytest.raises(checks.UserError, match="csv: the column of field 'rich' must be one of"):
        read(data)
    named = source(tmp_path, "a,30,x\n", columns=("tags", "age", "job"))
    with pytest.raises(checks.UserError, match="Csv.columns for the field 'rich' must be one of"):
        read(named)


def test_headers_of_all_files_must_agree(tmp_path):
    write(tmp_path / "a.csv", "age,job,tags,rich\n1,x,,1\n")
    write(tmp_path / "b.csv", "age,job,rich,tags\n1,x,1,\n")
    data = csv.Csv(files={"train": "*.csv"}, data_dir=str(tmp_path))
    with pytest.raises(
        checks.UserError, match="b.csv line 1 must be the header 'age,job,tags,rich"
    ):
        data.records("train")


@pytest.mark.medium
@pytest.mark.parametrize("comment", ["|", "#", "//", ".*", "\\d", "^", "[x]", "$(", "- "])
def test_comment_lines_are_dropped(tmp_path, comment):
    data = source(tmp_path, f"{comment}1x3 validator\n1,x,,1\n{comment}\n2,y,,0\n", comment=comment)
    np.testing.assert_allclose(read(data)["age"], [1, 2])
    assert [row["age"] for _, row in data.scan("train", SPEC)] == [1, 2]


@pytest.mark.parametrize("delimiter", ["\t", ";", "|", "^", " "])
def test_other_delimiters(tmp_path, delimiter):
    text = f'"1"{delimiter}"a{delimiter}b"{delimiter}{delimiter}1\n'
    data = source(tmp_path, text, delimiter=delimiter, list_delimiter="/")
    np.testing.assert_array_equal(read(data)["job"], [f"a{delimiter}b".encode()])
    assert [row["job"] for _, row in data.scan("train", SPEC)] == [f"a{delimiter}b"]


@pytest.mark.medium
def test_many_lines_and_files_keep_their_order(tmp_path):
    for part in range(3):
        lines = "".join(f"{part * 2500 + i},x,,1\n\n" for i in range(2500))
        write(tmp_path / f"part-{part}.csv.gz", lines, compress=True)
    data = csv.Csv(files={"train": "part-*.csv.gz"}, data_dir=str(tmp_path), columns=COLUMNS)
    ages = [data.decode(b, SPEC, True)["age"] for b in data.records("train").batch(999)]
    np.testing.assert_array_equal(np.concatenate(ages), np.arange(7500))


BAD_LINES = {
    "old,x,,1": "field 'age' must be float32, got 'old'.",
    ",x,,1": "field 'age' must be present, as it has no default.",
    "?,x,,1": "field 'age' must be present, as it has no default.",
    "1,x,,yes": "field 'rich' must be int64, got 'yes'.",
    "1,x,,1.5": "field 'rich' must be int64, got '1.5'.",
    "1,x,": "must have 4 columns, got 3.",
    "1,x,,1,": "must have 4 columns, got 5.",
    '1,"x,,1': "column 2 must have its quotes around it, got '\"x,,1'.",
    '1, "x",,1': "column 2 must have its quotes around it, got ' \"x\",,1'.",
    '1,x"y,,1': "column 2 must have its quotes around it, got 'x\"y,,1'.",
    '1,"x"y,,1': "column 2 must have its quotes around it, got '\"x\"y,,1'.",
}


@pytest.mark.medium
@pytest.mark.parametrize(("line", "message"), BAD_LINES.items())
def test_a_bad_line_fails_and_is_found(tmp_path, line, message):
    data = source(tmp_path, f"1,x,,1\n\n{line}\n2,x,,0\n", missing=("", "?"))
    with pytest.raises(tf.errors.InvalidArgumentError):
        read(data)
    assert problems(data) == [(f"{tmp_path}/data.csv line 3", message)]


def test_wrong_size_of_an_array_fails_and_is_found(tmp_path):
    arrays = spec.Spec(features={"x": ("int64", (2, 2))}, labels={"y": "int64"})
    data = source(tmp_path, "1|2|3|4,1\n1|2|3,1\n", columns=("x", "y"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="field 'x' must hold 4 values"):
        read(data, arrays)
    where = f"{tmp_path}/data.csv line 2"
    assert problems(data, arrays) == [(where, "field 'x' must hold 4 values, got 3.")]


def test_wrong_sizes_that_add_up_fail(tmp_path):
    arrays = spec.Spec(features={"x": ("int64", (2,))}, labels={"y": "int64"})
    data = source(tmp_path, "1|2|3,1\n1,1\n", columns=("x", "y"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="field 'x' must hold 2 values"):
        read(data, arrays)


def test_damaged_gzip_is_found(tmp_path):
    lines = "".join(f"{i},job {i * i},,1\n" for i in range(3000))
    path = tmp_path / "data.csv.gz"
    path.write_bytes(gzip.compress(lines.encode())[:-500])
    data = csv.Csv(files={"train": str(path)}, columns=COLUMNS)
    # TensorFlow would read the lines up to the cut and say nothing.
    with pytest.raises(checks.UserError, match="data.csv.gz must be a whole gzip file, got 'Comp"):
        data.records("train")
    ((where, what),) = problems(data)
    assert "data.csv.gz line 2" in where
    assert what.startswith("the file cannot be read further")


def test_no_gzip_under_the_name_of_gzip_is_found(tmp_path):
    path = write(tmp_path / "data.csv.gz", "1,x,,1\n")
    data = csv.Csv(files={"train": path}, columns=COLUMNS)
    ((where, what),) = problems(data)
    assert where == f"{path} line 1"
    assert "gzip" in what


def test_missing_files_and_splits_name_what_is_near(tmp_path):
    write(tmp_path / "train.csv", "1,x,,1\n")
    data = csv.Csv(
        files={"train": "tran.csv", "test": "*.tsv", "deep": "no/where.csv", "folder": "."},
        data_dir=str(tmp_path),
        columns=COLUMNS,
    )
    for split, message in {
        "train": "'train'] must name existing files, got .*tran.csv'. Did you mean 'train.csv'?",
        "test": "'test'] must name existing files, got ",
        "deep": "There is no folder .*no'",
        "folder": "must name files, got .* It is a folder",
        "tset": "split must be one of train, test, deep, folder, got 'tset'. Did you mean 'test'?",
    }.items():
        with pytest.raises(checks.UserError, match=message.replace("]", r"\]").replace("?", r"\?")):
            data.records(split)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_empty_split_is_refused(tmp_path, text):
    feed = pipeline.Pipeline(source=source(tmp_path, text), spec=SPEC)
    with pytest.raises(checks.UserError, match="split 'train' must hold a record, got 0"):
        feed.dataset("train", training=True, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"files": {}}, "Csv.files must name a split"),
        ({"files": "a.csv"}, "Csv.files must map splits to files"),
        ({"files": {"train": 3}}, r"Csv.files\['train'\] must be a path or a list of them, got 3"),
        ({"columns": "age"}, "Csv.columns must be a list of texts, got 'age'"),
        ({"columns": ("a", "a")}, "Csv.columns must hold each name once"),
        ({"delimiter": ", "}, "Csv.delimiter must be one character"),
        ({"delimiter": "|"}, "Csv.list_delimiter must differ from delimiter"),
        ({"missing": "?"}, "Csv.missing must be a list of texts"),
        ({"item_delimiter": ""}, "Csv.item_delimiter must be one character"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(checks.UserError, match=message):
        csv.Csv(**{"files": {"train": "a.csv"}, **settings})


@pytest.mark.parametrize("delimiter", [";", ","])
def test_items_of_several_values_have_a_delimiter_of_their_own(delimiter, tmp_path):
    text = f"kinds{delimiter}y\na;b|c{delimiter}1\n"
    data = source(tmp_path, text, delimiter=delimiter, columns=())
    items = spec.Spec(features={"kinds": ("string", (None, None))}, labels={"y": "int64"})
    if delimiter == ",":
        assert read(data, items)["kinds"].to_list() == [[b"a", b"b", b"c"]]
        return
    says = "Csv.item_delimiter must differ from delimiter and list_delimiter"
    with pytest.raises(checks.UserError, match=says):
        read(data, items)


@pytest.mark.medium
def test_adult_as_the_configuration_reads_it(real_data):
    import gin

    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config_file("gin_configs/data/adult.gin")
        gin.bind_parameter("adult_dir/macro.value", str(real_data / "adult"))
        feed = gin.get_configurable(pipeline.Pipeline)()
        gin.clear_config()
    counts, rich, missing, ages = {}, 0, 0, 0.0
    for split in ("train", "test"):
        counts[split] = 0
        for features, labels in feed.dataset(split, training=False, seed=0):
            counts[split] += labels["income"].shape[0]
            rich += np.isin(labels["income"], [b">50K", b">50K."]).sum()
            missing += (features["occupation"].numpy() == b"?").sum()
            ages += float(tf.reduce_sum(features["age"]))
    # Counted with gzip, grep and awk.
    assert counts == {"train": 32561, "test": 16281}
    assert rich == 7841 + 3846
    assert missing == 1843 + 966
    assert math.isclose(ages, 1887430, rel_tol=1e-5)
    assert feed.diagnose(tf.errors.InvalidArgumentError(None, None, ""), "train") is None


@pytest.mark.medium
@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x1c", "\x1e", "\xa0", "\v", "\f"])
def test_odd_spaces_and_line_breaks_are_read_alike_by_both_readers(tmp_path, odd):
    text = f"1,{odd}x{odd}y{odd},a{odd}b|c,1\n2,a\rb,d\r,0\r\n3,{odd},e,1\n"
    data = source(tmp_path, text, missing=("",))
    values, rows = read(data), [row for _, row in data.scan("train", SPEC)]
    assert [row["job"].encode() for row in rows] == values["job"].numpy().tolist()
    assert [[t.encode() for t in row["tags"]] for row in rows] == values["tags"].to_list()
    assert rows[0]["job"].startswith(odd) == (odd not in "\v\f")


ODD_NUMBERS = [
    text
    for line in (
        "1e39 -1e39 3.4e38 3.5e38 1e400 1e-400 -1e999 1_000 1,000 1'000 1\xa0000 5\xa0 \xa05",
        "5\u202f000 0x1p3 0x10 0b1 .5 5. -.5 +5. . + - +. e5 1e 1e+ 1e5 1E-5 1e5.0 .e1 1.e1",
        "1d 1f 1L 5% 1.0.0 nan NaN +nan -nan nan(1) nan() nan(ind) inf -inf +INF infinity",
        "Infinity infinit inf(1) 1.#INF \u0131nf \u0130NF true TRUE truex xtrue fal\u017fe",
        "False yes \u0661\u0662 \uff11\uff12 \xbd \xb2 \u22125 9223372036854775807",
        "9223372036854775808 -9223372036854775808 -9223372036854775809 9223372036854775807.0",
        "1 1.0 1.00 1.5 256 255 00012 -0 -0.0 --1 +-1 1- 1\x002 1\0 \0 \ufeff1",
        "340282346638528859811704183484516925440 340282366920938463463374607431768211456",
    )
    for text in line.split(" ")
]


@pytest.mark.medium
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_both_readers_agree_on_what_is_a_number(dtype):
    made = spec.Spec(features={"x": dtype, "v": (dtype, (None,))}, labels={})
    data = csv.Csv(files={"train": ""}, columns=("x", "v"))
    decode = tf.function(
        lambda lines: data.decode(lines, made, with_labels=False),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    parse, draw = data.parser(made), random.Random(3)
    letters = [*"0123456789.eE+-xX_nafiIty( )\t,'", "\xa0", "\u0661", "\0", "1", "1", "1."]
    texts = ["".join(draw.choices(letters, k=draw.randint(1, 5))) for _ in range(100)]
    lines = [f'"{text}",' for text in [*ODD_NUMBERS, *texts]]
    lines += [f'1,"0| {text} "' for text in ODD_NUMBERS]
    rows = {line: parse(line.encode()) for line in lines}
    good = [line for line, row in rows.items() if not isinstance(row, str)]
    values = decode(tf.constant(good))
    for name in made.features:
        for index, line in enumerate(good):
            got, expected = values[name][index].numpy(), np.array(rows[line][name])
            np.testing.assert_array_equal(got, expected.astype(got.dtype), line)
    assert len(good) > 15
    for line in set(rows) - set(good):
        assert f"must be {dtype}, got" in rows[line] or "must be present" in rows[line]
        with pytest.raises(tf.errors.InvalidArgumentError):
            decode(tf.constant([line]))


def test_a_number_beside_others_is_refused_by_the_batch():
    made = spec.Spec(features={"x": "float32"}, labels={})
    data = csv.Csv(files={"train": ""}, columns=("x",))
    assert data.decode(tf.constant(["1", "-INF", "nan", "2"]), made, False)["x"].shape == [4]
    for odd in ("nan(1)", "0x1p3", "1e39"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="field 'x' must be float32"):
            data.decode(tf.constant(["1", "inf", odd, "nan"]), made, False)


def test_truth_values_beside_a_gap_are_read_as_floats(tmp_path):
    made = spec.Spec(features={"x": "float32"}, labels={}, defaults={"x": "nan"})
    data = source(tmp_path, 'True\n""\nfalse\n0.5\n', columns=("x",))
    expected = [1.0, math.nan, 0.0, 0.5]
    np.testing.assert_array_equal(read(data, made)["x"].numpy(), expected)
    np.testing.assert_array_equal([row["x"] for _, row in data.scan("train", made)], expected)


def test_labels_that_other_tools_write_for_whole_numbers(tmp_path):
    text = "1,a,,1.0\n2,a,,True\n3,a,,0.0\n4,a,,false\n5,a,,\n"
    data = source(tmp_path, text)
    assert read(data)["rich"].numpy().tolist() == [1, 1, 0, 0, MISSING]
    assert [row["rich"] for _, row in data.scan("train", SPEC)] == [1, 1, 0, 0, MISSING]
    feed = pipeline.Pipeline(source=source(tmp_path, "1,a,,1.5\n"), spec=SPEC)
    error = tf.errors.InvalidArgumentError(None, None, "")
    assert feed.diagnose(error, "train").endswith("field 'rich' must be int64, got '1.5'.")


def test_an_empty_text_is_a_text_where_no_default_says_otherwise(tmp_path):
    made = spec.Spec(
        features={"a": "string", "b": "string", "v": ("string", (2,))},
        labels={"c": "string"},
        defaults={"b": "none", "v": "v"},
    )
    text = ',,,\nx,y,p|q,z\n"","",p|,""\n'
    data = source(tmp_path, text, columns=("a", "b", "v", "c"), missing=("", "?"))
    values, rows = read(data, made), [row for _, row in data.scan("train", made)]
    for name, expected in {
        "a": ["", "x", ""],
        "b": ["none", "y", "none"],
        "c": ["", "z", ""],
        "v": [["v", "v"], ["p", "q"], ["p", ""]],
    }.items():
        assert [row[name] for row in rows] == expected
        assert np.char.decode(values[name].numpy().astype(bytes)).tolist() == expected
    lacking = source(tmp_path, "?,y,,z\n", columns=("a", "b", "v", "c"), missing=("", "?"))
    assert problems(lacking, made)[0][1] == "field 'a' must be present, as it has no default."
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be present"):
        read(lacking, made)


def test_a_missing_number_is_read_from_an_empty_cell(tmp_path):
    made = spec.Spec(
        features={"x": "float32", "v": ("float32", (2,))},
        labels={},
        type_defaults={"float32": "nan"},
    )
    data = source(tmp_path, "1,2|3\n,\nnan,?\n", columns=("x", "v"), missing=("", "?"))
    values, rows = read(data, made), [row for _, row in data.scan("train", made)]
    for name, expected in {
        "x": [1, np.nan, np.nan],
        "v": [[2, 3], [np.nan] * 2, [np.nan] * 2],
    }.items():
        np.testing.assert_array_equal(values[name], expected)
        np.testing.assert_array_equal([row[name] for row in rows], expected)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("x,y\n1,2\n".encode("utf-16"), "UTF-16"),
        ("x,y\n1,2\n".encode("utf-16-le"), "binary, or UTF-16 without a mark"),
        (b"PAR1\x15\x04", "Parquet"),
        (b"PK\x03\x04\x14", "a ZIP file"),
        (gzip.compress(b"x,y\n1,2\n", mtime=0), "gzip without the ending .gz"),
    ],
)
@pytest.mark.parametrize("columns", [(), ("x", "y")])
def test_a_file_that_is_no_text(tmp_path, data, kind, columns):
    path = tmp_path / "x.csv"
    path.write_bytes(data)
    source = csv.Csv(files={"train": str(path)}, columns=columns)
    with pytest.raises(checks.UserError, match=f"x.csv must be text in UTF-8, but it is {kind}"):
        source.records("train")


@pytest.mark.parametrize(("delimiter", "right"), [(",", ";"), (",", "\t"), (";", ","), (",", "|")])
def test_a_wrong_delimiter(tmp_path, delimiter, right):
    path = tmp_path / "x.csv"
    path.write_text(right.join(["x", "y"]) + "\n" + right.join(["1", "2"]) + "\n")
    lists = "&"
    source = csv.Csv(files={"train": str(path)}, delimiter=delimiter, list_delimiter=lists)
    fields = spec.Spec(features={"x": "float32"}, labels={"y": "int64"})
    message = re.escape(f"got {delimiter!r}. Did you mean {right!r}?")
    with pytest.raises(checks.UserError, match=f"Csv.delimiter must separate .*{message}"):
        source.parser(fields)


def test_a_column_whose_name_holds_a_space_is_no_wrong_delimiter(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("x,old y\n1,2\n")
    source = csv.Csv(files={"train": str(path)})
    fields = spec.Spec(features={"x": "float32"}, labels={"z": "int64"})
    with pytest.raises(checks.UserError, match="x.csv: the column of field 'z'"):
        source.parser(fields)


def test_fields_of_a_kind_are_decoded_together():
    names = [f"x{i}" for i in range(50)]
    made = csv.Csv(files={"train": "none"}, columns=(*names, "y", "text"))
    fields = spec.Spec(
        features={**dict.fromkeys(names, "float32"), "text": "string"},
        labels={"y": "int64"},
        defaults={"x3": 7.5},
    )
    line = ",".join(["2.5", "2.5", "2.5", ""] + ["1"] * 46 + ["1", "a"])
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        values = made.decode(tf.constant([line]), fields, True)
        assert len(graph.get_operations()) < 250  # One by one they are more than 1,000.
        read = session.run(values)
    assert sorted(read) == sorted([*names, "text", "y"])
    assert (read["x0"], read["x3"], read["x4"], read["y"], read["text"]) == (2.5, 7.5, 1, 1, b"a")


@pytest.mark.parametrize("header", [True, False])
def test_fields_may_have_other_names_than_columns(tmp_path, header):
    text = "31,clerk,a|b,1\n,,,0\n"
    text = f"how old,job,tags,rich\n{text}" if header else text
    columns = () if header else ("how old", *COLUMNS[1:])
    data = source(tmp_path, text, columns=columns, rename={"age": "how old"})
    fields = dataclasses.replace(SPEC, defaults={**SPEC.defaults, "age": -1.0})
    assert data.names == ["age", *COLUMNS[1:]]
    np.testing.assert_array_equal(read(data, fields)["age"], [31, -1])
    assert [row["age"] for _, row in data.scan("train", fields)] == [31, -1]
    blocks = data.read_values("train", fields)
    np.testing.assert_array_equal(np.concatenate([one["age"] for one in blocks]), [31, -1])


@pytest.mark.parametrize(
    ("rename", "says"),
    [
        ({"age": "how olt"}, r"Csv.rename\['age'\] must be one of .*'how olt'.*'how old'"),
        ({"age": "rich"}, "the column of field 'rich'"),
        ({"job": "how old"}, "Csv.rename must name a field that no column is called.*'job'"),
        ({"age": "how old", "tags": "how old"}, "Csv.rename must give each column once"),
        ({"age": 3}, "Csv.rename.*must be a text"),
    ],
)
def test_a_wrong_other_name_is_told(tmp_path, rename, says):
    text = "how old,job,tags,rich\n31,clerk,a|b,1\n"
    with pytest.raises(checks.UserError, match=says):
        read(source(tmp_path, text, columns=(), rename=rename))


@pytest.mark.parametrize("compress", [False, True])
def test_a_byte_order_mark_in_front_of_a_value_is_refused(tmp_path, compress):
    marked = source(tmp_path, "\ufeff1,x,,1\n", compress)
    says = "must begin without a byte order mark, got .* Save it as UTF-8 without BOM."
    with pytest.raises(checks.UserError, match=says):
        marked.records("train")
    with pytest.raises(checks.UserError, match=says):
        list(marked.scan("train", SPEC))
    named = source(tmp_path, "\ufeffage,job,tags,rich\n1,x,,1\n", compress, columns=())
    np.testing.assert_array_equal(read(named)["age"], [1])
