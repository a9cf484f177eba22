"""Computes the two-task toy problem of the CAGrad paper: losses, Pareto front and descents.

losses = toy.losses(point)                    # {"first": scalar, "second": scalar} at point [2]
places, front = toy.front()                   # [N] in [0, 1], and points [N, 2]
path = toy.descend(model, start, scale=1.0)   # [N, 2], by the balancing of a MultiTaskModel
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mtl import model as model_lib
from mtl import types
from mtl.optimization import optimizers, update
from mtl.step import training_loop, whole_batch

tf1 = tf.compat.v1

_LEAST_DISTANCE = 5e-6
_EDGE = 7.0  # The optimum of each task is at an end of the Pareto front, x = 7 or x = -7.
_RECORD_STEPS = 100
# A path ends once the points of 100 records lie within 2e-3. Fewer records would end a path too
# early: near the front, Aligned-MTL pauses for a few thousand steps, until Adam forgets the longer
# gradients.
_REST_RECORDS, _REST_DISTANCE = 100, 2e-3


def losses(point: tf.Tensor, scale: float = 1.0) -> types.Tensors:
    """Return the losses of both tasks, which are positive everywhere.

    B. Liu, X. Liu, X. Jin, P. Stone, Q. Liu, "Conflict-Averse Gradient Descent for Multi-task
    Learning", 2021, arXiv:2110.14048, appendix. For y above 0, each loss has a steep, bent valley,
    the logarithm of a distance. For y below 0, each loss is a bowl. The signs in the second valley
    follow the authors' code. As in the code of FAMO, 21 is added to each loss: this changes no
    gradient, and methods that take logarithms need positive losses.

    Args:
      point: the coordinates x and y, [2] or [2, ...].
      scale: a factor of the first loss.

    Returns:
      {"first" or "second": a loss of the shape of x}.
    """
    x, y = point[0], point[1]
    valleys = (0.5 * (-x - 7) + tf.tanh(y), 0.5 * (-x + 3) - tf.tanh(y) + 2)
    upper, lower = (tf.maximum(tf.tanh(half), 0.0) for half in (y / 2, -y / 2))
    values = [
        upper * (tf.math.log(tf.maximum(tf.abs(valley), _LEAST_DISTANCE)) + 6)
        + lower * (((x - best) ** 2 + 0.1 * (y + 8) ** 2) / 10 - 20)
        + 21
        for valley, best in zip(valleys, (_EDGE, -_EDGE), strict=True)
    ]
    return {"first": scale * values[0], "second": values[1]}


def front(num: int = 281) -> tuple[np.ndarray, np.ndarray]:
    """Compute the Pareto front.

    The point of the front at place w minimises `w first + (1 - w) second` for y < 0. This point has
    x = 14 w - 7. Bisection finds y as the zero of the derivative by y.

    Args:
      num: the number N of points.

    Returns:
      Places [N] from 0, the optimum of the second task, to 1, the optimum of the first, and points
      [N, 2].
    """
    places = np.linspace(0, 1, num)
    x = 2 * _EDGE * places - _EDGE
    bowl = (places * (x - _EDGE) ** 2 + (1 - places) * (x + _EDGE) ** 2) / 10 - 20
    low, high = np.full(num, -12.0), np.full(num, -4.0)
    for _ in range(60):
        y = (low + high) / 2
        depth = np.tanh(-y / 2)
        slope = -0.5 * (1 - depth**2) * (bowl + 0.01 * (y + 8) ** 2) + depth * 0.02 * (y + 8)
        low, high = np.where(slope < 0, y, low), np.where(slope < 0, high, y)
    return places, np.stack([x, y], 1)


def nearest(point: Sequence[float]) -> tuple[float, float]:
    """Return the distance of a point [2] to the front, and the place of the nearest front point."""
    places, points = front(2801)
    distances = np.linalg.norm(points - np.asarray(point), axis=1)
    return float(distances.min()), float(places[distances.argmin()])


def descend(
    model: model_lib.MultiTaskModel, start: Sequence[float], scale: float, most_steps: int
) -> np.ndarray:
    """Return the path of Adam, with a learning rate of 1e-3, from a start until it converges.

    The point is the only shared variable.

    Args:
      model: the model with the weighting and the surgery.
      start: the first point, [2].
      scale: a factor of the first loss.
      most_steps: the steps at most.

    Returns:
      The points at every 100th step, [N, 2].
    """
    # Use a single thread, because the ops are too small to divide.
    one_thread = tf1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    with tf.Graph().as_default(), tf1.Session(config=one_thread) as session:
        tf1.set_random_seed(1)
        tf1.train.get_or_create_global_step()
        with tf1.variable_scope("network"):
            point = tf1.get_variable("point", initializer=tf.constant(start, tf.float32))
        result = training_loop.run_repeatedly(
            lambda *_: _step(model, point, scale),
            _NoData(),
            _RECORD_STEPS,
            most_steps,
            (_RECORD_STEPS,),
        )
        session.run(tf1.global_variables_initializer())
        path = [np.asarray(start)]
        for _ in range(most_steps // _RECORD_STEPS):
            path.append(_next_record(session, result))
            if _is_at_rest(path):
                break
        return np.stack(path)


def _next_record(session: tf1.Session, result: training_loop.StepResult) -> np.ndarray:
    """Return the point [2] at the next record.

    On a slow machine, a session call may end before the step of the record.
    """
    while True:
        step, point = session.run([result.step, result.values])
        if step % _RECORD_STEPS == 0:
            return point


class _NoData:
    """An iterator for a model without data."""

    def get_next(self) -> tuple[None, None]:
        return None, None


def _step(
    model: model_lib.MultiTaskModel, point: tf.Variable, scale: float
) -> tuple[tf.Operation, types.Tensors]:
    """Apply weighting, surgery and update, as `MultiTaskModel` does."""
    representation = point.read_value()[tf.newaxis]
    position = representation[0]
    values = losses(position, scale)
    with tf1.variable_scope("balancing"):
        weighted = model.weighting(values, tf1.train.get_global_step())
        variables = tf1.trainable_variables()
        part = whole_batch.ForwardPass(weighted, [representation], lambda count: [weighted] * count)
        gradients, _ = model.surgery(weighted, variables, whole_batch.WholeBatch(part))
    adam = update.Update(optimizer=optimizers.Adam(learning_rate=1e-3))
    train_op, _ = adam(gradients, variables, values)
    return train_op, {"x": position[0], "y": position[1]}


def _is_at_rest(path: Sequence[np.ndarray]) -> bool:
    recent = np.stack(path[-_REST_RECORDS:])
    return len(path) > _REST_RECORDS and np.ptp(recent, axis=0).max() < _REST_DISTANCE
