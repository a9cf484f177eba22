"""Solves second-order cone programs by an interior-point method.

y = cone.minimum(objective, matrix, offset, start, dual_start, tolerance=1e-9)

A point u [N] of the cone consists of numbers that are at least 0, followed by a number u0 and a
vector u1 with `u0 >= |u1|`. The number M counts u0 and the entries of the vector u1.
"""

from __future__ import annotations

from mtl.deferred import tf

# In trials with thousands of problems, the average was 10 iterations and the maximum 23.
_MAX_ITERATIONS = 40
# A small number is added to diagonals, as in `solvers`, so that linear systems are regular even if
# gradients are linearly dependent.
_RIDGE = 5e-15
# The rounding error of `u0^2 - |u1|^2` at the border of the cone, relative to u0^2.
_ROUNDING = 1e-32


def minimum(
    objective: tf.Tensor,
    matrix: tf.Tensor,
    offset: tf.Tensor,
    start: tf.Tensor,
    dual_start: tf.Tensor,
    tolerance: float,
) -> tf.Tensor:
    """Minimise `c'y` over y [M], under the constraint that `s = A y + h` is in the cone.

    Y. Nesterov, M. Todd, "Primal-dual interior-point methods for self-scaled cones", SIAM Journal
    on Optimization 8(2), 1998, with Mehrotra's predictor and corrector steps. If rounding errors
    stop the progress before the tolerance is reached, the result is the last y that reduced the gap
    `s'z`.

    Args:
      objective: c [M].
      matrix: A [N, M].
      offset: h [N].
      start: the initial y, for which `A y + h` must be inside the cone.
      dual_start: the initial dual variables z [N], which must be inside the cone; at the minimum,
        `A'z = c`.
      tolerance: the largest duality gap `s'z` of a solution.
    """
    size = tf.size(objective)
    degree = tf.cast(tf.size(offset) - size + 1, tf.float64)

    def slack(y):
        return tf.linalg.matvec(matrix, y) + offset

    def goes_on(i, y, z, gap, before, gap_before):
        del y, z, before
        return (i < _MAX_ITERATIONS) & (gap > tolerance) & (gap < gap_before)

    def body(i, y, z, gap, *_):
        inverse = _inverse_scaling(slack(y), z, size)
        point = tf.linalg.matvec(inverse, slack(y))
        solve = _normal_equations(inverse @ matrix, tf.linalg.matvec(matrix, z, True) - objective)
        # Predictor and corrector work as in `solvers.nonnegative_minimum`, but in a scaled space,
        # in which s and z are the same point.
        _, ds, dz = solve(-point)
        step = _longest_step(point, ds, dz, size)
        ahead = tf.reduce_sum((point + step * ds) * (point + step * dz))
        center = tf.maximum(ahead / gap, 0) ** 3 * gap / degree * _make_identity(point, size)
        dy, ds, dz = solve(
            _divide_elements(center - _multiply_elements(ds, dz, size), point, size) - point
        )
        step = 0.99 * _longest_step(point, ds, dz, size)
        next_y, next_z = y + step * dy, z + step * tf.linalg.matvec(inverse, dz)
        return i + 1, next_y, next_z, tf.tensordot(slack(next_y), next_z, 1), y, gap

    # The gap before the first step counts as 1e300, so that the first step always runs.
    gap, infinity = tf.tensordot(slack(start), dual_start, 1), tf.constant(1e300, tf.float64)
    first = [tf.constant(0), start, dual_start, gap, start, infinity]
    _, y, _, gap, before, gap_before = tf.while_loop(goes_on, body, first)
    # Rounding errors in the last step may have increased the gap.
    return tf.where(gap < gap_before, y, before)


