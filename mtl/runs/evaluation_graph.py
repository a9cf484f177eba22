"""Builds one graph that evaluates all checkpoints of a run.

A training reuses the graph of evaluation, because building a graph takes longer than most
evaluations. The training builds the graph before the first step, so that wrong settings of metrics
fail early.

graph = evaluation_graph.EvaluationGraph(experiment, "runs/digits")
graph.metrics                                        # ["loss", "digit/accuracy", ...]
graph.evaluate("runs/digits/model.ckpt-500", hooks)  # {"digit/accuracy": 0.97, ...}
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from mtl import experiment as experiment_lib
from mtl import types
from mtl.checkpoints import given_files, mismatch
from mtl.deferred import tf, tf1
from mtl.runs import estimators
from mtl.variables import stacks


class EvaluationGraph:
    """Holds the graph that evaluates on `Pipeline.eval_split`; opens a session for each checkpoint.

    Args:
      experiment: the run's settings.
      model_dir: the folder of the run, with its statistics.
      watch: returns the hooks that watch the rows of each evaluation.

    Attributes:
      variables: the names of the trainable variables.
      metrics: the names of the metrics that the graph computes.
    """

    def __init__(
        self,
        experiment: experiment_lib.Experiment,
        model_dir: str,
        watch: types.EvaluationHooks = lambda *_: (),
    ):
        self._model, self._model_dir = experiment.model, model_dir
        self._estimator = estimators.build_estimator(experiment, model_dir, evaluation_hooks=watch)
        rows = functools.partial(experiment.data.one_pass, experiment.data.eval_split)
        self._graph = tf.Graph()
        with self._graph.as_default():
            # Call private methods: the public `Estimator.evaluate` builds a graph for each
            # checkpoint.
            parts = self._estimator._evaluate_build_graph(rows, hooks=[], checkpoint_path=None)
            self._scaffold, self._update, self._metrics, self._hooks = parts
            self.variables = [
                name
                for variable in tf1.trainable_variables()
                for name in stacks.list_members(variable)
            ]
        self.metrics = [name for name in self._metrics if name != tf1.GraphKeys.GLOBAL_STEP]

    def evaluate(
        self,
        checkpoint: str,
        hooks: Sequence[tf.compat.v1.train.SessionRunHook],
        events: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint, and write its metrics for TensorBoard.

        Args:
          checkpoint: the path of a checkpoint, without ".index".
          hooks: additional hooks of the session.
          events: the folder for TensorBoard; None for `<model_dir>/eval`.

        Returns:
          {metric: value}, with "global_step".

        Raises:
          UserError: the checkpoint does not fit the model, or a file that columns read has changed.
        """
        given_files.check_unchanged(self._model.column_files, self._model_dir)
        with self._graph.as_default():
            mismatch.require_fit(checkpoint, is_training=False)
            # The last session made the graph read-only, but Estimator adds an op that counts
            # batches.
            self._graph._unsafe_unfinalize()
            return self._estimator._evaluate_run(
                checkpoint,
                self._scaffold,
                self._update,
                self._metrics,
                [*self._hooks, *hooks],
                events or self._estimator.eval_dir(),
            )
