"""Tensors of the graphs of a run for chosen rows, and its layers, against NumPy and predictions."""

from xml.etree import ElementTree

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, verbs
from mtl import layers as layers_lib
from mtl.tools.debugging import inspection, layers, layers_picture, values
from mtl.tools.drawing import texts
from tests import tiny

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the tiny experiment, after 4 steps."""
    model_dir = str(tmp_path_factory.mktemp("inspected") / "run")
    made = tiny.make(train_steps=4)
    tiny.train(made, model_dir)
    return made, model_dir


def read(run, name, mode="eval", limit=5, split="test"):
    made, model_dir = run
    batch = inspection.read_split(made, split, limit)
    with inspection.open_graph(made, model_dir, batch, mode) as graph:
        return graph.read(name)


def test_what_is_shown_is_what_is_predicted(run):
    predicted = [row for row, _ in zip(verbs.predict(*run), range(5), strict=False)]
    for mode in ("eval", "predict"):
        name, logits = read(run, "head/sign", mode)
        assert name.startswith("head/sign/") and logits.shape == (5, 1)
        expected = [row["sign/probability"] for row in predicted]
        np.testing.assert_allclose(1 / (1 + np.exp(-logits[:, 0])), expected, rtol=1e-5)


def test_a_training_graph_normalises_by_the_rows_that_it_is_given(run):
    name, norm = read(run, "network/trunk/hidden_0_norm", "train", limit=12, split="train")
    saved = tiny.variables(run[1])
    gamma, beta = (saved[f"network/trunk/hidden_0_norm/{n}"] for n in ("gamma", "beta"))
    np.testing.assert_allclose(norm.mean(0), beta, atol=1e-5)
    np.testing.assert_allclose(norm.std(0), np.abs(gamma), rtol=0.05)
    _, kernel = read(run, "network/trunk/hidden_0/kernel", "train")
    np.testing.assert_array_equal(kernel, saved["network/trunk/hidden_0/kernel"])


def test_rows_of_a_file_are_those_of_the_split(run, tmp_path):
    path = tmp_path / "rows.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in tiny.examples("test")[:5]:
            writer.write(example)
    made, model_dir = run
    for mode in ("predict", "eval"):  # Labels that are absent are missing.
        batch = inspection.read_file(made, str(path), 5, with_labels=mode == "eval")
        with inspection.open_graph(made, model_dir, batch, mode) as graph:
            _, found = graph.read("network/trunk")
        np.testing.assert_allclose(found, read(run, "network/trunk")[1], rtol=1e-6)
    batch = inspection.read_file(made, str(path), 2, with_labels=False)
    with inspection.open_graph(made, model_dir, batch, "predict") as graph:
        names = [name for name, _, _ in graph.list_tensors("head/*/MatMul")]
    assert names == [f"head/{task}/logits/MatMul:0" for task in tiny.LABELS]


def test_a_tensor_that_is_not_there(run):
    name = "network/trunk/hidden_0/MatMul:7"
    with pytest.raises(checks.UserError, match=f"got '{name}'. Did you mean"):
        read(run, name)


def test_a_summary_before_anything_trains(run, tmp_path):
    made, model_dir = run
    tree = inspection.summarize_model(made, str(tmp_path / "none"))
    assert tree == inspection.summarize_model(made, model_dir)
    text = layers.draw_tree(tree, made.model.tasks)
    assert not (tmp_path / "none").exists()
    lines = {line.split("  ")[0].strip() or line.split()[0]: line for line in text.splitlines()}
    saved = tiny.variables(model_dir)
    own = ("features/", "network/", "head/")
    of_model = [v for n, v in saved.items() if n.startswith(own) and "Adam" not in n]
    count = sum(value.size for value in of_model)
    assert lines["total"].split()[1:3] == [f"{count:,}", f"{4 * count:,}"]
    tower = next(line for line in text.splitlines() if "tower_kind" in line)
    assert tower.split()[-1] == "kind" and "[1, 4]" in tower
    trunk = next(line for line in text.splitlines() if line.strip().startswith("trunk"))
    assert trunk.split()[-1] == "all" and "[1, 8]" in trunk
    # A product of [1, 5] and [5, 8] multiplies and adds 40 times.
    hidden = next(line for line in text.splitlines() if line.strip().startswith("hidden_0 "))
    assert 2 * 40 <= int(hidden.split()[-2].replace(",", "")) <= 2 * 40 + 16
    picture = layers_picture.draw(tree, made.model.tasks)
    found = ElementTree.fromstring(picture)
    told = [own.text for own in found.iter("{http://www.w3.org/2000/svg}text")]
    assert {"tower_kind", "1×4"} <= set(told)


def test_a_layer_counts_the_flops_of_its_products():
    with tf.Graph().as_default() as graph:
        inputs = tf.compat.v1.placeholder(tf.float32, [1, 3])
        with tf.compat.v1.variable_scope("network"):
            outputs = tf.tanh(layers_lib.dense(inputs, 4, "hidden"))
        variables = tf.compat.v1.trainable_variables()
        names = {variable.op.name for variable in variables}
        (tree,) = layers.read_tree(graph, [inputs], {"a": [outputs]}, variables, names)
    (hidden,) = [scope for scope in tree.children if scope.name == "network/hidden"]
    # 3 x 4 multiplications and additions, and 4 additions of the bias.
    assert tree.flops == hidden.flops == 2 * 3 * 4 + 4
    assert tree.parameters == 16 and not tree.is_held


def test_a_picture_takes_any_name():
    tree = [layers.Scope('head/<"&>', output=(1, None), tasks=("<a>",))]
    found = ElementTree.fromstring(layers_picture.draw(tree, ["<a>", "b"]))
    told = [own.text for own in found.iter("{http://www.w3.org/2000/svg}text")]
    assert told[4:] == ['<"&>', "1×?", None, "<a>"]


def test_a_picture_cuts_no_name_and_stays_within():
    scope = layers.Scope("network/" + "long_name" * 30, (8, 8), None, 5, tasks=("task" * 40, "b"))
    for depth in range(20):
        scope = layers.Scope(f"{depth}", tasks=("b",), children=[scope])
    picture = layers_picture.draw([scope], ["task" * 40, "b", "c"])
    assert f"<title>{'long_name' * 30}</title>" in picture and 'role="img"' in picture
    found = ElementTree.fromstring(picture)
    for text in found.iter("{http://www.w3.org/2000/svg}text"):
        shown = text[0].tail if len(text) else text.text or ""
        assert float(text.get("x")) + texts.measure(shown) <= 860


def test_values_as_text_and_in_a_file(tmp_path):
    text = values.draw_table(np.arange(20.0).reshape(2, 10), rows=2)
    assert text.splitlines()[1].split() == ["0", "0", "1", "2", "3", "4", "5", "6", "7"]
    assert text.splitlines()[-1] == "2 more columns"
    assert values.draw_table(np.float32(0.5), rows=2) == "0.5"
    assert values.draw_table(np.array([b"a", b"b"], object), 2).splitlines()[-1].split() == [
        "1",
        "b",
    ]
    arrays = {
        "a:0": np.float32([[1, 2]]),
        "text": np.array([b"x", "größe".encode(), b"\xff"], object),
    }
    values.save(str(tmp_path / "x.npz"), arrays)
    with np.load(tmp_path / "x.npz") as found:
        np.testing.assert_array_equal(found["a:0"], arrays["a:0"])
        assert found["text"].tolist() == ["x", "größe", "\\xff"]


@pytest.mark.parametrize("field", ["hours per week", "_hidden", "größe", "a/b:0", "é"])
def test_a_field_may_have_any_name(field):
    fed = {}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = inspection._input(field, np.arange(3.0), fed)
        np.testing.assert_array_equal(session.run(made, fed), np.arange(3.0))
