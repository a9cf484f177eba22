"""SavedModels of every mode: graphs, variables, signatures, assets; and training on from one."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl
from tensorflow_estimator.python.estimator.canned import saved_model_estimator
from tensorflow_estimator.python.estimator.export import export as receivers

from mtl import compat

tf1 = tf.compat.v1
api = compat.estimator
TAGS = {"train": ["train"], "eval": ["eval"], "infer": ["serve"]}
FILES = ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"]


def _input_fn():
    return {"x": tf.constant([[1], [1]], name="feature_x")}, tf.constant([[1.0], [2.0]])


def _serving():
    return api.export.build_parsing_serving_input_receiver_fn({"x": tf.io.VarLenFeature(tf.int64)})


_supervised = receivers.build_supervised_input_receiver_fn_from_input_fn(_input_fn)


def _receivers(*modes):
    return {mode: _serving() if mode == "infer" else _supervised for mode in modes}


def _model_fn(features, labels, mode):
    """A weight that training counts up, and different graphs in the three modes."""
    weight = tf1.get_variable("weight", initializer=21.0)
    if mode == "infer":
        tf1.get_variable("shared", initializer=36.0)
    else:
        tf1.get_variable("shared", initializer=3.0)
        tf1.get_variable("later", initializer=1.0)
        tf.identity(features["x"], name=f"{mode}_only")
    step = tf.group(tf1.assign_add(tf1.train.get_global_step(), 1), weight.assign_add(3.0))
    return api.EstimatorSpec(
        mode,
        predictions=tf.constant([503.0]),
        loss=tf.constant(106.0),
        train_op=step,
        eval_metric_ops={"error": tf1.metrics.mean(502.0), "op": (tf.constant(0), tf.no_op())},
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    estimator = api.Estimator(_model_fn, str(tmp_path_factory.mktemp("trained")))
    estimator.train(_input_fn, steps=10)
    return estimator


def _load(path, mode, read=()):
    """Names of all ops of a mode's graph, values of variables, and its meta graph."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        meta_graph = tf1.saved_model.load(session, TAGS[mode], path)
        names = {operation.name for operation in graph.get_operations()}
        values = {name: session.run(f"{name}/Read/ReadVariableOp:0") for name in read}
    return names, values, meta_graph


@pytest.mark.medium
@pytest.mark.parametrize(
    "modes",
    [("train",), ("eval",), ("infer",), ("train", "eval"), ("train", "eval", "infer")],
    ids="+".join,
)
def test_every_mode_has_its_own_graph(modes, trained, tmp_path):
    path = trained.experimental_export_all_saved_models(str(tmp_path), _receivers(*modes)).decode()
    assert all((pathlib.Path(path) / name).exists() for name in FILES)
    for mode in modes:
        names, values, meta_graph = _load(path, mode, read=["shared", "weight"])
        assert values == {"shared": 3.0, "weight": 51.0}  # what was trained, not what was written
        assert {name for name in ("train_only", "eval_only") if name in names} == (
            {f"{mode}_only"} - {"infer_only"}
        )
        assert ("later" in names) == ("feature_x" in names) == (mode != "infer")
        assert ("input_example_tensor" in names) == (mode == "infer")
        assert "shared_1" not in names
        (key,) = meta_graph.signature_def
        assert key == ("serving_default" if mode == "infer" else mode)
    for mode in set(TAGS) - set(modes):
        with pytest.raises(RuntimeError, match="could not be found in SavedModel"):
            _load(path, mode)


@pytest.mark.parametrize("mode", TAGS)
def test_one_mode(mode, trained, tmp_path):
    receiver = _receivers(mode)[mode]
    path = trained.export_saved_model(str(tmp_path), receiver, experimental_mode=mode).decode()
    outputs = {name for s in _load(path, mode)[2].signature_def.values() for name in s.outputs}
    metrics = {f"metrics/{m}/{kind}" for m in ("error", "op") for kind in ("value", "update_op")}
    expected = {"train": {"loss", "predictions"} | metrics, "infer": {"output"}}
    assert outputs == expected.get(mode, expected["train"])


def test_an_op_as_metric_is_wrapped(trained, tmp_path):
    path = trained.experimental_export_all_saved_models(str(tmp_path), _receivers("eval"))
    outputs = _load(path.decode(), "eval")[2].signature_def["eval"].outputs
    assert outputs["metrics/op/update_op"].name.startswith("metric_op_wrapper")


@pytest.mark.medium
def test_a_mode_with_variables_of_its_own_is_refused(tmp_path):
    def model_fn(features, labels, mode):
        tf1.get_variable("only_infer" if mode == "infer" else "otherwise", [])
        return _model_fn(features, labels, mode)

    estimator = api.Estimator(model_fn, str(tmp_path / "model"))
    estimator.train(_input_fn, steps=1)
    with pytest.raises(ValueError, match=r"(?s)Could not load all requested variables.*infer"):
        estimator.experimental_export_all_saved_models(
            str(tmp_path / "export"), _receivers("train", "infer")
        )


