"""Finds the groups of tasks whose joint training helps the tasks most.

measured = grouping.Measured.from_pairs(affinity_picture.group(curves), tasks)
best, *next_best = grouping.propose(measured, models=2)
print(grouping.describe(measured, [best, *next_best]))

Tasks are numbered from 0. An integer represents a set of tasks: bit t is 1 if the set has task t.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mtl import aligned, checks
from mtl.tools.drawing import affinity_picture

MOST_TASKS = 14
"""The largest number of tasks T. The search tries up to 3^T pairs of sets, which takes seconds."""

_PROPOSALS = 3
_WHERE = "launch.affinity"


@dataclasses.dataclass(frozen=True)
class Measured:
    """The affinities between T tasks that a run measured at N steps.

    Attributes:
      tasks: the names of the tasks.
      steps: the global steps, [N].
      values: [N, T, T]: the affinity of the first task onto the second task, which says how much a
        training step of the first task reduces the loss of the second task; NaN if the batch had no
        label of a task.
    """

    tasks: Sequence[str]
    steps: np.ndarray
    values: np.ndarray

    @classmethod
    def from_pairs(cls, pairs: affinity_picture.Pairs, tasks: Sequence[str]) -> "Measured":
        """Return the affinities between some tasks of a run.

        Args:
          pairs: the affinities that a run has measured for pairs of tasks.
          tasks: the names of at least two tasks, in the order in which `Measured` lists them.

        Raises:
          UserError: there are fewer than two tasks, or the run has not measured a pair of tasks.
        """
        # Include pairs of a task with itself, which show whether the steps of a task help the task
        # itself.
        all_pairs = [(one, other) for one in tasks for other in tasks]
        fix = "Groups need several tasks."
        checks.require(len(tasks) > 1, _WHERE, "have two tasks or more", list(tasks), fix)
        missing = [f"{one} onto {other}" for one, other in all_pairs if (one, other) not in pairs]
        fix = f"Missing: {', '.join(missing[:3])}. No measured batch had labels of both tasks."
        count = len(all_pairs) - len(missing)
        checks.require(
            not missing, _WHERE, f"have measured all {len(all_pairs)} pairs of tasks", count, fix
        )
        steps = sorted({step for pair in all_pairs for step in pairs[pair]})
        values = [
            [[pairs[i, j].get(step, math.nan) for j in tasks] for i in tasks] for step in steps
        ]
        return cls(tasks, np.array(steps), np.array(values))

    @property
    def mean(self) -> np.ndarray:
        """The mean affinities over all steps, [T, T]."""
        # `nanmean` skips NaN, which marks a pair of tasks if the batch of a step had no label of a
        # task.
        return np.nanmean(self.values, axis=0)

    def find_harmful_steps(self) -> list[str]:
        """Return the tasks whose own training steps were too long to reduce their loss."""
        effects = np.diagonal(self.mean)
        return [task for task, value in zip(self.tasks, effects, strict=True) if value <= 0]


class Group(NamedTuple):
    """The tasks that a model trains and the tasks that it serves.

    Attributes:
      trained: the set of the trained tasks as an integer, whose bit t is 1 if the model trains task
        t.
      served: the set of the served tasks, with a bit for each task as in `trained`. A model trains
        each task that it serves.
    """

    trained: int
    served: int


class Proposal(NamedTuple):
    """A way to divide all tasks among models.

    Attributes:
      groups: the `Group` of tasks for each model. Each task is served by exactly one group.
      score: the sum of the affinities onto all tasks; a higher score is better, see `propose`.
    """

    groups: tuple[Group, ...]
    score: float


def propose(
    measured: Measured, models: int, may_overlap: bool = False, count: int = _PROPOSALS
) -> list[Proposal]:
    """Return the best ways to divide tasks among models, from the highest score.

    The affinity onto a task is the mean affinity of the other tasks in the same model onto the
    task, or 0 if the model trains only this task. The score of a proposal is the sum of the
    affinities onto all tasks. The search is exhaustive, so no other division has a higher score.

    Args:
      measured: the measured affinities of the tasks.
      models: the largest number of models among which the tasks are divided.
      may_overlap: True to let a model train tasks that another model serves.
      count: the largest number of proposals to return.

    Raises:
      UserError: there are more models than tasks, or too many tasks for the search.
    """
    num_tasks = len(measured.tasks)
    checks.whole("--models", models, 1)
    rule = f"be at most {num_tasks}, the number of tasks"
    checks.require(models <= num_tasks, "--models", rule, models)
    rule = f"have at most {MOST_TASKS} tasks"
    fix = "Choose some tasks with --tasks."
    checks.require(num_tasks <= MOST_TASKS, _WHERE, rule, num_tasks, fix)
    onto = average_onto(measured.mean)
    scores, trained = _score_served(onto, may_overlap)
    partitions = _find_best_partitions(scores, num_tasks, models, count)
    return [
        Proposal(tuple(Group(int(trained[served]), served) for served in sorted(parts)), score)
        for score, parts in partitions
    ]


def average_onto(affinities: np.ndarray) -> np.ndarray:
    """Compute the mean affinity of the tasks in each set onto each task of the set.

    Args:
      affinities: the affinity of the first task onto the second, [T, T].

    Returns:
      [2^T, T]: the mean affinity of the other tasks in a set onto a task; 0 if the task is alone in
      the set or not in the set.
    """
    num_tasks = len(affinities)
    # holds [2^T, T] is 1 if the set has the task.
    holds = (np.arange(2**num_tasks)[:, np.newaxis] >> np.arange(num_tasks)) & 1
    onto_others = np.array(affinities, np.float64)
    # Set the diagonal to 0, because an affinity onto a task averages over the other tasks.
    np.fill_diagonal(onto_others, 0.0)
    # Divide by at least 1, so that a set of one task gets the affinity 0 / 1.
    partners = np.maximum(holds.sum(axis=1, keepdims=True) - 1, 1)
    # The matrix product adds up the affinities of a set onto each task. The factor `holds` sets
    # tasks outside of the set to 0.
    return holds * (holds @ onto_others) / partners


def _score_served(onto: np.ndarray, may_overlap: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each set of served tasks, [2^T], and the best set of tasks to train.

    If `may_overlap` is False, a model trains exactly the tasks that it serves. If `may_overlap` is
    True, a model may train more tasks than it serves.
    """
    sets = np.arange(len(onto))
    scores, trained = onto.sum(axis=1), sets.copy()
    if may_overlap:
        num_tasks = onto.shape[1]
        for served in range(1, len(onto)):
            members = [task for task in range(num_tasks) if served >> task & 1]
            # Unite `served` with each subset of the other tasks, which gives all supersets of
            # `served`.
            larger = served | _list_subsets(len(onto) - 1 & ~served)
            sums = onto[larger][:, members].sum(axis=1)
            best = int(np.argmax(sums))  # Of equal sums, `argmax` takes the first: `served`.
            scores[served], trained[served] = sums[best], larger[best]
    return scores, trained


