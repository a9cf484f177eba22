"""Freezing: variables that training does not change at all, for good or up to a step.

model.MultiTaskModel.freezing = @freezing.Freezing()
freezing.Freezing.frozen = ["^features/"]                 # patterns, see mtl.variables.patterns
freezing.Freezing.until = {"^network/trunk/": 500, "^network/tower_": 200}       # top down
features.Categorical.trainable = False                             # freezes one part by a setting
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
"""(the current weights of a variable, its name) -> bool, True for an entry that trains."""

StepFn = Callable[[Any, Any], tuple["tf.Operation", Mapping[str, "tf.Tensor"]]]


@checks.dataclass
class Freezing:
    """Chooses the frozen variables by pattern.

    A variable that is frozen for good is not trainable in TensorFlow's sense: it has no gradient
    and no optimizer state, balancing and clipping do not see it, and weight decay and penalties
    skip it. A variable that is frozen up to a step has its optimizer state from the start. Before
    that step weight and state do not change: the optimizer's op is in a branch that is not taken,
    and its gradient counts as zero for the norm and for clipping. But the step still computes the
    gradient of the variable, and balancing uses it. Train a long stage as a separate run, which is
    cheaper.

    Attributes:
      frozen: patterns (see `mtl.variables.patterns`) of variables that never train.
      until: {pattern: the global step from which its variables train}, above 0; if several patterns
        match, the last step counts.
      entries: {pattern: a part of `mtl.variables.masks`} that chooses the entries of a variable
        that train; the first matching pattern counts. The other entries stay exactly the same under
        any optimizer with state or decay. The gradient of these other entries counts as zero for
        the norm, clipping and the optimizer state. A step costs two passes over the variable, also
        over all rows of a looked-up table.
      batch_norm: how a batch norm with frozen averages works in training. "inference" normalises by
        the averages, which stay. "adapt" normalises by the batch and updates the averages, as
        published code often does although it calls its network frozen.
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
        """True with the default settings."""
        return self == Freezing()

    @property
    def holds_some(self) -> bool:
        """True if a setting chooses variables."""
        return bool(self.frozen or self.until or self.entries)

    def first_step(self, variable: tf.Variable | str) -> float:
        """Return the step from which a variable trains; infinite if it never does."""
        if any(patterns.matches(pattern, variable) for pattern in self.frozen):
            return _NEVER
        matching = [pattern for pattern in self.until if patterns.matches(pattern, variable)]
        return max((self.until[pattern] for pattern in matching), default=0)

    def wrap_step(self, step_fn: StepFn) -> StepFn:
        """Return `step_fn` with frozen variables; their number is the scalar `frozen_weights`."""

        def frozen_step(features: Any, labels: Any) -> tuple[tf.Operation, dict[str, tf.Tensor]]:
            with _enter_freezing(self) as scope:
                train_op, monitors = step_fn(features, labels)
                frozen = {"frozen_weights": scope.frozen_weights()} if scope.frozen() else {}
                return train_op, {**monitors, **frozen}

        return frozen_step


def hold_part(trainable: bool) -> contextlib.AbstractContextManager[object]:
    """Return a context that freezes new variables for good, unless `trainable` is True."""
    return contextlib.nullcontext() if trainable else _hold_variables()


@contextlib.contextmanager
def _hold_variables() -> Iterator[None]:
    scope = _FREEZING.get().scope
    creates = tf.variable_creator_scope(scope.create) if scope else contextlib.nullcontext()
    with _FREEZING.set(_Ambient(scope, is_held=True)), creates:
        yield


def release_part() -> contextlib.AbstractContextManager[object]:
    """Return a context in which new variables train, even inside `hold_part`."""
    return _FREEZING.set(_FREEZING.get()._replace(is_held=False))


def holds_some() -> bool:
    """Return True if a setting of `Freezing` chooses variables of the step that is being built."""
    scope = _FREEZING.get().scope
    return scope is not None and scope.freezing.holds_some


def first_step(variable: tf.Variable) -> float:
    """Return the step from which a variable of the step that is being built trains."""
    scope = _FREEZING.get().scope
    return scope.first_step(variable) if scope else 0


def find_mask(variable: tf.Variable) -> Mask | None:
    """Return the mask of a variable's trained entries in the step being built; None for all."""
    scope = _FREEZING.get().scope
    entries = scope.freezing.entries if scope else {}
    mask = next((entries[p] for p in entries if patterns.matches(p, variable)), None)
    shard = shards.find_shard(variable)
    return functools.partial(_of_shard, mask, shard) if mask and shard else mask


