"""The update: from gradients to one training step.

from mtl.optimization import update
model.MultiTaskModel.update = @update.Update()
update.Update.optimizer = @optimizers.LazyAdam()
update.Update.clipping = @clipping.GlobalNorm()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
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
    """Regularise, measure, clip and apply gradients, after the UPDATE_OPS of the graph.

    Attributes:
      optimizer: turns gradients into changes of variables, and has the learning rate. LazyAdam by
        default, which equals Adam except for embedding tables: it changes only looked-up rows.
      optimizers: {pattern: an optimizer} for some variables, such as Adagrad for tables, or AdamW
        with another weight decay; the first pattern that matches counts.
      clipping: bounds the gradient; None leaves it as it is.
      transforms: change the gradient after the clipping, such as @transforms.Centralization().
      regularization: L1 and L2 by pattern; by default only the graph's REGULARIZATION_LOSSES.
      schedule: a factor of all learning rates over the steps, such as @schedules.Cosine() with the
        value 1. It stays valid if you choose an optimizer with another rate. None for no factor.
      rates: {pattern: factor of the learning rate, above 0, or a schedule of it}. The factors of
        all patterns that match a variable are multiplied. A pretrained trunk with small factors,
        and heads with larger factors, have the discriminative rates of J. Howard and S. Ruder,
        "Universal Language Model Fine-tuning for Text Classification", 2018, arXiv:1801.06146.
      average: keeps an average of the weights, which evaluation and export use; None for none.
      if_not_finite: what to do with a step whose loss or gradient is NaN or infinite. "fail" ends
        the run before any variable changes; the error names the tasks and variables. "skip" goes on
        to the next batch: weights, their average and optimizer state stay, and averages of
        normalisations and balancing keep finite values. "zero" sets entries of the gradient that
        are NaN or infinite to 0.
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
            fix = "The optimizer has the learning rate."
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
        """True if no setting chooses variables by name, and all act on each entry alone."""
        if type(self) is not Update:
            return False
        chooses = self.optimizers or self.rates or self.transforms or self.average
        is_entrywise = optimizers_lib.moves_entries_alike(self.optimizer)
        # Compare types, because a subclass may do anything.
        is_entrywise &= type(self.clipping) in (type(None), *clipping_lib.ENTRYWISE)
        return is_entrywise and not chooses and self.regularization == _NO_PENALTY

    def __call__(
        self,
        gradients: Sequence[types.Gradient],
        variables: Sequence[tf.Variable],
        losses: types.Tensors | None = None,
    ) -> tuple[tf.Operation, dict[str, tf.Tensor]]:
        """Build a training step.

        Args:
          gradients: N gradients, None for a variable on which no loss depends.
          variables: N variables.
          losses: {task: scalar}, to name the tasks whose losses are not finite.

        Returns:
          The op of the step, and {name: scalar to watch}: `learning_rate` and `gradient_norm`
          (global, with regularisation, before clipping). Some runs add `regularization`,
          `loss_scale`, and the number of steps or entries so far that were not finite,
          `skipped_steps` or `zeroed_entries`.

        Raises:
          UserError: if no variable has a gradient, or a pattern matches no variable.
          InvalidArgumentError: when run, on a loss or gradient that is not finite.
        """
        step = tf1.train.get_or_create_global_step()
        learning_rate = schedules.evaluate_rate(self.optimizer.learning_rate, step)
        factor = None if self.schedule is None else self.schedule(step)
        learning_rate = learning_rate if factor is None else learning_rate * factor
        # Norms and clipping need each row of a table at most once.
        gradients = [gradients_lib.merge_rows(gradient) for gradient in gradients]
        # Penalties come first: they may reach a variable that no loss depends on.
        gradients, penalty = self.regularization(gradients, variables)
        gradients, variables = _select_connected(gradients, variables)
        # Mask before the norm: entries that do not train must not count for it or for clipping.
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

        # The norm needs all gradients, so no variable changes while another one is still read.
        before = [*tf1.get_collection(tf1.GraphKeys.UPDATE_OPS), norm, *guarded.before]
        before.append(learning_rate)  # Otherwise it could use the number of the next step.
        # All updates wait for one op, which takes a single message to a parameter server.
        ready, increment = tf.group(*before), tf.constant(1, step.dtype)
        # The caller's name scope must not change the names of optimizer state.
        with tf1.name_scope(None), tf.control_dependencies([ready]):
            pairs = list(zip(gradients, variables, strict=True))
            updates = self._move_variables(pairs, step, guarded.moves, learning_rate, factor)
            with tf.control_dependencies(updates):
                # Count the step last: schedules, draws and freezing read its number first.
                train_op = step.assign_add(increment, read_value=False)
        return train_op, monitors | guarded.monitors

    def _mask_gradients(
        self, gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]
    ) -> Sequence[types.Connected]:
        """Set entries of N gradients to 0 if the entries of the variables do not train."""
        if freezing.holds_some():
            gradients = groups.mask_gradients(gradients, variables)
        return extensions.mask_gradients(gradients, variables)

    def _require_average(self, variables: Sequence[tf.Variable]) -> None:
        """Fail if a table of 16 bits is averaged: it would round small changes away."""
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
        """Apply the gradients and update the average; return the ops.

        Args:
          pairs: N gradients, clipped, and their variables.
          step: the global step.
          moves: True if the step changes variables: a bool scalar of the graph, or Python's True.
          rate: the learning rate of `optimizer`, with the factor.
          factor: a factor of all learning rates; None for 1.
        """
        gradients, variables = zip(*pairs, strict=True)
        rows: Sequence[types.Connected] = ()
        if self.average is not None:
            all_rows = groups.moves_all_rows(self._optimizers_of, variables)
            rows = averaging.rows_before(gradients, variables, all_rows)
        # The average needs the rows before the optimizer changes them.
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
        """The optimizers by pattern; None is the key of the default."""
        # For mypy: the key type of Mapping is invariant.
        patterned = cast(Mapping[str | None, types.Optimizer], self.optimizers)
        return {**patterned, None: self.optimizer}

    def _shape_gradients(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[types.Connected]:
        """Clip, then transform; each part gets the norm of its input gradients.

        Entries that do not train get a gradient of 0 again after each transform.
        """
        # The clipping uses the norm of the step; each transform changes the norm for the next one.
        if self.clipping:
            gradients = self.clipping(gradients, variables, norm)
        for index, part in enumerate(self.transforms):
            input_norm = gradients_lib.norm_from_squares(gradients_lib.squared_norms(gradients))
            with tf1.variable_scope(f"transform_{index}"):
                gradients = self._mask_gradients(part(gradients, variables, input_norm), variables)
        return list(gradients)


_NO_PENALTY = regularization_lib.Regularization()


def _list_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} frozen"


def _select_connected(
    gradients: Sequence[types.Gradient], variables: Sequence[tf.Variable]
) -> tuple[list[types.Connected], list[tf.Variable]]:
    """Return the gradients that exist, and their variables."""
    pairs = [pair for pair in zip(gradients, variables, strict=True) if pair[0] is not None]
    if not pairs:
        rule, frozen = "leave a variable to train on which a loss depends", freezing.frozen_names()
        checks.require(not frozen, "Freezing", rule, _list_few(frozen))
        names = [patterns.variable_name(variable) for variable in variables]
        checks.fail("Update", "get a gradient", names, "No loss depends on these.")
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
