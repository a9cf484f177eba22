"""TensorFlow Serving's REST: the predictions of the export, and its format of JSON."""

import base64
import json
import re
import types

import numpy as np
import pytest

from mtl import checks
from mtl.deferred import tf
from mtl.tools.serve import models, rest, tensors
from tests.tools.serve.conftest import NAME

pytestmark = pytest.mark.medium
B64 = {"b64": ""}


def as_json(array):
    """Values as a client writes them."""
    if array.dtype == object:
        return (
            [as_json(row) if row.ndim else row.item() for row in array]
            if array.ndim > 1
            else [value.decode() for value in array]
        )
    return array.tolist()


def as_rows(inputs):
    names, columns = list(inputs), map(as_json, inputs.values())
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def assert_equal(found, expected):
    """Values of JSON are the array, to the bit of its type."""
    if expected.dtype == object:
        assert found == as_json(expected)
    else:
        array = np.array(found)
        assert array.dtype.kind == expected.dtype.kind
        np.testing.assert_array_equal(array.astype(expected.dtype), expected)


@pytest.mark.parametrize("signature", ["raw", "raw/lean", "raw/kind", "raw/price"])
def test_rows_and_columns_give_the_predictions_of_the_export(signature, served, rows, expected):
    inputs = rows[signature]
    wanted = expected(signature, inputs)
    columns = {name: as_json(value) for name, value in inputs.items()}
    reply = served.predict(signature_name=signature, inputs=columns)
    assert reply.status == 200 and reply.headers["Content-Type"].startswith("application/json")
    assert reply.json["outputs"].keys() == wanted.keys()
    for name, value in wanted.items():
        assert_equal(reply.json["outputs"][name], value)
    reply = served.predict(signature_name=signature, instances=as_rows(inputs))
    predictions = reply.json["predictions"]
    assert len(predictions) == 32 and predictions[0].keys() == wanted.keys()
    for name, value in wanted.items():
        assert_equal([row[name] for row in predictions], value)


def test_serialized_examples_as_base64(served, rows, expected):
    examples = rows["serving_default"]["examples"]
    encoded = [{"b64": base64.b64encode(example).decode()} for example in examples]
    wanted = expected("serving_default", {"examples": examples})
    named = [{"examples": value} for value in encoded]
    for body in ({"inputs": encoded}, {"inputs": {"examples": encoded}}):
        found = served.predict(**body).json["outputs"]
        assert_equal(found["price/value"], wanted["price/value"])
    for instances in (encoded, named):
        found = served.predict(instances=instances).json["predictions"]
        assert_equal([row["price/value"] for row in found], wanted["price/value"])


def test_lists_in_rows_bring_their_lengths(served, rows, expected):
    inputs = {name: value[:5] for name, value in rows["raw"].items()}
    wanted = expected("raw", inputs)
    instances = as_rows(inputs)
    lengths = [row.pop("tags/length") for row in instances]
    assert len(set(lengths)) > 1
    for row, length in zip(instances, lengths, strict=True):
        row["tags"] = row["tags"][:length]
    found = served.predict(signature_name="raw", instances=instances).json["predictions"]
    assert_equal([row["price/value"] for row in found], wanted["price/value"])


@pytest.mark.parametrize(
    "dtype, lists",
    [("bool", [[True, False], [True]]), ("string", [["a"], []]), ("float32", [[], [0.5, 2]])],
)
def test_lists_of_any_type_may_differ_in_length(dtype, lists):
    inputs = {
        "seen": tensors.Tensor(tf.as_dtype(dtype), (None, None)),
        "seen/length": tensors.Tensor(tf.int64, (None,)),
    }
    signature = models.Signature("raw", models.PREDICT, inputs, {}, {})
    model = types.SimpleNamespace(find_signature=lambda name: signature)
    document = {"instances": [{"seen": values} for values in lists]}
    request = rest.read_predict(model, document, most_rows=8)
    lengths = request.inputs["seen/length"]
    assert lengths.tolist() == list(map(len, lists))
    for row, length, values in zip(request.inputs["seen"], lengths, lists, strict=True):
        texts = [text.encode() if isinstance(text, str) else text for text in values]
        assert row[:length].tolist() == texts


