"""Averages of the weights over the steps, for evaluation, prediction and export.

update.Update.average = @averaging.ExponentialAverage()
averaging.ExponentialAverage.decay = 0.999

Training continues from the weights themselves. A checkpoint holds both, `<variable>` and
`<variable>/average`. An exported model holds only the averages, under the names of the variables.

A step costs the rows of the batch, not the table. The average of a row is brought up to date when
the row is looked up, or when a reader asks for it (`value_in`). Since the row did not move in
between, k steps are one: `a <- w + d_1 ... d_k (a - w)`. `<table>/average_decay` holds for each row
the logarithm of the product of all decays up to its last move, and `average_decay` up to now.
"""

import dataclasses
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mtl import checks, types
from mtl.compat import graphs, reduced
from mtl.variables import patterns, pruned

tf1 = tf.compat.v1

_OF_NORMALISATIONS = r"/moving_(mean|variance)$"
_AVERAGE, _DECAY = "average", "average_decay"
# Replaces a decay of 0, whose logarithm is not finite.
_LEAST_DECAY = 1e-300
_READ: weakref.WeakKeyDictionary[tf.Graph, dict[str, tf.Variable]] = weakref.WeakKeyDictionary()
"""The averages that the step of a graph reads: {name of a variable: its average}."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentialAverage:
    """`a <- d a + (1 - d) w` after every step, with `d = min(decay, (1 + t) / (10 + t))`.

    B. Polyak, A. Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992, but the
    last steps count most. The ramp over the global step t comes from
    `tf.train.ExponentialMovingAverage`. After the first step `a` is w. The averages of batch norms
    are averaged too, because they must fit the averaged weights. If a step does not look up a row
    of a table, the row's unchanged weights count for it. Variables that are frozen for good have no
    average; the average of a variable that is frozen up to a step stays the same until then.

    Attributes:
      decay: in [0, 1); the average covers about the last `1 / (1 - decay)` steps.
    """

    decay: float = 0.999

    def __post_init__(self):
        checks.rate("ExponentialAverage.decay", self.decay)

    def __call__(
        self,
        before: Sequence[types.Gradient],
        variables: Sequence[tf.Variable],
        step: tf.Tensor,
        moves: tf.Tensor | bool = True,
    ) -> tf.Operation:
        """Return the op that averages N variables, which have just been moved.

        Args:
          before: the result of `rows_before` before the move; sparse for looked-up rows.
          variables: the trained variables.
          step: the global step, before it is counted.
          moves: True if this step has moved the variables; otherwise the averages stay.
        """
        own = {patterns.variable_name(variable) for variable in variables}
        others = [v for v in tf1.global_variables() if patterns.matches(_OF_NORMALISATIONS, v)]
        others = [v for v in others if patterns.variable_name(v) not in own]
        _require_kept(own)
        pairs = list(zip(before, variables, strict=True))
        tables = {patterns.shard_name(v) for g, v in pairs if isinstance(g, tf.IndexedSlices)}
        _require_not_behind(tables)
        # An optimizer needs a gradient for each variable; the value of a dense one is not read.
        pairs += [(tf.zeros([]), v) for v in others]
        # Averages start with the first step; if it is skipped, from the initial weights.
        when = True if moves is True else moves | (step < 1)
        averaging = _Averaging(self.decay, tf.cast(step, tf.float32), tables)
        return reduced.apply_reduced(averaging, pairs, when)


def read_average(variable: tf.Variable) -> tf.Tensor:
    """Return a variable's average after the previous step; in step 0 its value.

    A training step that calls it has to require `Update.average`, which updates the average.
    """
    name = patterns.variable_name(variable)
    # Use the slot's name, even if it is read before the slot is created.
    scope = tf1.VariableScope(reuse=tf1.AUTO_REUSE, name="")
    with tf1.variable_scope(scope, auxiliary_name_scope=False), tf1.name_scope(None):
        kept = tf1.get_variable(
            f"{name}/{_AVERAGE}",
            variable.shape,
            variable.dtype.base_dtype,
            tf1.zeros_initializer(),
            trainable=False,
        )
    _averages_read()[name] = kept
    is_first = tf1.train.get_or_create_global_step().read_value() < 1
    return tf.where(is_first, variable.read_value(), kept.read_value())


def _averages_read() -> dict[str, tf.Variable]:
    return _READ.setdefault(graphs.outermost_graph(), {})


def _require_kept(averaged: Collection[str]) -> None:
    """Fail if code reads an average that no step updates."""
    left = [name for name in _averages_read() if name not in averaged]
    rule = "be of a variable that some loss depends on"
    checks.require(not left, "an average that is read", rule, left[:3])


def _require_not_behind(tables: Collection[str]) -> None:
    """Fail if code reads the average of a table: its rows are brought up to date one by one."""
    behind = [name for name in _averages_read() if name in tables]
    checks.require(not behind, "an average that is read", "not be of a table", behind[:3])


def rows_before(
    gradients: Sequence[types.Gradient],
    variables: Sequence[tf.Variable],
    moves_all_rows: Sequence[bool],
) -> list[types.Gradient]:
    """Return the rows of N variables that are about to move, with their current values.

    The N gradients name the rows of a table. If its optimizer also moves rows without a gradient,
    all rows are returned. A variable with a dense gradient moves as a whole in every step, and
    needs no values.
    """

    def rows(gradient: types.Gradient, variable: tf.Variable, is_all: bool) -> types.Gradient:
        if not isinstance(gradient, tf.IndexedSlices):
            return tf.zeros([])
        every = tf.range(tf.cast(variable.shape[0], gradient.indices.dtype))
        chosen = every if is_all else tf.unique(gradient.indices).y
        return tf.IndexedSlices(tf.gather(variable, chosen), chosen, gradient.dense_shape)

    return list(map(rows, gradients, variables, moves_all_rows))


class _Averaging(tf.compat.v1.train.Optimizer):
    """Keeps the variables and moves their averages; a gradient holds the rows before the move."""

    def __init__(self, decay: float, step: tf.Tensor, tables: Collection[str]):
        super().__init__(use_locking=False, name=_AVERAGE)
        # A decay of 0 in the first step sets the average to the weights, whatever it was before.
        self._decay = tf.minimum(decay, tf.where(step < 1, 0.0, (1 + step) / (10 + step)))
        self._log = tf.math.log(tf.maximum(tf.cast(self._decay, tf.float64), _LEAST_DECAY))
        self._tables = tables

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        read = _averages_read()
        for variable in var_list:
            if (kept := read.get(patterns.variable_name(variable))) is not None:
                self._slot_dict(_AVERAGE)[variable.op.graph, variable.op.name] = kept
            self._zeros_slot(variable, _AVERAGE, self.get_name())
            if patterns.shard_name(variable) in self._tables:
                zeros, rows = tf1.zeros_initializer(), variable.shape[:1]
                self._get_or_make_slot_with_initializer(
                    variable, zeros, rows, tf.float64, _DECAY, _DECAY
                )
        if self._tables:
            first = min(var_list, key=lambda variable: variable.name)
            self._create_non_slot_variable(np.zeros([]), _DECAY, first)

    def _prepare(self) -> None:
        if self._tables:
            self._so_far = self._total().read_value()

    def _total(self) -> tf.Variable:
        with tf.init_scope():  # The graph of the variable, even inside a loop or a branch.
            graph = tf1.get_default_graph()
        return self._get_non_slot_variable(_DECAY, graph)

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        del grad
        average = self.get_slot(var, _AVERAGE)
        weights = var.read_value()
        return average.assign(weights + tf.cast(self._decay, var.dtype) * (average - weights))

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> Any:
        # Each row comes once; values of equal rows must not be added.
        average, reached = self.get_slot(handle, _AVERAGE), self.get_slot(handle, _DECAY)
        missed = tf.exp(self._so_far - tf.gather(reached, indices))
        missed = tf.reshape(missed, [-1] + [1] * (grad.shape.rank - 1))
        old = grad + tf.cast(missed, grad.dtype) * (tf.gather(average, indices) - grad)
        weights = tf.gather(handle, indices)
        new = weights + tf.cast(self._decay, grad.dtype) * (old - weights)
        with tf.control_dependencies([new]):  # Otherwise it could be written before it is read.
            now = tf.fill(tf.shape(indices), self._so_far + self._log)
        return tf.group(
            average.scatter_update(tf.IndexedSlices(new, indices)),
            reached.scatter_update(tf.IndexedSlices(now, indices)),
        )

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Any:
        if not self._tables:
            return super()._finish(update_ops, name_scope)
        # The total product changes only after all rows were brought up to date with it.
        with tf.control_dependencies(update_ops):
            return tf.group(self._total().assign_add(self._log), name=name_scope)


def is_state(name: str) -> bool:
    """Return True if a name belongs to an average or to a decay."""
    return name.rpartition("/")[2] in (_AVERAGE, _DECAY)


def is_decay(name: str) -> bool:
    """Return True if a variable tells how current averages are; zeros mean up to date."""
    return name.rpartition("/")[2] == _DECAY


def is_total(variable: tf.Variable) -> bool:
    """Return True if a variable is the total decay up to now, to compare rows' decays with."""
    return patterns.variable_name(variable) == _DECAY


