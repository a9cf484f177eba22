"""A training step in which weights are cut, as `Pruning` says.

step = pruned_step.wrap_step(parts, step, is_watched=False)
set_to_zero = pruned_step.update_masks(gradients, variables)       # within it
train_op = set_to_zero(update(gradients, variables))

A step goes by the masks that it finds: forward, gradients, update. UPDATE_OPS choose the next ones
beside it, and what they cut is set to 0 once the step has moved it.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from mtl import ambient, checks, types
from mtl.compat import reduced, shards
from mtl.sparsity import criteria, pruning
from mtl.step import gradients as gradients_lib
from mtl.step import monitors, replicas, step_state, whole_batch
from mtl.variables import freezing, patterns, pruned, sharding, slots

tf1 = tf.compat.v1

_HEADS = "head/"
# What belongs to the units of a kernel, by the names that `mtl.layers` and `mtl.networks` give.
_BESIDE = ("/bias", "_norm/gamma", "_norm/beta")
_SHARE, _OVERLAP = "pruning/share_", "pruning/overlap_"

StepFn = Callable[[Any, Any], tuple[tf.Operation, Mapping[str, tf.Tensor]]]


class Cut(NamedTuple):
    """A variable that is pruned.

    Attributes:
      part: that prunes it.
      variable: of the weights.
      mask: of zeros and ones.
      kept: its value in this step.
      total: what the criterion gathers; None where it gathers nothing.
    """

    part: pruning.Pruning
    variable: tf.Variable
    mask: tf.Variable
    kept: tf.Tensor
    total: tf.Variable | None

    @property
    def sets_to_zero(self) -> bool:
        """Whether the weights themselves are 0 where they are cut."""
        return not self.part.hides_weights


def wrap_step(parts: Sequence[pruning.Pruning], step_fn: StepFn, is_watched: bool) -> StepFn:
    """Return `step_fn`, in which variables are pruned that it creates.

    Args:
      parts: of several that choose a variable the first prunes it.
      step_fn: builds a step.
      is_watched: whether something looks at gradients before the update does, such as a surgery.

    Raises:
      UserError: when built, if a pattern has matched nothing that can be cut.
    """

    def step(features: Any, labels: Any) -> tuple[tf.Operation, Mapping[str, tf.Tensor]]:
        pruner, here = _Pruner(parts, is_watched), tf1.get_variable_scope()
        with (
            _PRUNER.set(pruner),
            pruned.hold_masks(pruner.held),
            tf1.variable_scope(
                here, custom_getter=pruner.find_variable, auxiliary_name_scope=False
            ),
        ):
            return step_fn(features, labels)

    return step if parts else step_fn


@contextlib.contextmanager
def watch_inputs() -> Iterator[Mapping[str, Any]]:
    """Watch the inputs of kernels within it, a part of the batch, where a criterion asks for them.

    Yields:
      {kernel: the sums of squares of its inputs, and their count}, filled at the end.
    """
    found: dict[str, Any] = {}
    pruner = _PRUNER.get()
    if pruner is None or not pruner.reads_inputs:
        yield found
        return
    inputs: dict[str, tf.Tensor] = {}
    with pruned.note_inputs(inputs):
        yield found
    names = [name for name in inputs if pruner.reads_inputs_of(name)]
    found |= {name: criteria.sum_squares(inputs[name]) for name in names}


def update_masks(
    gradients: Sequence[types.Gradient],
    variables: Sequence[tf.Variable],
    batch: whole_batch.WholeBatch,
) -> Callable[[tf.Operation], tf.Operation]:
    """Have UPDATE_OPS change the masks of the step that is being built.

    Args:
      gradients: N, of the whole batch.
      variables: N.
      batch: whose parts have the losses of the tasks.

    Returns:
      From the op that moves the variables to one that has also set to 0 what was cut.
    """
    pruner = _PRUNER.get()
    return pruner.update(gradients, variables, batch) if pruner else lambda moved: moved


class _Pruner:
    """What is pruned in the step that is being built.

    Attributes:
      held: {variable: its mask, or None where what is cut moves behind it}.
      reads_inputs: whether a criterion asks for the inputs of kernels.
    """

    def __init__(self, parts: Sequence[pruning.Pruning], is_watched: bool):
        self._parts, self._is_watched = parts, is_watched
        self._seen: dict[str, bool] = {}  # Whether it can be cut at all, by name.
        self._cuts: dict[str, Cut] = {}
        self._beside: dict[str, tuple[str, tf.Variable]] = {}  # {vector: its kernel, and itself}.
        self.held: dict[str, tf.Tensor | None] = {}
        self.reads_inputs = any(part.criterion.reads_inputs for part in parts)

    def reads_inputs_of(self, kernel: str) -> bool:
        """Return whether the criterion that cuts a kernel asks for its inputs."""
        return kernel in self._cuts and self._cuts[kernel].part.criterion.reads_inputs

    def find_variable(self, getter: Callable[..., Any], name: str, **settings: Any) -> Any:
        """Return what `getter` gives, with its gradient as the part that cuts it says."""
        variable = getter(name, **settings)
        if settings.get("trainable") is False:
            return variable
        kernel = self._find_kernel(name)
        if kernel:
            return self._cut_with(kernel, name, variable)
        part = self._find_part(name, variable)
        if part is None:
            return variable
        is_table = sharding.is_table()
        if name not in self._cuts:
            _check_kind(part, name, is_table)
            self._cuts[name] = _create(part, name, variable, getter, settings)
        kept = self._cuts[name].kept
        if part.hides_weights:
            self.held[name] = None
            return _pass_gradient(tf.convert_to_tensor(variable), kept)
        # Weights that are cut are 0 as they stand, and the update leaves out their gradients. Only
        # what looks at gradients before has to be given others, which takes a pass of its own; of a
        # table the lookup sees to it.
        self.held[name] = kept
        is_seen = self._is_watched and part.gradient == pruning.STOPPED
        if is_table or not is_seen:
            return variable
        return variable * kept  # Its gradient is 0 where the mask is.

    def _find_kernel(self, name: str) -> str | None:
        """Return the kernel of a unit's bias, scale or offset, if whole units of it are cut."""
        for own in _BESIDE:
            kernel = f"{name.removesuffix(own)}/kernel"
            if name.endswith(own) and kernel in self._cuts:
                return kernel if self._cuts[kernel].part.granularity.is_of_units else None
        return None

    def _cut_with(self, kernel: str, name: str, variable: tf.Variable) -> Any:
        """Cut the entries of a vector whose units are cut."""
        self._seen[name] = False
        if freezing.first_step(name) > 0:
            return variable
        self._beside[name] = (kernel, variable)
        self.held[name] = kept = tf.reshape(self._cuts[kernel].kept, [-1])
        is_seen = self._is_watched and self._cuts[kernel].part.gradient == pruning.STOPPED
        return variable * kept if is_seen else variable

    def _find_part(self, name: str, variable: tf.Variable) -> pruning.Pruning | None:
        can_be_cut = variable.shape.rank >= 2 and freezing.first_step(name) < math.inf
        self._seen[name] = can_be_cut
        parts = [part for part in self._parts if can_be_cut and _chooses(part, name)]
        return parts[0] if parts else None

    def update(
        self,
        gradients: Sequence[types.Gradient],
        variables: Sequence[tf.Variable],
        batch: whole_batch.WholeBatch,
    ) -> Callable[[tf.Operation], tf.Operation]:
        """Change masks by UPDATE_OPS; return what sets weights to 0 after they have moved."""
        self._require_used()
        step = tf1.train.get_or_create_global_step().read_value()
        names = map(patterns.variable_name, variables)
        gradient_of = dict(zip(names, gradients, strict=True))
        # Masks change once nothing of this step reads them, or weights, any more.
        before = list(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        before += gradients_lib.list_values([one for one in gradients if one is not None])
        new: dict[str, tf.Tensor] = {}
        is_due = tf.constant(False)
        with tf.control_dependencies(before):
            squares = batch.sum_watched()
            for index, part in enumerate(self._parts):
                own = {name: cut for name, cut in self._cuts.items() if cut.part is part}
                known = [_take_gradient(name, cut, gradient_of[name]) for name, cut in own.items()]
                change = _Change(part, own, known, _average_inputs(part, own, squares), batch, step)
                masks, has_changed = change.choose_masks(share_name(index))
                new |= dict(zip(own, masks, strict=True))
                is_due |= has_changed
            self._watch(new, is_due)
            for name, mask in new.items():
                assigned = self._cuts[name].mask.assign(mask, read_value=False)
                tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, assigned)
        zeros = [(new[n], cut.variable) for n, cut in self._cuts.items() if cut.sets_to_zero]
        zeros += [(tf.reshape(new[k], [-1]), vector) for k, vector in self._beside.values()]
        return functools.partial(_set_to_zero, zeros, is_due)

    def _require_used(self) -> None:
        rule = "choose weights that can be cut"
        for part in self._parts:
            able = [n for n, can_be_cut in self._seen.items() if can_be_cut and _may_cut(part, n)]
            for pattern in part.patterns:
                found = patterns.select_variables("Pruning.patterns", pattern, list(self._seen))
                is_head = all(str(name).startswith(_HEADS) for name in found)
                fix = "Those with one axis, and those that are frozen, cannot."
                fix = "To cut heads, set Pruning.cuts_heads = True." if is_head else fix
                fits = any(patterns.matches(pattern, name) for name in able)
                checks.require(fits, "Pruning.patterns", rule, pattern, fix)
            used = any(cut.part is part for cut in self._cuts.values())
            fix = "Parts before it cut all of them."
            checks.require(used, "Pruning.patterns", rule, list(part.patterns), fix)

    def _watch(self, new: Mapping[str, tf.Tensor], is_due: tf.Tensor) -> None:
        """Have the step show what the masks are like."""
        churn = step_state.create_variable("pruning/churn", np.zeros([len(new)], np.float32))

        def changed() -> tf.Tensor:
            pairs = [(new[name], self._cuts[name].kept) for name in new]
            return tf.stack([tf.reduce_mean(tf.abs(one - other)) for one, other in pairs])

        now = tf.cond(is_due, changed, churn.read_value)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, churn.assign(now))

        def describe() -> tf.Tensor:
            zeros = [1 - tf.reduce_mean(mask) for mask in new.values()]
            fed = [tf.reduce_max(mask, list(range(mask.shape.rank - 1))) for mask in new.values()]
            return tf.concat([zeros, [1 - tf.reduce_mean(units) for units in fed], now], 0)

        kinds = ("sparsity", "dead_units", "churn")
        names = [f"pruning/{name}/{kind}" for kind in kinds for name in new]
        monitors.add_where_due(names, describe)


