"""Averages the weights over the steps, for evaluation, prediction and export.

update.Update.average = @averaging.ExponentialAverage()
averaging.ExponentialAverage.decay = 0.999

Training itself does not use the averages. A checkpoint has `<variable>` and `<variable>/average`.
An exported model has only the averages, under the names of the variables.

In an embedding table, a step averages only the rows in the batch. The average of a row is updated
when the row is looked up, or when `value_in` reads the row from a checkpoint. Between two updates
of the average a of a row, the row w does not change, so one update with the decays d of the k
missed steps makes up for these steps: `a <- w + d_1 ... d_k (a - w)`. For each row, the variable
`<table>/average_decay` has the logarithm of the product of all decays up to the last update of the
row. The variable `average_decay` has the logarithm of the product of all decays up to the last
step.
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
"""The pattern of batch norms' moving averages, which `ExponentialAverage` also averages."""


@checks.dataclass
class ExponentialAverage:
    """An average a of weights w: `a <- d a + (1 - d) w` with `d = min(decay, (1 + t) / (10 + t))`.

    The average is updated after every step t.

    The method is from Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging",
    1992. In the paper, the weights of all steps count equally; here, the weights of the last steps
    count most. The formula of the decay d, with the global step t, comes from
    `tf.train.ExponentialMovingAverage`. In the first step, the average a is set to the weights w.
    The moving averages of batch norms are averaged as well, because they must fit the averaged
    weights. The average of a table row also counts the steps whose batch does not have the row. A
    variable that is frozen for the whole run has no average. The average of a variable that is
    frozen up to a step does not change before this step.

    Attributes:
      decay: the largest value of the decay d, the factor of the old average, in [0, 1). The average
        covers about the last `1 / (1 - decay)` steps.
    """

    decay: checks.Rate = 0.999

    def __call__(
        self,
        before: Sequence[types.Gradient],
        variables: Sequence[tf.Variable],
        step: tf.Tensor,
        moves: tf.Tensor | bool = True,
    ) -> tf.Operation:
        """Build the op that updates the averages of N variables after the optimizer.

        Args:
          before: the result of `rows_before`, computed before the optimizer changes the variables.
          variables: the N trained variables.
          step: the global step, before it is incremented.
          moves: True if this step changes the variables: a bool scalar of the graph, or Python's
            True. If `moves` is False, the averages do not change, except in the first step of a
            run.
        """
        names = {patterns.variable_name(variable) for variable in variables}
        statistics = [v for v in tf1.global_variables() if patterns.matches(_OF_NORMALISATIONS, v)]
        statistics = [v for v in statistics if patterns.variable_name(v) not in names]
        _require_updated(names)
        pairs = list(zip(before, variables, strict=True))
        tables = {patterns.shard_name(v) for g, v in pairs if isinstance(g, tf.IndexedSlices)}
        _require_not_behind(tables)
        # TensorFlow's optimizers need a gradient for each variable. `Averaging` does not read the
        # value of a dense gradient.
        pairs += [(tf.zeros([]), v) for v in statistics]
        # Averages start at the first step, even if this step is skipped.
        condition = True if moves is True else moves | (step < 1)
        mover = averages.Averaging(self.decay, tf.cast(step, tf.float32), tables)
        return reduced.apply_reduced(mover, pairs, condition)


def read_average(variable: tf.Variable) -> tf.Tensor:
    """Return a variable's average after the previous step; in step 0, the variable's value.

    Code that calls this function must check that `Update.average` is set, because otherwise no step
    updates the average.

    Args:
      variable: a variable that a loss depends on, with a dense gradient. If code reads the average
        of a variable that no loss depends on, or of an embedding table with a sparse gradient,
        building the update raises a UserError.

    Returns:
      A tensor in the shape and type of the variable.
    """
    name = patterns.variable_name(variable)
    # The average has the name of a slot of the optimizer `Averaging`; this slot may not exist yet.
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
    """Check that a step updates every average that code reads."""
    stale_names = [name for name in averages.list_read_averages() if name not in names]
    rule = "be of a variable that some loss depends on"
    checks.require(not stale_names, "a moving average that user code reads", rule, stale_names[:3])


