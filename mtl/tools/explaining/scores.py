"""Measures the metrics of heads for given logits and labels, repeatedly, in one graph.

scores = scores_lib.build_scores(heads, logits, labels, tasks)   # while the graph is built
values = scores.measure(session, {task: [N, C]}, {field: [N]})   # [M], one for each of `metrics`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl import types
from mtl.deferred import tf, tf1
from mtl.heads import metrics as metrics_lib
from mtl.heads import together
from mtl.tools.explaining import rows as rows_lib

LOSS = "average_loss"


class Metric(NamedTuple):
    """A metric of a task, and whether a higher value is better."""

    task: str
    name: str
    is_higher_better: bool


@dataclasses.dataclass(frozen=True)
class Scores:
    """Metrics that are measured anew each time.

    Attributes:
      metrics: M metrics: for each task the most telling one, then its loss; tasks whose metrics
        have no direction are left out.
      values: M scalars.
      update: the op that adds rows.
      start: the op that resets all metrics.
      logits: {task: input [B, C]}.
      labels: {field: input [B, ...]}.
    """

    metrics: Sequence[Metric]
    values: Sequence[tf.Tensor]
    update: tf.Operation
    start: tf.Operation
    logits: types.Tensors
    labels: types.Tensors

    def measure(
        self,
        session: tf.compat.v1.Session,
        logits: Mapping[str, np.ndarray],
        labels: rows_lib.Values,
        batch_size: int | None = None,
    ) -> np.ndarray:
        """Return the metrics of rows, {task: [N, C]} and {field: [N, ...]} -> [M] float64.

        Rows are added at once, or in batches. With the batch size of an evaluation, even the last
        bits agree.

        Args:
          session: a session of the graph.
          logits: {task: [N, C]}.
          labels: {field: [N, ...]}.
          batch_size: rows that are added at once; None for all N.
        """
        # Only the labels that are inputs of this graph can be fed.
        values = {name: labels[name] for name in self.labels}
        together = rows_lib.Rows("", {task: logits[task] for task in self.logits}, values)
        # Metrics add up in local variables, which still hold the rows of the last call.
        session.run(self.start)
        for part in together.split_up(batch_size) if batch_size else [together]:
            fed: dict[Any, Any] = {self.logits[task]: own for task, own in part.features.items()}
            fed |= {self.labels[name]: own for name, own in part.labels.items()}
            session.run(self.update, fed)
        return np.asarray(session.run(list(self.values)), np.float64)

    @property
    def signs(self) -> np.ndarray:
        """1 if a higher value is better, -1 if a lower value is, [M]."""
        return np.asarray([1.0 if metric.is_higher_better else -1.0 for metric in self.metrics])


def build_scores(
    heads: Mapping[str, types.Head],
    logits: types.Tensors,
    labels: types.Tensors,
    tasks: Sequence[str],
) -> Scores:
    """Build the metrics of these tasks, in the graph with these logits and labels.

    Metrics of all heads are built as in an evaluation, but only the chosen ones are computed.

    Args:
      heads: {task: its fitted head}, of all tasks.
      logits: {task: [B, C]}, for their types and shapes.
      labels: {field: input [B, ...]}.
      tasks: the tasks whose metrics are measured.
    """
    # Logits are fed: a permuted field is predicted once, and then scored for each left-out group.
    fed = {task: tf1.placeholder(value.dtype, value.shape) for task, value in logits.items()}
    found, state = _build_metrics(list(heads.values()), fed, labels)
    chosen = [metric for task in tasks for metric in _choose_metrics(heads[task], found)]
    streamed = [found[f"{metric.task}/{metric.name}"] for metric in chosen]
    # The metrics of a head share an update, which may only be fetched once.
    updates = list({id(update): update for _, update in streamed}.values())
    return Scores(
        metrics=chosen,
        values=[value for value, _ in streamed],
        update=tf.group(*updates),
        start=tf1.variables_initializer(state),
        logits={task: fed[task] for task in {metric.task for metric in chosen}},
        labels=labels,
    )


def _build_metrics(
    heads: Sequence[types.Head], logits: types.Tensors, labels: types.Tensors
) -> tuple[types.Metrics, list[tf.Variable]]:
    """Return the metrics of all heads, and the variables that hold their sums."""
    # Only the variables of these metrics may be reset.
    before = set(map(id, tf1.local_variables()))
    found = together.build_metrics(heads, logits, labels)
    made = {id(variable): variable for variable in tf1.local_variables()}
    return found, [variable for key, variable in made.items() if key not in before]


def _choose_metrics(head: types.Head, found: Mapping[str, Any]) -> list[Metric]:
    """Return the most telling metric of a head, and its loss."""
    prefix = f"{head.name}/"
    names = [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
    declared = types.read_member(head, types.Head, "directions")
    # Without directions, nobody knows whether a change is for the worse.
    if not declared:
        return []
    first = metrics_lib.find_directions(head, names)[:1]
    also = [(LOSS, False)] if LOSS in names and LOSS in declared else []
    return [Metric(head.name, *one) for one in dict.fromkeys([*first, *also])]
