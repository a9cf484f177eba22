"""Parameter groups: variables with the same optimizer, learning rate and first training step.

update.Update.optimizers = {"^features/": @optimizers.Adagrad(), "^head/": @optimizers.AdamW()}
update.Update.rates = {"^network/trunk/": 0.1, "^features/": @warm/schedules.Constant()}
warm/schedules.Constant.value = 0.3
warm/schedules.Constant.warmup_steps = 500
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence

from mtl import checks, deferred, types
from mtl.deferred import tf, tf1
from mtl.optimization import schedules
from mtl.step import gradients as gradients_lib
from mtl.tf_internals import reduced
from mtl.variables import freezing, patterns, pruned, sharding

with deferred.imports():
    from mtl.optimization import adagrad, wrapped

Rates = Mapping[str, float | types.Schedule]
Optimizers = Mapping[str, types.Optimizer]


@dataclasses.dataclass(frozen=True)
class Group:
    """The settings that all variables of a parameter group share.

    Attributes:
      patterns: the keys of `Update.rates` that match the variables; their factors are multiplied.
      first_step: the global step from which the variables are trained.
      optimizer: the key of the optimizer in `Update.optimizers`; None for `Update.optimizer`.
    """

    patterns: tuple[str, ...]
    first_step: float
    optimizer: str | None = None


def check_groups(where: str, rates: Rates) -> None:
    """Check the factors of the learning rates of parameter groups.

    Args:
      where: the name of the setting, for error messages.
      rates: {pattern: factor of the learning rate, or schedule of factors}.

    Raises:
      UserError: `rates` is not a map, a pattern is not a regular expression, or a value is neither
        a finite number above 0 nor a schedule.
    """
    checks.mapping(where, rates, "map patterns to factors")
    patterns.check_patterns(where, list(rates))
    for pattern, factor in rates.items():
        if isinstance(factor, (int, float)):
            checks.positive(f"{where}[{pattern!r}]", factor)
        else:
            checks.require_part(f"{where}[{pattern!r}]", factor, "schedules.Cosine")


def check_optimizer(where: str, optimizer: types.Optimizer, example: str = "LazyAdam") -> None:
    """Check that an optimizer has a `learning_rate`, and can be called with a learning rate.

    Args:
      where: the name of the setting, for error messages.
      optimizer: the value of the setting, which should be an optimizer.
      example: the name of an optimizer in `mtl.optimization.optimizers`, which the error suggests.

    Raises:
      UserError: the value is not an optimizer with a learning rate.
    """
    checks.require_part(where, optimizer, f"optimizers.{example}", 1, ["learning_rate"])


def check_optimizers(where: str, optimizers: Optimizers) -> None:
    """Check the optimizers of parameter groups.

    Args:
      where: the name of the setting, for error messages.
      optimizers: {pattern: optimizer}.

    Raises:
      UserError: `optimizers` is not a map, a pattern is not a regular expression, or a value is not
        an optimizer.
    """
    checks.mapping(where, optimizers, "map patterns to optimizers")
    patterns.check_patterns(where, list(optimizers))
    for pattern, optimizer in optimizers.items():
        check_optimizer(f"{where}[{pattern!r}]", optimizer, "Adagrad")


def mask_gradients(
    gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]
) -> list[types.Connected]:
    """Set entries of gradients to 0 if `Freezing` keeps these entries of the variables constant.

    Args:
      gradients: N gradients.
      variables: the N variables of the gradients.

    Returns:
      The N gradients, with 0 in place of the entries of constant weights, dense or sparse as
      before.
    """
    return list(map(_mask_gradient, gradients, variables))


def _mask_gradient(gradient: types.Connected, variable: tf.Variable) -> types.Connected:
    # If `reached` is Python's True, the variable is trained from step 0 on, and no op is needed.
    reached = freezing.is_reached(freezing.first_step(variable))
    if reached is not True:
        gradient = gradients_lib.transform_gradient(
            gradient, functools.partial(_select_values, reached)
        )
    entries = freezing.moving_entries(variable)
    if entries is None:
        return gradient
    mask = pruned.fit_mask(entries, gradient, len(variable.shape))
    return gradients_lib.transform_gradient(gradient, functools.partial(_select_values, mask))


def _select_values(condition: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.where(condition, values, tf.zeros_like(values))


def apply_groups(
    optimizers: Mapping[str | None, types.Optimizer],
    pairs: types.GradientsAndVariables,
    rates: Rates,
    step: tf.Tensor,
    when: tf.Tensor | bool = True,
    factor: tf.Tensor | None = None,
) -> list[tf.Operation]:
    """Build the updates of all variables, each group with its optimizer and learning rate.

    Args:
      optimizers: {pattern: optimizer}; the first pattern that matches a variable chooses its
        optimizer. The key None has the optimizer of variables that match no pattern.
      pairs: N pairs of a gradient and its variable.
      rates: `Update.rates`.
      step: the global step.
      when: a bool scalar of the graph; if it is False, no variable changes. With Python's True, the
        graph has no branch for `when`.
      factor: a scalar that multiplies all learning rates; None for 1.

    Returns:
      An op for each group.

    Raises:
      UserError: a pattern matches no variable, or only variables of earlier patterns.
    """
    operations = []
    for group, members in _group_pairs(pairs, rates, [*filter(None, optimizers)]).items():
        optimizer = optimizers[group.optimizer]
        factors = [schedules.evaluate_rate(rates[pattern], step) for pattern in group.patterns]
        factors += [] if factor is None else [factor]
        rate = schedules.evaluate_rate(optimizer.learning_rate, step)
        rate = functools.reduce(operator.mul, factors, rate)
        # If a group is frozen, a branch of `tf.cond` saves the time to read its weights and
        # optimizer state.
        reached = freezing.is_reached(group.first_step)
        # If `moves` is Python's True, no `tf.cond` is built around the optimizer.
        moves = when if reached is True else reached if when is True else when & reached
        operations.append(apply_optimizer(optimizer, rate, members, moves))
    return operations


def apply_optimizer(
    optimizer: types.Optimizer,
    rate: tf.Tensor,
    pairs: types.GradientsAndVariables,
    when: tf.Tensor | bool,
) -> tf.Operation:
    """Build the updates of variables by one optimizer.

    Args:
      optimizer: a part that builds the optimizer of TensorFlow.
      rate: the learning rate, a float32 scalar.
      pairs: N pairs of a gradient, equal on all replicas, and its variable.
      when: a bool scalar of the graph; if it is False, no variable changes. With Python's True, the
        graph has no branch for `when`.

    Returns:
      The op that updates the variables.

    Raises:
      UserError: the part does not build an optimizer of `tf.compat.v1.train`, or the optimizer
        cannot update a table in bfloat16.
    """
    tf_optimizer = optimizer(rate)
    # An optimizer of Keras would return without any op that changes a variable.
    rule = "build an optimizer of tf.compat.v1.train"
    checks.is_a(f"the part {type(optimizer).__name__}", tf_optimizer, tf1.train.Optimizer, rule)
    if freezing.holds_some():
        tf_optimizer = _mask_moves(tf_optimizer, pairs)
    _set_tables(tf_optimizer, pairs)
    _require_half_tables(tf_optimizer, type(optimizer).__name__, pairs)
    return reduced.apply_reduced(tf_optimizer, pairs, when)


def moves_all_rows(
    optimizers: Mapping[str | None, types.Optimizer], variables: Sequence[tf.Variable]
) -> list[bool]:
    """Find the variables whose optimizer changes rows without a gradient.

    Rows of an embedding table that are not in the batch have no gradient. Among TensorFlow's
    optimizers, only Adam changes rows without a gradient. If an optimizer in your own code changes
    rows without a gradient, set its attribute `moves_all_rows` to True.

    Args:
      optimizers: {pattern: optimizer}, as in `apply_groups`.
      variables: N variables.

    Returns:
      N flags, True if the optimizer of the variable changes rows without a gradient.
    """
    owners = _find_owners(variables, [*filter(None, optimizers)])
    are_all = {key: _moves_all_rows(optimizer) for key, optimizer in optimizers.items()}
    return [are_all[owners.get(patterns.variable_name(variable))] for variable in variables]


def _moves_all_rows(optimizer: types.Optimizer) -> bool:
    # The learning rate does not matter, because only the class of the optimizer is checked.
    inner = wrapped.innermost(optimizer(tf.constant(0.0)))
    # A subclass with a different update, such as LazyAdam, changes only rows in the batch.
    is_adams = type(inner)._resource_apply_sparse is tf1.train.AdamOptimizer._resource_apply_sparse
    return getattr(inner, "moves_all_rows", is_adams)


def _set_tables(
    optimizer: tf.compat.v1.train.Optimizer, pairs: types.GradientsAndVariables
) -> None:
    """Set the attribute `tables` of a `RowWiseAdagradOptimizer` to the names of the tables."""
    sparse = [variable for gradient, variable in pairs if isinstance(gradient, tf.IndexedSlices)]
    if not sparse:
        return
    inner = wrapped.innermost(optimizer)
    if isinstance(inner, adagrad.RowWiseAdagradOptimizer):
        inner.tables = set(map(patterns.shard_name, sparse))


# TensorFlow's kernels crash the process if a table has 16 bits and its gradient has 32 bits. So an
# optimizer must declare, by `moves_half_tables`, that it can update tables in bfloat16.
def _require_half_tables(
    optimizer: tf.compat.v1.train.Optimizer, name: str, pairs: types.GradientsAndVariables
) -> None:
    """Check that tables in bfloat16 have sparse gradients and optimizers that can update them."""
    for gradient, variable in pairs:
        if variable.dtype.base_dtype != tf.bfloat16 or not sharding.is_half(variable):
            continue
        where = f"the optimizer of {patterns.variable_name(variable)!r}, which has 16 bits,"
        rule = "be one of LazyAdam, RowWiseAdagrad"
        fits = getattr(wrapped.innermost(optimizer), "moves_half_tables", False)
        checks.require(fits, where, rule, name, "Choose one by pattern in Update.optimizers.")
        where = f"the gradient of {patterns.variable_name(variable)!r}, which has 16 bits,"
        fix = "A penalty in the loss depends on all rows: use Update.regularization instead."
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        checks.require(is_sparse, where, "be sparse", "dense", fix)


def _mask_moves(
    optimizer: tf.compat.v1.train.Optimizer, pairs: types.GradientsAndVariables
) -> tf.compat.v1.train.Optimizer:
    """Wrap an optimizer so that it does not change entries outside of masks, if there are masks."""
    masks = {patterns.shard_name(variable): freezing.find_mask(variable) for _, variable in pairs}
    existing_masks = {name: mask for name, mask in masks.items() if mask is not None}
    return wrapped.Masked(optimizer, existing_masks) if existing_masks else optimizer


def _group_pairs(
    pairs: types.GradientsAndVariables, rates: Rates, optimizer_patterns: Sequence[str]
) -> dict[Group, types.GradientsAndVariables]:
    """Divide variables into groups; the first group has the variables that match no pattern.

    The optimizer of the first group comes first in the graph. Because TensorFlow numbers the names
    of later optimizers, the state of the first group's optimizer has the same names as in a run
    without patterns.
    """
    variables = [variable for _, variable in pairs]
    for pattern in rates:
        patterns.select_variables("Update.rates", pattern, [*variables, *freezing.frozen_names()])
    owners = _find_owners(variables, optimizer_patterns)
    # The default group is the first group, even if the first variable is in another group: see the
    # docstring.
    groups: dict[Group, types.GradientsAndVariables] = {Group((), 0): []}
    for gradient, variable in pairs:
        matching = tuple(pattern for pattern in rates if patterns.matches(pattern, variable))
        owner = owners.get(patterns.variable_name(variable))
        group = Group(matching, freezing.first_step(variable), owner)
        groups.setdefault(group, []).append((gradient, variable))
    return {group: members for group, members in groups.items() if members}


def _find_owners(
    variables: Sequence[tf.Variable], optimizer_patterns: Sequence[str]
) -> dict[str, str]:
    """Return the pattern of each variable's optimizer, {variable name: pattern}."""
    owners: dict[str, str] = {}
    for pattern in optimizer_patterns:
        remaining = [v for v in variables if patterns.variable_name(v) not in owners]
        candidates = [*remaining, *freezing.frozen_names()]
        for variable in patterns.select_variables("Update.optimizers", pattern, candidates):
            owners.setdefault(patterns.variable_name(variable), pattern)
    return owners