def _require_not_behind(tables: Collection[str]) -> None:
    """Check that no code reads the average of a table, whose rows may not be up to date."""
    behind = [name for name in averages.list_read_averages() if name in tables]
    checks.require(
        not behind, "a moving average that user code reads", "not be of a table", behind[:3]
    )


def rows_before(
    gradients: Sequence[types.Gradient],
    variables: Sequence[tf.Variable],
    moves_all_rows: Sequence[bool],
) -> list[types.Gradient]:
    """Return the current values of those table rows that an optimizer will change.

    All entries of a variable with a dense gradient change, so the average needs no earlier values
    of such a variable.

    Args:
      gradients: N gradients; a sparse gradient has the row numbers.
      variables: N variables.
      moves_all_rows: N flags, True if the optimizer also changes rows without a gradient.

    Returns:
      One value for each variable: the rows as IndexedSlices for a table with a sparse gradient,
      else the scalar 0.
    """

    def take_rows(gradient: types.Gradient, variable: tf.Variable, is_all: bool) -> types.Gradient:
        if not isinstance(gradient, tf.IndexedSlices):
            return tf.zeros([])
        all_rows = tf.range(tf.cast(variable.shape[0], gradient.indices.dtype))
        ids = all_rows if is_all else tf.unique(gradient.indices).y
        return tf.IndexedSlices(tf.gather(variable, ids), ids, gradient.dense_shape)

    return list(map(take_rows, gradients, variables, moves_all_rows))


def is_state(name: str) -> bool:
    """Return True if a variable holds an average of weights, or the decay rates of averages.

    Args:
      name: the name of a variable, without ":0".
    """
    return name.rpartition("/")[2] in (averages.AVERAGE, averages.DECAY)


def is_decay(name: str) -> bool:
    """Return True if a variable has the decays of a table's averages, or the total decay.

    Args:
      name: the name of a variable, without ":0". The total decay is the variable `average_decay`.
        If all decays are 0, all averages are up to date.
    """
    return name.rpartition("/")[2] == averages.DECAY


def is_total(variable: tf.Variable) -> bool:
    """Return True if a variable is `average_decay`, the decay of averages over all steps."""
    return patterns.variable_name(variable) == averages.DECAY


def name_in(reader: Any, name: str) -> str:
    """Return the name of a variable's average in a checkpoint, or of the variable if it has none.

    At step 0, averages are not yet valid, so the result is the name of the variable.

    Args:
      reader: a reader of `tf.train.load_checkpoint`.
      name: the name of the variable.
    """
    average, step = f"{name}/{averages.AVERAGE}", tf1.GraphKeys.GLOBAL_STEP
    has_begun = reader.has_tensor(step) and reader.get_tensor(step) > 0
    return average if has_begun and reader.has_tensor(average) else name


def is_behind(reader: Any, name: str) -> bool:
    """Return True if the result of `value_in` may differ from the value in a checkpoint.

    `value_in` updates the averages of tables, which may not be up to date, and sets the pruned
    weights of variables to 0.

    Args:
      reader: a reader of `tf.train.load_checkpoint`.
      name: the name of a variable, or of an average, in the checkpoint.
    """
    is_late = name.endswith(f"/{averages.AVERAGE}") and reader.has_tensor(_decay_of(name))
    return is_late or reader.has_tensor(_mask_of(name))


def value_in(reader: Any, name: str) -> np.ndarray:
    """Read a value from a checkpoint; update averages of tables, and set pruned weights to 0.

    Args:
      reader: a reader of `tf.train.load_checkpoint`.
      name: the name of a variable, of an average, or of the decays of a table.

    Returns:
      An array in the saved shape and type. For the decays of a table, each entry of the array is
      the total decay `average_decay`, because `value_in` brings the average of every row up to
      date.
    """
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
