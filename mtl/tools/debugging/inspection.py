"""Reads tensors of a model for some rows, and the layers of a model, without training.

batch = inspection.read_split(experiment, "test", limit=4)
with inspection.open_graph(experiment, "runs/a", batch) as graph:
    name, values = graph.read("network/trunk/hidden_0/Relu")
tree = inspection.summarize_model(experiment, "runs/a")
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from mtl import checks
from mtl import experiment as experiment_lib
from mtl import spec as spec_lib
from mtl.checkpoints import run_directory
from mtl.data import source as source_lib
from mtl.deferred import compat, tf, tf1
from mtl.model import graph_options
from mtl.runs import diagnosis, estimators, fitting
from mtl.step import training_loop
from mtl.tools import scoring
from mtl.tools.debugging import layers
from mtl.tools.scoring import readers
from mtl.variables import patterns

MODES = ("eval", "predict", "train")


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of data as NumPy values; the values of ragged fields are `tf1.ragged` values.

    Attributes:
      features: {field: [B, ...]}.
      labels: {field: [B, ...]}; empty if the rows have no labels.
    """

    features: Mapping[str, Any]
    labels: Mapping[str, Any]

    @property
    def size(self) -> int:
        """The number of rows in the batch."""
        first = next(iter(self.features.values()))
        ragged = isinstance(first, tf1.ragged.RaggedTensorValue)
        return len(first.row_splits) - 1 if ragged else len(first)


def read_split(experiment: experiment_lib.Experiment, split: str | None, limit: int) -> Batch:
    """Return the first rows of a split.

    Args:
      experiment: the experiment of the run.
      split: the name of the split; None for the split of evaluations.
      limit: the largest number of rows to read.

    Raises:
      UserError: the split does not exist, or a record cannot be parsed.
    """
    data = experiment.data
    split = split or data.eval_split
    with diagnosis.explain_run_errors(data, experiment.model, None, split):
        elements = source_lib.iterate(
            lambda: data.dataset(split, training=False, seed=0, batch_size=limit)
        )
        # If reading fails, `iterate` yields an error instead of a batch.
        batch = next(elements)
        if isinstance(batch, Exception):
            raise batch
    return Batch(*batch)


def read_file(
    experiment: experiment_lib.Experiment, path: str, limit: int, with_labels: bool
) -> Batch:
    """Return the first rows of a file of CSV, JSON lines, Parquet or TFRecords.

    Args:
      experiment: the experiment of the run; its data describe the fields.
      path: the path of the file; its ending says the format.
      limit: the largest number of rows to read.
      with_labels: True to read labels, too. A label that the file lacks counts as missing.

    Raises:
      UserError: the file does not exist, or a row cannot be parsed.
    """
    spec = parsed_spec = experiment.data.spec
    if with_labels:  # Parse labels like features; a missing label gets the mark for missing labels.
        missing_marks = {name: field.default for name, field in spec.label_fields.items()}
        fields = {**spec.features, **spec.labels}
        defaults = {**missing_marks, **spec.defaults}
        parsed_spec = dataclasses.replace(spec, features=fields, labels={}, defaults=defaults)
    is_known = re.search(rf"\.({'|'.join(readers.FORMATS)})(\.gz)?$", path)
    endings = ", ".join(f".{name}" for name in readers.FORMATS)
    checks.require(bool(is_known), "--rows", f"end in one of {endings}", path)
    checks.require(tf.io.gfile.exists(path), "--rows", "be a file", path)
    reader = scoring.Reader(spec=parsed_spec, settings=experiment.data.source, batch_size=limit)
    chunk = next((chunk for chunk in reader.chunks([path]) if len(chunk.rows)), None)
    if chunk is None:
        checks.fail("--rows", "hold a row", path)
    return _parse_examples(spec, list(reader.parse(chunk).examples), with_labels)


def _parse_examples(spec: spec_lib.Spec, examples: Sequence[bytes], with_labels: bool) -> Batch:
    with tf.Graph().as_default(), tf1.Session() as session:
        values = spec.parse(tf.constant(np.asarray(examples, object)), with_labels=with_labels)
        values = spec.drop_empty_texts(values)
        arrays = session.run(values)
    return Batch(*spec.split(arrays, with_labels))


