"""The order of rows in blocks: every row once an epoch, and the same for any number of workers."""

import collections
import math

import numpy as np
import pytest

from mtl.data import windows

SIZES = (7, 5, 9, 3, 11, 2, 6)


def _plan(**settings):
    made = {"sizes": SIZES, "batch_size": 4, "window": 44, "seed": 1, **settings}
    return windows.Plan(**made)


def _list_rows(plan, steps, positions):
    """The numbers of the rows at positions of batches, by the pieces of their windows."""
    starts = np.cumsum([0, *plan.sizes])
    places = plan.place(np.asarray(steps), np.asarray(positions))
    rows = np.empty(places.rows.shape, np.int64)
    for index in np.ndindex(rows.shape):
        epoch, window, lane, row = (int(part[index]) for part in places)
        pieces = plan.list_pieces(epoch, window, lane)
        held = np.concatenate([starts[p.block] + np.arange(p.start, p.stop) for p in pieces])
        assert len(held) == plan.count_rows(window)
        rows[index] = held[plan.mix(epoch, window, lane)[row]]
    return rows


@pytest.mark.parametrize("window", [3, 10, 44, 1000])
@pytest.mark.parametrize("batch_size", [1, 4, 6, 7])
def test_an_epoch_has_every_row_once_but_those_that_lanes_leave(window, batch_size):
    plan = _plan(window=window, batch_size=batch_size)
    used = plan.lane_rows * plan.num_lanes
    steps = math.ceil(3 * used / batch_size)
    stream = _list_rows(plan, range(steps), range(batch_size))
    by_lane = stream.reshape(steps, plan.num_lanes, -1).swapaxes(0, 1).reshape(plan.num_lanes, -1)
    for epoch in range(2):
        own = slice(epoch * plan.lane_rows, (epoch + 1) * plan.lane_rows)
        rows = by_lane[:, own].ravel().tolist()
        assert len(set(rows)) == len(rows) == used
    assert sum(SIZES) - used < plan.num_lanes


def test_lanes_of_a_window_are_mixed_differently():
    plan = _plan(sizes=[15] * 8, window=60, batch_size=2)
    assert plan.num_lanes == 2
    mixed = [tuple(plan.mix(epoch, 0, lane)) for epoch in range(2) for lane in range(2)]
    assert len(set(mixed)) == 4 and len({tuple(sorted(rows)) for rows in mixed}) == 1


def test_epochs_differ_and_leave_other_rows():
    plan = _plan(window=44, batch_size=4)
    assert plan.num_lanes == 2  # The largest of which a window holds two blocks.
    assert _plan(sizes=(7, 6), window=28, batch_size=2).num_lanes == 2
    plan = _plan(sizes=(7, 6), window=28, batch_size=2)
    left = []
    for epoch in range(20):
        steps = range(epoch * plan.lane_rows, (epoch + 1) * plan.lane_rows)
        left.append(({*range(13)} - {*_list_rows(plan, steps, range(2)).ravel().tolist()}).pop())
    assert len(set(left)) > 1


def test_a_single_block_leaves_no_row():
    """A choice of rows may come from one block, and be far smaller than the window."""
    plan = _plan(sizes=(7,), window=100, batch_size=4)
    assert {*_list_rows(plan, range(2), range(4)).ravel().tolist()} == {*range(7)}


def test_workers_share_the_batches_of_one_process():
    plan = _plan(batch_size=12, window=200)
    whole = _list_rows(plan, range(20), range(12))
    for workers in (1, 2, 3, 4, 6):
        size = 12 // workers
        parts = [
            _list_rows(plan, range(20), np.arange(size) + worker * size)
            for worker in range(workers)
        ]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_a_worker_reads_its_own_lanes_alone():
    plan = windows.Plan((100,) * 64, 64, 6400, 1)
    assert plan.num_lanes == 16
    for worker in range(4):
        places = plan.place(np.arange(3), np.arange(16) + worker * 16)
        assert set(places.lanes.ravel().tolist()) == set(range(4 * worker, 4 * worker + 4))


def test_the_order_of_the_files_can_stay():
    plan = _plan(is_shuffled=False, window=10)
    rows = _list_rows(plan, range(22), range(4)).ravel()
    assert rows.tolist() == [*range(43), *range(43), 0, 1]


def test_large_blocks_get_one_lane():
    assert windows.Plan((1000,) * 4, 64, 1500, 1).num_lanes == 1


def test_windows_of_many_blocks_mix_a_sorted_table():
    """The mean label of a batch varies little more than of random rows, and not in runs."""
    sizes = (64,) * 512
    labels = np.repeat(np.arange(2), 64 * 256)
    chance = 0.5 / math.sqrt(64)
    found = {}
    for blocks in (4, 128):
        plan = windows.Plan(sizes, 64, 64 * blocks, 3)
        steps = np.arange(2 * sum(sizes) // 64)
        found[blocks] = labels[_list_rows(plan, steps[::8], range(64))].mean(axis=1).std()
    assert 0.8 * chance < found[128] < 1.2 * chance
    assert found[4] > 2 * chance


def test_all_orders_of_few_blocks_are_equally_likely():
    plan = windows.Plan((1,) * 4, 4, 4, 3)
    steps = np.arange(24 * 200)
    found = collections.Counter(map(tuple, _list_rows(plan, steps, range(4)).tolist()))
    assert len(found) == 24
    statistic = sum((count - 200) ** 2 / 200 for count in found.values())
    assert statistic < 23 + 4 * math.sqrt(46)  # Chi-squared with 23 degrees of freedom.
