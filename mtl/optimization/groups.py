"""Parameter groups: variables with a separate optimizer, rate or first step.

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
    """Variables that move alike.

    Attributes:
      patterns: the keys of `rates` that match; their factors are multiplied.
      first_step: the global step from which the variables move.
      own: the pattern of their optimizer; None for the default optimizer.
    """

    patterns: tuple[str, ...]
    first_step: float
    own: str | None = None


def check_groups(where: str, rates: Rates) -> None:
    """Fail unless `rates` maps patterns to factors above 0 or schedules."""
    checks.mapping(where, rates, "map patterns to factors")
    patterns.check_patterns(where, list(rates))
    for pattern, factor in rates.items():
        if isinstance(factor, (int, float)):
            checks.positive(f"{where}[{pattern!r}]", factor)
        else:
            checks.require_part(f"{where}[{pattern!r}]", factor, "schedules.Cosine")


def check_optimizer(where: str, optimizer: types.Optimizer, example: str = "LazyAdam") -> None:
    """Fail unless `optimizer` can be built for a learning rate, and has one."""
    checks.require_part(where, optimizer, f"optimizers.{example}", 1, ["learning_rate"])


def check_optimizers(where: str, optimizers: Optimizers) -> None:
    """Fail unless `optimizers` maps patterns to optimizers."""
    checks.mapping(where, optimizers, "map patterns to optimizers")
    patterns.check_patterns(where, list(optimizers))
    for pattern, optimizer in optimizers.items():
        check_optimizer(f"{where}[{pattern!r}]", optimizer, "Adagrad")


def mask_gradients(
    gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]
) -> list[types.Connected]:
    """Set entries of N gradients to 0 if `freezing` holds the entry of the variable."""
    return list(map(_mask_gradient, gradients, variables))


def _mask_gradient(gradient: types.Connected, variable: tf.Variable) -> types.Connected:
    # A plain True needs no op: the variable moves from step 0 on.
    reached = freezing.is_reached(freezing.first_step(variable))
    if reached is not True:
        gradient = gradients_lib.transform_gradient(
            gradient, functools.partial(_select_values, reached)
        )
    entries = freezing.moving_entries(variable)
    if entries is None:
        return gradient
    fitted = pruned.fit_mask(entries, gradient, len(variable.shape))
    return gradients_lib.transform_gradient(gradient, functools.partial(_select_values, fitted))


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
    """Move every variable, each group by its optimizer; return the ops.

    Args:
      optimizers: {pattern: optimizer}, the first match counts; None is the key of the default.
      pairs: N gradients and variables.
      rates: as `Update.rates`.
      step: the global step.
      when: whether to move at all.
      factor: of all learning rates; None for 1.

    Raises:
      UserError: if a pattern matches no variable, or only variables of earlier patterns.
    """
    operations = []
    for group, members in _group_pairs(pairs, rates, [*filter(None, optimizers)]).items():
        optimizer = optimizers[group.own]
        factors = [schedules.evaluate_rate(rates[pattern], step) for pattern in group.patterns]
        factors += [] if factor is None else [factor]
        rate = schedules.evaluate_rate(optimizer.learning_rate, step)
        rate = functools.reduce(operator.mul, factors, rate)
        # A frozen group reads neither its weights nor its optimizer state.
        reached = freezing.is_reached(group.first_step)
        # Without conditions no `tf.cond` is built around the optimizer.
        moves = when if reached is True else reached if when is True else when & reached
        operations.append(apply_optimizer(optimizer, rate, members, moves))
    return operations


def apply_optimizer(
    optimizer: types.Optimizer,
    rate: tf.Tensor,
    pairs: types.GradientsAndVariables,
    when: tf.Tensor | bool,
) -> tf.Operation:
    """Move variables by an optimizer with this learning rate; `when` says whether to move them.

    Args:
      optimizer: builds the optimizer of TensorFlow.
      rate: the learning rate, a float32 scalar.
      pairs: N gradients, equal in every replica, and their variables.
      when: a bool scalar of the graph; True moves them without a branch.

    Raises:
      UserError: the optimizer cannot move a table of 16 bits.
    """
    built = optimizer(rate)
    if freezing.holds_some():
        built = _mask_moves(built, pairs)
    _tell_tables(built, pairs)
    _require_half_tables(built, type(optimizer).__name__, pairs)
    return reduced.apply_reduced(built, pairs, when)


def moves_all_rows(
    optimizers: Mapping[str | None, types.Optimizer], variables: Sequence[tf.Variable]
) -> list[bool]:
    """Return for each variable whether its optimizer moves rows without a gradient, too.

    Rows are rows of looked-up tables. Only Adam, of TensorFlow's optimizers, moves them all. Your
    own optimizer can say so by the attribute `moves_all_rows`.
    """
    owners = _find_owners(variables, [*filter(None, optimizers)])
    are_all = {key: _moves_all_rows(optimizer) for key, optimizer in optimizers.items()}
    return [are_all[owners.get(patterns.variable_name(variable))] for variable in variables]


def _moves_all_rows(optimizer: types.Optimizer) -> bool:
    # The rate does not matter: only the class of the optimizer does.
    built = wrapped.innermost(optimizer(tf.constant(0.0)))
    # A subclass with another update, such as LazyAdam, moves only the rows of the batch.
    is_adams = type(built)._resource_apply_sparse is tf1.train.AdamOptimizer._resource_apply_sparse
    return getattr(built, "moves_all_rows", is_adams)


def _tell_tables(
    optimizer: tf.compat.v1.train.Optimizer, pairs: types.GradientsAndVariables
) -> None:
    """Set `tables` of an optimizer with a special state for tables."""
    sparse = [variable for own, variable in pairs if isinstance(own, tf.IndexedSlices)]
    if not sparse:
        return
    inner = wrapped.innermost(optimizer)
    if isinstance(inner, adagrad.RowWiseAdagradOptimizer):
        inner.tables = set(map(patterns.shard_name, sparse))


# TensorFlow's kernels end the process at a table of 16 bits whose gradient has 32. So an optimizer
# has to declare that it writes such a table itself.
def _require_half_tables(
    optimizer: tf.compat.v1.train.Optimizer, name: str, pairs: types.GradientsAndVariables
) -> None:
    """Fail if an optimizer would take a table of 16 bits for a table of 32 bits."""
    for gradient, variable in pairs:
        if variable.dtype.base_dtype != tf.bfloat16 or not sharding.is_half(variable):
            continue
        where = f"the optimizer of {patterns.variable_name(variable)!r}, which has 16 bits,"
        rule = "be one of LazyAdam, RowWiseAdagrad"
        fits = getattr(wrapped.innermost(optimizer), "moves_half_tables", False)
        checks.require(fits, where, rule, name, "Update.optimizers chooses one by pattern.")
        where = f"the gradient of {patterns.variable_name(variable)!r}, which has 16 bits,"
        fix = "A penalty of the loss reaches all rows: see Update.regularization."
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        checks.require(is_sparse, where, "be one of looked-up rows", "a dense one", fix)


def _mask_moves(
    optimizer: tf.compat.v1.train.Optimizer, pairs: types.GradientsAndVariables
) -> tf.compat.v1.train.Optimizer:
    """Return the optimizer, wrapped to restore entries outside their masks."""
    masks = {patterns.shard_name(variable): freezing.find_mask(variable) for _, variable in pairs}
    given = {name: mask for name, mask in masks.items() if mask is not None}
    return wrapped.Masked(optimizer, given) if given else optimizer


def _group_pairs(
    pairs: types.GradientsAndVariables, rates: Rates, own: Sequence[str]
) -> dict[Group, types.GradientsAndVariables]:
    """Return the groups; the first has the variables without a pattern.

    The first optimizer in a graph names its state as it does without patterns.
    """
    variables = [variable for _, variable in pairs]
    for pattern in rates:
        patterns.select_variables("Update.rates", pattern, [*variables, *freezing.frozen_names()])
    owners = _find_owners(variables, own)
    # The default group comes first even if its first variable does not: see the docstring.
    groups: dict[Group, types.GradientsAndVariables] = {Group((), 0): []}
    for gradient, variable in pairs:
        matching = tuple(pattern for pattern in rates if patterns.matches(pattern, variable))
        owner = owners.get(patterns.variable_name(variable))
        group = Group(matching, freezing.first_step(variable), owner)
        groups.setdefault(group, []).append((gradient, variable))
    return {group: members for group, members in groups.items() if members}


def _find_owners(variables: Sequence[tf.Variable], own: Sequence[str]) -> dict[str, str]:
    """Return {variable name: the pattern of its optimizer}."""
    owners: dict[str, str] = {}
    for pattern in own:
        left = [
            variable for variable in variables if patterns.variable_name(variable) not in owners
        ]
        left = [*left, *freezing.frozen_names()]
        for variable in patterns.select_variables("Update.optimizers", pattern, left):
            owners.setdefault(patterns.variable_name(variable), pattern)
    return owners
