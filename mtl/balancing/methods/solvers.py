"""Solves small convex problems in the graph, up to rounding errors of float64.

x = solvers.nonnegative_minimum(Q, b)        # min x'Qx / 2 - b'x with x >= 0, by interior points
a = solvers.min_norm_weights(tasks)          # the shortest vector in the gradients' convex hull
x = solvers.worst_case_ascent(tasks, start, 0.5)
b = solvers.fair_weights(U, c, alpha)        # U b = c b^(-1/alpha) with b > 0, by Newton
"""

from __future__ import annotations

from collections.abc import Callable

from mtl.balancing.methods import cone, method
from mtl.deferred import tf

# The most iterations of a solver's loop. Most loops reach a solution in far fewer iterations; the
# limit ends the loop of a problem without a solution.
_MAX_ITERATIONS = 60
# `_RIDGE` is added to the diagonals of matrices, so that solutions are unique even if gradients are
# linearly dependent. `_RIDGE` is far below the tolerance of a solution, and far above rounding
# errors of inner products.
_RIDGE = 5e-15
# `_TIE_BREAK` is added to the diagonal of a quadratic objective's matrix, to select the solution of
# least norm. `_TIE_BREAK` changes the objective by at most a tenth of the solver's tolerance.
_TIE_BREAK = 1e-10
# Newton's method tries these fractions of a step, all at once.
_FRACTIONS = [0.99 * 0.6**power for power in range(40)]


def nonnegative_minimum(quadratic: tf.Tensor, linear: tf.Tensor) -> tf.Tensor:
    """Minimise `x'Qx / 2 - b'x` over x >= 0.

    S. Mehrotra, "On the implementation of a primal-dual interior point method", SIAM Journal on
    Optimization 2(4), 1992. The order of the variables does not matter, so equal tasks get equal
    values. At the solution, the gradient `z = Qx - b` is at least 0.

    Args:
      quadratic: Q, positive semidefinite, float64 [..., T, T].
      linear: b, float64 [..., T].

    Returns:
      x, float64 [..., T].
    """

    def goes_on(i, x, z):
        return (i < _MAX_ITERATIONS) & tf.reduce_any(tf.reduce_mean(x * z, -1) > 1e-19)

    def body(i, x, z):
        residual = tf.linalg.matvec(quadratic, x) - linear - z
        system = quadratic + tf.linalg.diag(z / x)

        def find_direction(target):  # Solve x z = target to first order.
            dx = tf.linalg.solve(system, ((target / x - z) - residual)[..., tf.newaxis])[..., 0]
            return dx, (target - z * dx) / x - z

        # Predictor: a Newton step towards a gap of 0 shows how far the gap can fall.
        gap = tf.reduce_mean(x * z, -1, keepdims=True)
        dx, dz = find_direction(tf.zeros_like(x))
        step = _longest_step(x, dx, z, dz)
        ahead = tf.reduce_mean((x + step * dx) * (z + step * dz), -1, keepdims=True)
        # Corrector: the target is the next gap by Mehrotra's rule, minus `dx * dz`, the error of
        # the first direction.
        dx, dz = find_direction((ahead / gap) ** 3 * gap - dx * dz)
        # The step ends before the border x = 0, where the next system would divide by 0.
        step = 0.995 * _longest_step(x, dx, z, dz)
        return i + 1, x + step * dx, z + step * dz

    quadratic += _RIDGE * tf.eye(tf.shape(linear)[-1], dtype=tf.float64)
    ones = tf.ones_like(linear)
    return _repeat_body(goes_on, body, ones, ones)[0]


def _longest_step(x: tf.Tensor, dx: tf.Tensor, z: tf.Tensor, dz: tf.Tensor) -> tf.Tensor:
    """Return the largest step [..., 1], at most 1, after which x and z are not negative."""
    fastest = tf.reduce_max(tf.maximum(-dx / x, -dz / z), -1, keepdims=True)
    return 1 / tf.maximum(fastest, 1)


