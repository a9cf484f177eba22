"""Shares of wall time against a count of every moment, one by one."""

import collections
import random

import pytest

from mtl.tools.profiling import op_times, shares, words

NETWORK, HEADS = words.Place(words.NETWORK), words.Place(words.HEADS, True)


def _intervals(draw, count):
    for _ in range(count):
        start = draw.randrange(100)
        yield start, start + draw.randrange(1, 30)


def _count(window, calls, busy, waits, ops):
    """The share of each moment, looked at by itself."""
    found = collections.defaultdict(float)
    for time in range(*window):
        running = [op.place for op in ops if op.start <= time < op.end and op.is_kernel]
        running = running or [op.place for op in ops if op.start <= time < op.end]
        for word, intervals in (
            (words.WAITING, waits),
            (words.STARTING, busy),
            (words.SESSION, calls),
            (words.BETWEEN, [window]),
        ):
            inside = any(start <= time < end for start, end in intervals)
            running = running or ([words.Place(word)] if inside else [])
        for place in running:
            found[place] += 1 / len(running)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_every_moment_counts_once(seed):
    draw = random.Random(seed)
    calls, busy, waits = (list(_intervals(draw, count)) for count in (3, 3, 2))
    ops = [
        shares.Op(*interval, "op", draw.choice([NETWORK, HEADS]), draw.random() < 0.2 * (seed % 2))
        for interval in _intervals(draw, 6)
    ]
    window = (10, 90)
    found = shares.divide(window, calls, busy, waits, ops)
    expected = _count(window, calls, busy, waits, ops)
    assert found.keys() == expected.keys()
    for place, time in expected.items():
        assert found[place] == pytest.approx(time)
    assert sum(found.values()) == pytest.approx(80)


def test_an_op_that_runs_others_counts_without_them():
    def op(start, end, name):
        return shares.Op(start, end, name, NETWORK)

    given = [
        op(0, 100, "call"),
        op(10, 30, "a"),
        op(15, 20, "b"),
        op(40, 50, "c"),
        op(120, 130, "d"),
    ]
    found = collections.Counter()
    for one in shares.cut_nested(given):
        found[one.name] += one.end - one.start
    assert found == {"call": 70, "a": 15, "b": 5, "c": 10, "d": 10}


@pytest.mark.parametrize("values", [[1, 1, 1], [0.3333, 2, 5, 1e-9], [7], [0, 0], [1e-12, 3e-12]])
def test_shares_add_up_to_100(values):
    found = shares.round_shares(values)
    assert sum(round(10 * one) for one in found) == (1000 if sum(values) else 0)
    for one, value in zip(found, values, strict=True):
        assert abs(one - 100 * value / (sum(values) or 1)) <= 0.1


def test_small_ops_get_their_part_of_the_time_in_which_ops_are_started():
    timed = [
        op_times.Timed("a", 1e-6, NETWORK),
        op_times.Timed("b", 1.0, HEADS),  # It was interrupted: it takes 3 us at most.
        op_times.Timed("large", 5e-6, NETWORK),
    ]
    small = op_times.find_small(timed, {"large": 10, "a": 5}, steps=10)
    assert small == pytest.approx({NETWORK: 5e-6, HEADS: 30e-6})
    starting, session = words.Place(words.STARTING), words.Place(words.SESSION)
    wall = {NETWORK: 1.0, starting: 35e-6, session: 2.0}
    found = op_times.divide_starting(wall, small, busy=70e-6)
    # Two threads were busy for 35 us each, half of it with these ops.
    half = 35e-6 / 2
    expected = {NETWORK: 1 + half / 7, HEADS: half * 6 / 7, session: 2 + half}
    assert found == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(sum(wall.values()))
