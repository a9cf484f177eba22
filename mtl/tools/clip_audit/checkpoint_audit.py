"""Audits a trained run: reads its training split once for every checkpoint.

checkpoint_audit.audit_checkpoints(data, model, run, "runs/digits", settings, paths, output)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mtl import experiment as experiment_lib
from mtl import model as model_lib
from mtl import types
from mtl.checkpoints import mismatch, run_directory
from mtl.data import pipeline
from mtl.deferred import tf, tf1
from mtl.runs import fitting
from mtl.sparsity import pruned_step
from mtl.tools.clip_audit import audit as audit_lib
from mtl.tools.clip_audit import measures, visits
from mtl.variables import patterns


def audit_checkpoints(
    data: pipeline.Pipeline,
    model: model_lib.MultiTaskModel,
    run: experiment_lib.Run,
    model_dir: str,
    settings: audit_lib.Settings,
    paths: Sequence[str],
    directory: str,
) -> None:
    """Record the measures of every sample for each checkpoint, in the order of `paths`.

    For every checkpoint, the samples are read in the same random order, and in batches as large as
    in training.

    Args:
      data: the pipeline of the run.
      model: the model of the run.
      run: the settings of the run.
      model_dir: the folder of the run; holds the statistics of the columns.
      settings: the settings of the audit.
      paths: the paths of the checkpoints.
      directory: the folder for the records of visits; earlier records in it are removed.

    Raises:
      UserError: a checkpoint belongs to another model.
    """
    statistics = fitting.load_statistics(model_dir)
    model = model.fill_schedules(run.train_steps).fitted(statistics)
    # Shuffle as in training: in a split that is sorted by class, a batch would have only one class.
    data = settings.number_rows(data, (data.shuffle_buffer, run.seed))
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        # Use one graph for all checkpoints: only the values of the variables differ.
        iterator = tf1.data.make_initializable_iterator(data.one_pass(data.train_split))
        features, labels = iterator.get_next()

        def measure(features: types.Tensors, labels: types.Tensors) -> tuple[Any, dict]:
            weigh = _find_weights(model, step)
            return measures.measure(model, statistics, features, labels, weigh), {}

        # Training does not change pruned or frozen weights, so their
        # gradients must not add to norms.
        pruning = pruned_step.wrap_step(model.pruning, measure, is_watched=True)
        measured, _ = model.held.wrap_step(pruning)(features, labels)
        audit_lib.warn_of_unknown(measured)
        audit_lib.warn_of_left_out(measured)
        # A checkpoint restores `step` like a variable, so `step` is the global
        # step of the checkpoint.
        fetches = (step, settings.sample_ids(features, labels), measured.examples, measured.batch)
        record = visits.Record(directory, settings)
        with _open_session() as session:
            for path in paths:
                _restore_variables(session, path)
                session.run(iterator.initializer)
                # The thresholds carry over from one checkpoint to the next, as they
                # do from batch to batch.
                for values in _run_all(session, fetches):
                    record.add(*values)
                record.save(run_directory.step_in_name(path))


def _find_weights(model: model_lib.MultiTaskModel, step: tf.Variable) -> Any:
    """Return the run's weighting of losses, in the state that a checkpoint has saved."""

    def weigh(losses: types.Tensors) -> types.Tensors:
        means = {task: tf.reduce_mean(rows) for task, rows in losses.items()}
        # Checkpoints save the state of the weighting under the name of this scope.
        with tf1.variable_scope("balancing"):
            weighted = model.weigh_losses(means, step)
        # A weighted loss may contain a further term, such as a regularizer of the weight. The
        # derivative of the weighted loss with respect to the task's loss is exactly the factor of
        # the task's gradient.
        return {task: tf.gradients(weighted[task], means[task])[0] for task in means}

    return weigh


def _open_session() -> tf.compat.v1.Session:
    session = tf1.Session()
    session.run(tf1.tables_initializer())
    return session


def _restore_variables(session: tf.compat.v1.Session, path: str) -> None:
    saved = dict(tf.train.list_variables(path))
    variables = tf1.global_variables()
    shapes = {patterns.variable_name(v): v.shape.as_list() for v in variables}
    # A checkpoint also has the state of the optimizer, which the graph of an audit does not have.
    saved_shapes = {name: shape for name, shape in saved.items() if name in shapes}
    mismatch.require_same(path, saved_shapes, shapes)
    reader = tf.train.load_checkpoint(path)
    for variable in variables:
        variable.load(reader.get_tensor(patterns.variable_name(variable)), session)


def _run_all(
    session: tf.compat.v1.Session, fetches: Any
) -> Iterator[tuple[int, np.ndarray, dict, dict]]:
    while True:
        try:
            step, ids, examples, batch = session.run(fetches)
        except tf.errors.OutOfRangeError:
            return
        yield int(step), ids, examples, batch