def test_inputs_with_a_default_may_be_left_out(served, rows, expected):
    inputs = {n: v[:3] for n, v in rows["raw"].items() if n not in ("word", "tags", "tags/length")}
    wanted = expected("raw", inputs)["price/value"]
    columns = {name: as_json(value) for name, value in inputs.items()}
    for more in ({}, {"word": []}, {"tags": [], "tags/length": []}):
        if "tags" in more:  # [] is not a list of lists.
            assert (
                "input 'tags' must have the shape [rows, any]"
                in served.predict(signature_name="raw", inputs=columns | more).error
            )
            continue
        found = served.predict(signature_name="raw", inputs=columns | more).json["outputs"]
        assert_equal(found["price/value"], wanted)
    found = served.predict(signature_name="raw", instances=as_rows(inputs)).json["predictions"]
    assert_equal([row["price/value"] for row in found], wanted)


EXAMPLE = {"id": 5, "x": [1, 2.5, -3], "word": "red", "flag": True, "tags": ["green"]}
EXAMPLE["pixels"] = [[[7]] * 4] * 4


@pytest.mark.parametrize("flag", [True, 1])
def test_classify_and_regress(flag, served, expected):
    example = {**EXAMPLE, "flag": flag}
    columns = {name: [value] for name, value in EXAMPLE.items()}
    columns |= {"tags": [["green"]], "tags/length": [1]}
    raw = served.predict(signature_name="raw", inputs=columns).json["outputs"]
    body = {"signature_name": "kind/classify", "examples": [example]}
    ((pairs,),) = [served.ask(f"/v1/models/{NAME}:classify", body).json["results"]]
    assert [label for label, _ in pairs] == ["cat", "dog", "bird"]
    np.testing.assert_allclose([score for _, score in pairs], raw["kind/probabilities"][0], 1e-6)
    split = {"context": {"word": "red"}, "examples": [{**example}]}
    del split["examples"][0]["word"]
    body = {"signature_name": "price/regress", **split}
    (value,) = served.ask(f"/v1/models/{NAME}/versions/7:regress", body).json["results"]
    np.testing.assert_allclose(value, raw["price/value"][0], 1e-6)


def test_status_and_metadata(served):
    (state,) = served.ask(f"/v1/models/{NAME}").json["model_version_status"]
    ok = {"error_code": "OK", "error_message": ""}
    assert state == {"version": "7", "state": "AVAILABLE", "status": ok}
    assert served.ask(f"/v1/models/{NAME}/versions/7").json["model_version_status"] == [state]
    told = served.ask(f"/v1/models/{NAME}/metadata").json
    assert told["model_spec"] == {"name": NAME, "signature_name": "", "version": "7"}
    signatures = told["metadata"]["signature_def"]["signature_def"]
    tags = signatures["raw"]["inputs"]["tags"]
    assert tags["dtype"] == "DT_STRING" and tags["tensor_shape"]["unknown_rank"] is False
    assert [axis["size"] for axis in tags["tensor_shape"]["dim"]] == ["-1", "-1"]
    assert signatures["kind/classify"]["method_name"] == "tensorflow/serving/classify"


def columns_of(rows, count=2, **changes):
    inputs = {name: as_json(value[:count]) for name, value in rows["raw"].items()}
    return {**inputs, **changes}


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"wrod": ["a", "b"]}, "an input of 'raw' must be one of .*'wrod'. Did you mean 'word'"),
        ({"x": [["1", 2, 3], [4, 5, 6]]}, r"input 'x' at \[0, 0\] must be float32, got '1'"),
        ({"x": [[1, 2, 3], [4, None, 6]]}, r"input 'x' at \[1, 1\] must be float32, got None"),
        ({"x": [[True, 2, 3], [4, 5, 6]]}, r"input 'x' at \[0, 0\] must be float32, got True"),
        ({"x": [[1, 2, 3], [4, 5]]}, "input 'x' must hold lists of the same length"),
        ({"x": [[1, 2, 3], 4]}, "input 'x' must hold lists of the same length"),
        ({"x": [[1, 2], [3, 4]]}, r"input 'x' must have the shape \[rows, 3\], got \[2, 2\]"),
        ({"x": [1, 2, 3]}, r"input 'x' must have the shape \[rows, 3\], got \[3\]"),
        ({"x": 3}, r"input 'x' must have the shape \[rows, 3\], got \[\]"),
        ({"x": [[1, 2, 3]]}, "input 'x' must have 2 rows, like other inputs, got 1"),
        ({"x": [[1e39, 2, 3], [4, 5, 6]]}, r"input 'x' must fit into float32, got 1e\+39"),
        ({"x": [[16777217, 2, 3]] * 2}, "input 'x' must fit into float32 without loss"),
        ({"x": [[10**400, 2, 3]] * 2}, "input 'x' must fit into float32, got 1"),
        ({"id": [1.0, 2]}, r"input 'id' at \[0\] must be int64, got 1.0"),
        ({"id": [2**63, 2]}, "input 'id' must fit into int64, got 9223372036854775808"),
        ({"pixels": [[[[256]] * 4] * 4] * 2}, "input 'pixels' must fit into uint8, got 256"),
        ({"pixels": [[[[-1]] * 4] * 4] * 2}, "input 'pixels' must fit into uint8, got -1"),
        ({"flag": [1, 0]}, r"input 'flag' at \[0\] must be bool, got 1"),
        ({"word": [1, "a"]}, r"input 'word' at \[0\] must be a text or"),
        ({"word": [{"b65": "eA=="}, "a"]}, "input 'word' must be a text or"),
        ({"word": [{"b64": "e"}, "a"]}, "input 'word' must be base64, got 'e'"),
        ({"word": ["\ud800", "a"]}, "input 'word' must be text, without half of a surrogate"),
        ({"tags/length": [9, 0]}, r"input 'tags/length' must be from 0 to 3, .* got \[9\]"),
        ({"tags/length": [-1, 0]}, "input 'tags/length' must be from 0 to 3, the number"),
        ({"x": []}, "input 'x' must have"),
    ],
)
def test_wrong_values_are_named(changes, says, served, rows):
    reply = served.predict(signature_name="raw", inputs=columns_of(rows, **changes))
    assert reply.status == 400
    assert re.search(says, reply.error) and "\n" not in reply.error, reply.error


