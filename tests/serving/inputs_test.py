"""Serialized examples and raw tensors are the same features, whatever is left out."""

import json

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.files import checksums
from mtl.serving import inputs, metadata, rows, settings

tf1 = tf.compat.v1

SPEC = spec.Spec(
    features={
        "age": "float32",
        "word": "string",
        "pixels": ("uint8", (2, 2)),
        "is new": "bool",
        "tags": ("string", (None,)),
        "sizes": ("int64", (None,)),
    },
    labels={},
    defaults={"word": "none", "is new": True},
)
VALUES = {
    "age": np.float32([1.5, 2.5, -3.0]),
    "word": np.array([b"a", b"", b"c"], object),
    "pixels": np.arange(12, dtype=np.uint8).reshape(3, 2, 2) * 20,
    "is new": np.array([True, False, True]),
    "tags": [np.array(row, object) for row in ([b"x", b"y"], [], [b"z"])],
    "sizes": [np.array(row, np.int64) for row in ([], [7, 8, 9], [5])],
}
ROWS = rows.Rows(spec=SPEC, values=VALUES)


@pytest.fixture(scope="module")
def run():
    """run({input: value}) -> {field: what the model gets}."""
    with tf.Graph().as_default(), tf1.Session() as session:
        receiver = inputs.build_receiver(SPEC)
        given = {**receiver.receiver_tensors, **receiver.receiver_tensors_alternatives["raw"]}
        yield lambda values: session.run(
            receiver.features, {given[name]: value for name, value in values.items()}
        )


def assert_features(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        if isinstance(value, tf1.ragged.RaggedTensorValue):
            assert value.to_list() == [list(row) for row in wanted[name]], name
        else:
            np.testing.assert_array_equal(value, wanted[name], err_msg=name)


def test_empty_texts_in_lists_are_dropped_as_those_of_a_csv_file():
    """Lists lose empty texts; in lists of lists, items then have fewer values."""
    fields = spec.Spec(
        features={
            "tags": ("string", (None,)),
            "items": ("string", (None, None)),
            "n": ("int64", (None,)),
        },
        labels={},
    )
    tags = [[b""], [b"a", b""], [], [b"", b"b", b"", b"c"]]
    items, counts = [[b"", b"x"], [], [b""], [b"y", b"", b"z"]], [[2], [], [0, 1], [1, 0, 2]]
    numbers = [[0], [1, 2], [], [3]]
    given = {"tags": tags, "items": items, "items/values_per_item": counts, "n": numbers}
    examples = [
        fields.serialize({name: own[row] for name, own in given.items()}) for row in range(4)
    ]
    raw = {}
    for name, own in given.items():
        padded = tf.ragged.constant(own, getattr(tf, fields.fields[name].dtype))
        raw |= {name: padded.to_tensor(), inputs.length_name(name): padded.row_lengths()}
    raw = {name: value.numpy() for name, value in raw.items()}
    with tf.Graph().as_default(), tf1.Session() as session:
        receiver = inputs.build_receiver(fields)
        names = receiver.receiver_tensors_alternatives["raw"]
        feeds = [
            {receiver.receiver_tensors["examples"]: examples},
            {names[name]: value for name, value in raw.items()},
        ]
        for feed in feeds:
            found = {k: v.to_list() for k, v in session.run(receiver.features, feed).items()}
            assert found == {
                "tags": [[], [b"a"], [], [b"b", b"c"]],
                "items": [[b"x"], [], [], [b"y", b"z"]],
                "items/values_per_item": [[1], [], [0, 0], [1, 0, 1]],
                "n": numbers,
            }


@pytest.mark.parametrize("count", [3, 1, 0])
def test_examples_and_raw_inputs_are_the_rows(run, count):
    wanted = {name: value[:count] for name, value in VALUES.items()}
    some = ROWS.first(count)
    assert_features(run({"examples": some.examples}), wanted)
    raw = some.raw()
    assert {name: value.dtype for name, value in raw.items() if "tags" not in name} == {
        "age": np.float32,
        "word": object,
        "pixels": np.uint8,
        "is new": bool,
        "sizes": np.int64,
        "sizes/length": np.int64,
    }
    assert_features(run(raw), wanted)


def test_raw_inputs_that_are_left_out_have_their_defaults(run):
    defaults = inputs.raw_defaults(SPEC)
    assert set(defaults) == {*("word", "is new", "tags", "tags/length", "sizes", "sizes/length")}
    raw = {name: value for name, value in ROWS.raw().items() if name not in defaults}
    wanted = {
        **VALUES,
        "word": [b"none"] * 3,
        "is new": [True] * 3,
        "tags": [[]] * 3,
        "sizes": [[]] * 3,
    }
    assert_features(run({**raw, **defaults}), wanted)
    assert_features(run(raw), wanted)


def test_padding_does_not_count(run):
    raw = ROWS.raw()
    raw["sizes"] = np.concatenate([raw["sizes"], np.full([3, 2], 99)], axis=1)
    assert_features(run(raw), VALUES)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("word", np.array([b"a", b"b"], object), "raw input 'word' must have as many rows"),
        ("tags/length", np.array([2, 0]), "raw input 'tags' must have as many rows"),
        ("sizes/length", np.array([0, 4, 1]), "raw input 'sizes/length' must be at most"),
        ("sizes/length", np.array([0, -1, 1]), "raw input 'sizes/length' must be at most"),
    ],
)
def test_raw_inputs_that_do_not_fit_are_refused(run, name, value, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match="raw input") as caught:
        run({**ROWS.raw(), name: value})
    assert message in str(caught.value).replace("\\", "")


