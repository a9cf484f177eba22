"""Whole runs with tables that grow: resumed, served, in slices, on replicas, in a cluster."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, networks, transfer, verbs
from mtl.monitoring import doubts, summary
from mtl.optimization import optimizers
from mtl.sparsity import granularity, pruning, pruning_schedules
from mtl.variables import averaging, freezing, masks
from tests import signatures, tiny

pytestmark = pytest.mark.medium

WORDS = np.array([b"w%d" % number for number in range(60)], object)


def _splits():
    """Words of which others come in later rows."""
    rng = np.random.default_rng(5)
    train, test = (dict(tiny.SPLITS[split]) for split in ("train", "test"))
    train["word"] = WORDS[np.minimum(rng.geometric(0.1, 96) + np.arange(96) // 4, 59)]
    test["word"] = WORDS[rng.integers(0, 60, 48)]
    return {"train": train, "test": test}


def _make(column=None, averages=False, beside=(), **settings):
    given = {"names": ["word"], "capacity": 16, "dimension": 4, "eviction": "age", **(column or {})}
    columns = [features.Numeric(names=["x"]), features.Growing(**given), *beside]
    made = tiny.make(splits=_splits(), columns=columns, **settings)
    if averages:
        own = dataclasses.replace(made.model.update, average=averaging.ExponentialAverage())
        made = dataclasses.replace(made, model=dataclasses.replace(made.model, update=own))
    return made


def _held(model_dir, table="growing_word"):
    keys = tiny.variables(model_dir)[f"features/{table}/keys"]
    return keys[keys > 0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 40 steps, with averages, and a table beside it that is frozen."""
    frozen = features.Growing(
        names=["word"], capacity=16, dimension=4, prefix="frozen", trainable=False
    )
    column = {"min_count": 2, "admission_rate": 0.9, "capacity": 12, "num_unknown": 9}
    made = _make(column, averages=True, beside=[frozen], checkpoint_steps=20)
    directory = tmp_path_factory.mktemp("whole") / "run"
    tiny.train(made, directory)
    return made, directory


def test_a_run_that_was_stopped_goes_on_to_the_bit(whole, tmp_path):
    assert len(_held(whole[1])) > 8
    tiny.assert_same_from(*whole, tmp_path / "parts", 20)


def test_what_is_frozen_keeps_its_keys(whole):
    assert len(_held(whole[1], "frozen_word")) == 0


def test_a_run_shows_what_its_table_does(whole):
    _, directory = whole
    found = tiny.scalars(directory)
    kinds = ("size", "new", "evicted", "without_place", "unknown_share")
    last = {kind: found[(40, f"table/growing_word/{kind}")] for kind in kinds}
    assert last["size"] == len(_held(directory)) and 0 <= last["unknown_share"] < 1
    assert any(value for (_, tag), value in found.items() if tag.endswith("growing_word/evicted"))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A run with a table of 16 bits beside it, whose export was compared with the Estimator."""
    half = features.Growing(
        names=["word"], capacity=16, dimension=4, eviction="age", prefix="half", storage="bfloat16"
    )
    optimizer = optimizers.RowWiseAdagrad(learning_rate=0.05, initial_accumulator=1e-3)
    steps = {"train_steps": 20, "checkpoint_steps": 20}
    made = _make(beside=[half], optimizer=optimizer, check_rows=48, **steps)
    directory = tmp_path_factory.mktemp("served") / "run"
    verbs.train(made, str(directory))
    return made, directory


def test_an_export_knows_the_rows_that_the_run_has(served):
    """The export's own check compares known and unknown words with the Estimator."""
    made, directory = served
    (version,) = (directory / "export" / "latest").iterdir()
    signature = signatures.load(version, "raw")
    rows = made.data.source.splits["test"]
    given = {"x": tf.constant(rows["x"]), "word": tf.constant(rows["word"])}
    predictions = signature(**given)
    expected = list(verbs.predict(made, str(directory)))
    for key in ("sign/probability", "size/value"):
        np.testing.assert_allclose(
            predictions[key], [row[key] for row in expected], rtol=1e-5, atol=1e-6
        )
    names = {name for name, _ in tf.train.list_variables(f"{version}/variables/variables")}
    assert "features/growing_word/keys" in names
    # Variables for training alone are not exported.
    assert not names & {"features/growing_word/last_seen", "features/growing_word/size"}


