"""Runs the Python code of a model eagerly on real rows, and compares it with the graph.

batch = inspection.read_split(experiment, "test", limit=4)
passed = eager_pass.run_eagerly(experiment, "runs/a", batch)
passed.values["income/probability"], passed.deviation

Every tensor has a value: you can set a breakpoint, or print, inside a network or a head.
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

# The name in checkpoints. Layers that draw at random read the step, so eager code needs it too.
_STEP = "global_step"

Values = dict[str, "tf.Tensor"]
Call = Callable[[Callable[[], Values]], Values]
"""Calls the model's code, such as under a debugger, and returns what it returned."""

CALL: Call = lambda run: run()  # noqa: E731
"""Calls the code directly."""


class Passed(NamedTuple):
    """The values that the code computed.

    Attributes:
      values: {name: array}: `<task>/<prediction>` except in training, and `<task>/loss` if the rows
        have labels.
      deviation: largest difference from the graph, each divided by the larger of 1 and the value;
        infinite if texts or classes differ.
      furthest: the name of the value with the largest difference.
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
    """Run the code of a model from features to losses, with the weights of a checkpoint.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      batch: the rows.
      mode: "eval", "predict", or "train". "train" normalises and drops out as the next step does,
        with these rows as the whole batch. Nothing is updated.
      checkpoint: "latest", "best" or a path.
      call: a function that calls the code, such as under a debugger.

    Raises:
      UserError: the checkpoint does not exist, the rows do not fit, or the code needs a graph.
    """
    is_training = mode == "train"
    if is_training:
        rule = "be None where the rows of a training step are run eagerly"
        mixing = experiment.model.mixing
        checks.require(mixing is None, "MultiTaskModel.mixing", rule, mixing)
    weights, of_graph = _run_graphs(experiment, model_dir, batch, mode, checkpoint)
    statistics = fitting.load_statistics(model_dir)
    model = experiment.model.fitted(statistics)

    def build(features: Any, labels: Any) -> tuple[Any, Any]:
        # A prediction that draws does so by the values of a row's fields, as in the graph.
        with draws.know_rows(features):
            return model.build_outputs(features, statistics, is_training).logits, labels

    def run() -> Values:
        rows = _make_constants(batch.features), _make_constants(batch.labels)
        logits, labels = experiment.run.precision.wrap_step(build)(*rows)
        # A step of training computes no predictions: there is nothing to compare them with.
        found = {} if is_training else model.name_predictions(logits)
        if mode != "predict":
            own = model.heads_with_loss
            found |= {f"{h.name}/loss": h.loss(logits[h.name], labels) for h in own}
        return found

    with (
        diagnosis.explain_run_errors(experiment.data, model, None),
        tf.Graph().as_default() as scratch,  # Holds the collections and the seed of random draws.
    ):
        tf1.set_random_seed(experiment.run.seed)
        # Variables get the values of the checkpoint when the code creates them, by their names.
        with eager.execute_eagerly(), eager.create_variables(weights):
            step = tf1.get_variable(_STEP, [], tf.int64)
            scratch.add_to_collection(tf1.GraphKeys.GLOBAL_STEP, step)
            values = {name: np.asarray(value) for name, value in call(run).items()}
    if mode == "eval":  # The graph of an evaluation gives only the sum of the losses.
        values["loss"] = np.sum([values[f"{head.name}/loss"] for head in model.heads_with_loss])
    return _compare_values(values, of_graph)


def _run_graphs(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    batch: inspection.Batch,
    mode: str,
    checkpoint: str,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the weights of a checkpoint, and the values that the graphs of a mode compute."""
    weights: dict[str, np.ndarray] = {}
    found: dict[str, np.ndarray] = {}
    # The graph of an evaluation has losses and no predictions, so both graphs run.
    for graph_mode in ("predict", "eval") if mode == "eval" else (mode,):
        opened = inspection.open_graph(experiment, model_dir, batch, graph_mode, checkpoint)
        with opened as graph:
            variables = {patterns.variable_name(v): v for v in tf1.global_variables()}
            weights.update(graph.session.run(variables))
            found.update(graph.session.run(dict(graph.outputs), graph.fed))
    return weights, found


def _make_constants(fields: Mapping[str, Any]) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    def constant(value: Any) -> tf.Tensor | tf.RaggedTensor:
        if isinstance(value, tf1.ragged.RaggedTensorValue):
            inner = constant(value.values)
            return tf.RaggedTensor.from_row_splits(inner, value.row_splits)
        return tf.constant(value)

    return {name: constant(value) for name, value in fields.items()}


def _compare_values(values: dict[str, np.ndarray], of_graph: Mapping[str, np.ndarray]) -> Passed:
    """Return the values and their largest difference from the graph."""
    apart = {
        name: _measure_difference(values[name], of_graph[name])
        for name in values
        if name in of_graph
    }
    furthest = max(apart, key=lambda name: apart[name])
    return Passed(values, apart[furthest], furthest)


def _measure_difference(value: np.ndarray, of_graph: np.ndarray) -> float:
    # Texts and classes have no distance: they agree or not.
    if np.asarray(value).dtype.kind != "f":
        return 0.0 if np.array_equal(value, of_graph) else float("inf")
    # Relative for large values, whose last bits alone are far apart; absolute near 0.
    apart = np.abs(value - of_graph) / np.maximum(1, np.abs(of_graph))
    # Infinity minus infinity is NaN, although both agree.
    same = (value == of_graph) | (np.isnan(value) & np.isnan(of_graph))
    return float(np.max(np.where(same, 0, apart), initial=0))