def min_norm_weights(tasks: method.Tasks) -> tf.Tensor:
    """Return the weights a [T], at least 0 with sum 1, that minimise `|sum_t a[t] gradient[t]|`.

    In place of the constraint `sum a = 1`, the function adds `(sum a - 1)^2` to the objective. The
    term `(sum a - 1)^2` changes only the scale of the solution, and the function then divides the
    solution by its sum. If gradients are linearly dependent, there may be several solutions; the
    returned weights are close to the solution of least norm.

    Args:
      tasks: the T tasks, with the norms and cosines of their gradients.

    Returns:
      float64 [T].
    """
    share = tf.reduce_min(tasks.norms) / tasks.norms
    least_norm = _TIE_BREAK * tf.eye(tf.size(share), dtype=tf.float64)
    quadratic = tasks.cosines + share[:, tf.newaxis] * share + least_norm
    weights = share * nonnegative_minimum(quadratic, share)
    return weights / tf.reduce_sum(weights)


def on_simplex(values: tf.Tensor, total: tf.Tensor | float = 1.0) -> tf.Tensor:
    """Project a vector onto the simplex: the nearest vector of entries >= 0 with a given sum.

    Args:
      values: [T].
      total: the sum of the projected vector, at least 0.

    Returns:
      [T].
    """
    descending = tf.sort(values, direction="DESCENDING")
    counts = tf.range(1, tf.size(values) + 1, dtype=values.dtype)
    # `levels[n - 1]` is the amount to subtract from all values if exactly the n largest values stay
    # above 0.
    levels = (tf.cumsum(descending) - total) / counts
    above = tf.reduce_sum(tf.cast(descending > levels, tf.int32))
    return tf.maximum(values - levels[tf.maximum(above, 1) - 1], 0.0)


def worst_case_ascent(tasks: method.Tasks, start: tf.Tensor, radius: float) -> tf.Tensor:
    """Return the change x [T] of weights that maximises the least progress `g[t]'d` of a task.

    The direction is `d = sum_t (start[t] + x[t]) g[t]`, under the constraint `|d - d0| <= radius
    |d0|`, where d0 is the direction for x = 0. The maximum is computed in an orthonormal basis of
    the gradients' span, with |d0| and the largest norm of a gradient as units.

    Args:
      tasks: the T tasks, with the norms and cosines of their gradients.
      start: the weights of the tasks' gradients in the starting direction d0, float64 [T].
      radius: the largest distance of the direction d from d0, relative to |d0|; above 0.

    Returns:
      The change x of the weights, float64 [T]; 0 if the starting direction d0 is about 0.
    """
    values, vectors = tf.linalg.eigh(tasks.cosines)
    # Directions with an eigenvalue of about 0 come from rounding errors, and are not in the span of
    # the gradients.
    roots = tf.sqrt(tf.where(values > _RIDGE, values, tf.zeros_like(values)))
    rows = tasks.norms[:, tf.newaxis] * vectors * roots
    largest = tf.reduce_max(tasks.norms)
    center = tf.linalg.matvec(rows, start, transpose_a=True)
    length = tf.norm(center)
    cancels = length <= 1e-13 * largest  # True if the starting direction d0 is about 0.
    move = _worst_case_move(rows / largest, center / tf.where(cancels, largest, length), radius)
    move = tf.linalg.matvec(vectors, tf.math.divide_no_nan(move, roots)) * length / tasks.norms
    return tf.where(cancels, tf.zeros_like(move), move)


def _worst_case_move(rows: tf.Tensor, center: tf.Tensor, radius: float) -> tf.Tensor:
    """Return the x [T] with norm <= `radius` that maximises the least entry of `rows (center + x)`.

    The cone program maximises a number `level`, under the constraint that `rows (center + x) -
    level` and (radius, x) are in the cone of `mtl.balancing.methods.cone`. The dual variables are
    weights w of the rows, followed by (|w rows|, -w rows).
    """
    products, ones = tf.linalg.matvec(rows, center), tf.ones_like(center)
    above = tf.concat([rows, -ones[:, tf.newaxis]], 1)
    itself = tf.pad(tf.eye(tf.size(center), dtype=tf.float64), [[1, 0], [0, 1]])
    level = tf.reduce_min(products) - radius
    share = ones / tf.reduce_sum(ones)
    pull = tf.linalg.matvec(rows, share, transpose_a=True)
    moved_and_level = cone.minimum(
        objective=tf.concat([0 * ones, [-1.0]], 0),
        matrix=tf.concat([above, itself], 0),
        offset=tf.concat([products, [radius], 0 * ones], 0),
        start=tf.concat([0 * ones, [level]], 0),
        dual_start=tf.concat([share, [tf.norm(pull) + share[0]], -pull], 0),
        tolerance=1e-11 * (1 + radius),
    )
    return moved_and_level[:-1]


