"""Opens a checkpoint as a graph that computes encoded columns, logits and gradients for rows.

with opened.open_model(experiment, "runs/a", checkpoint, rows) as model:
    logits = model.predict(rows.features)                # {task: [N, C]}
    columns = model.encode(rows.features)                # {column: [N, D]}
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mtl import experiment as experiment_lib
from mtl import types
from mtl.checkpoints import given_files, mismatch
from mtl.deferred import compat, tf, tf1
from mtl.runs import diagnosis, estimators, fitting
from mtl.step import outlets
from mtl.tools.explaining import rows as rows_lib
from mtl.variables import stacks


@dataclasses.dataclass(frozen=True)
class Opened:
    """The graph of an evaluation, and a session with the values of a checkpoint.

    Attributes:
      session: the session with the values of the checkpoint.
      heads: {task: the fitted head of the task}.
      features: the input tensors, {field: [B, ...]}.
      labels: the input tensors, {field: [B, ...]}.
      inputs: the encoded columns, {column: [B, D] or [B, H, W, C]}.
      logits: {task: the logits of its head, [B, C]}.
      batch_size: the number of rows in a batch, as in an evaluation.
      extra: the result of the function `add`, see `open_model`.
    """

    session: tf.compat.v1.Session
    heads: Mapping[str, types.Head]
    features: types.Tensors
    labels: types.Tensors
    inputs: types.Tensors
    logits: types.Tensors
    batch_size: int
    extra: Any = None

    def predict(self, features: rows_lib.Values) -> dict[str, np.ndarray]:
        """Return the logits of all rows.

        Args:
          features: {field: [N, ...]}.

        Returns:
          {task: [N, C]}.
        """
        return self.compute(self.logits, features)

    def list_used(self) -> set[str]:
        """Return the names of the features that the logits depend on.

        The ops of the graph are searched, because not only columns read features, but also heads
        that calibrate their predictions.
        """
        # Search backwards with a stack, because a graph may be deeper than
        # Python's limit for recursion.
        ops = [tensor.op for tensor in self.logits.values()]
        reached = set(ops)
        while ops:
            for tensor in ops.pop().inputs:
                if tensor.op not in reached:
                    reached.add(tensor.op)
                    ops.append(tensor.op)
        return {
            name
            for name, value in self.features.items()
            # A ragged field enters the graph as two tensors: values and row splits.
            if any(part.op in reached for part in tf.nest.flatten(value, expand_composites=True))
        }

    def encode(self, features: rows_lib.Values) -> dict[str, np.ndarray]:
        """Return the encoded columns of all rows.

        Args:
          features: {field: [N, ...]}.

        Returns:
          The encoded columns, {column: [N, D] or [N, H, W, C]}.
        """
        return self.compute(self.inputs, features)

    def compute(self, fetched: types.Tensors, features: rows_lib.Values) -> dict[str, np.ndarray]:
        """Compute tensors for all rows, in batches.

        A batch has as many rows as in an evaluation, because the number of rows may change the last
        bits of a result.

        Args:
          fetched: the tensors to compute, {name: [B, ...]}.
          features: fields of N rows, {field: [N, ...]}.

        Returns:
          {name: [N, ...]}.
        """
        parts = [
            self.session.run(dict(fetched), self.feed(part.features, {}))
            for part in rows_lib.Rows("", features, {}).split_up(self.batch_size)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in fetched}

    def feed(self, features: rows_lib.Values, labels: rows_lib.Values) -> dict[Any, Any]:
        """Return the feed of a session for rows.

        Args:
          features: {field: [B, ...]}.
          labels: {field: [B, ...]}; {} if the fetched tensors do not depend on labels.
        """
        fed_features = {self.features[name]: value for name, value in features.items()}
        return {**fed_features, **{self.labels[name]: value for name, value in labels.items()}}


@contextlib.contextmanager
def open_model(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    path: str,
    rows: rows_lib.Rows,
    add: Callable[[Opened], Any] = lambda _: None,
    is_trained: bool = False,
) -> Iterator[Opened]:
    """Open a checkpoint as a graph, to compute tensors for rows.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      path: the path of the checkpoint.
      rows: example rows, which decide the types and shapes of the graph's inputs.
      add: a function that adds tensors to the graph of the opened model, before the graph is
        finalized, and returns them; they become `Opened.extra`.
      is_trained: True to build the variables of training: they are separate for each task, and
        trainable unless training freezes them.

    Raises:
      UserError: the checkpoint does not fit the model, or the rows cannot be encoded.
    """
    data, model = experiment.data, experiment.model
    with (
        diagnosis.explain_run_errors(data, model, path, rows.split),
        tf.Graph().as_default(),
    ):
        tf1.train.create_global_step()
        tf1.set_random_seed(experiment.run.seed)
        # If a vocabulary file has changed, ids would mean other tokens than they did in training.
        given_files.check_unchanged(model.column_files, model_dir)
        # `build` appends the model to the list `models`, because `refuse_mismatch` returns only the
        # EstimatorSpec.
        models: list[Opened] = []

        def build(features: types.Tensors, labels: types.Tensors, mode: str) -> Any:
            models.append(_build_opened(experiment, model_dir, (features, labels), add, is_trained))
            scaffold = model.build_scaffold()
            return compat.estimator.EstimatorSpec(mode, predictions={}, scaffold=scaffold)

        features = {name: _make_input(value) for name, value in rows.features.items()}
        labels = {name: _make_input(value) for name, value in rows.labels.items()}
        spec = mismatch.refuse_mismatch(build, path)(
            features, labels, compat.estimator.ModeKeys.PREDICT
        )
        # Use the session settings of an Estimator, because other settings of the graph optimizer
        # would change the last bits.
        creator = tf1.train.ChiefSessionCreator(
            spec.scaffold or tf1.train.Scaffold(),
            checkpoint_filename_with_path=path,
            config=estimators.build_config(experiment, model_dir).session_config,
        )
        with contextlib.closing(creator.create_session()) as session:
            yield dataclasses.replace(models[0], session=session)


def _build_opened(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    batch: tuple[types.Tensors, types.Tensors],
    add: Callable[[Opened], Any],
    is_trained: bool,
) -> Opened:
    statistics = fitting.load_statistics(model_dir)
    model = experiment.model.fitted(statistics)

    def build(features: Any, labels: Any) -> Any:
        activations = model.infer_activations(features, labels, statistics)
        outputs = activations.inputs, activations.logits
        size = experiment.data.batch_size
        # Call `add` before a session exists, because a session finalizes the graph.
        model_parts = Opened(None, model.heads_by_task, features, labels, *outputs, size)
        return dataclasses.replace(model_parts, extra=add(model_parts)), {}

    with outlets.drop_summaries():
        if is_trained:
            # Variables that training freezes are not trainable, so no
            # gradients are computed for them.
            return model.held.wrap_step(build)(*batch)[0]
        # Stack variables as an evaluation does, so that predictions are equal to the last bit.
        with stacks.stack_tasks(model.stacks_tasks):
            model_parts, _ = build(*batch)
        # A checkpoint holds a separate variable for each task, where the graph
        # has a stacked variable.
        stacks.add_saver()
        return model_parts


def _make_input(value: Any) -> tf.Tensor | tf.RaggedTensor:
    """Return an input of the graph for any number of rows, with the type of `value`."""
    if isinstance(value, tf1.ragged.RaggedTensorValue):
        return tf1.ragged.placeholder(_type_of(value), 1, [])  # [B, (entries)]
    return tf1.placeholder(_type_of(value), [None, *np.shape(value)[1:]])


def _type_of(value: Any) -> tf.DType:
    dtype = np.asarray(getattr(value, "values", value)).dtype
    return tf.string if dtype.kind in "OSU" else tf.as_dtype(dtype)
