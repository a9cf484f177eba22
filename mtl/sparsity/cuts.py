"""Creates the masks and the other state of pruned variables.

part = cuts.find_part(parts, "network/trunk/hidden_0/kernel")
cut = cuts.create(part, name, variable, getter, settings)       # with its mask
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.tf_internals import shards
from mtl.variables import freezing, patterns, pruned, sharding

# The values of `Pruning.gradient`.
STOPPED, DENSE, STRAIGHT_THROUGH = "stopped", "dense", "straight_through"
HEADS = "head/"
# A kernel's bias, scale and offset have these suffixes in `mtl.layers` and `mtl.networks`.
BESIDE = ("/bias", "_norm/gamma", "_norm/beta")
SHARE = "pruning/share_"

Part: TypeAlias = Any
"""A `pruning.Pruning`; the class cannot be imported here, as `pruning` imports this module."""


class Cut(NamedTuple):
    """A pruned variable, with its state.

    Attributes:
      part: the `Pruning` that prunes the variable.
      variable: the variable that is pruned.
      mask: the variable that holds the mask, zeros and ones.
      mask_value: the value of the mask in this step.
      total: the variable of the criterion's sums or averages; None if the criterion does not gather
        values over the steps.
      is_table: True for an embedding table, whose gradient is sparse.
    """

    part: Part
    variable: tf.Variable
    mask: tf.Variable
    mask_value: tf.Tensor
    total: tf.Variable | None
    is_table: bool

    @property
    def sets_to_zero(self) -> bool:
        """True if pruned weights are set to 0, and not only masked."""
        return not self.part.hides_weights


def share_name(index: int) -> str:
    """Return the name of the variable that saves the pruned share of a `Pruning`.

    Args:
      index: the index of the part in `MultiTaskModel.pruning`, from 0.

    Returns:
      `pruning/share_<index>`.
    """
    return f"{SHARE}{index}"


def find_part(parts: Sequence[Part], name: str) -> Part:
    """Return the first `Pruning` that prunes a variable.

    Args:
      parts: the `Pruning`s; at least one must choose the variable.
      name: the name of the variable.
    """
    return next(part for part in parts if chooses(part, name))


def list_beside(kernel: str) -> list[str]:
    """Return the possible names of a kernel's bias, scale and offset.

    Args:
      kernel: the name of the kernel, `<layer>/kernel`.

    Returns:
      Names such as `<layer>/bias`; the model need not have variables with these names.
    """
    return [f"{kernel.removesuffix('/kernel')}{suffix}" for suffix in BESIDE]


def may_cut(part: Part, name: str) -> bool:
    """Return True if a part may prune a variable that its patterns match."""
    return part.cuts_heads or not name.startswith(HEADS)


def chooses(part: Part, name: str) -> bool:
    """Return True if a `Pruning` chooses a variable, even if an earlier `Pruning` chooses it too.

    Args:
      part: a `Pruning`, which chooses variables of heads only if its `cuts_heads` is True.
      name: the name of the variable.
    """
    return may_cut(part, name) and any(patterns.matches(p, name) for p in part.patterns)


def check_kind(part: Part, name: str, is_table: bool) -> None:
    """Check that a `Pruning` can prune a variable from its first pruning step on.

    Args:
      part: a `Pruning` that chooses the variable.
      name: the name of the variable.
      is_table: True if the variable is an embedding table.

    Raises:
      UserError: the granularity prunes rows of tables, and the variable is not a table; the
        schedule begins while the variable is frozen; or the variable is a table whose pruned
        weights would still have a gradient.
    """
    rule = f"choose only tables, whose rows are cut: {name!r} is not a table"
    fits = is_table or not part.granularity.is_of_tables
    checks.require(fits, "Pruning.patterns", rule, list(part.patterns))
    first = freezing.first_step(name)
    rule = f"begin at step {first} or later, because Freezing.until freezes {name!r} up to there"
    fits = part.schedule.first_step >= first
    checks.require(fits, "Pruning.schedule", rule, part.schedule.first_step)
    fits = not is_table or part.gradient == STOPPED
    rule = f"be {STOPPED!r} for the table {name!r}"
    checks.require(fits, "Pruning.gradient", rule, part.gradient)


def create(
    part: Part,
    name: str,
    variable: tf.Variable,
    getter: Callable[..., Any],
    settings: Any,
) -> Cut:
    """Create the mask of a variable, and the state of the criterion.

    Args:
      part: the `Pruning` that prunes the variable.
      name: the name of the variable.
      variable: the variable.
      getter: a function with the arguments of `get_variable`, which creates the mask and the state.
      settings: the arguments of `get_variable` that have created the variable.

    Raises:
      UserError: the variable is a shard, is in bfloat16, or does not suit the granularity.
    """
    where = f"Pruning.patterns, which choose {name!r},"
    fix = "Raise Distribution.min_shard_bytes, so that the table has no shards."
    is_whole = isinstance(variable, tf.Variable) and not shards.find_shard(variable)
    checks.require(is_whole, where, "choose whole variables", type(variable).__name__, fix)
    fix = "The table has 16 bits: see the setting storage of the column."
    is_half = sharding.is_table() and variable.dtype.base_dtype == tf.bfloat16
    checks.require(not is_half, where, "choose 32 bits", "bfloat16", fix)
    part.granularity.check(name, variable.shape)
    # Most settings of the weights must not apply to masks, which are not trained.
    state = {
        **settings,
        "dtype": tf.float32,
        "regularizer": None,
        "constraint": None,
        "partitioner": None,
        "trainable": False,
        "synchronization": tf.VariableSynchronization.ON_READ,
        "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA,
    }
    shape = part.granularity.mask_shape(variable.shape.as_list())
    ones, zeros = tf1.ones_initializer(), tf1.zeros_initializer()
    mask = getter(pruned.mask_name(name), **{**state, "shape": shape, "initializer": ones})
    total = None
    if part.criterion.gathers:
        total_shape = part.criterion.total_shape(variable.shape)
        total_settings = {**state, "shape": total_shape, "initializer": zeros}
        total = getter(pruned.saliency_name(name), **total_settings)
    return Cut(part, variable, mask, mask.read_value(), total, sharding.is_table())
