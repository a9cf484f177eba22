"""Runs the Python code of a model eagerly on real rows, and compares it with the graph.

batch = inspection.read_split(experiment, "test", limit=4)
passed = eager_pass.run_eagerly(experiment, "runs/a", batch)
passed.values["income/probability"], passed.deviation

In eager code, every tensor has a value, so you can set breakpoints and print tensors inside a
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

# The name of the global step in checkpoints. Layers with random numbers read the step.
_STEP = "global_step"

Values = dict[str, "tf.Tensor"]
Call = Callable[[Callable[[], Values]], Values]
"""Calls a function, such as under a debugger, and returns its result."""

CALL: Call = lambda run: run()  # noqa: E731
"""Calls the function directly."""


class Passed(NamedTuple):
    """The values that eager code computed.

    Attributes:
      values: {name: array}, with names `<task>/<prediction>`, except in training, and
        `<task>/loss`, except in prediction.
      deviation: the largest difference between a value and the graph's value, divided by the latter
        if it is above 1; infinite if texts or classes differ, or only one value is NaN.
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
      mode: "eval", "predict", or "train". In mode "train", normalisation and dropout work as in the
        next step, with these rows as its batch, but nothing is updated.
      checkpoint: "latest", "best" or a path.
      call: a function that calls the code, such as under a debugger.

    Raises:
      UserError: the checkpoint does not exist, the rows do not fit, or the code needs a graph.
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
        # Random numbers of a prediction depend on the fields of its row, as in the graph.
        with draws.know_rows(features):
            return model.build_outputs(features, statistics, is_training).logits, labels

    def run() -> Values:
        rows = _make_constants(batch.features), _make_constants(batch.labels)
        logits, labels = experiment.run.precision.wrap_step(build)(*rows)
        # The graph of a training step has no predictions to compare with.
        outputs = {} if is_training else model.name_predictions(logits)
        if mode != "predict":
            loss_heads = model.heads_with_loss
            outputs |= {f"{h.name}/loss": h.loss(logits[h.name], labels) for h in loss_heads}
        return outputs

    with (
        diagnosis.explain_run_errors(experiment.data, model, None),
        tf.Graph().as_default() as scratch,  # It holds collections and the seed of random numbers.
    ):
        tf1.set_random_seed(experiment.run.seed)
        # When the code creates a variable, it gets the value with the same name in the checkpoint.
        with eager.execute_eagerly(), eager.create_variables(weights):
            step = tf1.get_variable(_STEP, [], tf.int64)
            scratch.add_to_collection(tf1.GraphKeys.GLOBAL_STEP, step)
            values = {name: np.asarray(value) for name, value in call(run).items()}
    if mode == "eval":  # Compare the sum of the losses, which is all that the graph computes.
        values["loss"] = np.sum([values[f"{head.name}/loss"] for head in model.heads_with_loss])
    return _compare_values(values, of_graph)


def _run_graphs(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    batch: inspection.Batch,
    mode: str,
    checkpoint: str,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the weights of a checkpoint, and the values that graphs compute in a mode."""
    weights: dict[str, np.ndarray] = {}
    outputs: dict[str, np.ndarray] = {}
    # In mode "eval", run two graphs: the evaluation for losses, and the prediction.
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
    """Return the values and their largest difference from the graph."""
    differences = {
        name: _measure_difference(values[name], of_graph[name])
        for name in values
        if name in of_graph
    }
    furthest = max(differences, key=lambda name: differences[name])
    return Passed(values, differences[furthest], furthest)


def _measure_difference(value: np.ndarray, of_graph: np.ndarray) -> float:
    # Texts and classes have no distance: they are equal or not.
    if np.asarray(value).dtype.kind != "f":
        return 0.0 if np.array_equal(value, of_graph) else float("inf")
    # Use relative differences for large values, which differ much even in the last bit.
    with np.errstate(invalid="ignore"):
        difference = np.abs(value - of_graph) / np.maximum(1, np.abs(of_graph))
    # If only one of two values is NaN or infinite, the difference may be NaN, which `max` would
    # lose.
    difference = np.where(np.isnan(difference), np.inf, difference)
    is_same = (value == of_graph) | (np.isnan(value) & np.isnan(of_graph))
    return float(np.max(np.where(is_same, 0, difference), initial=0))
