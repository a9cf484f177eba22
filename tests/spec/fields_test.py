import dataclasses
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, spec


def example(**features) -> bytes:
    kinds = {
        int: lambda v: tf.train.Feature(int64_list=tf.train.Int64List(value=v)),
        float: lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=v)),
        bytes: lambda v: tf.train.Feature(bytes_list=tf.train.BytesList(value=v)),
    }
    feature = {name: kinds[type(values[0])](values) for name, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(
        deterministic=True
    )


SPEC = spec.Spec(
    features={
        "age": "float32",
        "tags": ("string", (None,)),
        "image": ("uint8", (2, 2)),
        "member": "bool",
    },
    labels={"income": "string", "count": "int64", "score": "float32"},
    defaults={"age": 40.0, "member": True},
)


def test_parse_reads_every_type_and_fills_what_is_absent():
    full = example(
        age=[1.5], tags=[b"a", b"b"], image=[1, 2, 3, 255], member=[0], income=[b"low"], count=[7]
    )
    parsed = SPEC.parse([full, example(image=[0, 0, 0, 9])], with_labels=True)
    np.testing.assert_allclose(parsed["age"], [1.5, 40])
    assert parsed["tags"].to_list() == [[b"a", b"b"], []]
    np.testing.assert_array_equal(parsed["image"], [[[1, 2], [3, 255]], [[0, 0], [0, 9]]])
    assert parsed["image"].dtype == tf.uint8
    np.testing.assert_array_equal(parsed["member"], [False, True])
    np.testing.assert_array_equal(parsed["income"], [b"low", b""])
    np.testing.assert_array_equal(parsed["count"], [7, spec.MISSING["int64"]])
    assert np.isnan(parsed["score"]).all()


def test_parse_without_labels_reads_features_only():
    assert set(SPEC.parse([example(image=[0, 0, 0, 9])], with_labels=False)) == set(SPEC.features)


@pytest.mark.parametrize(
    "broken",
    [
        example(image=[0, 0, 0, 256]),
        example(image=[0, 0, 0, -1]),
        example(image=[0, 0, 0]),
        example(age=[1.0]),
        example(image=[0, 0, 0, 0], member=[2]),
        example(image=[0, 0, 0, 0], age=[3]),
        b"\x0fnothing",
    ],
)
@pytest.mark.parametrize("in_graph", [False, True])
def test_parse_refuses_what_does_not_fit(broken, in_graph):
    with pytest.raises(tf.errors.InvalidArgumentError):
        if not in_graph:
            SPEC.parse([broken], with_labels=True)
        else:
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                session.run(SPEC.parse([broken], with_labels=True))


def test_cast_keeps_what_fits_and_refuses_the_rest():
    field = spec.Field(name="x", dtype="uint8")
    np.testing.assert_array_equal(field.cast(tf.constant([0, 255], tf.int32)), [0, 255])
    with pytest.raises(tf.errors.InvalidArgumentError, match="field 'x' must be uint8"):
        field.cast(tf.constant([300], tf.int64))
    ragged = spec.Field(name="x", dtype="bool", shape=(None,))
    values = ragged.cast(tf.ragged.constant([[1, 0], []], dtype=tf.int64))
    assert values.to_list() == [[True, False], []]


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        ("float32", "1.5", 1.5),
        ("float32", 2, 2.0),
        ("int64", "5", 5),
        ("int64", "-9223372036854775808", -(2**63)),
        ("bool", "True", 1),
        ("bool", "0", 0),
        ("bool", "1.0", 1),
        ("int64", "1.0", 1),
        ("int64", "-7.", -7),
        ("int64", "+7.00", 7),
        ("int64", "TRUE", 1),
        ("int64", "False", 0),
        ("int64", True, 1),
        ("int64", 2.0, 2),
        ("uint8", "255", 255),
        ("uint8", "3.0", 3),
        ("string", "a b", "a b"),
    ],
)
def test_value_agrees_with_tensorflow(dtype, given, expected):
    field = spec.Field(name="x", dtype=dtype)
    assert field.value([given]) == expected
    if isinstance(given, str) and dtype in ("float32", "int64") and re.fullmatch("[-0-9.]+", given):
        given = given.removesuffix(".") if dtype == "int64" else given
        given = given.removesuffix(".0") if dtype == "int64" else given
        assert tf.strings.to_number(given, field.dtype).numpy() == expected


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("float32", "old"),
        ("float32", "1_000"),
        ("float32", ""),
        ("int64", "1.5"),
        ("int64", "1e3"),
        ("int64", ".0"),
        ("int64", "1.0.0"),
        ("int64", "yes"),
        ("int64", "1_0"),
        ("int64", "٣"),
        ("int64", "9223372036854775808"),
        ("uint8", "256"),
        ("uint8", "True"),
        ("bool", "2"),
        ("bool", "0.5"),
        ("int64", 1.5),
        ("int64", math.nan),
        ("int64", math.inf),
        ("int64", None),
        ("string", 3),
    ],
)
def test_value_says_what_is_wrong(dtype, given):
    field = spec.Field(name="x", dtype=dtype)
    with pytest.raises(ValueError, match=f"^must be {dtype}, got "):
        field.value([given])
    if isinstance(given, str) and dtype in ("float32", "int64"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.strings.to_number(given, field.dtype)


def test_value_knows_shapes_and_absence():
    image = spec.Field(name="x", dtype="int64", shape=(2, 2))
    assert image.value([1, 2, 3, 4]) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="must hold 4 values, got 3"):
        image.value([1, 2, 3])
    with pytest.raises(ValueError, match="must be present"):
        image.value(None)
    assert spec.Field(name="x", dtype="int64", shape=(2,), default=3).value(None) == [3, 3]
    assert spec.Field(name="x", dtype="string", shape=(None,)).value(None) == []
    assert math.isnan(SPEC.label_fields["score"].value(None))
    lists = spec.Spec(features={"x": "int64"}, labels={"y": ("string", (None,))})
    assert (lists.fields["y"].value(None), lists.fields["y"].value([])) == ([""], [])