@pytest.mark.parametrize(
    "body, says",
    [
        (b"", "the request must be a JSON object"),
        (b"[1]", "the request must be a JSON object, got [1]"),
        (b"{", "the request must be a JSON object"),
        (b'{"instances": [1,]}', "at character"),
        (b'{"a": "\xff"}', "the request must be UTF-8"),
        (b"[" * 100_000, "lists are nested too deeply"),
        (b'{"instances": ' + b"1" * 10_000 + b"}", "the request must be a JSON object"),
        ('{"instances": [1]}'.encode("utf-16"), "the request must be UTF-8"),
        (b"{}", "the request must have one of the keys 'instances' and 'inputs', got []"),
        (b'{"instance": [1]}', "Did you mean 'instances'?"),
        (b'{"instances": [1], "inputs": [1]}', "got ['instances', 'inputs']."),
        (b'{"instances": []}', "'instances' must be a list of at least one row"),
        (b'{"instances": {"x": 1}}', "'instances' must be a list of at least one row"),
        (b'{"signature_name": 3, "instances": [1]}', "'signature_name' must be a text"),
        (b'{"signature_name": "rav", "instances": [1]}', "Did you mean 'raw'?"),
        (b'{"signature_name": "raw", "instances": [1]}', "must hold objects, as 'raw' has several"),
        (b'{"signature_name": "raw", "inputs": [1]}', "must hold an object, as 'raw' has several"),
        (b'{"signature_name": "raw", "instances": [{}]}', "needs the inputs"),
        (b'{"signature_name": "raw", "instances": [{"id": 1}]}', "needs the inputs"),
        (b'{"signature_name": "raw", "instances": [{"id": 1}, 2]}', "row 1 must have the inputs"),
        (b'{"signature_name": "raw", "instances": [{"id": 1}, {"x": 2}]}', "row 1 must have"),
        (b'{"signature_name": "raw", "instances": [{"tags": "a"}]}', "row 0 must be a list"),
        (b'{"signature_name": "raw", "inputs": {"tags": [["a"]]}}', "needs the inputs"),
        (b'{"instances": [{"b64": "/w=="}]}', "Could not parse example"),
        (b'{"instances": ["\\u00ff"]}', "Could not parse example"),
    ],
)
def test_wrong_requests_get_one_line(body, says, served):
    reply = served.ask(f"/v1/models/{NAME}:predict", body)
    assert reply.status == 400 and says in reply.error and "\n" not in reply.error, reply.error


def test_lists_without_their_lengths_are_refused(served, rows):
    columns = columns_of(rows, count=4)
    del columns["tags/length"]
    reply = served.predict(signature_name="raw", inputs=columns)
    assert reply.status == 400 and "input 'tags' must come with 'tags/length'" in reply.error


