"""The order of rows: every row once an epoch, at random, and the same for any number of workers."""

import collections
import itertools
import math

import numpy as np
import pytest

from mtl.data import order

EXPECTED = [
    [5, 1, 4, 6, 3, 7, 2, 0],
    [4, 3, 6, 2, 1, 5, 0, 7],
    [0, 1, 4, 7, 5, 3, 6, 2],
]


def _batches(count, number, **settings):
    is_shuffled = settings.pop("is_shuffled", True)
    rows = order.Epochs(np.arange(count), seed=1, batch_size=4, is_shuffled=is_shuffled)
    made = order.take_batches(rows, batch_size=4, **settings)
    return [batch.tolist() for batch in itertools.islice(made.as_numpy_iterator(), number)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 65, 1000, 4097])
def test_an_epoch_has_every_row_once(count):
    for epoch in range(3):
        assert sorted(order.permute(count, 7, epoch)) == list(range(count))


def test_orders_stay_the_same_for_good():
    """A run that goes on with a later version of NumPy reads the same rows."""
    assert order.permute(8, 1, 0).tolist() == EXPECTED[0]
    assert order.permute(8, 1, 1).tolist() == EXPECTED[1]
    assert order.permute(8, 2, 0).tolist() == EXPECTED[2]


def test_all_orders_of_few_rows_are_equally_likely():
    draws = 24 * 400
    found = collections.Counter(tuple(order.permute(4, 3, epoch)) for epoch in range(draws))
    assert len(found) == 24
    statistic = sum((count - 400) ** 2 / 400 for count in found.values())
    assert statistic < 23 + 4 * math.sqrt(46)  # Chi-squared with 23 degrees of freedom.


def test_neighbouring_seeds_epochs_and_rows_are_unrelated():
    one = order.permute(10_000, 5, 0)
    for other in (order.permute(10_000, 6, 0), order.permute(10_000, 5, 1)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.05
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(one, np.arange(10_000))[0, 1]) < 0.05


@pytest.mark.parametrize("start_step", [0, 1, 3, 7, 500])
def test_batches_from_a_step_on_are_those_of_a_run_from_the_start(start_step):
    whole = _batches(10, start_step + 3)
    assert _batches(10, 3, start_step=start_step) == whole[start_step:]


@pytest.mark.parametrize("num_shards", [2, 4])
def test_workers_share_the_batches_of_one_process(num_shards):
    shares = [_batches(10, 6, num_shards=num_shards, shard=i) for i in range(num_shards)]
    joined = [list(itertools.chain(*parts)) for parts in zip(*shares, strict=True)]
    assert joined == _batches(10, 6)


def test_the_order_of_the_rows_can_be_kept():
    assert _batches(6, 3, is_shuffled=False) == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5]]