def share_name(index: int) -> str:
    """Return the name of the share that a part has cut so far, the first part at 0."""
    return f"{_SHARE}{index}"


def find_part(parts: Sequence[pruning.Pruning], name: str) -> pruning.Pruning:
    """Return the part of several that cuts a variable, which one of them does."""
    return next(part for part in parts if _chooses(part, name))


def list_beside(kernel: str) -> list[str]:
    """Return the names that bias, scale and offset of a kernel's units have where there are any."""
    return [f"{kernel.removesuffix('/kernel')}{own}" for own in _BESIDE]


def _may_cut(part: pruning.Pruning, name: str) -> bool:
    """Return whether a part may cut a variable if its patterns choose it."""
    return part.cuts_heads or not name.startswith(_HEADS)


def _chooses(part: pruning.Pruning, name: str) -> bool:
    """Return whether a part cuts a variable, unless one before it does."""
    return _may_cut(part, name) and any(patterns.matches(p, name) for p in part.patterns)


def _check_kind(part: pruning.Pruning, name: str, is_table: bool) -> None:
    """Fail unless a part can cut a variable, which may be a table, when it does."""
    rule = f"choose tables alone where rows are cut, and {name!r} is none"
    fits = is_table or not part.granularity.is_of_tables
    checks.require(fits, "Pruning.patterns", rule, list(part.patterns))
    first = freezing.first_step(name)
    rule = f"cut first at step {first} or later, up to which Freezing.until holds {name!r}"
    fits = part.schedule.first_step >= first
    checks.require(fits, "Pruning.schedule", rule, part.schedule.first_step)
    fits = not is_table or part.gradient == pruning.STOPPED
    rule = f"be {pruning.STOPPED!r} for the table {name!r}"
    checks.require(fits, "Pruning.gradient", rule, part.gradient)


