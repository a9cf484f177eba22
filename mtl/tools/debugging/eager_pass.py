"""Runs the Python code of a model eagerly on real rows, and compares it with the graph.

batch = inspection.read_split(experiment, "test", limit=4)
passed = eager_pass.run_eagerly(experiment, "runs/a", batch)
passed.values["income/probability"], passed.deviation

Eager code computes values, not symbolic tensors: you can set breakpoints and print tensors inside a
network or a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mtl import checks
from mtl import experiment as experiment_lib
from mtl.deferred import tf, tf1
from mtl.runs import diagnosis, fitting
from mtl.step import draws
from mtl.tf_internals import eager
from mtl.tools.debugging import inspection
from mtl.variables import patterns

# The name of the global step in checkpoints. Layers that draw random numbers read the global step.
_STEP = "global_step"

Values = dict[str, "tf.Tensor"]
Call = Callable[[Callable[[], Values]], Values]
"""A function that calls another function, for example under a debugger, and returns its result."""

CALL: Call = lambda run: run()  # noqa: E731
"""Calls a function directly, without a debugger."""


class Passed(NamedTuple):
    """The values that the code of a model computes eagerly for some rows.

    Attributes:
      values: {name: array}. A prediction has the name `<task>/<prediction>`, and a loss the name
        `<task>/loss`. Mode "train" computes no predictions, and mode "predict" no losses.
      deviation: the largest difference between a value and the same value of the graph, divided by
        the size of the graph's value if this size is above 1. The deviation is infinite if texts or
        classes differ from the graph, or if a value is NaN only in eager code or only in the graph.
      furthest: the name of the value that differs most from the graph.
    """

    values: Mapping[str, np.ndarray]
    deviation: float
    furthest: str


def run_eagerly(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    batch: inspection.Batch,
    mode: str = "eval",
    checkpoint: str = "latest",
    call: Call = CALL,
) -> Passed:
    """Run the code of a model eagerly from features to losses, with the weights of a checkpoint.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      batch: the rows that the code gets as its batch.
      mode: "eval", "predict" or "train". In mode "train", normalisation and dropout work as in the
        next training step with these rows as its batch, but no variable is updated.
      checkpoint: "latest", "best" or a path.
      call: a function that calls the code of the model, for example under a debugger.

    Raises:
      UserError: there is no such checkpoint, rows do not fit, or the model works only in a graph.
    """
    is_training = mode == "train"
    if is_training:
        rule = "be None to run a training step eagerly"
        mixing = experiment.model.mixing
        checks.require(mixing is None, "MultiTaskModel.mixing", rule, mixing)
    weights, of_graph = _run_graphs(experiment, model_dir, batch, mode, checkpoint)
    statistics = fitting.load_statistics(model_dir)
    model = experiment.model.fitted(statistics)

    def build(features: Any, labels: Any) -> tuple[Any, Any]:
        # In a prediction, random numbers depend on the fields of a row, as they do in the graph.
        with draws.know_rows(features):
            return model.build_outputs(features, statistics, is_training).logits, labels

    def run() -> Values:
        rows = _make_constants(batch.features), _make_constants(batch.labels)
        logits, labels = experiment.run.precision.wrap_step(build)(*rows)
        # Skip predictions in training: the graph of a training step computes no predictions to
        # compare with.
        outputs = {} if is_training else model.name_predictions(logits)
        if mode != "predict":
            loss_heads = model.heads_with_loss
            outputs |= {f"{h.name}/loss": h.loss(logits[h.name], labels) for h in loss_heads}
        return outputs

    with (
        diagnosis.explain_run_errors(experiment.data, model, None),
        tf.Graph().as_default() as scratch,  # Collections and the random seed belong to this graph.
    ):
        tf1.set_random_seed(experiment.run.seed)
        # Each variable that the code creates gets the value that the checkpoint has for its name.
        with eager.execute_eagerly(), eager.create_variables(weights):
            step = tf1.get_variable(_STEP, [], tf.int64)
            scratch.add_to_collection(tf1.GraphKeys.GLOBAL_STEP, step)
            values = {name: np.asarray(value) for name, value in call(run).items()}
    if mode == "eval":  # An evaluation computes only the sum of the losses.
        values["loss"] = np.sum([values[f"{head.name}/loss"] for head in model.heads_with_loss])
    return _compare_values(values, of_graph)


def _run_graphs(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    batch: inspection.Batch,
    mode: str,
    checkpoint: str,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the weights of a checkpoint, and the outputs of the model's graphs for the rows."""
    weights: dict[str, np.ndarray] = {}
    outputs: dict[str, np.ndarray] = {}
    # Mode "eval" needs two graphs: an evaluation for losses, and a prediction.
    for graph_mode in ("predict", "eval") if mode == "eval" else (mode,):
        opened = inspection.open_graph(experiment, model_dir, batch, graph_mode, checkpoint)
        with opened as graph:
            variables = {patterns.variable_name(v): v for v in tf1.global_variables()}
            weights.update(graph.session.run(variables))
            outputs.update(graph.session.run(dict(graph.outputs), graph.fed))
    return weights, outputs


def _make_constants(fields: Mapping[str, Any]) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    def constant(value: Any) -> tf.Tensor | tf.RaggedTensor:
        if isinstance(value, tf1.ragged.RaggedTensorValue):
            inner = constant(value.values)
            return tf.RaggedTensor.from_row_splits(inner, value.row_splits)
        return tf.constant(value)

    return {name: constant(value) for name, value in fields.items()}


def _compare_values(values: dict[str, np.ndarray], of_graph: Mapping[str, np.ndarray]) -> Passed:
    """Return the eager values, and their largest difference from the values of the graph."""
    differences = {
        name: _measure_difference(values[name], of_graph[name])
        for name in values
        if name in of_graph
    }
    furthest = max(differences, key=lambda name: differences[name])
    return Passed(values, differences[furthest], furthest)


def _measure_difference(value: np.ndarray, of_graph: np.ndarray) -> float:
    # Texts and classes have no distance: they are equal, or differ infinitely.
    if np.asarray(value).dtype.kind != "f":
        return 0.0 if np.array_equal(value, of_graph) else float("inf")
    # Divide by large values: their absolute differences are large even if
    # only the last bit differs.
    with np.errstate(invalid="ignore"):
        difference = np.abs(value - of_graph) / np.maximum(1, np.abs(of_graph))
    # If one of two values is NaN or infinite, the difference may be NaN; `max` could skip a NaN.
    difference = np.where(np.isnan(difference), np.inf, difference)
    is_same = (value == of_graph) | (np.isnan(value) & np.isnan(of_graph))
    return float(np.max(np.where(is_same, 0, difference), initial=0))