@dataclasses.dataclass(frozen=True)
class OpenGraph:
    """A TensorFlow graph of a run with the values of a checkpoint, which computes tensors for rows.

    Attributes:
      graph: the TensorFlow graph.
      session: the session with the values of the checkpoint.
      fed: {input tensor: its value}.
      outputs: {name: tensor}: the predictions in mode "predict", the loss in mode "eval", and
        losses, weights and norms in mode "train".
    """

    graph: tf.Graph
    session: tf.compat.v1.Session
    fed: Mapping[Any, Any]
    outputs: Mapping[str, tf.Tensor]

    def read(self, name: str) -> tuple[str, np.ndarray]:
        """Compute the value of a tensor for the rows.

        Args:
          name: the name of a tensor, an operation, a variable or a scope. An operation stands for
            its first output, and a scope for the last tensor that leaves the scope.

        Returns:
          The full name of the tensor, and its value.

        Raises:
          UserError: the tensor does not exist, or its value cannot be computed.
        """
        # Search only tensors of this graph. Tensors in loops and branches lie in other graphs, and
        # a session cannot fetch them.
        tensor = _find_tensor(self.graph, name, self.fed)
        try:
            value = self.session.run(tensor, self.fed)
        except (tf.errors.InvalidArgumentError, TypeError) as error:
            reason = source_lib.explain_unreadable(error)
            checks.fail("--tensor", "have a value for these rows", name, f"{reason}.")
        return tensor.name, np.asarray(value)

    def list_tensors(self, pattern: str) -> list[tuple[str, str, str]]:
        """List the tensors whose names match a pattern.

        Args:
          pattern: a glob pattern for the names of tensors or operations, such as "*logits*".

        Returns:
          A list with (name, type, shape as text) for each tensor, in the order of creation.
        """
        tensors = [tensor for op in self.graph.get_operations() for tensor in op.outputs]
        return [
            (tensor.name, tensor.dtype.name, str(tensor.shape))
            for tensor in tensors
            if fnmatch.fnmatchcase(tensor.name, pattern)
            or fnmatch.fnmatchcase(tensor.op.name, pattern)
        ]


@contextlib.contextmanager
def open_graph(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    batch: Batch,
    mode: str = "eval",
    checkpoint: str = "latest",
) -> Iterator[OpenGraph]:
    """Open a graph of a run for some rows, without writing into the folder of the run.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      batch: the rows to compute tensors for.
      mode: "eval", "predict", or "train" for a training step with these rows as its batch.
      checkpoint: "latest", "best" or a path.

    Raises:
      UserError: the checkpoint does not exist, or the rows do not fit the model.
    """
    with (
        run_directory.hold_checkpoint(model_dir, checkpoint) as path,
        diagnosis.explain_run_errors(experiment.data, experiment.model, path),
        tf.Graph().as_default() as graph,
    ):
        tf1.train.create_global_step()
        # With the seed of the run, dropout in mode "train" draws the same numbers as in the run.
        tf1.set_random_seed(experiment.run.seed)
        estimator_spec, feed, outputs = _build_graph(experiment, model_dir, path, batch, mode)
        # Use the session settings of an Estimator, because other settings would change the last
        # bits of sums.
        settings = estimators.build_config(experiment, model_dir).session_config
        creator = tf1.train.ChiefSessionCreator(
            estimator_spec.scaffold, config=settings, checkpoint_filename_with_path=path
        )
        with contextlib.closing(creator.create_session()) as session:
            yield OpenGraph(graph, session, feed, outputs)


def summarize_model(
    experiment: experiment_lib.Experiment, model_dir: str
) -> Sequence[layers.Scope]:
    """Return the layers of a model as a tree, with shapes for one row.

    The run may be untrained: if the run has saved no statistics of the training split, they are
    computed for this call only.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run. The folder need not exist, and nothing is written to it.

    Raises:
      UserError: a setting or the data is wrong.
    """
    with contextlib.ExitStack() as stack:
        # An untrained run may have no statistics: compute them in a temporary folder.
        is_run = run_directory.find_latest(model_dir) is not None
        folder = model_dir if is_run else stack.enter_context(tempfile.TemporaryDirectory())
        if not is_run:
            fitting.fit_statistics(experiment.data, experiment.model, None, folder)
        return read_layers(experiment, folder)[0]


def read_layers(
    experiment: experiment_lib.Experiment, model_dir: str
) -> tuple[Sequence[layers.Scope], dict[str, tf.Tensor]]:
    """Build a model for one row, and return its layers and predictions.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder with the statistics of the training split.

    Returns:
      The layers as a tree, and {name: prediction}.
    """
    # Use a single row, because FLOPs are counted for the whole batch.
    batch = read_split(experiment, experiment.data.train_split, 1)
    with tf.Graph().as_default() as graph:
        step = tf1.train.create_global_step()
        statistics = fitting.load_statistics(model_dir)
        feed: dict[Any, Any] = {}
        features = {name: _input(name, value, feed) for name, value in batch.features.items()}
        model = experiment.model.fitted(statistics)
        mode = compat.estimator.ModeKeys.PREDICT
        estimator_spec = model.model_fn(
            features, None, mode, options=graph_options.GraphOptions(statistics=statistics)
        )
        outputs: dict[str, list[tf.Tensor]] = {task: [] for task in experiment.model.tasks}
        for name, tensor in estimator_spec.predictions.items():
            if name.partition("/")[0] in outputs:
                outputs[name.partition("/")[0]].append(tensor)
        # Leave out the global step, which is a variable but not a parameter of the model.
        variables = [v for v in tf1.global_variables() if v is not step]
        trained = {patterns.variable_name(v) for v in tf1.trainable_variables()}
        tree = layers.read_tree(graph, _flatten_inputs(feed), outputs, variables, trained)
        return tree, dict(estimator_spec.predictions)


