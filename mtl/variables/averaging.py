"""Averages of the weights over the steps, for evaluation, prediction and export.

update.Update.average = @averaging.ExponentialAverage()
averaging.ExponentialAverage.decay = 0.999

Training continues from the weights themselves. A checkpoint holds `<variable>` and
`<variable>/average`. An exported model holds only the averages, under the names of the variables.

A step costs the rows of the batch, not the table. The average of a row is brought up to date when
the row is looked up, or when `value_in` reads it from a checkpoint. The row does not change in
between, so k steps are one: `a <- w + d_1 ... d_k (a - w)`. `<table>/average_decay` holds for each
row the logarithm of the product of all decays up to its last change, and `average_decay` up to the
last step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from mtl import checks, deferred, types
from mtl.deferred import tf, tf1
from mtl.tf_internals import reduced
from mtl.variables import patterns, pruned

with deferred.imports():
    from mtl.variables import averages

_OF_NORMALISATIONS = r"/moving_(mean|variance)$"
"""The moving averages of batch norms, which are averaged, too."""


@checks.dataclass
class ExponentialAverage:
    """`a <- d a + (1 - d) w` after every step, with `d = min(decay, (1 + t) / (10 + t))`.

    B. Polyak, A. Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992. Unlike in
    that paper, the last steps count most. The ramp over the global step t comes from
    `tf.train.ExponentialMovingAverage`. At the first step, `a` becomes w. The averages of batch
    norms are averaged too, because they must fit the averaged weights. If a step does not look up a
    row of a table, the row's unchanged weights count for it. Variables that are frozen for good
    have no average; the average of a variable that is frozen up to a step stays the same until
    then.

    Attributes:
      decay: in [0, 1); the average covers about the last `1 / (1 - decay)` steps.
    """

    decay: checks.Rate = 0.999

    def __call__(
        self,
        before: Sequence[types.Gradient],
        variables: Sequence[tf.Variable],
        step: tf.Tensor,
        moves: tf.Tensor | bool = True,
    ) -> tf.Operation:
        """Return the op that averages N variables after the optimizer has changed them.

        Args:
          before: the result of `rows_before` before that change; sparse for looked-up rows.
          variables: the trained variables.
          step: the global step, before it is counted.
          moves: True if this step changes the variables; otherwise the averages stay.
        """
        names = {patterns.variable_name(variable) for variable in variables}
        statistics = [v for v in tf1.global_variables() if patterns.matches(_OF_NORMALISATIONS, v)]
        statistics = [v for v in statistics if patterns.variable_name(v) not in names]
        _require_updated(names)
        pairs = list(zip(before, variables, strict=True))
        tables = {patterns.shard_name(v) for g, v in pairs if isinstance(g, tf.IndexedSlices)}
        _require_not_behind(tables)
        # An optimizer needs a gradient for each variable; it does not read the value of a dense
        # gradient.
        pairs += [(tf.zeros([]), v) for v in statistics]
        # Averages start with the first step; if it is skipped, from the initial weights.
        condition = True if moves is True else moves | (step < 1)
        mover = averages.Averaging(self.decay, tf.cast(step, tf.float32), tables)
        return reduced.apply_reduced(mover, pairs, condition)


def read_average(variable: tf.Variable) -> tf.Tensor:
    """Return a variable's average after the previous step; in step 0 its value.

    A training step that calls it has to require `Update.average`, which updates the average.
    """
    name = patterns.variable_name(variable)
    # Use the slot's name, even if it is read before the slot is created.
    scope = tf1.VariableScope(reuse=tf1.AUTO_REUSE, name="")
    with tf1.variable_scope(scope, auxiliary_name_scope=False), tf1.name_scope(None):
        average = tf1.get_variable(
            f"{name}/{averages.AVERAGE}",
            variable.shape,
            variable.dtype.base_dtype,
            tf1.zeros_initializer(),
            trainable=False,
        )
    averages.list_read_averages()[name] = average
    is_first = tf1.train.get_or_create_global_step().read_value() < 1
    return tf.where(is_first, variable.read_value(), average.read_value())


def _require_updated(names: Collection[str]) -> None:
    """Fail if code reads an average that no step updates."""
    stale_names = [name for name in averages.list_read_averages() if name not in names]
    rule = "be of a variable that some loss depends on"
    checks.require(not stale_names, "an average that code reads", rule, stale_names[:3])


def _require_not_behind(tables: Collection[str]) -> None:
    """Fail if code reads the average of a table: its rows are brought up to date one by one."""
    behind = [name for name in averages.list_read_averages() if name in tables]
    checks.require(not behind, "an average that code reads", "not be of a table", behind[:3])


def rows_before(
    gradients: Sequence[types.Gradient],
    variables: Sequence[tf.Variable],
    moves_all_rows: Sequence[bool],
) -> list[types.Gradient]:
    """Return the rows of variables that an optimizer will change, with their current values.

    A variable with a dense gradient changes as a whole in every step, and needs no values.

    Args:
      gradients: N gradients, which name the rows of a table.
      variables: N variables.
      moves_all_rows: N flags, True if the optimizer also changes rows without a gradient.

    Returns:
      N values: IndexedSlices for looked-up tables, and a scalar in place of a dense variable.
    """

    def take_rows(gradient: types.Gradient, variable: tf.Variable, is_all: bool) -> types.Gradient:
        if not isinstance(gradient, tf.IndexedSlices):
            return tf.zeros([])
        all_rows = tf.range(tf.cast(variable.shape[0], gradient.indices.dtype))
        ids = all_rows if is_all else tf.unique(gradient.indices).y
        return tf.IndexedSlices(tf.gather(variable, ids), ids, gradient.dense_shape)

    return list(map(take_rows, gradients, variables, moves_all_rows))


def is_state(name: str) -> bool:
    """Return True if a name belongs to an average or to a decay."""
    return name.rpartition("/")[2] in (averages.AVERAGE, averages.DECAY)


def is_decay(name: str) -> bool:
    """Return True if a variable tells how current averages are; zeros mean up to date."""
    return name.rpartition("/")[2] == averages.DECAY


def is_total(variable: tf.Variable) -> bool:
    """Return True if a variable is the total decay up to now, to compare rows' decays with."""
    return patterns.variable_name(variable) == averages.DECAY