def moving_entries(variable: tf.Variable) -> tf.Tensor | None:
    """Return a mask of the entries of a variable that train in this step; None for all."""
    mask = find_mask(variable)
    if mask is None:
        return None
    return tf.broadcast_to(
        mask(tf.convert_to_tensor(variable), patterns.variable_name(variable)), variable.shape
    )


def _of_shard(mask: Mask, shard: shards.Shard, weights: tf.Tensor, name: str) -> tf.Tensor:
    """Return the mask of a shard's trained entries; rows of other shards count as zeros."""
    first, last = shard.first, shard.first + weights.shape[0]
    around = [[first, shard.shape[0] - last], *[[0, 0]] * (weights.shape.rank - 1)]
    return tf.broadcast_to(mask(tf.pad(weights, around), name), shard.shape)[first:last]


def averages_move(average: tf.Variable) -> bool | tf.Tensor:
    """Return True if training updates an average; a bool scalar if that depends on the step."""
    scope = _FREEZING.get().scope
    if scope is None or not (scope.part_names or scope.freezing.holds_some):
        return True
    if scope.freezing.batch_norm == "adapt":
        return True
    scope.averages.append(patterns.variable_name(average))
    return is_reached(scope.first_step(average))


def is_reached(step: float) -> bool | tf.Tensor:
    """Return True if the global step is `step` or later; a Python bool if it never changes."""
    # A Python bool adds neither an op nor a branch to the graph of most models.
    if step in (0, _NEVER):
        return step == 0
    scope = cast(_Scope, _FREEZING.get().scope)  # Other steps occur only inside of a scope.
    return scope.step >= int(step)


def frozen_names() -> list[str]:
    """Return the names of variables that would be trainable if they were not frozen for good."""
    scope = _FREEZING.get().scope
    if scope is None:
        return []
    return list(scope.frozen_sizes)


@contextlib.contextmanager
def _enter_freezing(freezing: Freezing) -> Iterator[_Scope]:
    """Freeze the variables that are created within the context.

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
    """The frozen variables of the step that is being built.

    Attributes:
      freezing: the settings.
      is_first: True for the step of the first replica, which creates all variables.
      frozen_sizes: {name: number of weights} of the variables that are frozen for good, and would
        be trainable otherwise.
      part_names: the names of variables of parts with `trainable = False`.
      averages: the names of the averages of its batch norms.
      step: the global step, read once: a second read could come after the update.
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
        """Return the step from which a variable trains; infinite if it never does."""
        is_held = patterns.variable_name(variable) in self.part_names
        return _NEVER if is_held else self.freezing.first_step(variable)

    def count_weights(self) -> dict[str, int]:
        """Return {name: number of weights} of the variables that are trainable unless frozen."""
        sizes = dict(self.frozen_sizes)
        for variable in tf1.trainable_variables():
            name = patterns.variable_name(variable)  # The shards of a table add up under its name.
            sizes[name] = sizes.get(name, 0) + variable.shape.num_elements()
        return sizes

    def frozen(self) -> dict[str, float]:
        """Return {name: the step up to which it is frozen} of the frozen variables."""
        names = self.count_weights() if self.freezing.until else self.frozen_sizes
        steps = {name: self.first_step(name) for name in names}
        return {name: step for name, step in steps.items() if step}

    def create(self, next_creator: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
        """Create a variable; it is not trainable if it is frozen for good."""
        scopes = tf1.get_default_graph().get_name_scope()
        name = sharding.table_name(f"{scopes}/{settings['name']}".lstrip("/"))
        if _FREEZING.get().is_held:
            # Add averages, too, because `averages_move` looks for them.
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
        """Fail if a pattern matches nothing; all names are known once the step is built."""
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
        """Return how many weights are frozen at this step, a float32 scalar."""
        total = tf.constant(0.0)
        for name, size in self.count_weights().items():
            is_moving = is_reached(self.first_step(name))
            total += size * (1.0 - tf.cast(is_moving, tf.float32))
        return total


class _Ambient(NamedTuple):
    """Knowledge about the step that is being built, and about the part inside it.

    Attributes:
      scope: the knowledge about the step; None outside of steps.
      is_held: True inside a part whose variables are frozen for good.
    """

    scope: _Scope | None = None
    is_held: bool = False


_NEVER = float("inf")
# The results of the first replica, for other replicas: {graph: (frozen sizes, part names)}.
_CREATED: weakref.WeakKeyDictionary[tf.Graph, tuple[dict[str, int], set[str]]] = (
    weakref.WeakKeyDictionary()
)
_FREEZING = ambient.Ambient("freezing", default=_Ambient())
