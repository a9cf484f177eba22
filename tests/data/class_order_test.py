"""The order of classes: their shares, the epochs of each, and any part of the stream alone."""

import itertools

import numpy as np
import pytest

from mtl.data import class_order

SIZES = [600, 300, 60, 30, 10]
ROWS = np.split(np.random.default_rng(0).permutation(1000), np.cumsum(SIZES)[:-1])
CLASS = np.zeros(1000, np.int64)
for number, own in enumerate(ROWS):
    CLASS[own] = number


def make(due, rows=ROWS, batch_size=50, seed=1, **settings):
    """The order of classes that are due so often in each pass; `due` may be a function of it."""

    def find_due(first, stop):
        return np.array([due(each) if callable(due) else due for each in range(first, stop)])

    names = [str(number) for number in range(len(rows))]
    return class_order.ClassOrder(
        rows, names, find_due, batch_size=batch_size, seed=seed, **settings
    )


def take(made, first, stop, batch_size=50):
    return made.take(np.arange(first, stop), np.arange(batch_size))


@pytest.mark.parametrize("due", [[200.0] * 5, [600, 300, 60, 30, 10], [1.4, 2.6, 1000, 0.0, 3.3]])
def test_shares_are_exact_to_within_a_row(due):
    drawn = take(make(due), 0, 1400)
    counts = np.bincount(CLASS[drawn], minlength=5)
    # Whole passes are exact; the last one may be cut anywhere.
    expected = np.array(due) / np.sum(due) * len(drawn)
    assert np.abs(counts - expected).max() < 0.5 * np.sqrt(np.sum(due)) + 2
    passes = 60
    whole = drawn[: round(sum(due) * passes)]
    counts = np.bincount(CLASS[whole], minlength=5)
    assert np.abs(counts - np.array(due) * passes).max() <= 3


def test_the_epochs_of_a_class_are_permutations():
    drawn = take(make([200.0] * 5), 0, 600)
    for own in ROWS:
        stream = drawn[np.isin(drawn, own)]
        epochs = [stream[i : i + len(own)] for i in range(0, len(stream) - len(own), len(own))]
        assert all(sorted(epoch) == sorted(own) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == len(epochs) > 5


def test_classes_are_mixed_within_a_pass():
    labels = CLASS[take(make([200.0] * 5), 0, 20)].reshape(20, 50)
    counts = np.array([np.bincount(own, minlength=5) for own in labels])
    # Neither sorted by class, nor dealt in turn.
    assert 1 < counts.std() < 5
    other = CLASS[take(make([200.0] * 5, seed=2), 0, 20)].reshape(20, 50)
    assert (labels != other).any() and (labels[:10] != labels[10:]).any()


def test_any_step_is_found_alone_and_shares_may_change():
    made = make(lambda number: [number, 100 - number % 50, 3.7, 2, 1])
    whole = take(made, 0, 400)
    for first, stop in ((399, 400), (5, 9), (120, 390)):
        again = make(lambda number: [number, 100 - number % 50, 3.7, 2, 1])
        assert (take(again, first, stop) == whole[first * 50 : stop * 50]).all()
    assert (take(made, 5, 9) == whole[250:450]).all()
    parts = [made.take(np.arange(400), np.arange(10) + 10 * part) for part in range(5)]
    joined = np.concatenate([part.reshape(400, 10) for part in parts], axis=1)
    assert (joined.ravel() == whole).all()
    positions = [CLASS[own] == 0 for own in np.split(whole, [2000, 18000])[::2]]
    assert positions[0].mean() < positions[1].mean()


def test_the_order_of_the_rows_can_stay():
    made = make([2.0, 1.0], rows=[np.array([1, 3]), np.array([0, 2])], is_shuffled=False)
    assert take(made, 0, 1, 6).tolist() == [0, 1, 3, 1, 2, 3]


def test_classes_of_one_row_come_up_as_often_as_they_are_due():
    made = make([7.25] * 4, rows=[np.array([row]) for row in range(4)], batch_size=29)
    counts = [np.bincount(take(made, step, step + 1, 29), minlength=4) for step in range(40)]
    assert np.abs(np.sum(counts, axis=0) - 40 * 7.25).max() <= 1
    assert len(set(itertools.chain(*np.array(counts).tolist()))) > 1