def test_split():
    values = {name: name for name in SPEC.fields}
    features, labels = SPEC.split(values)
    assert (set(features), set(labels)) == (set(SPEC.features), set(SPEC.labels))
    without = {name: name for name in SPEC.features}
    assert SPEC.split(without, with_labels=False) == (without, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": {}}, "Spec.features must name a field"),
        ({"features": ["age"]}, "Spec.features must map names to types"),
        ({"features": {"age": "flaot32"}}, "Did you mean 'float32'?"),
        ({"features": {"age": ("float32", (0,))}}, r"shape must be \(None,\), \(None, None\) or"),
        ({"features": {"age": ("float32", 3)}}, "shape must be a tuple of sizes"),
        ({"features": {"age": 3}}, "must be a type or a pair of type and shape"),
        ({"features": {"age": ("float32", (2,), 1)}}, "must be a type or a pair"),
        ({"labels": {"age": "int64"}}, "hold each name once, got \\['age'\\]"),
        ({"labels": {"image": "uint8"}}, "must be one of float32, int64, string"),
        ({"defaults": {"aeg": 1.0}}, "Did you mean 'age'?"),
        ({"defaults": 3}, "Spec.defaults must map names to values, got 3"),
        ({"defaults": {"age": math.inf}}, "'age'.default must be a float32, got inf"),
        ({"defaults": {"age": 1e39}}, "'age'.default must be a float32, got 1e"),
        ({"defaults": {"age": 10**400}}, "'age'.default must be a float32, got 10000"),
        ({"defaults": {"age": "inf"}}, "'age'.default must be a float32, got 'inf'. A missing n"),
        ({"type_defaults": {"float": 1.0}}, "must be one of .*, got 'float'. Did you mean 'float3"),
        ({"type_defaults": {"float32": "x"}}, r"type_defaults\['float32'\] must be a float32, got"),
        ({"type_defaults": {"int64": "nan"}}, r"must be a int64, got 'nan'. Only a float32 can be"),
        ({"type_defaults": {"int64": None}}, r"type_defaults\['int64'\] must be a int64, got None"),
        (
            {"features": {"age": "int64"}, "defaults": {"age": "nan"}},
            "must be a int64, got 'nan'. Only a float32 can be a missing number",
        ),
        ({"defaults": {"age": "old"}}, "must be a float32, got 'old'"),
        ({"features": {"age": "int64"}, "defaults": {"age": 0.5}}, "must be a int64, got 0.5"),
        ({"features": {"age": "uint8"}, "defaults": {"age": 256}}, "must be a uint8, got 256"),
        ({"features": {"age": "int64"}, "defaults": {"age": True}}, "must be a int64, got True"),
        (
            {"features": {"age": ("int64", (None,))}, "defaults": {"age": 1}},
            "must be left out, as an absent list",
        ),
        (
            {"features": {"tags": ("string", (None,))}, "defaults": {"tags": ""}},
            r"Spec.defaults\['tags'\] must be left out, as an absent list",
        ),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(checks.UserError, match=message):
        spec.Spec(**{"features": {"age": "float32"}, "labels": {"y": "int64"}, **settings})


ITEMS = spec.Spec(features={"kinds": ("string", (None, None)), "x": "float32"}, labels={})


def test_a_list_of_lists_comes_with_the_counts_of_its_items():
    counts = spec.counts_name("kinds")
    assert list(ITEMS.features) == ["kinds", counts, "x"]
    assert dataclasses.replace(ITEMS, labels={"y": "int64"}).features == ITEMS.features
    values = {"kinds": ["a", "b", "c"], counts: [2, 0, 1], "x": 1.0}
    nothing = {"kinds": [], counts: [], "x": 1.0}
    parsed = ITEMS.parse([ITEMS.serialize(values), ITEMS.serialize(nothing)], with_labels=True)
    assert parsed["kinds"].to_list() == [[b"a", b"b", b"c"], []]
    assert parsed[counts].to_list() == [[2, 0, 1], []]
    wrong = ITEMS.serialize({**values, counts: [2, 0]})
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"field '{counts}' must count"):
        ITEMS.parse([wrong], with_labels=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"labels": {"y": ("int64", (None, None))}},
            r"Spec.labels\['y'\] must not be a list of lists",
        ),
        ({"labels": {spec.counts_name("kinds"): "int64"}}, "hold each name once"),
        ({"features": {**ITEMS.features, spec.counts_name("kinds"): "int64"}}, "must be left out"),
        ({"features": {**ITEMS.features, "kinds": ("string", (None,))}}, "be a list of lists"),
        ({"defaults": {"kinds": "a"}}, "must be left out, as an absent list"),
    ],
)
def test_lists_of_lists_that_make_no_sense(settings, message):
    with pytest.raises(checks.UserError, match=message):
        dataclasses.replace(ITEMS, **settings)


