"""Averages of the weights over the steps, which evaluation, prediction and export use.

update.Update.average = @averaging.ExponentialAverage()
averaging.ExponentialAverage.decay = 0.999

Training goes on from the weights themselves. A checkpoint holds both, `<variable>` and
`<variable>/average`; an exported model only the averages, under the names of the variables.

A step costs the rows of the batch, not the table: the average of a row is brought up to date when
the row is looked up, and until then when it is read (`value_in`). Since the row has not moved,
k steps are one, `a <- w + d_1 ... d_k (a - w)`. `<table>/average_decay` holds for each row the
logarithm of the product of all decays up to its last move, and `average_decay` up to now.
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
# Stands in for a decay of 0, whose logarithm has no end.
_LEAST_DECAY = 1e-300
_READ: weakref.WeakKeyDictionary[tf.Graph, dict[str, tf.Variable]] = weakref.WeakKeyDictionary()
"""The averages that the step of a graph reads, {name of a variable: its average}."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentialAverage:
    """`a <- d a + (1 - d) w` after every step, with `d = min(decay, (1 + t) / (10 + t))`.

    B. Polyak, A. Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992, with the
    last steps counting most; the ramp over the global step t is that of
    `tf.train.ExponentialMovingAverage`. After the first step `a` is w. The averages of
    normalisations are averaged too, so that they belong to the averaged weights. A row of a table
    that was not looked up counts with its weights of that step as any other does. What is frozen
    for good has no average; what is frozen up to a step has one that stays with it.

    Attributes:
      decay: in [0, 1): the average is over about the last `1 / (1 - decay)` steps.
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
          before: what `rows_before` gave before they moved; sparse where rows were looked up.
          variables: that are trained.
          step: the global step, before it is counted.
          moves: True if this step has moved the variables; the averages stay if it has not.
        """
        own = {patterns.variable_name(variable) for variable in variables}
        others = [v for v in tf1.global_variables() if patterns.matches(_OF_NORMALISATIONS, v)]
        others = [v for v in others if patterns.variable_name(v) not in own]
        _require_kept(own)
        pairs = list(zip(before, variables, strict=True))
        tables = {patterns.shard_name(v) for g, v in pairs if isinstance(g, tf.IndexedSlices)}
        _require_not_behind(tables)
        # An optimizer asks for a gradient of each variable; the value of a dense one is not read.
        pairs += [(tf.zeros([]), v) for v in others]
        # Averages start with the first step, from the initial weights if it is skipped.
        when = True if moves is True else moves | (step < 1)
        averaging = _Averaging(self.decay, tf.cast(step, tf.float32), tables)
        return reduced.apply_reduced(averaging, pairs, when)


def read_average(variable: tf.Variable) -> tf.Tensor:
    """Return the average of a variable as the step before left it; in step 0 its value.

    Whoever reads it in a training step has to require `Update.average`, which keeps it.
    """
    name = patterns.variable_name(variable)
    # Named as the slot that it is, wherever it is read first.
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
    """Fail if an average is read that no step keeps."""
    left = [name for name in _averages_read() if name not in averaged]
    rule = "be of a variable that some loss depends on"
    checks.require(not left, "an average that is read", rule, left[:3])


def _require_not_behind(tables: Collection[str]) -> None:
    """Fail if the average of a table is read, whose rows are brought up to date one by one."""
    behind = [name for name in _averages_read() if name in tables]
    checks.require(not behind, "an average that is read", "not be of a table", behind[:3])


