"""The update, which applies gradients: regularisation, clipping, optimizer, averages.

from mtl.optimization import update
model.MultiTaskModel.update = @update.Update()
update.Update.optimizer = @optimizers.LazyAdam()
update.Update.clipping = @clipping.GlobalNorm()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, cast

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.optimization import clipping as clipping_lib
from mtl.optimization import finite, groups, schedules
from mtl.optimization import optimizers as optimizers_lib
from mtl.optimization import regularization as regularization_lib
from mtl.step import extensions
from mtl.step import gradients as gradients_lib
from mtl.variables import averaging, freezing, patterns, sharding


@checks.dataclass
class Update(types.Update):
    """Regularises, measures, clips and applies gradients, after the UPDATE_OPS of the graph.

    Attributes:
      optimizer: the optimizer, which has the learning rate. The default, LazyAdam, differs from
        Adam only in embedding tables, where it changes only the rows in the batch.
      optimizers: {pattern: an optimizer} for some variables, such as Adagrad for embedding tables.
        The first pattern that matches a variable chooses its optimizer.
      clipping: the clipping of the gradient; None for no clipping.
      transforms: further changes of the gradient after the clipping, such as
        @transforms.Centralization().
      regularization: L1 and L2 penalties; by default only the graph's REGULARIZATION_LOSSES.
      schedule: a factor of all learning rates that depends on the step, such as @schedules.Cosine()
        with the value 1. If you change the optimizer's learning rate, the schedule need not change.
        None for no factor.
      rates: {pattern: factor of the learning rate, above 0, or a schedule of this factor}. If
        several patterns match a variable, their factors are multiplied. Small factors for a
        pretrained trunk, and larger factors for heads, are the discriminative learning rates of
        Howard and Ruder, "Universal Language Model Fine-tuning for Text Classification", 2018,
        arXiv:1801.06146.
      average: an average of the weights over the steps, which evaluation and export use; None for
        no average.
      if_not_finite: the action in a step whose loss or gradient is NaN or infinite. "fail" ends the
        run before any variable changes; the error names the tasks and variables. "skip" continues
        with the next batch: the step changes neither weights nor their average nor optimizer state,
        and the moving averages of normalisations and balancing remain finite. "zero" sets entries
        of the gradient that are NaN or infinite to 0.
    """

    optimizer: Annotated[types.Optimizer, groups.check_optimizer] = optimizers_lib.LazyAdam()
    optimizers: Annotated[groups.Optimizers, groups.check_optimizers] = dataclasses.field(
        default_factory=dict
    )
    clipping: Annotated[types.Clipping, checks.Part("clipping.GlobalNorm")] | None = None
    transforms: Sequence[
        Annotated[types.Clipping, checks.Part("transforms.Centralization", arguments=3)]
    ] = ()
    regularization: Annotated[
        regularization_lib.Regularization, checks.Part("regularization.Regularization", 2)
    ] = regularization_lib.Regularization()
    schedule: types.Schedule | None = None
    rates: Annotated[groups.Rates, groups.check_groups] = dataclasses.field(default_factory=dict)
    average: (
        Annotated[
            averaging.ExponentialAverage, checks.Part("averaging.ExponentialAverage", arguments=3)
        ]
        | None
    ) = None
    if_not_finite: Annotated[str, checks.OneOf(finite.POLICIES)] = "fail"

    def __post_init__(self):
        if self.schedule is not None:
            checks.require_part("Update.schedule", self.schedule, "schedules.Cosine", 1)
            value = getattr(self.schedule, "value", 1)
            where, rule = f"{type(self.schedule).__name__}.value of Update.schedule", "be 1"
            fix = "Set the learning rate itself in the optimizer."
            checks.require(value == 1, where, rule, value, fix)
            if isinstance(self.schedule, schedules.Piecewise):
                where, values = "Piecewise.values of Update.schedule", self.schedule.values
                checks.require(1 in values, where, "hold 1", values, fix)
            for part in (self.optimizer, *self.optimizers.values()):
                where = f"{type(part).__name__}.learning_rate"
                is_other = part.learning_rate != self.schedule
                rule = "not be Update.schedule, which is a factor of it"
                checks.require(is_other, where, rule, part.learning_rate)

    @property
    def is_entrywise(self) -> bool:
        """True if the update treats every entry of every variable in the same way."""
        if type(self) is not Update:
            return False
        chooses = self.optimizers or self.rates or self.transforms or self.average
        is_entrywise = optimizers_lib.moves_entries_alike(self.optimizer)
        # The types are compared, because a subclass may have a different update.
        is_entrywise &= type(self.clipping) in (type(None), *clipping_lib.ENTRYWISE)
        return is_entrywise and not chooses and self.regularization == _NO_PENALTY

    def __call__(
        self,
        gradients: Sequence[types.Gradient],
        variables: Sequence[tf.Variable],
        losses: types.Tensors | None = None,
    ) -> tuple[tf.Operation, dict[str, tf.Tensor]]:
        """Build the op that applies gradients and increments the global step.

        Args:
          gradients: N gradients, None for a variable on which no loss depends.
          variables: N variables.
          losses: {task: scalar}; an error names the tasks whose losses are not finite.

        Returns:
          The op, and {name: scalar to monitor}: `learning_rate`, and `gradient_norm`, the global
          norm with regularisation and before clipping. Depending on the settings, the scalars also
          include `regularization`, `loss_scale`, and the number of skipped steps or zeroed entries
          in the run so far, `skipped_steps` or `zeroed_entries`.

        Raises:
          UserError: no variable has a gradient, or a pattern matches no variable.
          InvalidArgumentError: when the graph runs, if a loss or gradient is not finite.
        """
        step = tf1.train.get_or_create_global_step()
        learning_rate = schedules.evaluate_rate(self.optimizer.learning_rate, step)
        factor = None if self.schedule is None else schedules.evaluate_rate(self.schedule, step)
        learning_rate = learning_rate if factor is None else learning_rate * factor
        # Norms and clipping need each row of a table at most once.
        gradients = [gradients_lib.merge_rows(gradient) for gradient in gradients]
        # Penalties are added first, because a variable may have only a penalty and no loss.
        gradients, penalty = self.regularization(gradients, variables)
        gradients, variables = _select_connected(gradients, variables)
        # The gradients of entries that are not trained are set to 0 before the norm is computed.
        gradients = self._mask_gradients(gradients, variables)
        monitors = {"learning_rate": learning_rate}
        if penalty is not None:
            monitors["regularization"] = penalty
        if self.average:
            self._require_average(variables)
        with tf1.variable_scope("update"):
            guarded = finite.guard_update(
                self.if_not_finite, losses or {}, gradients, variables, step
            )
            monitors["gradient_norm"] = norm = gradients_lib.norm_from_squares(guarded.squares)
            gradients = self._shape_gradients(guarded.gradients, variables, norm)
            extensions.show_update(gradients, variables)

        # No variable changes before the norm, which depends on all gradients, is computed.
        before = [*tf1.get_collection(tf1.GraphKeys.UPDATE_OPS), norm, *guarded.before]
        before.append(learning_rate)  # Schedules must read the step before it is incremented.
        # All updates wait for a single op, so that a parameter server gets a single message.
        ready, increment = tf.group(*before), tf.constant(1, step.dtype)
        # The caller's name scope must not change the names of optimizer state.
        with tf1.name_scope(None), tf.control_dependencies([ready]):
            pairs = list(zip(gradients, variables, strict=True))
            updates = self._move_variables(pairs, step, guarded.moves, learning_rate, factor)
            with tf.control_dependencies(updates):
                # The step is incremented last: schedules, draws and freezing read its old value.
                train_op = step.assign_add(increment, read_value=False)
        return train_op, monitors | guarded.monitors

    def _mask_gradients(
        self, gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]
    ) -> Sequence[types.Connected]:
        """Set entries of N gradients to 0 if the entries of the variables are not trained."""
        if freezing.holds_some():
            gradients = groups.mask_gradients(gradients, variables)
        return extensions.mask_gradients(gradients, variables)

    def _require_average(self, variables: Sequence[tf.Variable]) -> None:
        """Check that no table in bfloat16 is averaged: rounding would lose small changes."""
        tables = [patterns.variable_name(v) for v in variables if sharding.is_half(v)]
        rule = f"be None if tables have 16 bits, such as {tables[0]!r}" if tables else ""
        checks.require(not tables, "Update.average", rule, self.average)

    def _move_variables(
        self,
        pairs: types.GradientsAndVariables,
        step: tf.Variable,
        moves: tf.Tensor | bool,
        rate: tf.Tensor,
        factor: tf.Tensor | None,
    ) -> list[tf.Operation]:
        """Build the ops that apply the gradients and update the average.

        Args:
          pairs: N pairs of a clipped gradient and its variable.
          step: the global step.
          moves: True if the step changes variables: a bool scalar of the graph, or Python's True.
          rate: the learning rate of `optimizer`, multiplied by `factor`.
          factor: the value of the setting `schedule` in this step; None for 1.
        """
        gradients, variables = zip(*pairs, strict=True)
        rows: Sequence[types.Connected] = ()
        if self.average is not None:
            all_rows = groups.moves_all_rows(self._optimizers_of, variables)
            rows = averaging.rows_before(gradients, variables, all_rows)
        # The average needs the values of the rows before the optimizer changes them.
        with tf.control_dependencies(gradients_lib.list_values(rows)):
            if self.optimizers or self.rates or freezing.holds_some():
                parts = self._optimizers_of, pairs, self.rates, step, moves, factor
                updates = groups.apply_groups(*parts)
            else:
                updates = [groups.apply_optimizer(self.optimizer, rate, pairs, moves)]
        if self.average is None:
            return updates
        with tf.control_dependencies(updates):
            return [self.average(rows, variables, step, moves)]

    @property
    def _optimizers_of(self) -> dict[str | None, types.Optimizer]:
        """{pattern: optimizer}; the key None has the setting `optimizer`."""
        # The cast is for mypy, because the key type of Mapping is invariant.
        patterned = cast(Mapping[str | None, types.Optimizer], self.optimizers)
        return {**patterned, None: self.optimizer}

    def _shape_gradients(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[types.Connected]:
        """Clip the gradients, then transform them.

        After each transform, the gradients of entries that are not trained are set to 0 again.
        """
        # Each transform changes the gradients, so the norm is computed again for the next
        # transform.
        if self.clipping:
            gradients = _clip_gradients(self.clipping, gradients, variables, norm)
        for index, part in enumerate(self.transforms):
            input_norm = gradients_lib.norm_from_squares(gradients_lib.squared_norms(gradients))
            with tf1.variable_scope(f"transform_{index}"):
                gradients = _clip_gradients(part, gradients, variables, input_norm)
                gradients = self._mask_gradients(gradients, variables)
        return list(gradients)


_NO_PENALTY = regularization_lib.Regularization()


def _list_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} frozen"


def _clip_gradients(
    part: types.Clipping,
    gradients: Sequence[types.Connected],
    variables: Sequence[tf.Variable],
    norm: tf.Tensor,
) -> Sequence[types.Connected]:
    """Clip or transform gradients; fail unless the part returns a gradient for each gradient."""
    new = part(gradients, variables, norm)
    rule = f"return one gradient for each of {len(gradients)} variables"
    where = f"the clipping {type(part).__name__}"
    checks.require(isinstance(new, Iterable), where, rule, new)
    new = list(new)
    is_whole = len(new) == len(gradients) and all(gradient is not None for gradient in new)
    checks.require(is_whole, where, rule, new)
    return new


def _select_connected(
    gradients: Sequence[types.Gradient], variables: Sequence[tf.Variable]
) -> tuple[list[types.Connected], list[tf.Variable]]:
    """Return the gradients that are not None, and their variables."""
    pairs = [pair for pair in zip(gradients, variables, strict=True) if pair[0] is not None]
    if not pairs:
        rule, frozen = "leave a trainable variable on which a loss depends", freezing.frozen_names()
        checks.require(not frozen, "Freezing", rule, _list_few(frozen))
        names = [patterns.variable_name(variable) for variable in variables]
        checks.fail("Update", "get a gradient", names, "No loss depends on these variables.")
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