def test_a_run_that_starts_from_an_export_counts_the_keys_it_took(served, tmp_path):
    _, directory = served
    latest = str(directory / "export" / "latest")
    start = transfer.WarmStart(source=latest, include=["^features/growing_word/"])
    tiny.train(dataclasses.replace(_make(train_steps=1), warm_start=start), tmp_path)
    started = tiny.variables(tmp_path, 0)
    count = np.count_nonzero(started["features/growing_word/keys"])
    assert started["features/growing_word/size"] == count == len(_held(directory)) > 8


def test_tables_of_16_bits_with_state_by_row_grow_too(served):
    """A row that was taken at the last step has the state of one step, and no older state."""
    _, directory = served
    found = tiny.variables(directory)
    state = found["features/half_word/embedding/RowWiseAdagrad"]
    table = found["features/half_word/embedding"]
    assert table.dtype == tf.bfloat16.as_numpy_dtype and state.shape == (17,)
    assert np.isfinite(table.astype(np.float32)).all() and (state >= 0.999e-3).all()
    is_new = found["features/half_word/last_seen"] == 20
    assert len(_held(directory, "half_word")) == 16 and is_new.any()


@pytest.mark.slow
def test_slices_and_replicas_grow_as_the_whole_batch_does(tmp_path):
    def make(**run):
        return _make(
            {"min_count": 2, "admission_rate": 0.8},
            network=networks.SharedBottom(trunk=networks.MLP(layers=[8])),
            optimizer=optimizers.Momentum(learning_rate=0.05),
            **run,
        )

    expected = tiny.assert_trains_in_parts(make, tmp_path, 12)
    assert expected["features/growing_word/size"] == len(_held(tmp_path / "whole")) > 8


@tiny.without_exports()
def test_a_run_goes_on_with_more_rows(tmp_path):
    verbs.train(_make(averages=True, train_steps=20), str(tmp_path))
    before = tiny.variables(tmp_path)
    predicted = _predict(_make(averages=True), tmp_path)
    wrong = _make({"capacity": 48}, optimizer=optimizers.SGD(learning_rate=0.1), train_steps=30)
    with pytest.raises(checks.UserError, match="is of another optimizer"):
        verbs.train(wrong, str(tmp_path))
    assert tiny.variables(tmp_path)["features/growing_word/embedding"].shape == (17, 4)
    # Without a step to train, the settings are saved, too, because only they fit the checkpoint.
    trained, save = _make({"capacity": 24}, averages=True, train_steps=20), mock.Mock()
    assert verbs.train(trained, str(tmp_path), on_start=save)[1] == 0
    save.assert_called_once_with()
    larger = _make({"capacity": 48}, averages=True, train_steps=21, checkpoint_steps=20)
    verbs.train(larger, str(tmp_path))
    # The checkpoint that was there was rewritten; so was the best.
    grown = tiny.variables(tmp_path, 20)
    names = {f"features/growing_word/{own}" for own in ("embedding", "embedding/Adam", "last_seen")}
    rows = {key: row for row, key in enumerate(grown["features/growing_word/keys"].ravel()) if key}
    assert grown["features/growing_word/embedding"].shape == (49, 4)
    for row, key in enumerate(before["features/growing_word/keys"].ravel()):
        for name in names if key else ():
            np.testing.assert_array_equal(grown[name][rows[key]], before[name][row], err_msg=name)
    others = set(before) - {n for n in before if n.startswith("features/growing_word/")}
    for name in others:
        np.testing.assert_array_equal(grown[name], before[name], err_msg=name)
    assert _predict(larger, tmp_path, f"{tmp_path}/model.ckpt-20") == predicted
    with pytest.raises(checks.UserError, match="Growing.capacity must be at least 48"):
        verbs.train(_make(averages=True, train_steps=30), str(tmp_path))