def _find_best_partitions(
    scores: np.ndarray, num_tasks: int, limit: int, count: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Return the best partitions of all tasks into at most `limit` sets, [(score, sets)].

    Dynamic programming finds the best partitions. In round n, best[S] holds the best partitions of
    a set S into at most n sets. A best partition of S consists of a set with the first task of S,
    and of a best partition of the remaining tasks of S into at most n - 1 sets.
    """
    all_tasks = 2**num_tasks - 1
    best: dict[int, list[tuple[float, tuple[int, ...]]]]
    best = {
        task_set: [(float(scores[task_set]), (task_set,))] for task_set in range(1, all_tasks + 1)
    }
    best[0] = [(0.0, ())]
    for number in range(2, limit + 1):
        # The best score of each set in the previous round, which allows one group less.
        tops = np.array([best[task_set][0][0] for task_set in range(all_tasks + 1)])
        # Keep the empty set, so that a partition may have fewer groups than allowed.
        next_best = {0: best[0]}
        # The last round only needs the set of all tasks.
        for task_set in [all_tasks] if number == limit else range(1, all_tasks + 1):
            # The lowest bit of the integer `task_set` is its first task. The group with the first
            # task comes first, so no partition is tried in several orders.
            first_task = task_set & -task_set
            parts = first_task | _list_subsets(task_set ^ first_task)
            # Rank the candidates for the first group of a partition by the best score of all
            # partitions that begin with the candidate. Each of the `count` best partitions begins
            # with one of the `count` best candidates.
            order = np.argsort(-(scores[parts] + tops[task_set ^ parts]), kind="stable")
            candidates = [
                (float(scores[part]) + score, (part, *sets))
                for part in parts[order[:count]].tolist()
                for score, sets in best[task_set ^ part]
            ]
            next_best[task_set] = sorted(candidates, key=lambda candidate: -candidate[0])[:count]
        best = next_best
    return best[all_tasks]


def _list_subsets(task_set: int) -> np.ndarray:
    """Return all subsets of a set, beginning with the empty set."""
    subsets = np.zeros(1, np.int64)
    while task_set:
        # Each task doubles the list: the subsets without the task are followed by the subsets with
        # it.
        bit = task_set & -task_set
        subsets = np.concatenate([subsets, subsets | bit])
        task_set ^= bit
    return subsets


def compare(measured: Measured, first: Proposal, second: Proposal) -> tuple[float, float]:
    """Return the difference between the scores of two proposals, and its standard error.

    The standard error is estimated from the difference of the scores at each step, because the
    affinities that are measured at the same step are correlated. Steps are treated as independent.
    Steps without the affinity of a needed pair of tasks are left out.

    Args:
      measured: the measured affinities of the tasks.
      first: the proposal from whose score the other score is subtracted.
      second: the proposal whose score is subtracted.

    Returns:
      The difference of the scores, and its standard error, which is NaN if fewer than two steps
      have an affinity for all needed pairs of tasks.
    """
    weights = _weigh_pairs(first, len(measured.tasks)) - _weigh_pairs(second, len(measured.tasks))
    # Pairs of tasks with equal weights in the first and the second grouping cancel out, so the
    # affinities of these pairs are not needed.
    differs = weights != 0
    step_values = (measured.values[:, differs] * weights[differs]).sum(axis=1)
    differences = step_values[np.isfinite(step_values)].tolist()
    return first.score - second.score, affinity_picture.estimate_error(differences)


def _weigh_pairs(proposal: Proposal, num_tasks: int) -> np.ndarray:
    """Return the weight of each affinity in the score of a proposal, [T, T]."""
    weights = np.zeros([num_tasks, num_tasks])
    for trained, served in proposal.groups:
        members = _list_tasks(trained)
        for task in _list_tasks(served):
            for partner in members:
                if partner != task:
                    # The affinity onto a task is the mean over the partners of the task.
                    weights[partner, task] = 1 / (len(members) - 1)
    return weights


def _list_tasks(task_set: int) -> list[int]:
    return [task for task in range(task_set.bit_length()) if task_set >> task & 1]


def name_tasks(measured: Measured, whole: int) -> list[str]:
    """Return the names of the tasks in a set.

    Args:
      measured: the affinities, which contain the names of all tasks.
      whole: the set of tasks as an integer, whose bit t is 1 if the set has task t.
    """
    return [measured.tasks[task] for task in _list_tasks(whole)]


def describe(measured: Measured, proposals: Sequence[Proposal]) -> str:
    """Return a text that describes proposals.

    The text shows the best proposal with the affinity onto each task. For each other proposal, the
    text shows by how much its score is lower, with the standard error of this difference.

    Args:
      measured: the measured affinities of the tasks.
      proposals: at least one proposal, from the highest score, as `propose` returns them.
    """
    best = proposals[0]
    lines = aligned.align_columns(_tabulate_tasks(measured, best), right=[2])
    parts = ["\n".join(f"  {line}" for line in lines)]
    parts.append(f"  Sum over the tasks: {best.score:.3g}.")
    for other in proposals[1:]:
        difference, error = compare(measured, best, other)
        groups = " | ".join(_describe_group(measured, group) for group in other.groups)
        parts.append(f"  Next best: {groups}, {difference:.2g} ± {error:.2g} below.")
    if len(proposals) > 1:
        difference, error = compare(measured, best, proposals[1])
        # Use `not >` instead of `<=`, because the error of a single measurement is NaN.
        if not difference > 2 * error:
            parts.append("  The two best are not clearly different: measure more often or longer.")
    return "\n\n".join(parts[:2]) + "".join(f"\n{part}" for part in parts[2:])


def _tabulate_tasks(measured: Measured, proposal: Proposal) -> list[tuple[str, str, str, str]]:
    """Return a table about a proposal: the header, and a row for each task."""
    affinities = average_onto(measured.mean)
    rows = [("model", "task", "affinity onto it", "trained with")]
    for number, (trained, served) in enumerate(proposal.groups, 1):
        for task in _list_tasks(served):
            partners = ", ".join(name_tasks(measured, trained & ~(1 << task))) or "nothing"
            model = str(number) if task == _list_tasks(served)[0] else ""
            rows.append((model, measured.tasks[task], f"{affinities[trained, task]:.3g}", partners))
    return rows


def _describe_group(measured: Measured, group: Group) -> str:
    served = ", ".join(name_tasks(measured, group.served))
    helpers = ", ".join(name_tasks(measured, group.trained & ~group.served))
    return f"{served} (with {helpers})" if helpers else served
