"""Finds the groups of tasks that help each other the most when trained together.

measured = grouping.Measured.from_pairs(affinity_picture.group(curves), tasks)
best, *next_best = grouping.propose(measured, models=2)
print(grouping.describe(measured, [best, *next_best]))

Tasks are numbers from 0 on. A number whose bits are tasks is a set of tasks.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mtl import aligned, checks
from mtl.tools.drawing import affinity_picture

MOST_TASKS = 14
"""For which the best groups are found in seconds: the search takes 3^T sets."""

_PROPOSALS = 3
_WHERE = "launch.affinity"


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measured affinities of T tasks, at N steps.

    Attributes:
      tasks: the names of the tasks.
      steps: [N] global steps.
      values: [N, T, T], of the first task onto the second; NaN if one of them had no label.
    """

    tasks: Sequence[str]
    steps: np.ndarray
    values: np.ndarray

    @classmethod
    def from_pairs(cls, pairs: affinity_picture.Pairs, tasks: Sequence[str]) -> "Measured":
        """Return the affinities among some tasks.

        Args:
          pairs: the measurements of a run.
          tasks: the tasks, at least two, in the order of the result.

        Raises:
          UserError: only one task was given, or the run has not measured one of the pairs.
        """
        # With pairs of a task and itself: they tell whether a step helps its own task.
        wanted = [(one, other) for one in tasks for other in tasks]
        fix = "One task alone has nothing to be grouped with."
        checks.require(len(tasks) > 1, _WHERE, "have two tasks or more", list(tasks), fix)
        missing = [f"{one} onto {other}" for one, other in wanted if (one, other) not in pairs]
        fix = f"Missing: {', '.join(missing[:3])}. No batch had labels of both."
        found = len(wanted) - len(missing)
        checks.require(not missing, _WHERE, f"find all {len(wanted)} pairs of tasks", found, fix)
        steps = sorted({step for pair in wanted for step in pairs[pair]})
        values = [
            [[pairs[i, j].get(step, math.nan) for j in tasks] for i in tasks] for step in steps
        ]
        return cls(tasks, np.array(steps), np.array(values))

    @property
    def mean(self) -> np.ndarray:
        """The mean affinities, [T, T]."""
        # A batch without labels of a task measures the other pairs.
        return np.nanmean(self.values, axis=0)

    def find_harmful_steps(self) -> list[str]:
        """Return the tasks whose own steps did not help them: these steps were too long."""
        own = np.diagonal(self.mean)
        return [task for task, value in zip(self.tasks, own, strict=True) if value <= 0]


class Group(NamedTuple):
    """The tasks that a model trains, and the tasks that it serves, as bits."""

    trained: int
    served: int


class Proposal(NamedTuple):
    """Groups that serve each task once, and the sum of the affinities onto all tasks."""

    groups: tuple[Group, ...]
    score: float


def propose(
    measured: Measured, models: int, may_overlap: bool = False, count: int = _PROPOSALS
) -> list[Proposal]:
    """Return the best proposals for at most so many models, the best first.

    The affinity onto a task is the mean affinity of the other tasks in its model, or 0 if the model
    trains it alone. The score of a proposal is the sum over all tasks. The search is exhaustive:
    other groups cannot have a higher score.

    Args:
      measured: the affinities.
      models: how many groups there are at most.
      may_overlap: True if a model may train tasks that another model serves.
      count: how many proposals to return at most.

    Raises:
      UserError: there are more models than tasks, or too many tasks for the search.
    """
    num_tasks = len(measured.tasks)
    checks.whole("--models", models, 1)
    rule = f"be at most {num_tasks}, the number of tasks"
    checks.require(models <= num_tasks, "--models", rule, models)
    rule = f"have at most {MOST_TASKS} tasks"
    fix = "Name some of them by --tasks."
    checks.require(num_tasks <= MOST_TASKS, _WHERE, rule, num_tasks, fix)
    onto = average_onto(measured.mean)
    scores, trained = _score_served(onto, may_overlap)
    found = _find_best_partitions(scores, num_tasks, models, count)
    return [
        Proposal(tuple(Group(int(trained[own]), own) for own in sorted(parts)), score)
        for score, parts in found
    ]


def average_onto(affinities: np.ndarray) -> np.ndarray:
    """Return the affinity of each set of tasks onto each of its tasks, [2^T, T]; 0 if alone."""
    num_tasks = len(affinities)
    # [2^T, T], 1 if a set holds a task.
    holds = (np.arange(2**num_tasks)[:, np.newaxis] >> np.arange(num_tasks)) & 1
    others = np.array(affinities, np.float64)
    # A task does not count as its own partner.
    np.fill_diagonal(others, 0.0)
    # At least 1: a task alone has the sum 0, and 0 / 1 is its affinity.
    partners = np.maximum(holds.sum(axis=1, keepdims=True) - 1, 1)
    # `holds @ others` sums the affinities of a set onto any task; `holds *` keeps its members.
    return holds * (holds @ others) / partners