def fair_weights(cosines: tf.Tensor, scales: tf.Tensor, alpha: float) -> tf.Tensor:
    """Solve `U b = c b^(-1/alpha)` for b [T] > 0, with U [T, T] and c [T] > 0.

    The solution minimises a convex function, `b'Ub / 2 - sum c b^(1 - 1/alpha) / (1 - 1/alpha)`. If
    a sum of the gradients with positive weights is 0, a solution may not exist, and Newton's method
    lets b grow without bound. If the solution b grows without bound, the function returns b scaled
    to a largest value of 1.

    Args:
      cosines: the matrix U of cosines between gradients, float64 [T, T], positive semi-definite.
      scales: the factors c on the right side, float64 [T], above 0.
      alpha: a number above 0; with 1, the convex function is `b'Ub / 2 - sum c log(b)`.
    """
    power = -1 / alpha

    def value(b):  # [..., T] -> [...]
        gain = tf.math.log(b) if alpha == 1 else b ** (1 + power) / (1 + power)
        return tf.reduce_sum(b * tf.linalg.matvec(cosines, b) / 2 - scales * gain, -1)

    def body(i, b, before, _):
        slope = scales * b**power
        gradient = tf.linalg.matvec(cosines, b) - slope
        hessian = cosines + tf.linalg.diag(_RIDGE - power * slope / b)
        step = -tf.linalg.solve(hessian, gradient[:, tf.newaxis])[:, 0]
        change = tf.reduce_max(tf.abs(step / b))
        bounded_step = step / tf.maximum(tf.reduce_max(-step / b), 1)
        # Near the solution, full Newton steps converge fastest. Far from the solution, a full step
        # may be too long.
        step = tf.where(change < 0.1, step, _best_fraction(value, b, bounded_step) * bounded_step)
        return i + 1, b + step, change, before

    def goes_on(i, b, change, before):
        # Near a solution, each step is at most half as long as the step before, except for rounding
        # errors.
        is_rounding = (change < 1e-6) & (change > before / 2)
        return (
            (i < _MAX_ITERATIONS)
            & (change > 1e-13)
            & ~is_rounding
            & (tf.reduce_max(b) < 1e8 * tf.reduce_max(start))
        )

    start = scales ** (1 / (1 - power))  # The solution for orthogonal gradients.
    first_change = tf.constant(1.0, tf.float64)
    solution, change, _ = _repeat_body(goes_on, body, start, first_change, first_change)
    # If the equation for b has no solution, some values of b grow without bound. Values of b that
    # fall towards 0 do not show that the solution is missing.
    grown = (change > 1e-6) & (tf.reduce_max(solution) > 1e4 * tf.reduce_max(start))
    return tf.where(grown, solution / tf.reduce_max(solution), solution)


def _best_fraction(value: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, step: tf.Tensor):
    """Return the fraction f of `step` for which `value(x + f step)` is least."""
    fractions = tf.constant(_FRACTIONS, tf.float64)
    values = value(x + fractions[:, tf.newaxis] * step)
    values = tf.where(tf.math.is_finite(values), values, values.dtype.max)
    return tf.gather(fractions, tf.argmin(values))


def _repeat_body(goes_on: Callable, body: Callable, *start: tf.Tensor) -> list[tf.Tensor]:
    """Run a loop whose first value is a counter; return the other values."""
    return tf.while_loop(goes_on, body, [tf.constant(0), *start])[1:]


def repeat(times: tf.Tensor, body: Callable, *start: tf.Tensor):
    """Run a loop with a fixed number of iterations.

    Args:
      times: the number of iterations, a scalar.
      body: a function from (i, *values) to (i + 1, *values).
      start: the first values.

    Returns:
      The values after the last iteration: a list, or the value itself if there is only one.
    """
    values = _repeat_body(lambda i, *_: i < times, body, *start)
    return values[0] if len(values) == 1 else values