def test_where_every_feature_can_be_left_out_the_longest_input_counts():
    optional = spec.Spec(
        features={"a": "float32", "b": "int64"}, labels={}, defaults={"a": 1.0, "b": 2}
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        receiver = inputs.build_receiver(optional)
        raw = receiver.receiver_tensors_alternatives["raw"]
        found = session.run(receiver.features, {raw["b"]: [5, 6]})
    assert_features(found, {"a": [1, 1], "b": [5, 6]})


def test_a_default_that_is_a_missing_number_is_served(tmp_path):
    made = spec.Spec(
        features={"x": "float32", "v": ("float32", (2,)), "n": "int64"},
        labels={},
        type_defaults={"float32": "nan", "int64": 3},
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        receiver = inputs.build_receiver(made)
        raw = receiver.receiver_tensors_alternatives["raw"]
        empty = inputs.raw_defaults(made)
        given = {raw["x"]: [1.0, 2.0], raw["v"]: empty["v"], raw["n"]: empty["n"]}
        found = session.run(receiver.features, given)
        examples = [made.serialize({"x": [1.0]}), made.serialize({"n": [4]})]
        parsed = session.run(receiver.features, {receiver.receiver_tensors["examples"]: examples})
    nans = np.full([2, 2], np.nan)
    assert_features(found, {"x": [1, 2], "v": nans, "n": [3, 3]})
    assert_features(parsed, {"x": [1, np.nan], "v": nans, "n": [3, 4]})
    described = metadata.describe_export(settings.Serving(), made, [])
    metadata.add_metadata(str(tmp_path), **described)
    text = (tmp_path / "assets.extra" / "model.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["inputs"]["x"]["default"] == "nan"
    again = metadata.spec_of(str(tmp_path))
    assert all(np.isnan(again.fields[name].default) for name in ("x", "v"))
    assert again.fields["n"].default == 3


@pytest.mark.parametrize("file", ["saved_model.pb", "assets/words.txt"])
def test_files_of_an_export_are_as_they_were_written(file, tmp_path):
    (tmp_path / "assets").mkdir()
    for name in ("saved_model.pb", "assets/words.txt"):
        (tmp_path / name).write_text("a\nb\n")
    metadata.require_intact(str(tmp_path))  # Exports by other programs hold no checksums.
    metadata.add_metadata(str(tmp_path), files=metadata.list_files(str(tmp_path)))
    metadata.require_intact(str(tmp_path))
    (tmp_path / file).write_text("b\na\n")
    with pytest.raises(checks.UserError, match=f"{file} is damaged: .* Export it again"):
        metadata.require_intact(str(tmp_path))


def test_exports_of_earlier_versions_told_of_their_vocabularies(tmp_path):
    (tmp_path / "assets").mkdir()
    words = tmp_path / "assets" / "words.txt"
    words.write_text("a\n")
    metadata.add_metadata(str(tmp_path), assets={"words.txt": checksums.of_file(str(words))})
    metadata.require_intact(str(tmp_path))
    words.write_text("b\n")
    with pytest.raises(checks.UserError, match="words.txt is damaged"):
        metadata.require_intact(str(tmp_path))