def _score_served(onto: np.ndarray, may_overlap: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each set of served tasks, [2^T], and the best set to train for it.

    If models may not overlap, a model trains exactly the tasks that it serves. Otherwise, a model
    may train more tasks than it serves.
    """
    sets = np.arange(len(onto))
    scores, trained = onto.sum(axis=1), sets.copy()
    if may_overlap:
        num_tasks = onto.shape[1]
        for own in range(1, len(onto)):
            members = [task for task in range(num_tasks) if own >> task & 1]
            # All supersets: the set with each subset of the other tasks.
            larger = own | _list_subsets(len(onto) - 1 & ~own)
            found = onto[larger][:, members].sum(axis=1)
            best = int(np.argmax(found))  # If all are equal, the first: the set itself.
            scores[own], trained[own] = found[best], larger[best]
    return scores, trained


def _find_best_partitions(
    scores: np.ndarray, num_tasks: int, most: int, count: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Return the best partitions of all tasks into at most `most` sets, [(score, sets)].

    Dynamic programming: best[S] holds the best partitions of the set S into at most so many sets.
    Each is a set with the first task of S, and a best partition of the rest into one set less.
    """
    everything = 2**num_tasks - 1
    best: dict[int, list[tuple[float, tuple[int, ...]]]]
    best = {whole: [(float(scores[whole]), (whole,))] for whole in range(1, everything + 1)}
    best[0] = [(0.0, ())]
    for number in range(2, most + 1):
        # The best score of each set so far, with one group less.
        tops = np.array([best[whole][0][0] for whole in range(everything + 1)])
        # Nothing is left: fewer groups are allowed.
        found = {0: best[0]}
        # The last round only needs the set of all tasks.
        for whole in [everything] if number == most else range(1, everything + 1):
            # The lowest bit. One group must hold this task, so no partition is tried in two orders.
            first = whole & -whole
            parts = first | _list_subsets(whole ^ first)
            # The first set of a best partition is also among the best with the best rest.
            order = np.argsort(-(scores[parts] + tops[whole ^ parts]), kind="stable")
            candidates = [
                (float(scores[part]) + score, (part, *sets))
                for part in parts[order[:count]].tolist()
                for score, sets in best[whole ^ part]
            ]
            found[whole] = sorted(candidates, key=lambda candidate: -candidate[0])[:count]
        best = found
    return best[everything]


def _list_subsets(whole: int) -> np.ndarray:
    """Return all subsets of a set, the empty one first."""
    subsets = np.zeros(1, np.int64)
    while whole:
        # Each task doubles the list: subsets without it, then with it.
        bit = whole & -whole
        subsets = np.concatenate([subsets, subsets | bit])
        whole ^= bit
    return subsets


def compare(measured: Measured, one: Proposal, other: Proposal) -> tuple[float, float]:
    """Return the difference of the scores of two proposals, and its standard error.

    At each step, the difference is a sum of affinities of pairs, which vary together. Steps count
    as independent. The error leaves out steps with a missing pair.

    Args:
      measured: the affinities.
      one: a proposal.
      other: the proposal whose score is subtracted.

    Returns:
      The difference of the scores, and its standard error; NaN for fewer than two known steps.
    """
    weights = _weigh_pairs(one, len(measured.tasks)) - _weigh_pairs(other, len(measured.tasks))
    # Pairs that both proposals weigh alike cancel out, and may even be missing.
    chosen = weights != 0
    of_steps = (measured.values[:, chosen] * weights[chosen]).sum(axis=1)
    known = of_steps[np.isfinite(of_steps)].tolist()
    return one.score - other.score, affinity_picture.estimate_error(known)


def _weigh_pairs(proposal: Proposal, num_tasks: int) -> np.ndarray:
    """Return the weight of each affinity in the score, [T, T]."""
    weights = np.zeros([num_tasks, num_tasks])
    for trained, served in proposal.groups:
        members = _list_tasks(trained)
        for task in _list_tasks(served):
            for partner in members:
                if partner != task:
                    # The affinity onto a task is a mean over its partners.
                    weights[partner, task] = 1 / (len(members) - 1)
    return weights


def _list_tasks(whole: int) -> list[int]:
    return [task for task in range(whole.bit_length()) if whole >> task & 1]


def name_tasks(measured: Measured, whole: int) -> list[str]:
    """Return the names of a set of tasks."""
    return [measured.tasks[task] for task in _list_tasks(whole)]


def describe(measured: Measured, proposals: Sequence[Proposal]) -> str:
    """Return a text: the best proposal, the affinity onto each task, the next ones, and errors."""
    best = proposals[0]
    lines = aligned.align_columns(_tabulate_tasks(measured, best), right=[2])
    parts = ["\n".join(f"  {line}" for line in lines)]
    parts.append(f"  Sum over the tasks: {best.score:.3g}.")
    for other in proposals[1:]:
        apart, error = compare(measured, best, other)
        groups = " | ".join(_describe_group(measured, group) for group in other.groups)
        parts.append(f"  Next best: {groups}, {apart:.2g} ± {error:.2g} below.")
    if len(proposals) > 1:
        apart, error = compare(measured, best, proposals[1])
        # `not >`, as an error of NaN, from a single measurement, proves nothing either.
        if not apart > 2 * error:
            parts.append("  That is within two standard errors: measure more often, or for longer.")
    return "\n\n".join(parts[:2]) + "".join(f"\n{part}" for part in parts[2:])


def _tabulate_tasks(measured: Measured, proposal: Proposal) -> list[tuple[str, str, str, str]]:
    """Return the header and a row for each task."""
    onto = average_onto(measured.mean)
    rows = [("model", "task", "affinity onto it", "trained with")]
    for number, (trained, served) in enumerate(proposal.groups, 1):
        for task in _list_tasks(served):
            partners = ", ".join(name_tasks(measured, trained & ~(1 << task))) or "nothing"
            model = str(number) if task == _list_tasks(served)[0] else ""
            rows.append((model, measured.tasks[task], f"{onto[trained, task]:.3g}", partners))
    return rows


def _describe_group(measured: Measured, group: Group) -> str:
    served = ", ".join(name_tasks(measured, group.served))
    helpers = ", ".join(name_tasks(measured, group.trained & ~group.served))
    return f"{served} (with {helpers})" if helpers else served
