"""Places of a mixture: shares that hold at every place, and no place that depends on a replay."""

import numpy as np
import pytest

from mtl.data import shares

RATES = ([1.0], [3, 1], [0.5, 0.3, 0.2], [1, 1e-3], [5, 0, 1], [8, 1, 1, 1, 1, 1, 1, 1, 1])


def _webster(rates, count):
    """The sources of the first places, by the definition: the row that is due first comes first."""
    total, counts, found = sum(rates), [0] * len(rates), []
    for _ in range(count):
        due = [
            (drawn + 0.5) / (rate / total) if rate else np.inf
            for drawn, rate in zip(counts, rates, strict=True)
        ]
        found.append(int(np.argmin(due)))
        counts[found[-1]] += 1
    return found


def _scheduled(size, sources=3):
    """Rates that rise, fall, and stop and begin again."""

    def evaluate(first, stop):
        steps = np.arange(first, stop, dtype=np.float64)
        rates = [0.2 + steps / 500, 2 - np.minimum(steps, 1500) / 1000, (steps // 100) % 2]
        return np.stack(rates[:sources], axis=1)

    return shares.Scheduled(evaluate, sources, size)


@pytest.mark.parametrize("rates", RATES, ids=str)
def test_places_are_dealt_by_websters_method(rates):
    sources, numbers = shares.Fixed(rates).deal(0, 500)
    assert sources.tolist() == _webster(rates, 500)
    for source in range(len(rates)):
        assert numbers[sources == source].tolist() == list(range((sources == source).sum()))


@pytest.mark.parametrize("rates", RATES, ids=str)
def test_no_source_is_off_its_share(rates):
    made, share = shares.Fixed(rates), np.array(rates) / sum(rates)
    for place in (1, 2, 7, 64, 999, 10**6, 10**12):
        counts = made.count(place)
        assert counts.sum() == place
        assert (np.abs(counts - place * share) <= (len(rates) * share + 1) / 2 + 1e-3).all()


@pytest.mark.parametrize("make", [lambda: shares.Fixed([5, 2, 0.3]), lambda: _scheduled(7)])
def test_any_place_is_found_without_the_earlier_ones(make):
    sources, numbers = make().deal(0, 20_000)
    for first, stop in ((0, 1), (13, 14), (2047, 2300), (7168, 7169), (19_000, 20_000)):
        some = make().deal(first, stop)
        assert some[0].tolist() == sources[first:stop].tolist()
        assert some[1].tolist() == numbers[first:stop].tolist()
        drawn = np.bincount(sources[:first], minlength=3)
        assert make().count(first).tolist() == drawn.tolist()


@pytest.mark.parametrize("size", [1, 7, 64])
def test_schedules_are_followed(size):
    made, steps = _scheduled(size), 3000
    sources, _ = made.deal(0, steps * size)
    rates = made._evaluate(0, steps)
    expected = size * np.cumsum(rates / rates.sum(axis=1, keepdims=True), axis=0)
    for step in (1, 99, 100, 101, 1024, 1025, 3000):
        drawn = np.bincount(sources[: step * size], minlength=3)
        assert np.abs(drawn - expected[step - 1]).max() <= 2.5
    # The third source rests in the first hundred steps: at most the row on the way comes.
    assert (sources[: 100 * size] == 2).sum() == 0


def test_constant_schedules_are_fixed_shares():
    made = shares.Scheduled(lambda first, stop: np.tile([[3.0, 1.0]], [stop - first, 1]), 2, 8)
    assert made.deal(0, 800)[0].tolist() == shares.Fixed([3, 1]).deal(0, 800)[0].tolist()


def test_the_sums_of_a_schedule_do_not_depend_on_where_it_starts():
    early, late = _scheduled(3), _scheduled(3)
    early.deal(0, 3), early.deal(6000, 6003), late.deal(30_000, 30_003)
    assert early.deal(30_000, 30_300)[0].tolist() == late.deal(30_000, 30_300)[0].tolist()
