"""Freezing: keeps variables constant in training, for the whole run or up to a step.

model.MultiTaskModel.freezing = @freezing.Freezing()
freezing.Freezing.frozen = ["^features/"]                 # patterns: mtl.variables.patterns
freezing.Freezing.until = {"^network/trunk/": 500, "^network/tower_": 200}       # top down
features.Categorical.trainable = False                             # freezes one part of a model
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, cast

from mtl import ambient, checks
from mtl.deferred import tf, tf1
from mtl.tf_internals import shards
from mtl.variables import patterns, sharding, stacks

_log = logging.getLogger(__name__)

Mask = Callable[["tf.Tensor", str], "tf.Tensor"]
"""A function (weights of a variable, its name) -> bool, True for entries that are trained."""

StepFn = Callable[[Any, Any], tuple["tf.Operation", Mapping[str, "tf.Tensor"]]]


@checks.dataclass
class Freezing:
    """Chooses frozen variables by patterns.

    A variable that is frozen for the whole run is not trainable in TensorFlow's sense: it has no
    gradient and no optimizer state, and balancing, clipping, weight decay and penalties ignore it.
    A variable that is frozen up to a step has optimizer state from the start. As long as the
    variable is frozen, neither its weights nor its optimizer state change: the optimizer's op is in
    a branch that does not run, and the global norm and clipping count the gradient of the variable
    as 0. But each step still computes the gradient of a variable that is frozen up to a step, and
    balancing uses this gradient. If variables are frozen for many steps, a separate run for these
    steps is cheaper.

    Attributes:
      frozen: patterns (see `mtl.variables.patterns`) of variables that are frozen for the whole
        run.
      until: {pattern: the global step from which its variables are trained, above 0}. If several
        patterns match a variable, the largest of their steps applies.
      entries: {pattern: a part of `mtl.variables.masks`, which chooses the entries of a variable
        that are trained}. If several patterns match a variable, only the first one applies. Entries
        that are not chosen do not change at all, with any optimizer, and their gradient counts as
        0. Each step reads and writes all entries of a variable that `entries` matches, even all
        rows of an embedding table.
      batch_norm: how batch norms with frozen moving averages work in training. With "inference", a
        batch norm normalises by its moving averages, and does not change them. With "adapt", a
        batch norm normalises by the batch and updates its moving averages, as published code often
        does with networks that it calls frozen.
    """

    frozen: Annotated[Sequence[str], patterns.check_patterns] = ()
    until: Annotated[
        Mapping[str, checks.Count],
        checks.Map("map patterns to steps"),
    ] = dataclasses.field(default_factory=dict)
    entries: Annotated[
        Mapping[str, Annotated[Mask, checks.Part("masks.Rows", arguments=2)]],
        checks.Map("map patterns to masks"),
    ] = dataclasses.field(default_factory=dict)
    batch_norm: Annotated[str, checks.OneOf(("inference", "adapt"))] = "inference"

    def __post_init__(self):
        patterns.check_patterns("Freezing.until", list(self.until))
        patterns.check_patterns("Freezing.entries", list(self.entries))

    @property
    def is_entrywise(self) -> bool:
        """True if all settings have their default values."""
        return self == Freezing()

    @property
    def holds_some(self) -> bool:
        """True if `frozen`, `until` or `entries` has a pattern of variables."""
        return bool(self.frozen or self.until or self.entries)

    def first_step(self, variable: tf.Variable | str) -> float:
        """Return the global step from which a variable is trained.

        Args:
          variable: a variable, or its name.

        Returns:
          The step: 0 if the variable is never frozen, and infinity if it is frozen for the whole
          run.
        """
        if any(patterns.matches(pattern, variable) for pattern in self.frozen):
            return _NEVER
        matching = [pattern for pattern in self.until if patterns.matches(pattern, variable)]
        return max((self.until[pattern] for pattern in matching), default=0)

    def wrap_step(self, step_fn: StepFn) -> StepFn:
        """Freeze variables in the steps that a function builds.

        Args:
          step_fn: a function that builds a step.

        Returns:
          A function that builds a step in which the chosen variables are frozen. If a variable is
          frozen, the step has a further scalar, `frozen_weights`. The returned function raises a
          UserError if a pattern of `Freezing` matches no variable.
        """

        def frozen_step(features: Any, labels: Any) -> tuple[tf.Operation, dict[str, tf.Tensor]]:
            with _enter_freezing(self) as scope:
                train_op, monitors = step_fn(features, labels)
                frozen = {"frozen_weights": scope.frozen_weights()} if scope.frozen() else {}
                return train_op, {**monitors, **frozen}

        return frozen_step


def hold_part(trainable: bool) -> contextlib.AbstractContextManager[object]:
    """Freeze all variables that are created in the context, unless `trainable` is True."""
    return contextlib.nullcontext() if trainable else _hold_variables()


@contextlib.contextmanager
def _hold_variables() -> Iterator[None]:
    scope = _FREEZING.get().scope
    creates = tf.variable_creator_scope(scope.create) if scope else contextlib.nullcontext()
    with _FREEZING.set(_Ambient(scope, is_held=True)), creates:
        yield


def release_part() -> contextlib.AbstractContextManager[object]:
    """Let variables that are created in the context be trained, even inside `hold_part`."""
    return _FREEZING.set(_FREEZING.get()._replace(is_held=False))


def holds_some() -> bool:
    """Return True if the `Freezing` of the step that is being built chooses variables."""
    scope = _FREEZING.get().scope
    return scope is not None and scope.freezing.holds_some


def first_step(variable: tf.Variable) -> float:
    """Return the global step from which a variable is trained, in the step that is being built.

    Args:
      variable: a variable of the graph.

    Returns:
      The step: 0 if the variable is never frozen, or if no step is being built; infinity if the
      variable is frozen for the whole run.
    """
    scope = _FREEZING.get().scope
    return scope.first_step(variable) if scope else 0


def find_mask(variable: tf.Variable) -> Mask | None:
    """Return the mask of the entries of a variable that are trained.

    Args:
      variable: a variable, or a shard of a table; a shard gets the mask of its own rows.

    Returns:
      A function from the weights and the name of the variable to a bool mask, which broadcasts to
      the weights; None if all entries are trained.
    """
    scope = _FREEZING.get().scope
    entries = scope.freezing.entries if scope else {}
    mask = next((entries[p] for p in entries if patterns.matches(p, variable)), None)
    shard = shards.find_shard(variable)
    return functools.partial(_of_shard, mask, shard) if mask and shard else mask


def moving_entries(variable: tf.Variable) -> tf.Tensor | None:
    """Compute the mask of the entries of a variable that are trained.

    Args:
      variable: a variable, or a shard of a table.

    Returns:
      The mask, bool in the shape of the variable; None if all entries are trained.
    """
    mask = find_mask(variable)
    if mask is None:
        return None
    return tf.broadcast_to(
        mask(tf.convert_to_tensor(variable), patterns.variable_name(variable)), variable.shape
    )


def _of_shard(mask: Mask, shard: shards.Shard, weights: tf.Tensor, name: str) -> tf.Tensor:
    """Return the mask of a shard; the function `mask` gets zeros for the rows of other shards."""
    first, last = shard.first, shard.first + weights.shape[0]
    around = [[first, shard.shape[0] - last], *[[0, 0]] * (weights.shape.rank - 1)]
    return tf.broadcast_to(mask(tf.pad(weights, around), name), shard.shape)[first:last]


def averages_move(average: tf.Variable) -> bool | tf.Tensor:
    """Decide whether training updates a moving average of a batch norm.

    The name of the moving average is recorded, because patterns of `Freezing` may match it.

    Args:
      average: the variable with the moving average.

    Returns:
      True or False if the decision is the same in all steps; else a bool scalar of the graph.
    """
    scope = _FREEZING.get().scope
    if scope is None or not (scope.part_names or scope.freezing.holds_some):
        return True
    if scope.freezing.batch_norm == "adapt":
        return True
    scope.averages.append(patterns.variable_name(average))
    return is_reached(scope.first_step(average))


def is_reached(step: float) -> bool | tf.Tensor:
    """Compare the global step with the first step in which a variable is trained.

    Args:
      step: a result of `first_step`.

    Returns:
      True if the global step is at least `step`: a bool scalar of the graph, or Python's True or
      False if the answer is the same in all steps.
    """
    # Most models train or freeze a variable in all steps. For these models, a Python bool adds no
    # op and no branch to the graph.
    if step in (0, _NEVER):
        return step == 0
    # Outside of a training step, no `_Scope` is open, and `step` is 0.
    scope = cast(_Scope, _FREEZING.get().scope)
    return scope.step >= int(step)


def frozen_names() -> list[str]:
    """Return the names of trainable variables that are frozen for the whole run."""
    scope = _FREEZING.get().scope
    if scope is None:
        return []
    return list(scope.frozen_sizes)


@contextlib.contextmanager
def _enter_freezing(freezing: Freezing) -> Iterator[_Scope]:
    """Freeze variables that are created within the context.

    Raises:
      UserError: at the end of the context, if a pattern has matched nothing.
    """
    scope = _Scope(freezing)
    chooses = bool(freezing.frozen)
    creates = tf.variable_creator_scope(scope.create) if chooses else contextlib.nullcontext()
    with _FREEZING.set(_FREEZING.get()._replace(scope=scope)), creates:
        yield scope
    if freezing.holds_some:
        scope.require_used()
    if scope.is_first and scope.frozen():
        _log.info("%s", scope.describe())


class _Scope:
    """The frozen variables of the training step that is being built.

    Attributes:
      freezing: the `Freezing` part of the model, which chooses the frozen variables.
      is_first: True on the first replica, which creates all variables.
      frozen_sizes: {name: number of weights} of trainable variables that are frozen for the whole
        run.
      part_names: the names of variables of parts with `trainable = False`.
      averages: the names of the moving averages of batch norms in the step.
      step: the global step, read only once, because a second read could come after the update.
    """

    def __init__(self, freezing: Freezing):
        self.freezing = freezing
        graph = tf1.get_default_graph()
        self.is_first = graph not in _CREATED
        self.frozen_sizes, self.part_names = _CREATED.setdefault(graph, ({}, set()))
        self.averages: list[str] = []
        if freezing.until:
            self.step = tf1.train.get_or_create_global_step().read_value()

    def first_step(self, variable: tf.Variable | str) -> float:
        """Return the step from which a variable is trained; infinity if it is always frozen."""
        is_held = patterns.variable_name(variable) in self.part_names
        return _NEVER if is_held else self.freezing.first_step(variable)

    def count_weights(self) -> dict[str, int]:
        """Return the sizes of all trainable variables, frozen or not, {name: number of weights}."""
        sizes = dict(self.frozen_sizes)
        for variable in tf1.trainable_variables():
            name = patterns.variable_name(variable)  # The shards of a table share its name.
            sizes[name] = sizes.get(name, 0) + variable.shape.num_elements()
        return sizes

    def frozen(self) -> dict[str, float]:
        """Return the steps up to which variables are frozen, {name of a frozen variable: step}."""
        names = self.count_weights() if self.freezing.until else self.frozen_sizes
        steps = {name: self.first_step(name) for name in names}
        return {name: step for name, step in steps.items() if step}

    def create(self, next_creator: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
        """Create a variable that is not trainable if it is frozen for the whole run."""
        scopes = tf1.get_default_graph().get_name_scope()
        name = sharding.table_name(f"{scopes}/{settings['name']}".lstrip("/"))
        if _FREEZING.get().is_held:
            # `part_names` includes moving averages, because `averages_move` looks for them.
            self.part_names.add(name)
        if settings.get("trainable") is False:
            return next_creator(**settings)
        if self.first_step(name) != _NEVER:
            return next_creator(**settings)
        settings["trainable"] = False
        variable = next_creator(**settings)
        size = self.frozen_sizes.get(name, 0) + variable.shape.num_elements()
        self.frozen_sizes[name] = size
        return variable

    def require_used(self) -> None:
        """Check that every pattern matches a variable; call it after the step is built."""
        names = [*self.count_weights(), *self.averages]
        for setting in ("frozen", "until", "entries"):
            for pattern in getattr(self.freezing, setting):
                patterns.select_variables(f"Freezing.{setting}", pattern, names)

    def describe(self) -> str:
        """Return `Frozen: 3 of 5 variables, 1,200 of 1,300 weights; 2 of them until step 100`."""
        frozen, sizes = self.frozen(), self.count_weights()
        names = stacks.expand_names(list(sizes))
        text = f"Frozen: {len(frozen)} of {len(names)} variables, "
        text += f"{sum(sizes[name] for name in frozen):,} of {sum(sizes.values()):,} weights"
        for step in sorted(set(frozen.values()) - {_NEVER}):
            count = sum(value == step for value in frozen.values())
            text += f"; {count} of them until step {step}"
        return text

    def frozen_weights(self) -> tf.Tensor:
        """Compute the number of weights that are frozen in this step, a float32 scalar."""
        total = tf.constant(0.0)
        for name, size in self.count_weights().items():
            is_moving = is_reached(self.first_step(name))
            total += size * (1.0 - tf.cast(is_moving, tf.float32))
        return total


class _Ambient(NamedTuple):
    """The state of freezing while a graph is built.

    Attributes:
      scope: the frozen variables of the training step that is being built; None outside of steps.
      is_held: True inside a part with `trainable = False`.
    """

    scope: _Scope | None = None
    is_held: bool = False


_NEVER = float("inf")
# {graph: (`_Scope.frozen_sizes`, `_Scope.part_names`)}. The first replica creates the variables and
# fills `_CREATED`, and the other replicas read `_CREATED`.
_CREATED: weakref.WeakKeyDictionary[tf.Graph, tuple[dict[str, int], set[str]]] = (
    weakref.WeakKeyDictionary()
)
_FREEZING = ambient.Ambient("freezing", default=_Ambient())
