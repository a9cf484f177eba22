import logging

import numpy as np
import pytest

from mtl import checks, spec
from mtl.data import idx, long_tail, pipeline
from tests import tiny

SPEC = spec.Spec(features={"x": "int64"}, labels={"y": "int64", "name": "string"})
NAMES = np.array([b"ant", b"bee", b"cat", b"dog", b""], object)


def rows(num=400):
    """Rows in which a class is found at every fifth place, and none at each fifth."""
    y = np.arange(num) % 5
    return {"x": np.arange(num), "y": np.where(y < 4, y, -1), "name": NAMES[y]}


def make(label="y", splits=None, **settings):
    source = tiny.Rows(splits=splits or {"train": rows(), "other": rows(7)})
    settings = {"profile": long_tail.Exponential(factor=27.0), **settings}
    return long_tail.LongTail(source=source, label=label, **settings)


def read(source, split="train"):
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=7)
    batches = list(data.dataset(split, training=False, seed=0).as_numpy_iterator())
    x = np.concatenate([features["x"] for features, _ in batches])
    return x, np.concatenate([labels["y"] for _, labels in batches])


@pytest.mark.medium
@pytest.mark.parametrize("label, kind", [("y", "int64"), ("name", "string")])
def test_counts_fall_by_the_profile_and_rows_stay_in_order(label, kind, caplog):
    with caplog.at_level(logging.INFO, "mtl"):
        x, y = read(make(label, label_type=kind, largest=54))
    assert np.bincount(y).tolist() == [54, 18, 6, 2]
    assert (np.diff(x) > 0).all()
    names = ["0", "1", "2", "3"] if kind == "int64" else ["ant", "bee", "cat", "dog"]
    listed = ", ".join(f"{n}: {c}" for n, c in zip(names, [54, 18, 6, 2], strict=True))
    assert caplog.messages == [f"Split 'train', 80 rows by class: {listed}"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("label", "settings"),
    [("y", {"missing": [0]}), ("name", {"missing": ["ant"], "label_type": "string"})],
)
def test_a_mark_of_missing_labels_is_no_class(label, settings):
    """It sorts first here, so it would keep the most rows."""
    _, y = read(make(label, largest=54, **settings))
    assert np.bincount(y).tolist() == [0, 54, 10, 2]


@pytest.mark.medium
def test_held_out_rows_are_balanced_and_in_no_other_split():
    source = make(held_out={"validation": 5, "test": 20})
    (train, y), (validation, v), (test, t) = (
        read(source, split) for split in ("train", "validation", "test")
    )
    assert np.bincount(v).tolist() == [5] * 4 and np.bincount(t).tolist() == [20] * 4
    # 80 rows of each class, 55 of them left: as many as the first class can have.
    assert np.bincount(y).tolist() == [55, 18, 6, 2]
    together = [*train, *validation, *test]
    assert len(set(together)) == len(together)


@pytest.mark.medium
def test_the_seed_decides_which_rows():
    draws = [read(make(seed=seed))[0].tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.medium
def test_other_splits_are_passed_on_and_scan_reads_what_records_reads():
    source = make(largest=27)
    assert read(source, "other")[0].tolist() == list(range(7))
    scanned = list(source.scan("train", SPEC))
    assert [values["x"] for _, values in scanned] == read(source)[0].tolist()
    assert scanned[-1][0] == f"train row {scanned[-1][1]['x']}"


@pytest.mark.parametrize(
    ("profile", "shares"),
    [
        (long_tail.Exponential(factor=1.0), [1, 1, 1, 1]),
        (long_tail.Exponential(factor=8.0), [1, 1 / 2, 1 / 4, 1 / 8]),
        (long_tail.Pareto(factor=16.0), [1, 1 / 4, 1 / 9, 1 / 16]),
        (long_tail.Step(factor=10.0), [1, 1, 0.1, 0.1]),
        (long_tail.Step(factor=10.0, rare=0.25), [1, 1, 1, 0.1]),
    ],
)
def test_profiles(profile, shares):
    np.testing.assert_allclose(profile(4), shares)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"largest": 81}, "class 0 in split 'train' must have 81 rows, got 80. Lower LongTail.l"),
        ({"held_out": {"a": 50, "b": 31}}, "class 0 in split 'train' must have 81 rows, got 80"),
        ({"largest": 5}, r"every class must keep a row, got \[5, 1, 0, 0\]"),
        ({"held_out": {"train": 5}}, "must be a new split, got 'train'"),
        ({"held_out": {"test": 0}}, "must be above 0, got 0"),
        ({"label_type": "float32"}, "LongTail.label_type must be one of int64, string"),
        ({"profile": long_tail.Exponential}, "profile must be a part such as @long_tail"),
        ({"splits": {"train": {"y": np.zeros(9, np.int64)}}}, "must hold at least 2 classes"),
    ],
)
def test_mistakes(settings, message):
    with pytest.raises(checks.UserError, match=message):
        read(make(**settings))


@pytest.mark.medium
def test_mnist_lt(real_data):
    paths = {"image": "t10k-images-idx3-ubyte.gz", "digit": "t10k-labels-idx1-ubyte.gz"}
    source = long_tail.LongTail(
        source=idx.Idx(files={"train": paths}, data_dir=str(real_data / "mnist")),
        label="digit",
        largest=700,
        held_out={"test": 190},
    )
    found = spec.Spec(features={"digit": "int64"}, labels={})
    counts = {
        split: np.bincount([values["digit"] for _, values in source.scan(split, found)]).tolist()
        for split in ("train", "test")
    }
    assert counts == {"train": [700, 419, 251, 150, 90, 54, 32, 19, 11, 7], "test": [190] * 10}