def _create(
    part: pruning.Pruning,
    name: str,
    variable: tf.Variable,
    getter: Callable[..., Any],
    settings: Any,
) -> Cut:
    """Create the mask of a variable, and what the criterion gathers."""
    where = f"Pruning.patterns, which choose {name!r},"
    fix = "Set Distribution.min_shard_bytes so high that it is not cut into shards."
    is_whole = isinstance(variable, tf.Variable) and not shards.find_shard(variable)
    checks.require(is_whole, where, "choose whole variables", type(variable).__name__, fix)
    fix = "Its table has 16 bits: see the setting storage of its column."
    is_half = sharding.is_table() and variable.dtype.base_dtype == tf.bfloat16
    checks.require(not is_half, where, "choose 32 bits", "bfloat16", fix)
    part.granularity.check(name, variable.shape)
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
        gathered = part.criterion.total_shape(variable.shape)
        own = {**state, "shape": gathered, "initializer": zeros}
        total = getter(pruned.saliency_name(name), **own)
    return Cut(part, variable, mask, mask.read_value(), total)


def _take_gradient(name: str, cut: Cut, gradient: types.Gradient) -> tf.Tensor | None:
    """Return the gradient that scores may be made of; None of a table."""
    is_dense = isinstance(gradient, tf.Tensor)
    if cut.part.criterion.reads_gradients or cut.part.gradient == pruning.DENSE:
        rule, fix = "choose weights that a loss depends on, each of them", "It reads gradients."
        checks.require(is_dense, "Pruning.patterns", rule, name, fix)
    return gradient if is_dense else None


