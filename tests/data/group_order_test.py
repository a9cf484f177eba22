"""The order of whole groups: which rows a part holds, what fills it, and any step alone."""

import numpy as np
import pytest

from mtl.data import group_order

SIZES = np.random.default_rng(0).integers(1, 8, 80)
STARTS = np.concatenate([[0], np.cumsum(SIZES)])
GROUP = np.repeat(np.arange(80), SIZES)
# The numbers of rows are not their places in the split.
ROWS = np.arange(STARTS[-1]) * 3 + 5


def make(batch_size=16, parts=1, seed=1, starts=STARTS, **settings):
    settings = {"batch_size": batch_size, "parts": parts, "seed": seed, **settings}
    return group_order.GroupOrder(ROWS[: starts[-1]], starts, **settings)


def take(made, first, stop, batch_size=16):
    return made.take(np.arange(first, stop), np.arange(batch_size))


def _cut_plainly(groups, size):
    """The parts of a pass, written as one would say it."""
    parts, part = [], []
    for group in groups:
        if sum(SIZES[own] for own in [*part, group]) > size:
            parts.append(part)
            part = []
        part.append(group)
    return [*parts, part]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("is_shuffled", [True, False])
def test_parts_hold_whole_groups_and_a_pass_each_group_once(parts, is_shuffled):
    made, size = make(parts=parts, is_shuffled=is_shuffled), 16 // parts
    taken = take(made, 0, 200).reshape(-1, size)
    seen, number = [], 0
    while number + 80 < len(taken):
        passed, first = [], number
        while len(passed) < 80:
            part = taken[number]
            real = part[part >= 0]
            filled = ~part[part < 0]
            assert (filled == real[-1]).all() and (part[: len(real)] >= 0).all()
            groups = GROUP[(real - 5) // 3]
            passed += list(dict.fromkeys(groups))
            expected = [ROWS[group == GROUP] for group in dict.fromkeys(groups)]
            np.testing.assert_array_equal(real, np.concatenate(expected))
            number += 1
        assert sorted(passed) == list(range(80))
        assert len(_cut_plainly(passed, size)) == number - first
        seen.append(tuple(passed))
    assert len(set(seen)) == (len(seen) if is_shuffled else 1) and len(seen) > 3


def test_any_step_is_found_alone_and_workers_share_a_batch():
    whole = take(make(parts=2), 0, 120)
    for first, stop in ((119, 120), (40, 60)):
        assert (take(make(parts=2), first, stop) == whole[first * 16 : stop * 16]).all()
    halves = [make(parts=2).take(np.arange(120), np.arange(8) + 8 * part) for part in range(2)]
    joined = np.concatenate([half.reshape(-1, 8) for half in halves], axis=1)
    assert (joined.ravel() == whole).all()
    assert (take(make(parts=2, seed=2), 0, 120) != whole).any()


def test_a_split_of_one_group_or_smaller_than_a_batch():
    made = make(starts=np.array([0, 3]), batch_size=8)
    assert take(made, 5, 6, 8).tolist() == [5, 8, 11, *[~11] * 5]
    made = make(starts=np.array([0, 8]), batch_size=8)
    assert take(made, 0, 2, 8).tolist() == list(range(5, 29, 3)) * 2
