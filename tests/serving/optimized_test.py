"""Optimised exports predict what plain ones do, with less."""

import os

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, heads, networks, serving, spec
from mtl.serving import folding, graphs, loaded, rows, weights
from mtl.tf_internals import saved_model
from tests.serving import exports

tf1 = tf.compat.v1


def run(graph_def, feed, name):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        return session.run(f"{name}:0", {f"{key}:0": value for key, value in feed.items()})


def ops(graph_def):
    return [node.op for node in graph_def.node]


def normalised(product, channels, bias, fused, random):
    """The output of batch norm behind a layer, with drawn parameters."""
    parameters = [random.uniform(0.5, 2, channels).astype(np.float32) for _ in range(4)]
    if bias:
        product += random.normal(size=channels).astype(np.float32)
    if fused:
        return tf1.nn.fused_batch_norm(product, *parameters, epsilon=0.01, is_training=False)[0]
    gamma, beta, mean, variance = parameters
    return tf.nn.batch_normalization(product, mean, variance, beta, gamma, 0.01)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer", ["dense", "conv", "fused conv"])
def test_batch_norm_is_drawn_into_the_layer_before(layer, bias):
    random = np.random.default_rng(0)
    shape = (5, 4) if layer == "dense" else (5, 6, 6, 4)
    kernel = (4, 3) if layer == "dense" else (3, 3, 4, 3)
    inputs = random.normal(size=shape).astype(np.float32)
    with tf.Graph().as_default() as built:
        x = tf1.placeholder(tf.float32, [None, *shape[1:]], name="x")
        weight = random.normal(size=kernel).astype(np.float32)
        product = x @ weight if layer == "dense" else tf.nn.conv2d(x, weight, 1, "SAME")
        norm = normalised(product, 3, bias, layer.startswith("fused"), random)
        tf.nn.relu(norm, name="y")
    plain = built.as_graph_def()
    graph = graphs.Graph(built.as_graph_def())
    folding.fold_constants(graph)
    folded = folding.fold_scales(graph, ["y"]).pruned(["y"])
    product_op = "MatMul" if layer == "dense" else "Conv2D"
    assert sorted(op for op in ops(folded) if op != "Const") == sorted(
        ["Placeholder", product_op, "AddV2", "Relu"]
    )
    wanted = run(plain, {"x": inputs}, "y")
    np.testing.assert_allclose(run(folded, {"x": inputs}, "y"), wanted, rtol=1e-5, atol=1e-5)
    assert np.ptp(wanted) > 1


def test_a_layer_whose_output_others_read_stays():
    with tf.Graph().as_default() as built:
        x = tf1.placeholder(tf.float32, [None, 2], name="x")
        product = x @ np.float32([[1, 2], [3, 4]])
        tf.add(product * np.float32([5, 6]), tf.nn.relu(product), name="y")
    folded = folding.fold_scales(graphs.Graph(built.as_graph_def()), ["y"]).pruned(["y"])
    assert ops(folded).count("MatMul") == 1
    found = run(folded, {"x": np.float32([[1, -1]])}, "y")
    np.testing.assert_array_equal(found, [[-10, -12]])


@pytest.mark.parametrize("factor", ["transposed", "rows"])
def test_what_is_not_one_factor_a_channel_stays(factor):
    with tf.Graph().as_default() as built:
        x = tf1.placeholder(tf.float32, [None, 2], name="x")
        weight = np.float32([[1, 2], [3, 4]])
        product = tf.linalg.matmul(x, weight, transpose_b=factor == "transposed")
        by = np.float32([5, 6]) if factor == "transposed" else np.float32([[5, 5], [7, 7]])
        tf.multiply(product, by, name="y")
    folded = folding.fold_scales(graphs.Graph(built.as_graph_def()), ["y"]).pruned(["y"])
    given = {"x": np.float32([[1, -1], [2, 0]])}
    np.testing.assert_array_equal(run(folded, given, "y"), run(built.as_graph_def(), given, "y"))


def test_constants_are_computed_once_where_that_takes_no_more_room():
    with tf.Graph().as_default() as built:
        x = tf1.placeholder(tf.float32, [], name="x")
        small = tf.sqrt(tf.constant([4.0, 9.0])) + 1
        large = tf.fill([100, 100], 2.0)
        noise = tf.random.uniform([2])
        tf.add(x * small, tf.reduce_sum(large) + 0 * tf.reduce_sum(noise), name="y")
    graph = graphs.Graph(built.as_graph_def())
    folding.fold_constants(graph)
    found = graph.pruned(["y"])
    assert "Sqrt" not in ops(found)
    assert "RandomUniform" in ops(found)
    assert max(node.ByteSize() for node in found.node) < 1000
    np.testing.assert_allclose(run(found, {"x": 1.0}, "y"), [20003, 20004])


@pytest.mark.parametrize(("kind", "error"), [("float16", 2**-11), ("int8", 1 / 254)])
def test_weights_are_off_by_half_a_step_at_most(kind, error):
    random = np.random.default_rng(0)
    table, kernel = random.normal(size=(2, 64, 32)).astype(np.float32) * np.float32(3)
    with tf.Graph().as_default() as built:
        ids = tf1.placeholder(tf.int64, [None], name="ids")
        rows_of = tf.gather(tf.constant(table, name="table"), ids)
        tf.identity(rows_of, name="looked_up")
        tf.linalg.matmul(np.eye(64, dtype=np.float32), tf.constant(kernel), name="product")
    graph = graphs.Graph(built.as_graph_def())
    weights.pack_weights(graph, kind)
    packed = graph.pruned(["looked_up", "product"])
    some = np.array([3, 0, 63])
    for name, wanted in (("looked_up", table[some]), ("product", kernel)):
        value = run(packed, {"ids": some}, name)
        whole = table if name == "looked_up" else kernel
        scale = np.abs(whole).max(axis=0) if kind == "int8" else np.abs(wanted)
        assert np.all(np.abs(value - wanted) <= scale * error * 1.001)
        assert np.abs(value - wanted).max() > 0
    stored = {"float16": tf.float16, "int8": tf.int8}[kind]
    (lookup,) = [node for node in packed.node if node.op == "GatherV2"]
    assert lookup.attr["Tparams"].type == stored