def test_a_list_has_a_weight_for_each_value():
    features = {"kinds": ("string", (None,)), "kinds/weights": ("float32", (None,))}
    made = spec.Spec(features=features, labels={})
    assert made.weighted == {"kinds/weights": "kinds"} and spec.weights_name("a") == "a/weights"
    values = {"kinds": ["a", "b"], "kinds/weights": [1.0, 2.0]}
    assert made.example(lambda field: values[field.name]) == values
    problem = made.example(lambda field: {**values, "kinds": ["a"]}[field.name])
    assert problem == (
        "field 'kinds/weights' must hold a weight for each value of 'kinds', 1, got 2."
    )
    with pytest.raises(checks.UserError, match=r"Spec.features\['kinds/weights'\] must be"):
        spec.Spec(features={**features, "kinds/weights": ("int64", (None,))}, labels={})
    # Other fields may be called so.
    assert not spec.Spec(features={"kinds/weights": "string"}, labels={}).weighted


@pytest.mark.parametrize("written", ["nan", "NaN", math.nan])
def test_the_default_of_a_number_can_be_a_missing_number(written):
    made = spec.Spec(
        features={"x": "float32", "v": ("float32", (2,)), "word": "string"},
        labels={},
        defaults={"x": written, "v": written, "word": "nan"},
    )
    parsed = made.parse([example(x=[1.0]), example(v=[1.0, 2.0])], with_labels=False)
    np.testing.assert_array_equal(parsed["x"], [1, np.nan])
    np.testing.assert_array_equal(parsed["v"], [[np.nan, np.nan], [1, 2]])
    np.testing.assert_array_equal(parsed["word"], [b"nan", b"nan"])  # A text like any other.
    assert math.isnan(made.fields["x"].value(None))
    assert not made.fields["x"].is_required


def test_a_type_can_have_a_default():
    made = spec.Spec(
        features={
            "x": "float32",
            "y": "float32",
            "z": "float32",
            "n": "int64",
            "job": "string",
            "tags": ("string", (None,)),
        },
        labels={"label": "float32", "other": "int64"},
        defaults={"y": 3.0, "z": None},
        type_defaults={"float32": "nan", "int64": 7, "string": "?"},
    )
    defaults = {name: field.default for name, field in made.fields.items()}
    assert math.isnan(defaults.pop("x")) and math.isnan(defaults.pop("label"))
    expected = {"y": 3.0, "z": None, "n": 7, "job": "?", "tags": None}
    expected["other"] = spec.MISSING["int64"]
    assert defaults == expected
    assert [name for name, field in made.fields.items() if field.is_required] == ["z"]


def test_a_specification_without_type_defaults_reads_as_before():
    """The state of an input is found again by this text."""
    assert "type_defaults" not in repr(SPEC)


def test_an_example_names_all_that_it_lacks():
    made = spec.Spec(features=dict.fromkeys("abc", "int64"), labels={})
    problem = made.example(lambda field: {"b": ["1"]}.get(field.name))
    assert isinstance(problem, spec.Gaps) and problem.fields == ("a", "c")
    assert problem == "fields 'a', 'c' must be present, as they have no default."
    assert made.example(lambda field: None if field.name == "a" else ["1"]) == (
        "field 'a' must be present, as it has no default."
    )
    wrong = made.example(lambda field: None if field.name == "a" else ["x"])
    assert wrong == "field 'b' must be int64, got 'x'."


def test_texts_keep_zeros_at_their_end():
    made = spec.Spec(features={"image": "string", "parts": ("string", (2,))}, labels={})
    row = {"image": b"BM\0\0", "parts": [b"a\0", b"bcd\0\0"]}
    parsed = made.parse(tf.constant([made.serialize(row)]), with_labels=False)
    assert parsed["image"].numpy().tolist() == [b"BM\0\0"]
    assert parsed["parts"].numpy().tolist() == [[b"a\0", b"bcd\0\0"]]