def name_in(reader: Any, name: str) -> str:
    """Return the name of a variable's trained value in a checkpoint: the average, if it has one.

    The averages of a checkpoint of step 0 do not count.
    """
    average, step = f"{name}/{averages.AVERAGE}", tf1.GraphKeys.GLOBAL_STEP
    has_begun = reader.has_tensor(step) and reader.get_tensor(step) > 0
    return average if has_begun and reader.has_tensor(average) else name


def is_behind(reader: Any, name: str) -> bool:
    """Return True if `value_in` may differ from the value that a checkpoint holds.

    The value is then the average of a table that is not up to date, or a mask cuts it.
    """
    is_late = name.endswith(f"/{averages.AVERAGE}") and reader.has_tensor(_decay_of(name))
    return is_late or reader.has_tensor(_mask_of(name))


def value_in(reader: Any, name: str) -> np.ndarray:
    """Return a checkpoint's value, with averages of tables up to date and with cut weights 0."""
    if is_decay(name):
        return np.full_like(reader.get_tensor(name), reader.get_tensor(averages.DECAY))
    value = _bring_up_to_date(reader, name)
    if not reader.has_tensor(_mask_of(name)):
        return value
    return np.where(reader.get_tensor(_mask_of(name)) > 0, value, np.zeros_like(value))


def _mask_of(name: str) -> str:
    return pruned.mask_name(name.removesuffix(f"/{averages.AVERAGE}"))


def _bring_up_to_date(reader: Any, name: str) -> np.ndarray:
    value = reader.get_tensor(name)
    if not (name.endswith(f"/{averages.AVERAGE}") and reader.has_tensor(_decay_of(name))):
        return value
    weights = reader.get_tensor(name.removesuffix(f"/{averages.AVERAGE}"))
    missed_decay = np.exp(reader.get_tensor(averages.DECAY) - reader.get_tensor(_decay_of(name)))
    missed_decay = missed_decay.astype(value.dtype).reshape([-1] + [1] * (value.ndim - 1))
    return weights + missed_decay * (value - weights)


def _decay_of(average: str) -> str:
    return average.removesuffix(averages.AVERAGE) + averages.DECAY