def name_in(reader: Any, name: str) -> str:
    """Return the name of a variable's trained value in a checkpoint: its average's or its own.

    The averages of a checkpoint of step 0 do not count.
    """
    average, step = f"{name}/{_AVERAGE}", tf1.GraphKeys.GLOBAL_STEP
    has_begun = reader.has_tensor(step) and reader.get_tensor(step) > 0
    return average if has_begun and reader.has_tensor(average) else name


def is_behind(reader: Any, name: str) -> bool:
    """Return True if `value_in` may differ from the value that a checkpoint holds.

    The value is then the average of a table that is not up to date, or a mask cuts it.
    """
    is_late = name.endswith(f"/{_AVERAGE}") and reader.has_tensor(_decay_of(name))
    return is_late or reader.has_tensor(_mask_of(name))


def value_in(reader: Any, name: str) -> np.ndarray:
    """Return a checkpoint's value, with averages of tables up to date and with cut weights 0."""
    if is_decay(name):
        return np.full_like(reader.get_tensor(name), reader.get_tensor(_DECAY))
    value = _caught_up(reader, name)
    if not reader.has_tensor(_mask_of(name)):
        return value
    return np.where(reader.get_tensor(_mask_of(name)) > 0, value, np.zeros_like(value))


def _mask_of(name: str) -> str:
    return pruned.mask_name(name.removesuffix(f"/{_AVERAGE}"))