@pytest.mark.parametrize(
    "method, body, says",
    [
        ("classify", {}, "the signature of classify must be one of kind/classify, rich/classify"),
        ("classify", {"signature_name": "kind/clasify"}, "Did you mean 'kind/classify'?"),
        ("regress", {"signature_name": "price/regress"}, "'examples' must be a list of at least"),
        (
            "regress",
            {"signature_name": "price/regress", "examples": [{"wrod": "a"}]},
            "a feature of example 0 must be one of flag, id, pixels, tags, word, x, got 'wrod'",
        ),
        (
            "regress",
            {"signature_name": "price/regress", "examples": [{"x": [1, 2]}]},
            "feature 'x' of example 0 must hold 3 values, got 2",
        ),
        (
            "regress",
            {"signature_name": "price/regress", "examples": [{}], "context": {"id": "a"}},
            "feature 'id' of example 0 at [0] must be int64, got 'a'",
        ),
        (
            "regress",
            {"signature_name": "price/regress", "examples": [{"id": 1}], "context": {"id": 2}},
            "example 0 must hold no feature of 'context'",
        ),
    ],
)
def test_wrong_examples_are_named(method, body, says, served):
    reply = served.ask(f"/v1/models/{NAME}:{method}", body)
    assert reply.status == 400 and says in reply.error, reply.error


def test_a_name_that_is_not_text_is_refused_without_a_spec():
    model = types.SimpleNamespace(spec=None, find_signature=lambda name, method: None)
    document = {"examples": [{"\ud800": 1}]}
    with pytest.raises(checks.UserError, match="a name in example 0 must be text, without half"):
        rest.read_examples(model, document, "regress", 10)


@pytest.mark.parametrize(
    "path, body, status, says",
    [
        ("/v1/models/shpo", None, 404, "no model 'shpo' is served, only 'shop'. Did you mean"),
        ("/v1/models/shop/versions/8", None, 404, "version 8 is not loaded, only 7"),
        ("/v1/models/shop/versions/8/metadata", None, 404, "version 8 is not loaded"),
        ("/v1/models/shop/versions/x", None, 400, "a version must be a number, got 'x'"),
        ("/v1/models/shop/versions/%C2%B2:predict", {}, 400, "a version must be a number"),
        ("/v1/models/shop/versions/8:predict", {}, 404, "version 8 is not loaded"),
        ("/v1/models/shop/labels/stable", None, 404, "labels such as 'stable' need TensorFlow"),
        ("/v1/model/shop:predict", {}, 404, "Did you mean '/v1/models/shop:predict'?"),
        ("/v1/models/shop:predit", {}, 404, "Did you mean '/v1/models/shop:predict'?"),
        ("/v1/models/shop:predict", None, 405, "/v1/models/shop:predict takes POST, got GET"),
        ("/v2/models/shpo", None, 404, "Did you mean 'shop'?"),
        ("/v2/models/shop/versions/8/ready", None, 404, "version 8 is not loaded"),
    ],
)
def test_wrong_paths_get_the_right_status(path, body, status, says, served):
    reply = served.ask(path, body)
    assert reply.status == status and says in reply.error, reply


def test_nan_and_infinity_are_written_as_in_tensorflow_serving():
    values = np.float32([np.nan, np.inf, -np.inf, 1, 0.2, 1e10, 1e-7, -0.0, 16777216, 3.4e38])
    texts = ["NaN", "Infinity", "-Infinity", "1.0", "0.2"]
    # Few values and many take different ways.
    for found in (tensors.write_values(values), tensors.write_values(np.tile(values, 20))[:10]):
        assert found[:5] == texts and all("." in text or "e" in text for text in found[3:])
        read = np.float32(json.loads(f"[{', '.join(found)}]"))
        np.testing.assert_array_equal(read, values)
        assert np.signbit(read[7])


def test_nan_is_taken(served, rows, expected):
    inputs = {name: value[:2] for name, value in rows["raw"].items()}
    inputs["x"] = np.float32([[np.nan, 1, 2], [np.inf, -np.inf, 2]])
    columns = columns_of(rows, x=inputs["x"].tolist())
    reply = served.predict(signature_name="raw", inputs=columns)
    assert reply.status == 200
    found = np.float32(reply.json["outputs"]["price/value"])
    np.testing.assert_array_equal(found, expected("raw", inputs)["price/value"])


def test_every_float32_is_read_back():
    drawn = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    texts = tensors.write_values(drawn[:10_000])
    texts += [
        text for part in drawn[10_000:].reshape(-1, 50) for text in tensors.write_values(part)
    ]
    np.testing.assert_array_equal(np.float32(json.loads(f"[{', '.join(texts)}]")), drawn)


def test_text_that_is_no_utf8_becomes_base64():
    array = np.array([b"a", b"\xff", "é".encode()], object)
    assert tensors.write_rows(array, False) == ['"a"', '{"b64": "/w=="}', '"é"']
    assert tensors.write_rows(array[:1], True) == ['{"b64": "YQ=="}']
