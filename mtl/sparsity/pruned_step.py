"""The extension of a training step that prunes variables.

extension = pruned_step.PrunedStep(model, features, labels)        # created by the model

Forward pass, gradients and update of a step use the same masks. UPDATE_OPS choose the next masks.
After the update, the weights that the next masks prune are set to 0.

In the variable itself, pruned weights are 0, and a gradient of 0 keeps pruned weights at 0 with any
optimizer. Therefore, the graphs of evaluation and export need no masks.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from mtl import checks, deferred, types
from mtl.deferred import tf, tf1
from mtl.sparsity import criteria, next_masks
from mtl.sparsity import cuts as cuts_lib
from mtl.step import extensions, layer_hooks, outlets, step_state, whole_batch
from mtl.step import gradients as gradients_lib
from mtl.tf_internals import reduced
from mtl.variables import freezing, patterns, pruned, sharding, slots, views

with deferred.imports():
    from mtl.sparsity import resets

_MASKED = "MtlMasked"  # The name of the gradient that `_register_gradient` registers.

StepFn = Callable[[Any, Any], tuple["tf.Operation", Mapping[str, "tf.Tensor"]]]


def wrap_step(parts: Sequence[cuts_lib.Part], step_fn: StepFn, is_watched: bool) -> StepFn:
    """Return a `step_fn` with pruned variables, whose masks do not change.

    Args:
      parts: the `Pruning`s; if several match a variable, the first prunes it.
      step_fn: a function that builds a step.
      is_watched: True if code such as surgery reads gradients before the update.
    """

    def step(features: Any, labels: Any) -> tuple[tf.Operation, Mapping[str, tf.Tensor]]:
        with _Pruner(parts, is_watched).enter():
            return step_fn(features, labels)

    return step if parts else step_fn


class PrunedStep(types.StepExtension):
    """Prunes the variables of a training step, and changes their masks.

    Args:
      model: the model, whose setting `pruning` lists the `Pruning`s.

    Raises:
      UserError: not in the constructor but in `around_update`, if a pattern matches no variable
        that can be pruned.
    """

    def __init__(self, model: Any, features: types.Tensors, labels: types.Tensors):
        del features, labels
        self._pruner = _Pruner(model.pruning, not model.adds_losses)
        self._set_to_zero: Callable[[tf.Operation], tf.Operation] = lambda moved: moved

    def enter(self) -> contextlib.AbstractContextManager[object]:
        """Let `get_variable` return pruned variables within the context."""
        self._pruner.is_watched |= any(part.sees_gradients for part in extensions.current())
        return self._pruner.enter()

    @contextlib.contextmanager
    def around_network(self) -> Iterator[Mapping[str, Any]]:
        """Measure the inputs of kernels that are built in the context, if a criterion needs inputs.

        Yields:
          A dict that is filled at the end of the context, {kernel: (sums of squares of its inputs,
          number of rows)}.
        """
        squares: dict[str, Any] = {}
        if not self._pruner.reads_inputs:
            yield squares
            return
        hook = layer_hooks.NoteInputs()
        with layer_hooks.attach(hook):
            yield squares
        names = [name for name in hook.found if self._pruner.reads_inputs_of(name)]
        squares |= {name: criteria.sum_squares(hook.found[name]) for name in names}

    def mask_gradients(
        self, gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]
    ) -> list[types.Connected]:
        """Set the gradients of pruned weights to 0, unless pruned weights are still trained."""
        return list(map(_leave_out_cut, gradients, variables))

    def around_update(
        self, found: Any, batch: whole_batch.WholeBatch
    ) -> contextlib.AbstractContextManager[object]:
        """Add ops that change the masks to UPDATE_OPS."""
        self._set_to_zero = self._pruner.update(found.gradients, found.variables, batch)
        return contextlib.nullcontext()

    def after_update(self, moved: tf.Operation) -> tf.Operation:
        """Return an op that runs after `moved`, and sets newly pruned weights to 0."""
        return self._set_to_zero(moved)


class _Pruner:
    """The pruned variables of the training step that is being built.

    Attributes:
      masks: {variable: mask}, with None for a variable whose pruned weights are still trained.
      reads_inputs: True if a criterion needs the inputs of kernels.
      is_watched: True if code such as surgery reads gradients before the update.
    """

    def __init__(self, parts: Sequence[cuts_lib.Part], is_watched: bool):
        self._parts, self.is_watched = parts, is_watched
        self._can_be_cut: dict[str, bool] = {}  # {variable: True if it can be pruned}.
        self._cuts: dict[str, cuts_lib.Cut] = {}
        # {name of a bias, scale or offset: (name of the kernel, variable)}.
        self._beside: dict[str, tuple[str, tf.Variable]] = {}
        self.masks: dict[str, tf.Tensor | None] = {}
        self.reads_inputs = any(part.criterion.reads_inputs for part in parts)

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Prune the variables that code in the context creates or reads."""
        with pruned.hold_masks(self.masks), views.enter(views.Stage.PRUNED, self.find_variable):
            yield

    def reads_inputs_of(self, kernel: str) -> bool:
        """Return True if the criterion for a kernel needs the kernel's inputs."""
        return kernel in self._cuts and self._cuts[kernel].part.criterion.reads_inputs

    def find_variable(self, getter: Callable[..., Any], name: str, **settings: Any) -> Any:
        """Return the variable of `getter`, masked if a part prunes it."""
        value = getter(name, **settings)
        # Masks, and state such as moving averages, are never pruned.
        if settings.get("trainable") is False:
            return value
        kernel = self._find_kernel(name)
        if kernel:
            return self._cut_with(kernel, name, value)
        part = self._find_part(name, value)
        if part is None:
            return value
        if name not in self._cuts:
            cuts_lib.check_kind(part, name, sharding.is_table())
            self._cuts[name] = cuts_lib.create(part, name, value, getter, settings)
        mask = self._cuts[name].mask_value
        if part.hides_weights:
            # If `masks` has None for a variable, the update does not set the gradients of its
            # pruned weights to 0.
            self.masks[name] = None
            return _pass_gradient(tf.convert_to_tensor(value), mask)
        self.masks[name] = mask
        return self._mask_value(value, mask, part)

    def _mask_value(self, value: Any, mask: tf.Tensor, part: cuts_lib.Part) -> Any:
        """Return the variable or, if code needs masked gradients, its product with the mask."""
        # The variable is 0 at pruned weights, and the update masks their gradients, so usually no
        # product with the mask is needed. Only code that reads gradients before the update needs
        # masked gradients. The rows of embedding tables are masked when they are looked up.
        needs_product = self.is_watched and part.gradient == cuts_lib.STOPPED
        if isinstance(value, tf.Variable) and (sharding.is_table() or not needs_product):
            return value
        return _apply_mask(value, mask)

    def _find_kernel(self, name: str) -> str | None:
        """Return the kernel of a bias, scale or offset, if units of the kernel are pruned."""
        for suffix in cuts_lib.BESIDE:
            kernel = f"{name.removesuffix(suffix)}/kernel"
            if name.endswith(suffix) and kernel in self._cuts:
                return kernel if self._cuts[kernel].part.granularity.is_of_units else None
        return None

    def _cut_with(self, kernel: str, name: str, value: Any) -> Any:
        """Mask the entries of a bias, scale or offset that belong to pruned units of a kernel."""
        self._can_be_cut[name] = False
        if freezing.first_step(name) > 0:
            return value
        # Only the first call stores the mask: a later call may be in the loop over slices, and a
        # tensor of the loop cannot be used outside of it.
        if name not in self._beside:
            self._beside[name] = (kernel, value)
            self.masks[name] = tf.reshape(self._cuts[kernel].mask_value, [-1])
        return self._mask_value(value, cast(tf.Tensor, self.masks[name]), self._cuts[kernel].part)

    def _find_part(self, name: str, value: Any) -> cuts_lib.Part | None:
        # An infinite first step means that the variable is always frozen. `check_kind` checks
        # variables that are frozen up to a step.
        can_be_cut = value.shape.rank >= 2 and freezing.first_step(name) < math.inf
        self._can_be_cut[name] = can_be_cut
        parts = [part for part in self._parts if can_be_cut and cuts_lib.chooses(part, name)]
        return parts[0] if parts else None

    def update(
        self,
        gradients: Sequence[types.Gradient],
        variables: Sequence[tf.Variable],
        batch: whole_batch.WholeBatch,
    ) -> Callable[[tf.Operation], tf.Operation]:
        """Add ops that change masks to UPDATE_OPS; return a function for `after_update`."""
        self._require_used()
        step = tf1.train.get_or_create_global_step().read_value()
        names = map(patterns.variable_name, variables)
        gradient_of = dict(zip(names, gradients, strict=True))
        # The masks change only after all other ops of the step have read masks and weights.
        before = list(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        before += gradients_lib.list_values([g for g in gradients if g is not None])
        new: dict[str, tf.Tensor] = {}
        is_due = tf.constant(False)
        with tf.control_dependencies(before):
            squares = batch.sum_watched()
            for index, part in enumerate(self._parts):
                cuts = {name: cut for name, cut in self._cuts.items() if cut.part is part}
                cut_gradients = [
                    next_masks.take_gradient(name, cut, gradient_of[name])
                    for name, cut in cuts.items()
                ]
                inputs = next_masks.average_inputs(part, cuts, squares)
                change = next_masks.Change(part, cuts, cut_gradients, inputs, batch, step)
                masks, has_changed = change.choose_masks(cuts_lib.share_name(index))
                new |= dict(zip(cuts, masks, strict=True))
                is_due |= has_changed
            self._watch_masks(new, is_due)
            self._assign_masks(new)
        zeros = [(new[n], cut.variable) for n, cut in self._cuts.items() if cut.sets_to_zero]
        zeros += [(tf.reshape(new[k], [-1]), vector) for k, vector in self._beside.values()]
        return functools.partial(_set_to_zero, zeros, is_due)

    def _assign_masks(self, new: Mapping[str, tf.Tensor]) -> None:
        """Add ops that assign the next masks to UPDATE_OPS."""
        variables = {patterns.variable_name(v): v for v in tf1.global_variables()}
        for name, mask in new.items():
            assignments = [self._cuts[name].mask.assign(mask, read_value=False)]
            # The weights that this step prunes no longer belong to a task, because other tasks may
            # use them later.
            owners = [v for other, v in variables.items() if pruned.is_owner(other, name)]
            assignments += [v.assign(v.read_value() * mask, read_value=False) for v in owners]
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, tf.group(*assignments))

    def _require_used(self) -> None:
        rule = "choose weights that can be cut"
        for part in self._parts:
            candidates = [
                n
                for n, can_be_cut in self._can_be_cut.items()
                if can_be_cut and cuts_lib.may_cut(part, n)
            ]
            names = list(self._can_be_cut)
            for pattern in part.patterns:
                matches = patterns.select_variables("Pruning.patterns", pattern, names)
                is_head = all(str(name).startswith(cuts_lib.HEADS) for name in matches)
                fix = "Frozen weights and weights with one axis cannot be cut."
                fix = "To cut heads, set Pruning.cuts_heads = True." if is_head else fix
                fits = any(patterns.matches(pattern, name) for name in candidates)
                checks.require(fits, "Pruning.patterns", rule, pattern, fix)
            is_used = any(cut.part is part for cut in self._cuts.values())
            fix = "Earlier entries of MultiTaskModel.pruning cut all matching variables."
            checks.require(is_used, "Pruning.patterns", rule, list(part.patterns), fix)

    def _watch_masks(self, new: Mapping[str, tf.Tensor], is_due: tf.Tensor) -> None:
        """Add scalars of sparsity, dead units and changes of the masks to the step."""
        # The churn is the share of mask entries that differ after a change of the masks. The churn
        # of the last change is saved, so that every summary can show it.
        churn = step_state.create_variable("pruning/churn", np.zeros([len(new)], np.float32))

        def compare_masks() -> tf.Tensor:
            pairs = [(new[name], self._cuts[name].mask_value) for name in new]
            return tf.stack([tf.reduce_mean(tf.abs(mask - old)) for mask, old in pairs])

        new_churn = tf.cond(is_due, compare_masks, churn.read_value)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, churn.assign(new_churn))

        def describe() -> tf.Tensor:
            zeros = [1 - tf.reduce_mean(mask) for mask in new.values()]
            # A unit is dead if all its input weights are pruned.
            alive = [tf.reduce_max(mask, list(range(mask.shape.rank - 1))) for mask in new.values()]
            dead = [1 - tf.reduce_mean(units) for units in alive]
            return tf.concat([zeros, dead, new_churn], 0)

        kinds = ("sparsity", "dead_units", "churn")
        names = [f"pruning/{name}/{kind}" for kind in kinds for name in new]
        outlets.add_scalars_where_due(names, describe)