def _caught_up(reader: Any, name: str) -> np.ndarray:
    value = reader.get_tensor(name)
    if not (name.endswith(f"/{_AVERAGE}") and reader.has_tensor(_decay_of(name))):
        return value
    weights = reader.get_tensor(name.removesuffix(f"/{_AVERAGE}"))
    missed = np.exp(reader.get_tensor(_DECAY) - reader.get_tensor(_decay_of(name)))
    missed = missed.astype(value.dtype).reshape([-1] + [1] * (value.ndim - 1))
    return weights + missed * (value - weights)


def _decay_of(average: str) -> str:
    return average.removesuffix(_AVERAGE) + _DECAY


class Saver(tf.compat.v1.train.Saver):
    """Restores averages instead of the variables that have one, and zeros instead of cut weights.

    It saves like any saver, and is built for all variables of the graph.
    """

    def __init__(self):
        variables = tf1.global_variables()
        super().__init__(variables)
        self._variables, self._plain = variables, list(map(patterns.variable_name, variables))
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

    def restore(self, sess: tf.compat.v1.Session, save_path: str) -> None:
        """Restore all variables of the graph, from their averages where these exist."""
        reader = tf.train.load_checkpoint(save_path)
        names = [name_in(reader, name) for name in self._plain]
        sess.run(self._restored, {self._path: save_path, self._names: names})
        for variable, name in zip(self._variables, names, strict=True):
            if is_behind(reader, name):
                # The op above restored the values as the file holds them.
                value = value_in(reader, name)
                sess.run(variable.initializer, {variable.initializer.inputs[1]: value})
