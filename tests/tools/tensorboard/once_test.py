"""Items that are written once: text, layout, settings, names of rows, and a readable graph."""

import re

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.projector import projector_config_pb2

from mtl import checks, heads, types
from mtl.tools.tensorboard import once, projector, step_graph
from tests.tools.tensorboard import shown_run

tf1 = tf.compat.v1


def test_a_text_is_one_block_of_code():
    (value,) = once.write_text("configuration", "a = 1\n```\n  <b>\n").value
    (text,) = [tf.make_ndarray(value.tensor).item().decode()]
    assert text == "    a = 1\n    ```\n      <b>"
    assert value.metadata.plugin_data.plugin_name == "text"


def test_the_layout_finds_the_scalars_of_each_task():
    tasks = [heads.Binary(name="a.b"), heads.Regression(name="size")]
    (value,) = once.lay_out(tasks, ["a.b", "size", "extra"], True).value
    layout = layout_pb2.Layout.FromString(tf.make_ndarray(value.tensor).item())
    assert [category.title for category in layout.category] == ["all tasks", "a.b", "size", "extra"]
    charts = {chart.title: list(chart.multiline.tag) for chart in layout.category[1].chart}
    tags = ["a.b/loss", "a.b/auc", "a.b/average_loss", "weight/a.b", "axb/loss", "size/loss"]

    def found(title):
        return [tag for tag in tags if any(re.match(own, tag) for own in charts[title])]

    assert found("loss") == ["a.b/loss", "a.b/average_loss"]
    assert found("auc") == ["a.b/auc"]
    assert found("weight") == ["weight/a.b"]


def test_settings_are_those_that_change_what_is_learned():
    summary = once.start_session(shown_run.make(), {"sign/auc": "sign auc"}, 5.0)
    by_tag = {value.tag: value for value in summary.value}
    data = {
        tag: plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for tag, value in by_tag.items()
    }
    settings = data["_hparams_/session_start_info"].session_start_info.hparams
    assert settings["model.update.optimizer.learning_rate"].number_value == 0.01
    assert settings["model.network"].string_value == "SharedBottom"
    assert settings["data.batch_size"].number_value == 16
    assert settings["model.network.trunk.layers"].string_value == "8"
    assert not [name for name in settings if name.startswith(("data.source", "tensorboard"))]
    experiment = data["_hparams_/experiment"].experiment
    assert {info.name for info in experiment.hparam_infos} == set(settings)
    (metric,) = experiment.metric_infos
    assert (metric.name.group, metric.name.tag) == ("", "evaluation/sign/auc")
    for tag, value in by_tag.items():
        # In one order in each process: what a run that goes on finds written has to be the same.
        content = value.metadata.plugin_data.content
        assert content == data[tag].SerializeToString(deterministic=True)


def test_rows_of_tables_have_one_line_each(tmp_path):
    names = types.RowNames(names=("red", "a\tb\n", "", "ß"), axis=0, and_unknown=True)
    shapes = {"features/word/embedding": (6, 3), "head/y/logits/kernel": (3, 2), "other": (4, 4)}
    named = {"features/word/": names, "head/y/": types.RowNames(names=("0", "1"), axis=-1)}
    chosen = projector.choose(shapes, named)
    assert list(chosen) == ["features/word/embedding"]
    projector.write(str(tmp_path), chosen, shapes)
    config = projector_config_pb2.ProjectorConfig()
    text_format.Parse((tmp_path / projector.CONFIG).read_text(), config)
    (table,) = config.embeddings
    lines = (tmp_path / table.metadata_path).read_text().splitlines()
    assert lines == ["red", "a b", "(empty)", "ß", "(unknown 0)", "(unknown 1)"]
    assert table.tensor_name == "features/word/embedding"


@pytest.mark.parametrize(
    "shape", [(projector.MOST_ROWS + 1, 2), (3, 2), (5,)], ids=["large", "of others", "a vector"]
)
def test_no_table_to_show_is_refused(shape):
    names = types.RowNames(names=("a", "b"), axis=0, and_unknown=shape[0] > 5)
    with pytest.raises(
        checks.UserError, match="TensorBoard.embeddings must be False, got True. No"
    ):
        projector.choose({"features/word/embedding": shape}, {"features/word/": names})


def build_losses():
    """Two losses in a loop, as a training step has them."""
    found = []

    def body(step):
        features = {"x": tf.random.normal([4, 3])}
        labels = {"y": tf.random.normal([4, 1])}
        with tf1.variable_scope("network"):
            kernel = tf1.get_variable("kernel", [3, 2])
            hidden = tf.nn.relu(tf.identity(features["x"] / 2.0) @ kernel)
        with tf1.variable_scope("head/y"):
            logits = hidden @ tf1.get_variable("kernel", [2, 1])
        with tf1.variable_scope("head/z"):
            other = hidden @ tf1.get_variable("kernel", [2, 1])
        y = tf.reduce_mean(tf.square(logits - labels["y"]))
        losses = {"y": y, "z": tf.reduce_mean(tf.abs(other))}
        graph = step_graph.draw(losses, (features, labels))
        found.append(step_graph.add_training(graph, {"update/optimizer": "SGD"}, list(losses)))
        return step + 1 + tf.cast(y * 0, tf.int32)

    with tf.Graph().as_default():
        tf.while_loop(lambda step: step < 2, body, [tf.constant(0)])
    return found[0]


def test_the_graph_of_a_step_can_be_read():
    graph = build_losses()
    nodes = {node.name: node for node in graph.node}
    assert len(nodes) == len(graph.node)
    for node in graph.node:
        for given in node.input:
            assert given.partition(":")[0] in nodes, f"{node.name} reads {given}"
    assert {name.partition("/")[0] for name in nodes} == {
        "batch", "network", "head", "loss", "update",
    }  # fmt: skip
    for name in ("network/kernel", "head/y/kernel", "head/z/kernel"):
        assert nodes[name].op == "Variable"
    kinds = {node.op for node in graph.node}
    assert not kinds & {"Const", "Identity", "ReadVariableOp", "Placeholder", "VarHandleOp"}
    assert set(nodes["update/optimizer"].input) == {"loss/y/loss", "loss/z/loss"}
    assert [d.size for d in nodes["network/Relu"].attr["_output_shapes"].list.shape[0].dim] == [
        4,
        2,
    ]
    with_labels = [name for name in nodes if name.startswith("loss/z/")]
    assert not any("batch" in given for name in with_labels for given in nodes[name].input)
    assert graph.ByteSize() < 10_000