def _predict(made, model_dir, which="latest"):
    return [row["size/value"] for row in verbs.predict(made, str(model_dir), checkpoint=which)]


def test_a_warm_start_takes_keys_and_rows_together(whole, tmp_path):
    """Into tables of the same size, of a larger one, and of other shares for the unknown."""
    _, directory = whole
    source = tiny.variables(directory)
    own = source["features/growing_word/keys"].ravel()
    # Rows for keys, and behind them for unknown ones; the source has 16 and 9.
    sizes = {"same": (12, 9), "larger": (40, 1), "as_many": (24, 1), "less_unknown": (16, 1)}
    rename = {f"^features/{name}_word/": "features/growing_word/" for name in sizes}
    start = transfer.WarmStart(source=str(directory), include=["embedding$"], rename=rename)
    columns = [
        features.Growing(
            names=["word"],
            capacity=capacity,
            num_unknown=unknown,
            dimension=4,
            prefix=name,
            eviction="age",
        )
        for name, (capacity, unknown) in sizes.items()
    ]
    made = tiny.make(splits=_splits(), columns=columns, train_steps=1)
    tiny.train(dataclasses.replace(made, warm_start=start), tmp_path / "run")
    started = tiny.variables(tmp_path / "run", 0)
    for table in (f"{name}_word" for name in sizes):
        keys = started[f"features/{table}/keys"].ravel()
        assert sorted(keys[keys > 0]) == sorted(own[own > 0])
        for row in np.flatnonzero(keys):
            (there,) = np.flatnonzero(own == keys[row])
            np.testing.assert_array_equal(
                started[f"features/{table}/embedding"][row],
                source["features/growing_word/embedding/average"][there],
            )
            np.testing.assert_array_equal(
                started[f"features/{table}/last_seen"][row],
                source["features/growing_word/last_seen"][there] - 40,  # Before the run begins.
            )
    plain = features.Hashed(names=["word"], num_buckets=13, dimension=4, prefix="growing")
    made = tiny.make(splits=_splits(), columns=[plain], train_steps=1)
    start = transfer.WarmStart(source=str(directory))
    with pytest.raises(
        checks.UserError, match="must be a growing table here and in .*, or in neither"
    ):
        tiny.train(dataclasses.replace(made, warm_start=start), tmp_path / "plain")


@tiny.without_exports()
def test_a_run_says_that_its_table_is_full(tmp_path):
    made = _make({"capacity": 8, "eviction": None})
    metrics, _ = verbs.train(made, str(tmp_path))
    (line,) = [line for line in doubts.read_all_doubts(str(tmp_path)) if "growing_word" in line]
    assert line.startswith("Table 'growing_word' holds 8 keys of 8:")
    told = summary.of_training(str(tmp_path), metrics, 40, "mtl")
    assert "table growing_word 8 keys of 8" in told
    tiny.train(_make({"capacity": 64, "eviction": None}, train_steps=60), tmp_path)
    assert not [line for line in doubts.read_all_doubts(str(tmp_path)) if "growing_word" in line]


def test_nothing_else_may_hold_rows_that_come_and_go(tmp_path):
    made = _make(train_steps=1)
    held = freezing.Freezing(entries={"embedding": masks.Rows(rows=[1])})
    cut = pruning.Pruning(
        patterns=["^features/"],
        granularity=granularity.TableRows(),
        schedule=pruning_schedules.OneShot(),
        sparsity=0.5,
    )
    for settings, says in (
        ({"freezing": held}, "Freezing.entries"),
        ({"pruning": [cut]}, "Pruning"),
    ):
        model = dataclasses.replace(made.model, **settings)
        with pytest.raises(checks.UserError, match=f"{says}.* must choose no (growing )?table"):
            verbs.train(dataclasses.replace(made, model=model), str(tmp_path / says))