def _inverse_scaling(s: tf.Tensor, z: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return the inverse of the symmetric W with `W z = W^-1 s` that maps the cone to itself."""
    numbers = tf.sqrt(z[:-size] / s[:-size])
    s, z = s[-size:], z[-size:]
    lengths = tf.sqrt(_find_determinant(s)), tf.sqrt(_find_determinant(z))
    s, z = s / lengths[0], z / lengths[1]
    signs = _make_signs(s)
    middle = (signs * s + z) / tf.sqrt(2 + 2 * tf.tensordot(s, z, 1)) + (1 + signs) / 2
    scale = tf.sqrt(lengths[1] / lengths[0])
    normal = tf.concat([tf.zeros_like(numbers), middle * tf.sqrt(scale / middle[0])], 0)
    diagonal = tf.concat([numbers, -scale * signs], 0)
    return tf.linalg.diag(diagonal) + normal[:, tf.newaxis] * normal


def _normal_equations(scaled: tf.Tensor, missing: tf.Tensor):
    """Return a function from a target [N] to a Newton step: dy, and the scaled ds and dz."""
    size = tf.norm(scaled, axis=0)
    scaled /= size
    system = tf.linalg.matmul(scaled, scaled, transpose_a=True)
    system += _RIDGE * tf.eye(tf.size(size), dtype=tf.float64)

    def solve(target):
        right_side = tf.linalg.matvec(scaled, target, transpose_a=True) + missing / size
        dy = tf.linalg.solve(system, right_side[:, tf.newaxis])[:, 0]
        ds = tf.linalg.matvec(scaled, dy)
        return dy / size, ds, target - ds

    return solve


def _make_signs(pair: tf.Tensor) -> tf.Tensor:
    """Return the vector (1, -1, -1, ...) with as many entries as (u0, u1)."""
    return 2 * tf.one_hot(0, tf.size(pair), dtype=tf.float64) - 1


def _find_determinant(pair: tf.Tensor) -> tf.Tensor:
    """Return `u0^2 - |u1|^2`; rounding errors cannot make the result 0."""
    return tf.maximum(tf.reduce_sum(_make_signs(pair) * pair**2), _ROUNDING * pair[0] ** 2)


def _make_identity(u: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return the identity e of the product `o` of `_multiply_elements`, with `e o u = u`."""
    count = tf.size(u)
    return tf.cast(tf.range(count) <= count - size, tf.float64)


def _multiply_elements(u: tf.Tensor, v: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return `u o v`: products of single numbers, then (u'v, u0 v1 + v0 u1) for the vectors."""
    (p, q), numbers = (u[-size:], v[-size:]), u[:-size] * v[:-size]
    first = tf.tensordot(p, q, 1)[tf.newaxis]
    return tf.concat([numbers, first, p[0] * q[1:] + q[0] * p[1:]], 0)


def _divide_elements(v: tf.Tensor, u: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return the quotient w with `u o w = v`, for the product `o` of `_multiply_elements`."""
    p, q = u[-size:], v[-size:]
    first = tf.reduce_sum(_make_signs(p) * p * q) / _find_determinant(p)
    return tf.concat([v[:-size] / u[:-size], first[tf.newaxis], (q[1:] - first * p[1:]) / p[0]], 0)


def _longest_step(u: tf.Tensor, du: tf.Tensor, dv: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return the largest t, at most 1, for which u + t du and u + t dv are in the cone."""
    moves, pair = tf.stack([du, dv]), u[-size:]
    pairs, signs = moves[:, -size:], _make_signs(pair)
    determinant, cross_terms = _find_determinant(pair), tf.linalg.matvec(pairs, signs * pair)
    # If y is the greatest root of `det(u) y^2 + 2 cross y + det(move)`, then u + move / y is on the
    # border of the cone.
    root = tf.sqrt(tf.maximum(cross_terms**2 - determinant * tf.reduce_sum(signs * pairs**2, 1), 0))
    fastest = tf.maximum(
        (root - cross_terms) / determinant, tf.reduce_max(-moves[:, :-size] / u[:-size], 1)
    )
    return 1 / tf.maximum(tf.reduce_max(fastest), 1)