@pytest.mark.parametrize(
    ("version", "verb", "arguments", "stripped"),
    [
        ("estimator_v1", "export_savedmodel", {"strip_default_attrs": True}, True),
        ("estimator_v1", "export_savedmodel", {"strip_default_attrs": False}, False),
        ("estimator_v1", "export_saved_model", {}, True),
        ("estimator", "export_saved_model", {}, True),
    ],
    ids=["v1 stripped", "v1 whole", "v1", "v2"],
)
def test_default_attributes_are_left_out(version, verb, arguments, stripped, trained, tmp_path):
    estimator = getattr(compat, version).Estimator(_model_fn, trained.model_dir)
    path = getattr(estimator, verb)(str(tmp_path), _serving(), **arguments)
    (meta_graph,) = loader_impl.parse_saved_model(path).meta_graphs
    (node,) = [node for node in meta_graph.graph_def.node if node.name == "weight"]
    assert ("container" not in node.attr) == stripped


def test_the_old_name_is_gone_from_v2(trained):
    with pytest.raises(AttributeError, match="Please use `export_saved_model`"):
        trained.export_savedmodel  # noqa: B018


def test_tables_and_assets_travel_along(tmp_path):
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("emerson\nlake\npalmer\n")

    def model_fn(features, labels, mode):
        rows = tf.lookup.TextFileInitializer(
            str(vocabulary), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, 1
        )
        table = tf1.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                str(vocabulary), tf.string, 0, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
            ),
            num_oov_buckets=1,
        )
        assert rows.key_dtype == tf.string
        words = tf.constant(["lake", "palmer", "other"])
        with tf.device("/gpu:0"):  # soft placement holds for exports, too
            shown = tf.strings.as_string(table.lookup(words))
        return api.EstimatorSpec(
            mode,
            loss=tf.constant(1.0),
            train_op=tf1.assign_add(tf1.train.get_global_step(), 1),
            predictions={"ids": shown},
        )

    estimator = api.Estimator(model_fn, str(tmp_path / "model"))
    estimator.train(_input_fn, steps=1)
    path = estimator.export_saved_model(
        str(tmp_path / "export"), _serving(), assets_extra={"some/where/note.txt": __file__}
    ).decode()
    found = pathlib.Path(path)
    assert (found / "assets" / "vocabulary.txt").read_text() == vocabulary.read_text()
    assert (found / "assets.extra" / "some" / "where" / "note.txt").exists()
    vocabulary.unlink()
    serve = tf.saved_model.load(path).signatures["serving_default"]
    (name,) = serve.structured_input_signature[1]
    ids = serve(**{name: tf.constant([], tf.string)})["ids"]
    np.testing.assert_array_equal(ids, [b"1", b"2", b"3"])


@pytest.mark.medium
def test_raw_tensors_and_int_keys(tmp_path):
    def model_fn(features, labels, mode):
        values = features if isinstance(features, tf.Tensor) else features["a"] + features[42]
        return api.EstimatorSpec(
            mode,
            loss=tf.reduce_sum(values),
            train_op=tf1.assign_add(tf1.train.get_global_step(), 1),
            predictions=values * 2,
        )

    def one():
        tensor = tf1.placeholder(tf.float32, [None])
        return api.export.TensorServingInputReceiver(tensor, tensor)

    def several():
        tensors = {key: tf1.placeholder(tf.float32, [None]) for key in ("a", 42)}
        return api.export.ServingInputReceiver(tensors, {"a": tensors["a"], "b": tensors[42]})

    ones = tf.constant([1.0])
    for input_fn, receiver, inputs in [
        (lambda: (tf.constant([1.0]), None), one, {"input": ones}),
        (
            lambda: ({"a": tf.constant([1.0]), 42: tf.constant([0.0])}, None),
            several,
            {"a": ones, "b": ones - 1},
        ),
    ]:
        estimator = api.Estimator(model_fn, str(tmp_path / "model" / receiver.__name__))
        estimator.train(input_fn, steps=1)
        path = estimator.export_saved_model(str(tmp_path / receiver.__name__), receiver)
        serve = tf.saved_model.load(path.decode()).signatures["serving_default"]
        np.testing.assert_array_equal(serve(**inputs)["output"], [2.0])


def test_exports_without_training_of_its_own(trained, tmp_path):
    warm = api.Estimator(_model_fn, str(tmp_path / "warm"), warm_start_from=trained.model_dir)
    path = warm.export_saved_model(str(tmp_path / "export"), _serving()).decode()
    assert tf.train.load_variable(f"{path}/variables/variables", "weight") == 51.0
    assert _load(path, "infer", read=["weight"])[1] == {"weight": 51.0}