def rows_before(
    gradients: Sequence[types.Gradient],
    variables: Sequence[tf.Variable],
    moves_all_rows: Sequence[bool],
) -> list[types.Gradient]:
    """Return the rows of N variables that are about to move, as they are before.

    The N gradients tell the rows of a table; where its optimizer moves rows without a gradient,
    too, these are all rows. What has a dense gradient needs no values: of it all moves at every
    step.
    """

    def rows(gradient: types.Gradient, variable: tf.Variable, is_all: bool) -> types.Gradient:
        if not isinstance(gradient, tf.IndexedSlices):
            return tf.zeros([])
        every = tf.range(tf.cast(variable.shape[0], gradient.indices.dtype))
        chosen = every if is_all else tf.unique(gradient.indices).y
        return tf.IndexedSlices(tf.gather(variable, chosen), chosen, gradient.dense_shape)

    return list(map(rows, gradients, variables, moves_all_rows))


class _Averaging(tf.compat.v1.train.Optimizer):
    """Leaves the variables alone and moves their averages; a gradient holds rows as they were."""

    def __init__(self, decay: float, step: tf.Tensor, tables: Collection[str]):
        super().__init__(use_locking=False, name=_AVERAGE)
        # A decay of 0 at the first step makes the average the weights, whatever was in the slot.
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
        with tf.init_scope():  # The graph that holds it, also from within a loop or a branch.
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
        # Each row comes once; values of several are not to be added.
        average, reached = self.get_slot(handle, _AVERAGE), self.get_slot(handle, _DECAY)
        missed = tf.exp(self._so_far - tf.gather(reached, indices))
        missed = tf.reshape(missed, [-1] + [1] * (grad.shape.rank - 1))
        old = grad + tf.cast(missed, grad.dtype) * (tf.gather(average, indices) - grad)
        weights = tf.gather(handle, indices)
        new = weights + tf.cast(self._decay, grad.dtype) * (old - weights)
        with tf.control_dependencies([new]):  # Or it may be written before it is read.
            now = tf.fill(tf.shape(indices), self._so_far + self._log)
        return tf.group(
            average.scatter_update(tf.IndexedSlices(new, indices)),
            reached.scatter_update(tf.IndexedSlices(now, indices)),
        )

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Any:
        if not self._tables:
            return super()._finish(update_ops, name_scope)
        # The product up to now moves on after all rows have been brought up to it.
        with tf.control_dependencies(update_ops):
            return tf.group(self._total().assign_add(self._log), name=name_scope)


def is_state(name: str) -> bool:
    """Return True if optimizer state of this name belongs to the averages of a run."""
    return name.rpartition("/")[2] in (_AVERAGE, _DECAY)


def is_decay(name: str) -> bool:
    """Return True if a variable tells up to when averages are brought; zeros mean up to now."""
    return name.rpartition("/")[2] == _DECAY


def is_total(variable: tf.Variable) -> bool:
    """Return True if a variable is the decay up to now, which those of rows are compared with."""
    return patterns.variable_name(variable) == _DECAY


def name_in(reader: Any, name: str) -> str:
    """Return where a checkpoint holds the trained value of a variable: its name, or an average's.

    One of step 0, or of a run without averages, holds none that count.
    """
    average, step = f"{name}/{_AVERAGE}", tf1.GraphKeys.GLOBAL_STEP
    has_begun = reader.has_tensor(step) and reader.get_tensor(step) > 0
    return average if has_begun and reader.has_tensor(average) else name


def is_behind(reader: Any, name: str) -> bool:
    """Return True if `value_in` may differ from what a checkpoint holds under a name.

    That is an average of a table, to be caught up, or what a mask cuts.
    """
    is_late = name.endswith(f"/{_AVERAGE}") and reader.has_tensor(_decay_of(name))
    return is_late or reader.has_tensor(_mask_of(name))


def value_in(reader: Any, name: str) -> np.ndarray:
    """Return what counts of a checkpoint: averages of tables as of its step, and cut weights 0."""
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
    """Restores averages in the place of variables that have one, and zeros where a mask cuts.

    It saves as any other, and is built for all variables of the graph.
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
                # The op above wrote values as they lie in the file.
                value = value_in(reader, name)
                sess.run(variable.initializer, {variable.initializer.inputs[1]: value})
