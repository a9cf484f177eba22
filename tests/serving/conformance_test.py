"""Every head and every network of the conformance tables serves what the Estimator predicts."""

import dataclasses
import functools
import os
import textwrap
from collections.abc import Sequence

import gin
import numpy as np
import pytest
import tensorflow as tf

from mtl import features, heads, histories, networks, serving, spec, types
from mtl.features import tokenizers
from mtl.serving import loaded
from tests.conformance import heads as head_rows
from tests.conformance import networks as network_rows
from tests.serving import exports

_CONFIGS = os.path.join(os.path.dirname(__file__), "..", "..", "gin_configs")
NUM_ROWS = 20
TOGETHER = 8  # The number of networks in a model; more networks slow down each op.

tf1 = tf.compat.v1


def served(path, examples):
    """{(signature, output): value} of all signatures that take examples."""
    with loaded.load_export(path) as model:
        names = [name for name in model.signatures if not name.startswith("raw")]
        return model(names, examples)


def examples(made):
    names, columns = zip(*made.values.items(), strict=True)
    rows = zip(*columns, strict=True)
    return [made.spec.serialize(dict(zip(names, row, strict=True))) for row in rows]


def assert_equal(value, wanted):
    if np.asarray(wanted).dtype.kind == "f":
        # Sums of float32 round with their largest term: small sums can be as inexact as large sums.
        # Threads split sums differently each time, which changes the rounding.
        atol = 3e-6 * max(1.0, np.abs(wanted).max(initial=0))
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=atol)
        assert np.ptp(value) > 0
    else:
        np.testing.assert_array_equal(value, wanted)


def draw(*shape):
    return np.random.default_rng(len(shape)).normal(size=(NUM_ROWS, *shape)).astype(np.float32)


@pytest.fixture(scope="module")
def every_head(tmp_path_factory):
    """Return the predictions of all heads, and the outputs of their exports."""
    predicted: dict = {}
    found: dict = {}
    for is_dense, column, trunk, shape in (
        (False, features.Numeric(names=["x"], normalization="none"), networks.MLP(layers=[5]), [3]),
        (True, features.Image(names=["x"], greatest=1.0), networks.UNet(filters=[3]), [3, 2, 1]),
    ):
        made = exports.Untrained(
            directory=str(tmp_path_factory.mktemp("heads")),
            columns=[column],
            network=networks.SharedBottom(trunk=trunk),
            heads=[
                dataclasses.replace(row.make(), name=task(name))
                for name, row in head_rows.ROWS.items()
                if bool(row.places) == is_dense
            ],
            spec=spec.Spec(features={"x": ("float32", shape)}, labels={}),
            values={"x": draw(*shape)},
        )
        path = made.export(tmp_path_factory.mktemp("exports"))
        predicted |= made.predictions()
        found |= served(path, examples(made))
    return predicted, found


def task(name):
    return name.replace(" ", "_")


@pytest.mark.medium
@pytest.mark.parametrize("name", head_rows.ROWS)
def test_a_head_serves_what_it_predicts(every_head, name):
    predicted, found = every_head
    row = head_rows.ROWS[name]
    kinds = {signature for signature, _ in found if signature.partition("/")[0] == task(name)}
    expected_kinds = row.signatures.split()
    assert kinds == {
        task(name) if kind == "predict" else f"{task(name)}/{kind}" for kind in expected_kinds
    }
    for output in row.predictions:
        wanted = predicted[f"{task(name)}/{output}"]
        assert_equal(found[task(name), output], wanted)
        assert_equal(found["serving_default", f"{task(name)}/{output}"], wanted)


@pytest.mark.medium
def test_classify_gives_a_score_and_a_name_for_every_class(every_head):
    predicted, found = every_head
    names = found["multi_class_of_names/classify", "classes"]
    assert [list(row) for row in names] == [[b"cat", b"dog", b"bird"]] * NUM_ROWS
    assert_equal(
        found["multi_class_of_names/classify", "scores"],
        predicted["multi_class_of_names/probabilities"],
    )


@pytest.mark.medium
def test_regress_gives_a_number_a_row(every_head):
    predicted, found = every_head
    wanted = predicted["regression/value"]
    assert_equal(found["regression/regress", "outputs"].reshape(-1), wanted)