@pytest.mark.medium
@pytest.mark.parametrize("verb", ["train", "evaluate", "predict"])
def test_warm_start_from_a_saved_model(verb, trained, tmp_path):
    path = trained.export_saved_model(str(tmp_path / "export"), _serving()).decode()

    def model_fn(features, labels, mode):
        weight = tf1.get_variable("weight", initializer=36.0)
        return api.EstimatorSpec(
            mode,
            loss=weight + 0,
            predictions=weight[tf.newaxis] + 0,
            train_op=tf1.assign_add(tf1.train.get_global_step(), 1),
        )

    estimator = api.Estimator(model_fn, str(tmp_path / "model"), warm_start_from=path)
    if verb == "train":
        estimator.train(_input_fn, steps=5)
        assert estimator.get_variable_value("weight") == 51.0
        assert estimator.get_variable_value("global_step") == 5
    elif verb == "evaluate":
        assert estimator.evaluate(_input_fn, steps=1)["loss"] == 51.0
    else:
        assert next(estimator.predict(_input_fn)) == 51.0


@pytest.mark.medium
def test_local_variables_start_as_the_scaffold_says(tmp_path):
    def model_fn(features, labels, mode):
        local = tf1.get_variable(
            "local", initializer=1, collections=[tf1.GraphKeys.LOCAL_VARIABLES], trainable=False
        )
        scaffold = None
        if mode == "infer":
            with tf.control_dependencies([tf1.local_variables_initializer()]):
                scaffold = tf1.train.Scaffold(local_init_op=local.assign(12345).op)
        return api.EstimatorSpec(
            mode,
            loss=tf.constant(0.0),
            predictions=tf.constant([1.0]),
            train_op=tf1.assign_add(tf1.train.get_global_step(), 1),
            scaffold=scaffold,
        )

    estimator = api.Estimator(model_fn, str(tmp_path / "model"))
    estimator.train(_input_fn, steps=1)
    path = estimator.experimental_export_all_saved_models(
        str(tmp_path / "export"), _receivers("train", "infer")
    ).decode()
    for mode, value in {"train": 1, "infer": 12345}.items():
        assert _load(path, mode, read=["local"])[1] == {"local": value}


def _again(path, model_dir):
    return saved_model_estimator.SavedModelEstimator(path, str(model_dir))


def _predict_input_fn():
    return {"examples": tf.constant([], tf.string)}


@pytest.mark.medium
def test_training_on_from_a_saved_model(trained, tmp_path):
    with tf.Graph().as_default():
        raw = {"x": tf1.placeholder(tf.int32, [None, 1])}
        serving = api.export.build_raw_serving_input_receiver_fn(raw)
    modes = _receivers("train", "eval") | {"infer": serving}
    path = trained.experimental_export_all_saved_models(str(tmp_path / "one"), modes).decode()
    scores = {"loss": 106.0, "metrics/error": 502.0, "metrics/op": 0, "global_step": 10}
    for steps, folder in ((3, "two"), (7, "three")):
        again = _again(path, tmp_path / f"model_{folder}")
        assert again.evaluate(_input_fn, steps=5) == scores
        assert next(again.predict(lambda: _input_fn()[0])) == {"output": 503.0}
        again.train(_input_fn, steps=steps)
        scores["global_step"] += steps
        assert again.evaluate(_input_fn, steps=1) == scores
        assert again.get_variable_value("weight") == 21.0 + 3 * scores["global_step"]
        path = again.experimental_export_all_saved_models(str(tmp_path / folder), modes).decode()


@pytest.mark.medium
@pytest.mark.parametrize("modes", [("eval",), ("train", "infer")], ids="+".join)
def test_modes_that_were_not_exported(modes, trained, tmp_path):
    path = trained.experimental_export_all_saved_models(str(tmp_path / "one"), _receivers(*modes))
    again = _again(path.decode(), tmp_path / "model")
    for mode, call in {
        "train": lambda: again.train(_input_fn, steps=1),
        "eval": lambda: again.evaluate(_input_fn, steps=1),
        "infer": lambda: next(again.predict(_predict_input_fn)),
    }.items():
        if mode in modes:
            call()
        else:
            with pytest.raises(RuntimeError, match=f"{mode} mode is not available"):
                call()


def test_wrong_inputs_to_a_saved_model(trained, tmp_path):
    path = trained.experimental_export_all_saved_models(str(tmp_path / "one"), _receivers("train"))
    again = _again(path.decode(), tmp_path / "model")
    labels = [[1.0], [2.0]]

    def with_step():
        tf1.train.get_or_create_global_step()
        return _input_fn()

    for input_fn, kind, message in [
        (lambda: ({"x": tf.constant([1, 2])}, tf.constant(labels)), ValueError, "Expected shape"),
        (lambda: ({"x": tf.constant(labels)}, tf.constant(labels)), ValueError, "Expected dtype"),
        (with_step, RuntimeError, "must not contain a global step tensor"),
    ]:
        with pytest.raises(kind, match=message):
            again.train(input_fn, steps=1)
