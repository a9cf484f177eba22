"""Measures the metrics of heads for any logits and labels, many times with one graph.

scores = scores_lib.build_scores(heads, logits, labels, tasks)   # while the graph is built
values = scores.measure(session, {task: [N, C]}, {field: [N]})   # [M], in the order of `metrics`
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
    """A metric of a task.

    Attributes:
      task: the name of the task.
      name: the name of the metric without the task, such as "auc".
      is_higher_better: True if a higher value is better, False if a lower value is better.
    """

    task: str
    name: str
    is_higher_better: bool


@dataclasses.dataclass(frozen=True)
class Scores:
    """The tensors and ops that measure the metrics of tasks.

    Attributes:
      metrics: the M metrics: for each task its main metric, and then its loss. A task is left out
        if neither higher nor lower values of its metrics are better.
      values: the values of the M metrics, scalars.
      update: the op that adds a batch of rows to the metrics.
      start: the op that resets all metrics.
      logits: the input tensors, {task: [B, C]}.
      labels: the input tensors, {field: [B, ...]}.
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
        """Compute the values of the metrics for some rows.

        Args:
          session: a session of the graph.
          logits: {task: the logits of N rows, [N, C]}.
          labels: {field: the labels of N rows, [N, ...]}.
          batch_size: the number of rows in a batch; None for a single batch. With the batch size of
            an evaluation, the values equal the values of an evaluation of the same rows to the last
            bit.

        Returns:
          The values of the M metrics, [M] float64.
        """
        # Feed only labels that are inputs of this graph.
        values = {name: labels[name] for name in self.labels}
        sample = rows_lib.Rows("", {task: logits[task] for task in self.logits}, values)
        # Reset the local variables of the metrics, which still hold sums of the last call.
        session.run(self.start)
        for part in sample.split_up(batch_size) if batch_size else [sample]:
            feed: dict[Any, Any] = {
                self.logits[task]: value for task, value in part.features.items()
            }
            feed |= {self.labels[name]: value for name, value in part.labels.items()}
            session.run(self.update, feed)
        return np.asarray(session.run(list(self.values)), np.float64)

    @property
    def signs(self) -> np.ndarray:
        """1 if a higher value of a metric is better, -1 if a lower value is better, [M]."""
        return np.asarray([1.0 if metric.is_higher_better else -1.0 for metric in self.metrics])


def build_scores(
    heads: Mapping[str, types.Head],
    logits: types.Tensors,
    labels: types.Tensors,
    tasks: Sequence[str],
) -> Scores:
    """Build the metrics of some tasks, in a graph that contains logits and labels.

    The graph contains the metrics of all heads, as in an evaluation, but computes only some of
    them.

    Args:
      heads: the fitted heads of all tasks, {task: head}.
      logits: {task: [B, C]}; only the types and shapes matter.
      labels: the input tensors, {field: [B, ...]}.
      tasks: the tasks whose metrics are measured.
    """
    # The metrics read placeholders for logits: permuted rows are predicted once, but scored many
    # times, for each group of rows that the jackknife leaves out.
    placeholders = {
        task: tf1.placeholder(value.dtype, value.shape) for task, value in logits.items()
    }
    streams, state = _build_metrics(list(heads.values()), placeholders, labels)
    selected = [metric for task in tasks for metric in _choose_metrics(heads[task], streams)]
    streamed = [streams[f"{metric.task}/{metric.name}"] for metric in selected]
    # All metrics of a head share an update op, and `tf.group` needs the op only once.
    updates = list({id(update): update for _, update in streamed}.values())
    return Scores(
        metrics=selected,
        values=[value for value, _ in streamed],
        update=tf.group(*updates),
        start=tf1.variables_initializer(state),
        logits={task: placeholders[task] for task in {metric.task for metric in selected}},
        labels=labels,
    )


def _build_metrics(
    heads: Sequence[types.Head], logits: types.Tensors, labels: types.Tensors
) -> tuple[types.Metrics, list[tf.Variable]]:
    """Return the metrics of all heads, and the variables that hold the sums of the metrics."""
    # Find the variables of the metrics, because a reset must not touch other local variables.
    before = set(map(id, tf1.local_variables()))
    streams = together.build_metrics(heads, logits, labels)
    variables = {id(variable): variable for variable in tf1.local_variables()}
    return streams, [variable for key, variable in variables.items() if key not in before]


def _choose_metrics(head: types.Head, streams: Mapping[str, Any]) -> list[Metric]:
    """Return the main metric of a head, and its loss."""
    prefix = f"{head.name}/"
    names = [name.removeprefix(prefix) for name in streams if name.startswith(prefix)]
    directions = types.read_member(head, types.Head, "directions")
    # If neither higher nor lower values of a metric are better, a change of the metric shows
    # nothing.
    if not directions:
        return []
    entries = metrics_lib.find_directions(head, names)[:1]
    loss = [(LOSS, False)] if LOSS in names and LOSS in directions else []
    return [Metric(head.name, *entry) for entry in dict.fromkeys([*entries, *loss])]
