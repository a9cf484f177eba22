"""Whole runs with smaller tables: exported, resumed, in slices, on replicas."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, networks, verbs
from mtl.balancing import methods, surgery
from mtl.features import embeddings
from mtl.optimization import optimizers
from tests import signatures, tiny

pytestmark = pytest.mark.medium

ROW_WISE = optimizers.RowWiseAdagrad(learning_rate=0.05)
COLUMNS = (
    features.Numeric(names=["x"]),
    features.Hashed(
        names=["tags"],
        num_buckets=10**9,
        dimension=4,
        embedding=embeddings.MultiHash(num_buckets=8),
    ),
    features.Hashed(
        names=["word", "tags"],
        num_buckets=30,
        dimension=4,
        embedding=embeddings.QuotientRemainder(),
        prefix="pair",
        table="pairs",
    ),
    features.Categorical(
        names=["tags"],
        min_count=1,
        dimension=4,
        embedding=embeddings.MixedDimensions(ends=[1, 2], dimensions=[4, 2, 1]),
    ),
    features.Unified(names=["word", "tags"], num_buckets=20, dimension=2, storage="bfloat16"),
)
TABLES = {
    "features/hashed_tags/embedding": [8, 4],
    "features/pairs/quotient": [5, 4],
    "features/pairs/remainder": [6, 4],
    "features/categorical_tags/block_0/embedding": [1, 4],
    "features/categorical_tags/block_1/embedding": [1, 2],
    "features/categorical_tags/block_2/embedding": [3, 1],
    "features/unified/embedding": [20, 2],
}


def _make(**settings):
    network = networks.SharedBottom(trunk=networks.MLP(layers=[8]))
    usual = {"splits": tiny.TAGGED_SPLITS, "columns": COLUMNS, "optimizer": ROW_WISE}
    steps = {"train_steps": 8, "checkpoint_steps": 4}
    made = tiny.make(**usual | steps | settings, network=network)
    return dataclasses.replace(made, data=dataclasses.replace(made.data, spec=tiny.TAGGED_SPEC))


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory):
    """A run of 8 steps, whose export was compared with the Estimator."""
    directory = tmp_path_factory.mktemp("whole")
    made = _make(check_rows=32)
    tiny.train(made, directory)
    verbs.export(made, str(directory), str(directory / "export" / "latest"))
    return directory


def test_an_export_serves_what_is_predicted_here(whole):
    values = tiny.variables(whole)
    tables = {name: list(values[name].shape) for name in TABLES}
    assert tables == TABLES
    assert values["features/unified/embedding"].dtype == tf.bfloat16.as_numpy_dtype
    assert all(values[f"{name}/RowWiseAdagrad"].shape == (TABLES[name][0],) for name in TABLES)
    version = max((whole / "export" / "latest").iterdir())
    rows = {key: values[:8] for key, values in tiny.TAGGED_SPLITS["test"].items()}
    width = max(map(len, rows["tags"]))
    padded = [[*tags, *[b"?"] * (width - len(tags))] for tags in rows["tags"]]
    given = {"x": rows["x"], "word": rows["word"], "tags": np.array(padded, object)}
    given["tags/length"] = np.array([len(tags) for tags in rows["tags"]], np.int64)
    tensors = {key: tf.constant(value) for key, value in given.items()}
    served = signatures.load(version, "raw")(**tensors)
    in_process = list(verbs.predict(_make(), str(whole)))[:8]
    compared = [key for key in served if key in in_process[0] and served[key].dtype == tf.float32]
    assert len(compared) >= 3
    for key in compared:
        expected = [row[key] for row in in_process]
        np.testing.assert_allclose(served[key], expected, rtol=1e-5, atol=1e-6)


def test_a_run_that_was_stopped_goes_on_to_the_bit(whole, tmp_path):
    tiny.assert_same_from(_make(), whole, tmp_path / "parts", 4)


def test_a_run_does_not_go_on_with_another_storage(whole):
    columns = [*COLUMNS[:-1], dataclasses.replace(COLUMNS[-1], storage="float32")]
    with pytest.raises(checks.UserError, match="must be of float32, got 'bfloat16'. Choose anoth"):
        verbs.train(_make(columns=columns, train_steps=16), str(whole))


@pytest.mark.slow
def test_slices_and_replicas_train_as_the_whole_batch_does(tmp_path):
    def make(**run):
        made = _make(**run)
        combined = surgery.Combine(method=methods.PCGrad())
        return dataclasses.replace(made, model=dataclasses.replace(made.model, surgery=combined))

    tiny.assert_trains_in_parts(make, tmp_path, 5)
