"""Rows of drawn items: the frequency of each item, the fields, and the place in a batch."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, heads, networks, spec, types
from mtl import model as model_lib
from mtl.data import drawn_items, pipeline
from mtl.runs import preparation
from tests import tiny

pytestmark = pytest.mark.medium

SPEC = spec.Spec(
    features={
        "x": "int64",
        "item": "string",
        "size": ("float32", (2,)),
        "tags": ("int64", (None,)),
    },
    labels={"y": "int64", "rate": "float32", "kinds": ("int64", (None,))},
    keys=["item"],
)
NAMES = np.array([b"a", b"b", b"c", b"d", b""], object)
TAGS = [[], [1], [2, 3], [4], [5]]
SIZES = np.array([[1, 2], [3, np.nan], [5, 6], [7, 8], [0, 0]], np.float32)
OF_ROWS = np.repeat([0, 1, 2, 3, 4], [60, 30, 8, 1, 1])  # The last has no item.


def made(**fields):
    rows = {
        "x": np.arange(100),
        "item": NAMES[OF_ROWS],
        "size": SIZES[OF_ROWS],
        "tags": tf.ragged.constant([TAGS[place] for place in OF_ROWS], tf.int64),
        "y": np.arange(100) % 2,
        "rate": np.ones(100, np.float32),
        "kinds": tf.ragged.constant([[1]] * 100, tf.int64),
        **fields,
    }
    source = tiny.Rows(splits={"train": rows})
    return pipeline.Pipeline(source=source, spec=SPEC, batch_size=8)


def drawn(**settings):
    return drawn_items.DrawnItems(**{"num": 64, "features": ["item", "size", "tags"], **settings})


def fit(data, negatives, directory):
    head = heads.Retrieval(
        name="found", label="y", item="item", negatives=negatives, corrects_popularity=False
    )
    column = features.Identity(names=["x"], size=100)
    features.fit_columns([column], data.one_pass("train"), str(directory), [head])
    return head, features.load_statistics(str(directory))


def read(data, head, statistics, count, first=0, parts=1):
    batches = data.dataset("train", training=True, seed=1)
    reading = types.Reading(statistics, seed=1, start_step=first, parts=parts)
    return itertools.islice(head.add_rows(batches, data.spec, reading).as_numpy_iterator(), count)


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_items_are_drawn_by_a_power_of_their_counts(power, tmp_path):
    data = made()
    head, statistics = fit(data, drawn(power=power, num=512), tmp_path)
    batches = read(data, head, statistics, 20)
    names = np.concatenate([labels["found/drawn"][8:] for _, labels in batches])
    found = np.array([(names == name).sum() for name in NAMES])
    shares = np.array([60, 30, 8, 1, 0]) ** power * [1, 1, 1, 1, 0]
    expected = len(names) * shares / shares.sum()
    assert found[4] == 0
    chi_square = ((found - expected)[:4] ** 2 / expected[:4]).sum()
    assert chi_square < 16.3  # One in a thousand of 3 degrees of freedom is above.
    fitted = head.fitted(statistics).negatives.shares
    assert list(fitted.values()) == pytest.approx(shares[:4] / shares.sum())


@pytest.mark.parametrize("parts", [1, 2])
def test_each_part_ends_with_items_and_their_features_and_no_label(parts, tmp_path):
    data = made()
    head, statistics = fit(data, drawn(num=12), tmp_path)
    ((plain, _),) = data.dataset("train", training=True, seed=1).take(1).as_numpy_iterator()
    ((given, labels),) = read(data, head, statistics, 1, parts=parts)
    is_drawn = np.concatenate([np.arange(20 // parts) >= 8 // parts] * parts)
    np.testing.assert_array_equal(labels["found/drawn"] != b"", is_drawn)
    for name, missing in (("y", spec.MISSING["int64"]), ("item", b""), ("rate", np.nan)):
        np.testing.assert_array_equal(labels[name][is_drawn], missing)
    assert [list(row) for row in labels["kinds"]] == [
        [spec.MISSING["int64"]] if new else [1] for new in is_drawn
    ]
    np.testing.assert_array_equal(given["x"][~is_drawn], plain["x"])
    assert set(given["x"][is_drawn]) <= set(plain["x"])
    for row in np.flatnonzero(is_drawn):
        place = list(NAMES).index(labels["found/drawn"][row])
        assert given["item"][row] == NAMES[place]
        np.testing.assert_array_equal(given["size"][row], SIZES[place])
        assert list(given["tags"][row]) == TAGS[place]
    (later,) = itertools.islice(read(data, head, statistics, 4), 3, None)
    (again,) = read(data, head, statistics, 1, first=3)
    np.testing.assert_array_equal(later[1]["found/drawn"], again[1]["found/drawn"])


def test_drawn_rows_lack_labels_of_any_shape():
    for value, missing in (
        (tf.zeros([3, 2, 4]), np.full([5, 2, 4], np.nan)),
        (tf.zeros([3], tf.int64), np.full([5], spec.MISSING["int64"])),
        (tf.constant(["a"]), np.full([5], b"")),
    ):
        found = drawn_items._missing_rows(value, 5)
        np.testing.assert_array_equal(found.numpy(), missing)


def test_mistakes(tmp_path):
    with pytest.raises(checks.UserError, match=r"DrawnItems.power must be in \[0, 1\], got 1.5"):
        drawn(power=1.5)
    with pytest.raises(checks.UserError, match="features must be one of .*Did you mean 'tags'"):
        drawn(features=["tag"]).check(SPEC)
    message = "'x' must be the same in all rows of an item, got .two values for item 'a'"
    with pytest.raises(checks.UserError, match=message):
        fit(made(), drawn(features=["x"]), tmp_path)
    with pytest.raises(checks.UserError, match="divide the 9 rows that head 'found' adds .* got 2"):
        preparation.check_added_rows(build(["item", "size"], num=9), 2)


def build(names, num=8):
    towers = networks.TwoTower(
        query=networks.MLP(), item=networks.MLP(), item_columns=["categorical_*", "numeric_size"]
    )
    negatives = drawn_items.DrawnItems(num=num, features=names)
    head = heads.Retrieval(name="found", label="y", item="item", negatives=negatives)
    plain = tiny.make().model
    columns = [features.Categorical(names=["item"]), features.Numeric(names=["x", "size"])]
    network = networks.SharedBottom(trunk=towers)
    return dataclasses.replace(plain, columns=columns, network=network, heads=[head])


def test_all_features_of_the_items_tower_have_to_be_drawn():
    assert isinstance(build(["item", "size"]), model_lib.MultiTaskModel)
    with pytest.raises(checks.UserError, match="features of task 'found' must name 'size'"):
        build(["item"])