@pytest.mark.medium
def test_a_model_of_one_text_serves_it_as_it_is(tmp_path):
    """Estimator takes the one text for an example, which Classify would take."""
    made = exports.Untrained(
        directory=str(tmp_path / "run"),
        columns=[
            features.Text(
                names=["title"],
                tokenizer=tokenizers.CharacterNgrams(num_buckets=20),
                encoder=histories.Pooling(),
            )
        ],
        network=networks.SharedBottom(trunk=networks.MLP(layers=[5])),
        heads=[heads.MultiClass(name="about", classes=["a", "b"]), heads.Regression(name="size")],
        spec=spec.Spec(features={"title": "string"}, labels={}),
        values={"title": np.array([f"title {n % 7} " * (n % 3) for n in range(NUM_ROWS)])},
    )
    path = made.export(tmp_path / "export")
    with loaded.load_export(path) as model:
        raw = {name for name in model.signatures if name.startswith("raw")}
        assert raw == {"raw", "raw/about", "raw/size"}
        assert "about/classify" in model.signatures and "size/regress" in model.signatures
        found = model(sorted(raw), {"title": made.values["title"]})
    for name, wanted in made.predictions().items():
        assert_equal(found["raw", name], wanted)


@dataclasses.dataclass(frozen=True)
class SideBySide(types.Network):
    """The networks of rows, each on its own columns and for its own tasks: {its row: it}."""

    networks: Sequence[tuple[network_rows.Network, types.Network]]

    def __call__(self, inputs, tasks, training):
        towers = {}
        for row, network in self.networks:
            own = {column: inputs[f"{column}_{row.name}"] for column in row.inputs}
            with tf1.variable_scope(row.name):
                found = network(own, row.tasks, training)
            towers |= {f"{row.name}_{task}": tower for task, tower in found.items()}
        return types.Towers(towers)


def configure(row):
    """The network of a row, built by gin."""
    gin.clear_config()
    if row.gin.endswith(".gin"):
        gin.parse_config_file(os.path.join(_CONFIGS, row.gin))
    else:
        header = "from __gin__ import dynamic_registration\nfrom mtl import networks\n"
        gin.parse_config(header + textwrap.dedent(row.gin))
    network = gin.get_configurable(getattr(networks, row.configurable))()
    gin.clear_config()
    return network


def make_column(row, name):
    """Columns are named as the table names them: image_* stay images, the rest are vectors."""
    prefix, _, field = f"{name}_{row.name}".partition("_")
    if prefix != "image":
        return features.Numeric(names=[field], normalization="none", prefix=prefix)
    # A deep ResNet without the moments of its data multiplies by a million; outputs as large
    # as that round by more than an export may be off. On some processors so do those of a convnet.
    large = {"shared_bottom_resnet": 1e6, "shared_bottom_convnet": 10.0}
    return features.Image(names=[field], greatest=large.get(row.name, 1.0))


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory):
    """`_export_networks`, once for each group of rows."""
    return functools.cache(functools.partial(_export_networks, tmp_path_factory))


def _export_networks(tmp_path_factory, first):
    """Return the predictions of a model with some networks, and the outputs of its export."""
    rows = network_rows.NETWORKS[first : first + TOGETHER]
    fields = {
        f"{column.partition('_')[2]}_{row.name}": network_rows.draw_column(column, shape, NUM_ROWS)
        for row in rows
        for column, shape in row.inputs.items()
    }
    made = exports.Untrained(
        directory=str(tmp_path_factory.mktemp("networks")),
        columns=[make_column(row, column) for row in rows for column in row.inputs],
        network=SideBySide([(row, configure(row)) for row in rows]),
        heads=[
            (heads.Normals if len(row.shape) == 3 else heads.Regression)(name=f"{row.name}_{task}")
            for row in rows
            for task in row.tasks
        ],
        spec=spec.Spec(
            features={name: ("float32", value.shape[1:]) for name, value in fields.items()},
            labels={},
        ),
        values=fields,
        settings=serving.Serving(check_rows=0),  # The test does the same.
    )
    path = made.export(tmp_path_factory.mktemp("exports"))
    return made.predictions(), served(path, examples(made))


@pytest.mark.slow
@pytest.mark.parametrize(
    "index", range(len(network_rows.NETWORKS)), ids=lambda index: network_rows.NETWORKS[index].name
)
@pytest.mark.always
@pytest.mark.drawn(3)
def test_a_network_serves_what_it_predicts(side_by_side, index):
    row = network_rows.NETWORKS[index]
    predicted, found = side_by_side(index - index % TOGETHER)
    for task in row.tasks:
        output = "normal" if len(row.shape) == 3 else "value"
        name = f"{row.name}_{task}/{output}"
        assert_equal(found["serving_default", name], predicted[name])
