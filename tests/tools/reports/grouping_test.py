"""The groups that are proposed, against every other choice of groups."""

import itertools

import numpy as np
import pytest

from mtl import checks
from mtl.tools.reports import grouping

NAMES = "abcdefgh"


def _measure(values, missing=()):
    """Return the `Measured` of a run with the values [N, T, T] at steps 10, 20, ..."""
    tasks = NAMES[: values.shape[1]]
    pairs = {
        (one, other): {
            10 * step: value
            for step, value in enumerate(values[:, i, j], 1)
            if (step, one, other) not in missing
        }
        for i, one in enumerate(tasks)
        for j, other in enumerate(tasks)
    }
    return grouping.Measured.from_pairs(pairs, list(tasks))


def _onto(mean, group, task):
    partners = [partner for partner in group if partner != task]
    return sum(mean[partner, task] for partner in partners) / max(1, len(partners))


def _partitions(tasks):
    """All partitions of a list, built task by task."""
    if not tasks:
        yield []
        return
    for others in _partitions(tasks[1:]):
        yield [[tasks[0]], *others]
        for place in range(len(others)):
            yield [*others[:place], [tasks[0], *others[place]], *others[place + 1 :]]


def _served(measured, proposal):
    return {tuple(grouping.name_tasks(measured, group.served)) for group in proposal.groups}


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_no_partition_is_better(size):
    mean = np.random.default_rng(size).normal(size=(size, size))
    measured = _measure(mean[np.newaxis])
    every = list(_partitions(list(range(size))))
    for models in {1, 2, 3, size} - {4}:
        if models > size:
            continue
        scores = sorted(
            (
                sum(_onto(mean, group, task) for group in groups for task in group)
                for groups in every
                if len(groups) <= models
            ),
            reverse=True,
        )
        found = grouping.propose(measured, models)
        assert [each.score for each in found] == pytest.approx(scores[:3])
        best = found[0]
        groups = [[NAMES.index(task) for task in own] for own in _served(measured, best)]
        again = sum(_onto(mean, group, task) for group in groups for task in group)
        assert again == pytest.approx(best.score) and all(
            g.trained == g.served for g in best.groups
        )


@pytest.mark.parametrize("models", [1, 2, 3])
def test_no_groups_that_overlap_are_better(models):
    mean = np.random.default_rng(models).normal(size=(4, 4))
    subsets = [own for size in range(1, 5) for own in itertools.combinations(range(4), size)]
    scores = [
        sum(max(_onto(mean, own, task) for own in chosen if task in own) for task in range(4))
        for chosen in itertools.combinations(subsets, models)
        if set().union(*chosen) == set(range(4))
    ]
    best = grouping.propose(_measure(mean[np.newaxis]), models, may_overlap=True)[0]
    assert best.score == pytest.approx(max(scores))
    assert all(group.trained & group.served == group.served for group in best.groups)


def test_pairs_that_help_each_other_stay_together():
    values = np.full([3, 4, 4], -0.01)
    values[:, [0, 1, 2, 3], [2, 3, 0, 1]] = np.array([[0.1], [0.2], [0.3]])
    values[:, np.arange(4), np.arange(4)] = [0.5, 0.5, 0.5, -0.1]
    measured = _measure(values, missing={(2, "a", "c")})
    best, second, _ = grouping.propose(measured, 2)
    assert _served(measured, best) == {("a", "c"), ("b", "d")}
    assert best.score == pytest.approx(4 * 0.2)
    apart, error = grouping.compare(measured, best, second)
    assert apart == pytest.approx(best.score - second.score) and error > 0
    assert measured.find_harmful_steps() == ["d"]
    told = grouping.describe(measured, [best, second])
    assert "1      a                  0.2  c\n" in told and "Next best: " in told


def test_the_error_of_a_difference_is_that_of_its_steps():
    # The pairs vary together: their difference does not vary at all.
    values = np.zeros([4, 2, 2])
    values[:, 0, 1] = [1, 2, 3, 4]
    values[:, 1, 0] = [-0.5, -1.5, -2.5, -3.5]
    measured = _measure(values)
    best, second = grouping.propose(measured, 2)
    assert grouping.compare(measured, best, second) == pytest.approx((0.5, 0.0))
    assert "not clearly different" not in grouping.describe(measured, [best, second])
    once = _measure(values[:1])  # One measurement tells no error.
    assert "not clearly different" in grouping.describe(once, grouping.propose(once, 2))


def test_what_cannot_be_grouped_is_refused():
    measured = _measure(np.zeros([1, 3, 3]))
    with pytest.raises(checks.UserError, match="--models must be at most 3, the number of tasks"):
        grouping.propose(measured, 4)
    with pytest.raises(checks.UserError, match="--models must be at least 1, got 0"):
        grouping.propose(measured, 0)
    with pytest.raises(checks.UserError, match="must have two tasks or more, got .'a'"):
        grouping.Measured.from_pairs({("a", "a"): {1: 0.0}}, ["a"])
    with pytest.raises(
        checks.UserError, match="all 4 pairs of tasks, got 2. Missing: a onto b, b onto b"
    ):
        grouping.Measured.from_pairs({("a", "a"): {1: 0.0}, ("b", "a"): {1: 0.0}}, ["a", "b"])
    many = [f"t{number}" for number in range(15)]
    pairs = {(one, other): {1: 0.0} for one in many for other in many}
    with pytest.raises(
        checks.UserError, match="have at most 14 tasks, got 15. Choose some tasks with"
    ):
        grouping.propose(grouping.Measured.from_pairs(pairs, many), 2)