def test_the_step_of_a_channel_goes_with_it_where_channels_are_picked():
    """A step belongs to an index of the last axis: picked channels have other steps."""
    kernel = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    kernel *= np.logspace(-3, 3, 32, dtype=np.float32)
    with tf.Graph().as_default() as built:
        channels = tf1.placeholder(tf.int64, [None], name="channels")
        tf.gather(tf.constant(kernel, name="kernel"), channels, axis=1, name="picked")
    graph = graphs.Graph(built.as_graph_def())
    weights.pack_weights(graph, "int8")
    packed = graph.pruned(["picked"])
    some = np.arange(31, -1, -1)
    off = np.abs(run(packed, {"channels": some}, "picked") - kernel[:, some])
    assert np.all(off <= np.abs(kernel).max(axis=0)[some] * 1.001 / 254)
    assert tf.int8 in [node.attr["dtype"].type for node in packed.node if node.op == "Const"]


# Whole exports.


def nodes(path):
    graph_def = saved_model.read(path).graph_def
    return [node.op for node in graph_def.node]


def size(path):
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
        if "assets" not in folder
    )


@pytest.fixture(scope="module")
def plain(export):
    return export


@pytest.fixture(scope="module")
def optimized(make, tmp_path_factory):
    made = make(optimized=serving.Optimized())
    return made, made.export(tmp_path_factory.mktemp("optimized"))


@pytest.mark.medium
def test_an_optimised_export_serves_what_the_estimator_predicts(optimized):
    made, path = optimized
    held_out = rows.read_rows(made.dataset, made.spec, 100)
    with loaded.load_export(path) as model:
        found = model(["serving_default"], held_out.examples)
        raw = model(["raw"], held_out.raw())
    for name, wanted in made.predictions().items():
        for value in (found["serving_default", name], raw["raw", name]):
            if wanted.dtype.kind == "f":
                np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(value, wanted)


@pytest.mark.medium
def test_nothing_but_inference_is_left(optimized, plain):
    _, optimized = optimized
    assert "Rsqrt" in nodes(plain) and "VarHandleOp" in nodes(plain)
    found = nodes(optimized)
    assert len(found) < len(nodes(plain))
    for op in found:
        assert not any(
            word in op for word in ("Var", "Assign", "Restore", "Save", "Rsqrt", "Random")
        )
    assert not os.path.exists(os.path.join(optimized, "variables"))
    assert set(saved_model.read(optimized).signature_def) == set(
        saved_model.read(plain).signature_def
    )


@pytest.mark.medium
def test_outputs_that_no_signature_has_are_gone(make, tmp_path):
    path = make(
        optimized=serving.Optimized(),
        signatures=["^lean$"],
        outputs=["price/value"],
        passthrough=[],
    ).export(tmp_path)
    assert set(saved_model.read(path).signature_def) == {"serving_default", "lean"}
    graph = (tmp_path / os.path.basename(path) / "saved_model.pb").read_bytes()
    assert b"head/price/" in graph and b"head/kind/" not in graph


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "at_most"), [("float16", 0.6), ("int8", 0.35)])
def test_packed_weights_take_less_room(kind, at_most, tmp_path):
    random = np.random.default_rng(0)

    def untrained(optimized):
        return exports.Untrained(
            directory=str(tmp_path / "run"),
            columns=[
                features.Numeric(names=["x"], normalization="none"),
                features.Hashed(names=["word"], num_buckets=2000, dimension=32),
            ],
            network=networks.SharedBottom(trunk=networks.MLP(layers=[256, 128])),
            heads=[heads.Regression(name="price")],
            spec=spec.Spec(features={"x": ("float32", (8,)), "word": "string"}, labels={}),
            values={
                "x": random.normal(size=(30, 8)).astype(np.float32),
                "word": np.array([b"%d" % i for i in range(30)], object),
            },
            settings=serving.Serving(optimized=optimized),
        )

    plain = untrained(None).export(tmp_path / "plain")
    packed = untrained(serving.Optimized(weights=kind)).export(tmp_path / kind)
    assert size(packed) < at_most * size(plain)
    with open(os.path.join(packed, "assets.extra", "model.json")) as file:
        assert '"difference"' in file.read()


@pytest.mark.medium
def test_too_tight_a_tolerance_refuses_the_export(make, tmp_path):
    with pytest.raises(checks.UserError, match="is off by .* but at most 1e-09 is allowed"):
        make(optimized=serving.Optimized(tolerance=1e-9)).export(tmp_path)
    assert os.listdir(tmp_path) == []


def test_settings():
    with pytest.raises(checks.UserError, match=r"^Optimized\.weights must be .* mean 'float16'\?$"):
        serving.Optimized(weights="float61")
    with pytest.raises(checks.UserError, match=r"^Serving\.optimized must be a part such as"):
        serving.Serving(optimized=serving.Optimized)
