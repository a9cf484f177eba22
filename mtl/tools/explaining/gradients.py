"""Gradient similarity: cosines between the gradients of tasks, for each shared layer.

with opened.open_model(experiment, model_dir, path, rows, add, is_trained=True) as model:
    found = gradients.compare(model, tasks, batches)        # add is gradients.build(tasks)
found.mean, found.error, found.counts            # [S, T, T]: all shared variables, then each layer

With a cosine above 0, a step for one task helps the other; below 0, it hurts it: T. Yu and others,
"Gradient Surgery for Multi-Task Learning", 2020, arXiv:2001.06782. Weights and normalisations come
from the checkpoint, and dropout is off. Regularisation and other tasks do not enter the gradient of
a task's loss. A batch without a label of a task does not count for it.
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

ALL = "all that is shared"


@dataclasses.dataclass(frozen=True)
class Similarity:
    """Cosines of T tasks at S places.

    Attributes:
      tasks: T tasks.
      places: S places: `ALL`, then the scopes of the variables.
      sizes: how many numbers the shared variables of a place hold, S.
      mean: the mean over batches, [S, T, T]; NaN if no batch counts.
      error: the standard error of the mean, [S, T, T]; NaN for fewer than two batches.
      counts: how many batches count, [S, T, T].
      batches: how many batches were read.
      rows: the size of a batch; a single batch may be smaller than in training.
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
    """Return a function that builds inner products of gradients: (variables, [V, T, T] float64)."""

    def add(model: opened.Opened) -> Any:
        losses = [model.heads[task].loss(model.logits[task], model.labels) for task in tasks]
        variables = tf1.trainable_variables()
        if not variables:
            return [], tf.zeros([0, len(tasks), len(tasks)], tf.float64)
        # For each variable the gradients of T tasks, None if a loss does not depend on it.
        columns = task_gradients.differentiate_tasks(losses, variables)
        # Tasks cannot conflict in a variable that only one of them reaches.
        several = [n for n, own in enumerate(columns) if sum(g is not None for g in own) > 1]
        leaves = task_gradients.build_leaves([columns[n] for n in several])
        # Inner products instead of gradients: T * T numbers a variable leave the session.
        products = [task_gradients.compute_gramian([leaf], len(tasks)) for leaf in leaves]
        shape = [0, len(tasks), len(tasks)]
        found = tf.stack(products) if products else tf.zeros(shape, tf.float64)
        return [variables[n] for n in several], found

    return add


def compare(
    model: opened.Opened,
    tasks: Sequence[str],
    batches: Iterable[rows.Rows],
    progress: Callable[[str], None] = lambda _: None,
) -> Similarity:
    """Compare the gradients of T tasks over batches.

    Args:
      model: the model with the tensors of `build` for these tasks.
      tasks: T tasks.
      batches: batches of a split.
      progress: called with a line on the current work.
    """
    variables, products = model.extra
    found: list[np.ndarray] = []
    num_rows = 0
    for batch in batches:
        progress(f"gradients of batch {len(found) + 1}")
        found.append(model.session.run(products, model.feed(batch.features, batch.labels)))
        num_rows = batch.size
    gramians = np.stack(found)  # [n, V, T, T]
    squares = np.diagonal(gramians, axis1=2, axis2=3)  # [n, V, T]
    # If layers of several tasks are stacked, the other tasks get gradients of 0 for them.
    is_shared = (squares != 0).any(0).sum(-1) > 1
    scopes = [patterns.variable_name(variable).rpartition("/")[0] for variable in variables]
    places: dict[str, list[int]] = {ALL: []}
    for index in map(int, np.flatnonzero(is_shared)):
        places[ALL].append(index)
        places.setdefault(scopes[index] or "(no scope)", []).append(index)
    # Inner products of concatenated variables are sums, so a scope needs no further pass.
    sums = np.stack([gramians[:, own].sum(1) for own in places.values()])  # [S, n, T, T]
    counts = [variable.shape.num_elements() or 0 for variable in variables]
    sizes = [sum(counts[i] for i in own) for own in places.values()]
    return _summarize_cosines(tasks, places, sizes, sums, num_rows)


def _summarize_cosines(
    tasks: Sequence[str],
    places: Iterable[str],
    sizes: Sequence[int],
    sums: np.ndarray,
    num_rows: int,
) -> Similarity:
    """Return means and standard errors of the cosines of [S, n, T, T] inner products."""
    cosines = find_cosines(sums)
    is_known = np.isfinite(cosines)
    counts = is_known.sum(1)  # [S, n, T, T] -> [S, T, T]
    known = np.where(is_known, cosines, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = known.sum(1) / counts
        squares = np.where(is_known, (cosines - mean[:, np.newaxis]) ** 2, 0).sum(1)
        # The standard deviation of the sample, divided by the root of the number of batches.
        error = np.sqrt(squares / (counts - 1) / counts)
    error = np.where(counts > 1, error, np.nan)
    return Similarity(tasks, list(places), sizes, mean, error, counts, sums.shape[1], num_rows)


def find_cosines(products: np.ndarray) -> np.ndarray:
    """Return the cosines of [..., T, T] inner products; NaN if a gradient is 0 or not finite."""
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    # A gradient of 0 has no direction: the task had no label in this batch.
    squares = np.where((squares > 0) & np.isfinite(squares), squares, np.nan)
    norms = np.sqrt(squares)
    return products / (norms[..., :, np.newaxis] * norms[..., np.newaxis, :])
