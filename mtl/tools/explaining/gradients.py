"""Compares the gradients of tasks by their cosines, for all shared layers.

with opened.open_model(experiment, model_dir, path, rows, add, is_trained=True) as model:
    result = gradients.compare(model, tasks, batches)       # add is gradients.build(tasks)
result.mean, result.error, result.counts         # [S, T, T]: all shared variables, then each layer

If the cosine of two tasks is above 0, a step for one task helps the other task; below 0, the step
hurts the other task. T. Yu and others, "Gradient Surgery for Multi-Task Learning", 2020,
arXiv:2001.06782. Weights and normalisations come from the checkpoint, and dropout is off. The
gradient of a task comes from the task's loss only, without regularisation. If a batch has no label
of a task, the batch does not count for the task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mtl.balancing import task_gradients
from mtl.deferred import tf, tf1
from mtl.tools.explaining import opened, rows
from mtl.variables import patterns

ALL = "all shared variables"


@dataclasses.dataclass(frozen=True)
class Similarity:
    """The cosines between the gradients of T tasks, for S groups of shared variables.

    Attributes:
      tasks: the names of the T tasks.
      places: the names of the S groups: `ALL` for all shared variables, then the scope of each
        layer.
      sizes: the number of weights in each group of shared variables, [S].
      mean: the mean of the cosines over the batches, [S, T, T]; NaN if no batch counts.
      error: the standard error of each mean cosine, [S, T, T]; NaN for fewer than two batches.
      counts: the number of batches in which both tasks of a pair have gradients, [S, T, T].
      batches: the number of batches.
      rows: the number of rows in a batch, as in training, or the number of rows in the split if
        there are fewer.
    """

    tasks: Sequence[str]
    places: Sequence[str]
    sizes: Sequence[int]
    mean: np.ndarray
    error: np.ndarray
    counts: np.ndarray
    batches: int
    rows: int


def build(tasks: Sequence[str]) -> Callable[[opened.Opened], Any]:
    """Return a function for `open_model` that adds inner products of gradients to the graph.

    Args:
      tasks: the names of T tasks.

    Returns:
      A function that gets an opened model, and returns V variables and, for each variable, the
      inner products of the gradients of the T tasks, [V, T, T] float64.
    """

    def add(model: opened.Opened) -> Any:
        losses = [model.heads[task].loss(model.logits[task], model.labels) for task in tasks]
        variables = tf1.trainable_variables()
        if not variables:
            return [], tf.zeros([0, len(tasks), len(tasks)], tf.float64)
        # For each variable, the gradients of T losses; None if a loss does not
        # depend on the variable.
        columns = task_gradients.differentiate_tasks(losses, variables)
        # If only one task has a gradient for a variable, tasks cannot conflict in it.
        shared = [
            n for n, task_list in enumerate(columns) if sum(g is not None for g in task_list) > 1
        ]
        leaves = task_gradients.build_leaves([columns[n] for n in shared])
        # Fetch T * T inner products for each variable, because whole gradients are far larger.
        products = [task_gradients.compute_gramian([leaf], len(tasks)) for leaf in leaves]
        shape = [0, len(tasks), len(tasks)]
        stacked = tf.stack(products) if products else tf.zeros(shape, tf.float64)
        return [variables[n] for n in shared], stacked

    return add


def compare(
    model: opened.Opened,
    tasks: Sequence[str],
    batches: Iterable[rows.Rows],
    progress: Callable[[str], None] = lambda _: None,
) -> Similarity:
    """Compare the gradients of T tasks over several batches.

    Args:
      model: the opened model, whose graph contains the inner products that `build(tasks)` adds.
      tasks: the names of the T tasks.
      batches: batches of rows from a split.
      progress: called with a line of text about the current work.
    """
    variables, products = model.extra
    products_of_batches: list[np.ndarray] = []
    num_rows = 0
    for batch in batches:
        progress(f"gradients of batch {len(products_of_batches) + 1}")
        products_of_batches.append(
            model.session.run(products, model.feed(batch.features, batch.labels))
        )
        num_rows = batch.size
    gramians = np.stack(products_of_batches)  # [n, V, T, T]
    squares = np.diagonal(gramians, axis1=2, axis2=3)  # [n, V, T]
    # If the layers of several tasks are stacked in one variable, the gradient of a task is 0 for
    # the layers of other tasks.
    is_shared = (squares != 0).any(0).sum(-1) > 1
    scopes = [patterns.variable_name(variable).rpartition("/")[0] for variable in variables]
    places: dict[str, list[int]] = {ALL: []}
    for index in map(int, np.flatnonzero(is_shared)):
        places[ALL].append(index)
        places.setdefault(scopes[index] or "(no scope)", []).append(index)
    # The inner product over several variables is the sum of the inner products of the variables.
    sums = np.stack([gramians[:, indices].sum(1) for indices in places.values()])  # [S, n, T, T]
    counts = [variable.shape.num_elements() or 0 for variable in variables]
    sizes = [sum(counts[i] for i in indices) for indices in places.values()]
    return _summarize_cosines(tasks, places, sizes, sums, num_rows)


def _summarize_cosines(
    tasks: Sequence[str],
    places: Iterable[str],
    sizes: Sequence[int],
    sums: np.ndarray,
    num_rows: int,
) -> Similarity:
    """Return means and standard errors of cosines, from inner products [S, n, T, T]."""
    cosines = find_cosines(sums)
    is_known = np.isfinite(cosines)
    counts = is_known.sum(1)  # [S, n, T, T] -> [S, T, T]
    defined = np.where(is_known, cosines, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = defined.sum(1) / counts
        squares = np.where(is_known, (cosines - mean[:, np.newaxis]) ** 2, 0).sum(1)
        # Divide the standard deviation of the sample by the root of the number of batches.
        error = np.sqrt(squares / (counts - 1) / counts)
    error = np.where(counts > 1, error, np.nan)
    return Similarity(tasks, list(places), sizes, mean, error, counts, sums.shape[1], num_rows)


def find_cosines(products: np.ndarray) -> np.ndarray:
    """Compute the cosines of pairs of gradients from their inner products.

    Args:
      products: the inner products of T gradients, [..., T, T].

    Returns:
      The cosines, [..., T, T]; NaN if one of two gradients is 0 or not finite.
    """
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    # A gradient of 0 has no direction; it is 0 if the batch has no label of the task.
    squares = np.where((squares > 0) & np.isfinite(squares), squares, np.nan)
    norms = np.sqrt(squares)
    return products / (norms[..., :, np.newaxis] * norms[..., np.newaxis, :])