def _build_graph(
    experiment: experiment_lib.Experiment, model_dir: str, path: str, batch: Batch, mode: str
) -> tuple[compat.estimator.EstimatorSpec, dict[Any, Any], dict[str, tf.Tensor]]:
    """Build the graph for a mode; return its EstimatorSpec, {input: its value} and its outputs."""
    feed: dict[Any, Any] = {}
    features = {name: _input(name, value, feed) for name, value in batch.features.items()}
    labels = {name: _input(name, value, feed) for name, value in batch.labels.items()}
    if mode == "train":
        statistics = fitting.load_statistics(model_dir)
        model = experiment.model.fill_schedules(experiment.run.train_steps).fitted(statistics)
        watched: dict[str, tf.Tensor] = {}

        # A training step passes losses, weights and norms to functions that make hooks. The
        # function `watch` only stores the losses, weights and norms, and makes no hook.
        def watch(result: training_loop.StepResult) -> dict[str, Any]:
            watched.update({name: result[name] for name in result.names})
            return {}

        estimator_spec = model.model_fn(
            features,
            labels,
            mode,
            options=graph_options.GraphOptions(
                statistics=statistics, precision=experiment.run.precision, training_hooks=watch
            ),
        )
        return estimator_spec, feed, watched
    key = compat.estimator.ModeKeys.EVAL if mode == "eval" else compat.estimator.ModeKeys.PREDICT
    # In mode "predict", do not stack tasks, so that each task has separate variables to inspect.
    estimator = estimators.build_estimator(experiment, model_dir, path, may_stack=mode == "eval")
    eval_labels = labels if mode == "eval" else None
    estimator_spec = estimator.model_fn(features, eval_labels, key, estimator.config)
    # The EstimatorSpec of an evaluation has a loss, but no predictions.
    return estimator_spec, feed, estimator_spec.predictions or {"loss": estimator_spec.loss}


def _input(name: str, value: Any, feed: dict[Any, Any]) -> tf.Tensor | tf.RaggedTensor:
    """Create an input of the graph with the shape of `value`, and add the value to `feed`."""
    if isinstance(value, tf1.ragged.RaggedTensorValue):
        tensor = tf1.ragged.placeholder(tf.as_dtype(value.dtype), 1, [], name=_spell_field(name))
        # Make the number of rows static, as it is for other inputs.
        tensor.row_splits.set_shape([len(value.row_splits)])
    else:
        value = np.asarray(value)
        # NumPy stores strings as objects (O), bytes (S) or Unicode (U).
        kind = tf.string if value.dtype.kind in "OSU" else tf.as_dtype(value.dtype)
        tensor = tf1.placeholder(kind, value.shape, name=_spell_field(name))
    feed[tensor] = value
    return tensor


def _spell_field(field: str) -> str:
    """Return a valid name for TensorFlow operations that resembles the name of a field."""
    # Names of fields come from tables, so they may contain spaces or letters of any language.
    name = re.sub(r"[^A-Za-z0-9_.\-]", "_", field)
    return name if re.match(r"[A-Za-z0-9]", name) else f"field{name}"


def _find_tensor(graph: tf.Graph, name: str, feed: Mapping[Any, Any]) -> tf.Tensor | tf.Variable:
    """Return the tensor or the variable whose value `OpenGraph.read` returns for a name."""
    # Search variables first: the operation with the name of a variable
    # returns a handle, not a value.
    variables = {patterns.variable_name(v): v for v in tf1.global_variables()}
    if name in variables:
        return variables[name]
    operations = {operation.name: operation for operation in graph.get_operations()}
    node, _, slot = name.partition(":")
    operation = operations.get(node)
    if (
        operation is not None
        and slot in ("", *map(str, range(len(operation.outputs))))
        and operation.outputs
    ):
        return operation.outputs[int(slot or 0)]
    leaving = layers.find_outputs(graph, name, layers.list_followers(_flatten_inputs(feed)))
    if not leaving:
        _refuse_name(name, operations, variables)
    return leaving[-1]


def _refuse_name(name: str, operations: Iterable[str], variables: Iterable[str]) -> NoReturn:
    paths = map(_split_name, operations)
    scopes = {"/".join(parts[:i]) for parts in paths for i in range(1, len(parts))}
    near = checks.nearest(name, sorted({*operations, *variables, *scopes}))
    fix = near or "A pattern such as '*logits*' lists the names that match."
    checks.fail("--tensor", "name a tensor, a variable or a scope of the graph", name, fix)


def _flatten_inputs(feed: Mapping[Any, Any]) -> list[tf.Tensor]:
    return tf.nest.flatten(list(feed), expand_composites=True)


def _split_name(name: str) -> list[str]:
    return name.split("/")
