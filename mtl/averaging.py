"""Averages of the weights over the steps, which evaluation, prediction and export use.

update.Update.average = @averaging.ExponentialAverage()
averaging.ExponentialAverage.decay = 0.999

Training goes on from the weights themselves. A checkpoint holds both, `<variable>` and
`<variable>/average`; an exported model only the averages, under the names of the variables.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mtl import checks, patterns, types
from mtl.compat import reduced

tf1 = tf.compat.v1

_OF_NORMALISATIONS = r"/moving_(mean|variance)$"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentialAverage:
    """`a <- d a + (1 - d) w` after every step, with `d = min(decay, (1 + t) / (10 + t))`.

    B. Polyak, A. Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992, with the
    last steps counting most; the ramp over the global step t is that of
    `tf.train.ExponentialMovingAverage`. After the first step `a` is w. The averages of
    normalisations are averaged too, so that they belong to the averaged weights. Rows of looked-up
    tables are averaged when they are in the batch, so that a step costs the rows of the batch, not
    the table. What is frozen for good has no average; what is frozen up to a step has one that
    stays with it.

    Attributes:
      decay: in [0, 1): the average is over about the last `1 / (1 - decay)` steps.
    """

    decay: float = 0.999

    def __post_init__(self):
        checks.rate("ExponentialAverage.decay", self.decay)

    def __call__(
        self,
        gradients: Sequence[types.Gradient],
        variables: Sequence[tf.Variable],
        step: tf.Tensor,
        moves: tf.Tensor | bool = True,
    ) -> tf.Operation:
        """N gradients, which say what rows have moved, N variables that have been moved -> the op.

        Args:
          gradients: sparse where rows were looked up.
          variables: that are trained.
          step: the global step, before it is counted.
          moves: whether this step has moved the variables; the averages stay if it has not.
        """
        own = {patterns.name(variable) for variable in variables}
        others = [v for v in tf1.global_variables() if patterns.matches(_OF_NORMALISATIONS, v)]
        others = [v for v in others if patterns.name(v) not in own]
        pairs = [*zip(gradients, variables, strict=True), *((tf.zeros([]), v) for v in others)]
        # Averages start with the first step, from the initial weights if it is skipped.
        when = True if moves is True else moves | (step < 1)
        return reduced.apply(_Averaging(self.decay, tf.cast(step, tf.float32)), pairs, when)


class _Averaging(tf1.train.Optimizer):
    """Leaves the variables alone and moves their averages; a gradient says which rows."""

    def __init__(self, decay: float, step: tf.Tensor):
        super().__init__(use_locking=False, name="average")
        ramp = tf.where(step < 1, 0.0, (1 + step) / (10 + step))
        self._step, self._decay = step, tf.minimum(decay, ramp)

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "average", self.get_name())

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        del grad
        average = self.get_slot(var, "average")
        weights = var.read_value()
        return average.assign(weights + tf.cast(self._decay, var.dtype) * (average - weights))

    def _resource_apply_sparse(self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor) -> Any:
        del grad
        average = self.get_slot(var, "average")

        def start() -> tf.Operation:
            return tf.group(average.assign(var.read_value()))

        def move() -> tf.Operation:
            weights = tf.gather(var, indices)
            gap = tf.gather(average, indices) - weights
            moved = weights + tf.cast(self._decay, var.dtype) * gap
            return tf.group(average.scatter_update(tf.IndexedSlices(moved, indices)))

        return tf.cond(self._step < 1, start, move)


def name_in(reader: Any, name: str) -> str:
    """Where a checkpoint holds the trained value of a variable: under its name, or as an average.

    One of step 0, or of a run without averages, holds none that count.
    """
    average, step = f"{name}/average", tf1.GraphKeys.GLOBAL_STEP
    has_begun = reader.has_tensor(step) and reader.get_tensor(step) > 0
    return average if has_begun and reader.has_tensor(average) else name


class Saver(tf1.train.Saver):
    """Restores the averages of variables in the place of those that have one; saves as any other.

    It is built for all variables of the graph.
    """

    def __init__(self):
        variables = tf1.global_variables()
        super().__init__(variables)
        self._plain = [patterns.name(variable) for variable in variables]
        self._path = tf1.placeholder(tf.string, [])
        self._names = tf1.placeholder(tf.string, [len(variables)])
        everything, types_of = [""] * len(variables), [v.dtype.base_dtype for v in variables]
        values = tf.raw_ops.RestoreV2(
            prefix=self._path,
            tensor_names=self._names,
            shape_and_slices=everything,
            dtypes=types_of,
        )
        assigned = [
            variable.assign(tf.ensure_shape(value, variable.shape), read_value=False)
            for variable, value in zip(variables, values, strict=True)
        ]
        self._restored = tf.group(*assigned)

    def restore(self, sess: tf1.Session, save_path: str) -> None:
        """Restores all variables of the graph."""
        reader = tf.train.load_checkpoint(save_path)
        names = [name_in(reader, name) for name in self._plain]
        sess.run(self._restored, {self._path: save_path, self._names: names})