def _leave_out_cut(gradient: types.Connected, variable: tf.Variable) -> types.Connected:
    variable_mask = pruned.kept_entries(variable)
    if variable_mask is None:
        return gradient
    mask = pruned.fit_mask(variable_mask, gradient, len(variable.shape))
    return gradients_lib.transform_gradient(gradient, functools.partial(tf.multiply, mask))


def _set_to_zero(
    pairs: Sequence[tuple[tf.Tensor, tf.Variable]], is_due: tf.Tensor, moved: tf.Operation
) -> tf.Operation:
    """After an update, set pruned weights to 0, and their optimizer state to initial values.

    After that, training keeps pruned weights at 0: with the initial optimizer state, a gradient of
    0 changes no weight.
    """
    mask_pairs = []
    for mask, variable in pairs:
        masked_slots = [
            slot
            for slot in slots.list_slots(variable)
            if slot.shape == variable.shape and not pruned.is_state(patterns.variable_name(slot))
        ]
        mask_pairs += [(mask, target) for target in (variable, *masked_slots)]
    with tf.control_dependencies([moved]):
        return reduced.apply_reduced(resets.Reset(), mask_pairs, is_due) if mask_pairs else moved


def _apply_mask(value: Any, mask: tf.Tensor) -> tf.Tensor:
    """Multiply weights by a mask, with a masked gradient that stays sparse for looked-up rows.

    TensorFlow's gradient of a product with a mask is dense. With a dense gradient, an optimizer
    would change the kernels of all domains of `STAR`, even of domains without a row in the batch,
    and `Centralization` would mix the domains.
    """
    _register_gradient()
    with tf1.get_default_graph().gradient_override_map({"Mul": _MASKED}):
        return tf.multiply(tf.convert_to_tensor(value), mask)


@functools.cache  # TensorFlow registers a gradient under a name only once.
def _register_gradient() -> None:
    tf.RegisterGradient(_MASKED)(_mask_gradient)


def _mask_gradient(op: tf.Operation, gradient: types.Connected) -> list[types.Gradient]:
    value, mask = op.inputs
    multiply = functools.partial(tf.multiply, pruned.fit_mask(mask, gradient, value.shape.rank))
    # The mask has no gradient.
    return [gradients_lib.transform_gradient(gradient, multiply), None]


def _pass_gradient(weights: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Multiply weights by a mask, but do not mask the gradient."""

    @tf.custom_gradient
    def masked(weights: tf.Tensor):  # type: ignore[no-untyped-def]
        return weights * mask, lambda upstream: upstream

    return masked(weights)