def _average_inputs(
    part: pruning.Pruning, names: Iterable[str], squares: Mapping[str, Any]
) -> Sequence[tf.Tensor] | Sequence[None]:
    """Return the mean squares of the inputs of kernels, by {kernel: sums, and their count}."""
    if not part.criterion.reads_inputs:
        return [None for _ in names]
    rule, fix = "choose kernels of layers.dense and layers.conv", "It reads their inputs."
    for name in names:
        checks.require(name in squares, "Pruning.patterns", rule, name, fix)
    return [total / count for total, count in (squares[name] for name in names)]


class _Change(NamedTuple):
    """What the next masks of a part follow from.

    Attributes:
      part: that prunes.
      cuts: {variable: how it is pruned}, N.
      gradients: N, None of tables.
      inputs: N, the mean squares of inputs; None where the criterion does not ask for them.
      batch: whose parts have the losses of the tasks.
      step: the global step.
    """

    part: pruning.Pruning
    cuts: Mapping[str, Cut]
    gradients: Sequence[tf.Tensor | None]
    inputs: Sequence[tf.Tensor | None]
    batch: whole_batch.WholeBatch
    step: tf.Tensor

    def choose_masks(self, name: str) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the N next masks, and whether they may have changed; `name` is of the state."""
        masks = [cut.kept for cut in self.cuts.values()]
        # The share that is cut so far is saved, and a cut that is missed is made up for: processes
        # that share a global step do not see every number, and a run that goes on may cut more.
        cut_share = step_state.create_variable(name, np.zeros([], np.float64))
        so_far = cut_share.read_value()
        progress = self.part.schedule.progress(self.step)
        share = progress * self.part.final_sparsity
        is_due = share > so_far
        before, watch = self._watch_overlaps(name.replace(_SHARE, _OVERLAP))
        task_gradients = self._differentiate_where(is_due)

        def select() -> tuple[Any, ...]:
            found = self.part.select_masks(self._see(task_gradients()), masks, progress)
            return found.is_finite, found.masks, tf.convert_to_tensor(found.overlaps, tf.float32)

        is_finite, chosen, overlaps = tf.cond(
            is_due, select, lambda: (tf.constant(True), masks, before())
        )
        watch(overlaps)
        share = tf.where(is_due & is_finite, share, so_far)
        assigned = cut_share.assign(share, read_value=False)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, assigned)
        if self.part.criterion.gathers:
            with tf.control_dependencies(chosen):
                gathered = tf.cond(self.step <= self.part.last_step, self._gather, tf.no_op)
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, gathered)
        regrowth = self.part.regrowth
        if regrowth is None:
            return chosen, is_due
        is_swapped = regrowth.is_due(self.step) & ~is_due

        def swap() -> list[tf.Tensor]:
            pairs = zip(chosen, self._see(), strict=True)
            return [regrowth.swap(mask, seen, self.step) for mask, seen in pairs]

        return tf.cond(is_swapped, swap, lambda: chosen), is_due | is_swapped

    def _watch_overlaps(
        self, name: str
    ) -> tuple[Callable[[], tf.Tensor], Callable[[tf.Tensor], None]]:
        """Return what gives the overlaps of the last cut, and what shows and keeps new ones."""
        shared = self._list_shared()
        if not shared:
            return lambda: tf.zeros([0]), lambda new: None
        state = step_state.create_variable(name, np.zeros([len(shared)], np.float32))

        def watch(new: tf.Tensor) -> None:
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, state.assign(new, read_value=False))
            monitors.add_where_due([f"pruning/{one}/task_overlap" for one in shared], lambda: new)

        return state.read_value, watch

    def _list_shared(self) -> list[str]:
        """Return the variables of which the overlap of the tasks is told."""
        if not self.part.criterion.reads_tasks:
            return []
        # Gradients of the first part show by which losses a variable is reached; nothing runs them.
        found = self._differentiate(self.batch.first)
        reached = {
            name: [gradient for gradient in gradients if gradient is not None]
            for name, gradients in zip(self.cuts, zip(*found.values(), strict=True), strict=True)
        }
        rule = "choose kernels that a task's loss depends on, each of them"
        for name, gradients in reached.items():
            is_fit = gradients and all(isinstance(own, tf.Tensor) for own in gradients)
            checks.require(bool(is_fit), "Pruning.patterns", rule, name, "It reads gradients.")
        return [name for name, gradients in reached.items() if len(gradients) > 1]

    def _differentiate_where(
        self, is_due: tf.Tensor
    ) -> Callable[[], Mapping[str, Sequence[tf.Tensor | None]]]:
        """Return what gives {task: N gradients} of the whole batch, within the branch of `is_due`.

        It gives none where the criterion does not ask for them.
        """
        if not self.part.criterion.reads_tasks:
            return dict
        if replicas.count() == 1:
            return lambda: self.batch.sum(self._differentiate)
        # Every replica has its own gradients when they are due; all meet at every step.
        own, variables = self.batch.without_replicas(), [c.variable for c in self.cuts.values()]

        def differentiate() -> dict[str, list[tf.Tensor]]:
            return {
                task: [
                    tf.zeros(variable.shape, variable.dtype) if gradient is None else gradient
                    for gradient, variable in zip(gradients, variables, strict=True)
                ]
                for task, gradients in own.sum(self._differentiate).items()
            }

        def nothing() -> dict[str, list[tf.Tensor]]:
            zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
            return dict.fromkeys(own.first.losses, zeros)

        found = replicas.sum_over_replicas(tf.cond(is_due, differentiate, nothing))
        return lambda: found

    def _differentiate(self, forward: whole_batch.ForwardPass) -> dict[str, list[tf.Tensor | None]]:
        """Return {task: N gradients} of a part of the batch."""
        variables = [cut.variable for cut in self.cuts.values()]
        return {task: tf.gradients(loss, variables) for task, loss in forward.losses.items()}

    def _see(
        self, task_gradients: Mapping[str, Sequence[tf.Tensor | None]] = MappingProxyType({})
    ) -> list[criteria.Seen]:
        """Return what criteria know; within a branch, as a table is copied where it is read."""
        return [
            criteria.Seen(
                name=name,
                weights=cut.variable.read_value(),
                gradient=gradient,
                total=None if cut.total is None else cut.total.read_value(),
                inputs=inputs,
                task_gradients={task: own[place] for task, own in task_gradients.items()},
                is_moving=freezing.moving_entries(cut.variable),
            )
            for place, ((name, cut), gradient, inputs) in enumerate(
                zip(self.cuts.items(), self.gradients, self.inputs, strict=True)
            )
        ]

    def _gather(self) -> tf.Operation:
        assigned = []
        for seen, cut in zip(self._see(), self.cuts.values(), strict=True):
            new = self.part.criterion.gather(seen)
            new = tf.where(tf.math.is_finite(new), new, seen.total)
            assigned.append(cast(tf.Variable, cut.total).assign(new, read_value=False))
        return tf.group(*assigned)


def _set_to_zero(
    pairs: Sequence[tuple[tf.Tensor, tf.Variable]], is_due: tf.Tensor, moved: tf.Operation
) -> tf.Operation:
    """Set weights, their average and the optimizer's state to 0 where masks are, after a move.

    From then on they stay there by themselves: a gradient of 0 moves no weight whose state is 0.
    """
    changed = []
    for mask, variable in pairs:
        beside = [
            other
            for other in slots.list_slots(variable)
            if other.shape == variable.shape and not pruned.is_state(patterns.variable_name(other))
        ]
        changed += [(mask, other) for other in (variable, *beside)]
    with tf.control_dependencies([moved]):
        return reduced.apply_reduced(_Reset(), changed, is_due) if changed else moved


class _Reset(tf.compat.v1.train.Optimizer):
    """Gives variables their first values back where masks, which stand for gradients, are 0."""

    def __init__(self):
        super().__init__(use_locking=False, name="reset")

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        value = var.read_value()
        first = tf.cast(slots.find_first_value(var), value.dtype)
        return var.assign(tf.where(grad > 0, value, first), read_value=False)


def _pass_gradient(weights: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return masked weights, with the gradient of all of them."""

    @tf.custom_gradient
    def masked(weights: tf.Tensor):  # type: ignore[no-untyped-def]
        return weights * mask, lambda upstream: upstream

    return masked(weights)


_PRUNER: ambient.Ambient[_Pruner | None] = ambient.Ambient("pruner", default=None)
