"""Keeps gradients as products of two thin matrices, such as the gradients by a head's inputs.

thin = factors.Factors.from_gradients((0, 2), [gradient of task 0, gradient of task 2])
if thin:
    gramian, update = thin.multiply_pairs(), thin.combine(weights)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mtl.deferred import tf


@dataclasses.dataclass(frozen=True)
class Factors:
    """The gradients of S tasks, as products `left[s] right[s]'` of thin matrices [P, C] and [Q, C].

    The number C is, for example, the number of logits of a head. If the number of columns C is
    small, inner products and weighted sums are computed from the thin matrices, and the gradients
    [P, Q] are not built. The inner product of the gradients of tasks s and t is the sum of the
    entries of `(left[s]' left[t]) * (right[s]' right[t])`.

    Attributes:
      tasks: the indices of the S tasks that have a gradient.
      gradients: the S gradients, [P, Q] each.
      left: the left factors of all tasks, side by side, [P, sum of C].
      right: the right factors of all tasks, side by side, [Q, sum of C].
      owners: the task of each column of `left` and `right`, as an index into `tasks`.
    """

    tasks: tuple[int, ...]
    gradients: Sequence[tf.Tensor]
    left: tf.Tensor
    right: tf.Tensor
    owners: tuple[int, ...]

    ids = None

    @classmethod
    def from_gradients(
        cls, tasks: tuple[int, ...], gradients: Sequence[tf.Tensor]
    ) -> Factors | None:
        """Split the gradients of S tasks into thin factors.

        Args:
          tasks: the indices of the S tasks that have a gradient.
          gradients: the S gradients by one variable, dense, in equal shapes.

        Returns:
          The factors of the gradients; None if a gradient is not a single matrix product, if a size
          is unknown while the graph is built, or if inner products cost less with the gradients
          themselves.
        """
        if any(gradient.op.type != "MatMul" for gradient in gradients):
            return None
        pairs = [_split_product(gradient.op) for gradient in gradients]
        columns = [left.shape[1] for left, _ in pairs]
        if None in columns or not _is_cheaper(sum(columns), len(tasks), gradients[0].shape[1]):
            return None
        left, right = (tf.concat(sides, 1) for sides in zip(*pairs, strict=True))
        owners = tuple(place for place, count in enumerate(columns) for _ in range(count))
        return cls(tasks, gradients, left, right, owners)

    @property
    def rows(self) -> tf.Tensor:
        """The gradients themselves, [S, P, Q], for callers that cannot use the factors."""
        return tf.stack(self.gradients)

    def multiply_pairs(self) -> tf.Tensor:
        """Compute the inner products of all pairs of tasks, [S, S] float64."""
        left, right = tf.cast(self.left, tf.float64), tf.cast(self.right, tf.float64)
        # Entry (c, d) is the inner product of the columns c and d of `left`, multiplied by the
        # inner product of the columns c and d of `right`, [sum of C, sum of C].
        products = tf.linalg.matmul(left, left, transpose_a=True)
        products *= tf.linalg.matmul(right, right, transpose_a=True)
        owner_matrix = tf.one_hot(self.owners, len(self.tasks), dtype=tf.float64)
        # For each pair of tasks, sum the entries of `products` over the columns of both tasks, [S,
        # S].
        return tf.linalg.matmul(owner_matrix, products @ owner_matrix, transpose_a=True)

    def combine(self, weights: tf.Tensor) -> tf.Tensor:
        """Compute the sum of the tasks' gradients, each multiplied by the weight of its task.

        Args:
          weights: [T], the weights of all tasks.

        Returns:
          [P, Q], a dense gradient.
        """
        column_weights = tf.gather(weights, [self.tasks[place] for place in self.owners])
        return tf.linalg.matmul(
            self.left * tf.cast(column_weights, self.left.dtype), self.right, transpose_b=True
        )

    def to_gradient(self, values: tf.Tensor) -> tf.Tensor:
        """Return values [P, Q] as a dense gradient, with the gradients' static shape."""
        return tf.ensure_shape(values, self.gradients[0].shape)


def _split_product(product: tf.Operation) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the factors [P, C] and [Q, C] of a `MatMul` with the result [P, Q]."""
    left, right = product.inputs
    if product.get_attr("transpose_a"):
        left = tf.transpose(left)
    return left, right if product.get_attr("transpose_b") else tf.transpose(right)


def _is_cheaper(columns: int, num_tasks: int, width: int | None) -> bool:
    """Return True if inner products cost less with the factors than with the gradients.

    The inner products of the factors are a matrix [columns, columns], the inner products of the
    gradients a matrix [T, T]. The function compares the costs of both kinds of inner products for
    one row of a gradient, and assumes a gradient with about as many rows as columns.
    """
    return width is not None and 2 * columns**2 <= num_tasks**2 * width
