"""Ranking and retrieval in whole runs: slices, replicas, a stop, evaluation, export."""

import dataclasses
import functools

import numpy as np
import pytest

from mtl import distribution, features, heads, networks, transfer, verbs
from mtl.data import drawn_items, whole_groups
from tests import tiny

pytestmark = pytest.mark.slow

SPLITS = {
    split: {**rows, "query": np.arange(len(rows["x"])) // 4} for split, rows in tiny.SPLITS.items()
}
SPEC = dataclasses.replace(tiny.SPEC, labels={**tiny.SPEC.labels, "query": "int64"})


def make(sizes=None, **run):
    """Groups of four rows, which fill a slice of four whatever the cut."""
    splits = SPLITS
    if sizes is not None:
        splits = {**SPLITS, "train": {**SPLITS["train"], "query": np.repeat(np.arange(24), sizes)}}
    made = tiny.make(splits=splits, **run)
    sampler = whole_groups.WholeGroups(group="query")
    trunk = networks.MLP(layers=[8])
    model = dataclasses.replace(
        made.model,
        network=networks.SharedBottom(trunk=trunk),
        heads=[
            heads.Ranking(name="kind", group="query", loss_type="lambdarank", cutoffs=[2]),
            heads.Binary(name="sign", group="query"),
        ],
    )
    data = dataclasses.replace(made.data, spec=SPEC, sampler=sampler)
    return dataclasses.replace(made, data=data, model=model)


def test_slices_and_replicas_train_as_the_whole_batch_does(tmp_path):
    tiny.assert_trains_in_parts(make, tmp_path, 4)


def test_a_run_that_stops_goes_on_to_the_bit(tmp_path):
    sizes = np.random.default_rng(0).permutation(np.tile([2, 6, 3, 5], 6))
    tiny.assert_goes_on(functools.partial(make, sizes), tmp_path, 7)


def make_towers(check_rows=0, settings=None, **run):
    """Two towers that find the word of a row, of a head with such further settings."""
    made = tiny.make(check_rows=check_rows, **run)
    columns = [features.Numeric(names=["x"]), features.Categorical(names=["word"], dimension=4)]
    towers = networks.TwoTower(
        query=networks.MLP(layers=[8], activation="tanh"),
        item=networks.MLP(layers=[8], activation="tanh"),
        item_columns=["categorical_*"],
    )
    model = dataclasses.replace(
        made.model,
        columns=columns,
        network=networks.SharedBottom(trunk=towers),
        heads=[
            heads.Retrieval(
                name="found", label="sign", item="word", cutoffs=[1], **(settings or {})
            )
        ],
    )
    data = dataclasses.replace(made.data, spec=dataclasses.replace(tiny.SPEC, keys=["word"]))
    return dataclasses.replace(made, data=data, model=model)


DRAWN = {"negatives": drawn_items.DrawnItems(num=8, features=["word"])}
STREAMED = {**DRAWN, "frequency": heads.StreamedFrequency(buckets=100)}


def test_drawn_items_and_frequencies_are_the_same_after_a_stop_and_in_parts(tmp_path):
    expected = tiny.assert_goes_on(functools.partial(make_towers, settings=STREAMED), tmp_path, 4)
    cut = make_towers(settings=STREAMED, train_steps=8, micro_batches=2)
    two = distribution.Distribution(strategy="mirrored", devices=["/cpu:0", "/cpu:1"])
    parts = tiny.train(dataclasses.replace(cut, distribution=two), tmp_path / "replicas")
    state = [name for name in expected if "frequency" in name]
    assert len(state) == 3
    for name in state:
        np.testing.assert_array_equal(parts[name], expected[name], err_msg=name)
    last_steps = expected["head/found/frequency/step"][:-1]
    assert last_steps.max() == 8
    # In a run that starts from this one, the gaps between steps go on: the old steps lie before 0.
    start = transfer.WarmStart(source=str(tmp_path / "replicas"))
    made = make_towers(settings=STREAMED, train_steps=1)
    tiny.train(dataclasses.replace(made, warm_start=start), tmp_path / "warm")
    started = tiny.variables(tmp_path / "warm", 0)["head/found/frequency/step"]
    np.testing.assert_array_equal(started[:-1], last_steps - 8)


def test_two_towers_learn_and_are_exported(tmp_path):
    made = make_towers(settings=DRAWN, check_rows=48, train_steps=60)
    metrics, _ = verbs.train(made, str(tmp_path))
    rows = list(verbs.predict(made, str(tmp_path)))
    words = tiny.SPLITS["test"]["word"]
    vectors = {word: rows[int(np.argmax(words == word))]["found/item"] for word in set(words)}
    ranks = []
    for row, word, sign in zip(rows, words, tiny.SPLITS["test"]["sign"], strict=True):
        scores = {other: row["found/query"] @ vector for other, vector in vectors.items()}
        if sign:
            ranks.append(1 + sum(score > scores[word] + 1e-6 for score in scores.values()))
    assert metrics["found/mrr"] == pytest.approx(np.mean(1 / np.array(ranks)), abs=1e-5)
    assert metrics["found/recall_at_1"] == pytest.approx(np.mean(np.array(ranks) == 1))
    served = tiny.served(tmp_path)
    found = served(**{next(iter(served.structured_input_signature[1])): tiny.examples("test")})
    items = np.array([row["found/item"] for row in rows])
    np.testing.assert_allclose(found["found/item"].numpy(), items, rtol=1e-5, atol=1e-6)
