"""Stacks: one variable of the graph holds the variables of many equal tasks.

with stacks.stack_tasks(when=True): ...           # a network and heads may build stacks inside it
with stacks.separate_tasks(when=True): ...        # networks build the parts of each task apart
stacks.create(["head/a", "head/b"], "logits/bias", [2, 1], axis=0, initializer=zeros)
stacks.list_members(variable)                    # {"head/a/logits/bias": [1], "head/b/...": [1]}

A thousand tasks have thousands of small variables. Each variable has some forty ops that
initialise, save, restore and update it. A stack has these ops once for all tasks. In the graph it
has the name of its first member, and a checkpoint holds all members (`compat.stack_saver`). So
stacks do not change checkpoints, and a graph with stacks can continue the run of a graph without
stacks. Code that chooses variables by name sees only the first member:
`MultiTaskModel.stacks_tasks` therefore allows stacks only without such code.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mtl import ambient, deferred
from mtl.deferred import tf, tf1
from mtl.tf_internals import graphs, shards
from mtl.variables import patterns

with deferred.imports():
    from mtl.tf_internals import stack_saver

FROM = 64
"""The least number of equal tasks to stack; fewer tasks build as fast one by one."""

Seed = tuple[int | None, int | None]
"""The two seeds of a random op; None if the graph has no seed."""


class _Tasks(NamedTuple):
    """How networks and heads build equal tasks."""

    may_stack: bool = False
    are_separate: bool = False


class Stack(NamedTuple):
    """The names of a stack's members, and the axis along which they lie."""

    names: tuple[str, ...]
    axis: int


def stack_tasks(when: bool) -> contextlib.AbstractContextManager[object]:
    """Return a context in which parts may build equal tasks as stacks, if `when` is True."""
    return _TASKS.set(_TASKS.get()._replace(may_stack=when))


def are_stacked(count: int) -> bool:
    """Return True if `count` equal tasks should be built as stacks."""
    return _TASKS.get().may_stack and count >= FROM


def separate_tasks(when: bool) -> contextlib.AbstractContextManager[object]:
    """Build the parts of each task separately inside it, not as one product.

    In one product, the variables of a task have a gradient of zeros, not None, from the losses of
    other tasks. A surgery would then treat them as shared variables.
    """
    return _TASKS.set(_TASKS.get()._replace(are_separate=when))


def are_separate() -> bool:
    """Return True if the parts of each task have to be built separately."""
    return _TASKS.get().are_separate


def create(
    scopes: Sequence[str],
    name: str,
    shape: Sequence[int],
    axis: int,
    initializer: Callable[..., tf.Tensor],
) -> tf.Variable:
    """Create a float32 stack of the variables `<scope>/<name>` of T scopes.

    Args:
      scopes: T names, relative to the open variable scope.
      name: the name of each variable in its scope.
      shape: the shape of the stack; T along the axis.
      axis: the axis along which the members lie.
      initializer: initialises the stack.
    """
    outer_scope = tf1.get_variable_scope().name
    names = tuple("/".join(filter(None, (outer_scope, scope, name))) for scope in scopes)
    stacks_of_graph = _STACKS.setdefault(graphs.outermost_graph(), {})
    stacks_of_graph[names[0]] = Stack(names, axis)
    with tf1.variable_scope(scopes[0]):
        return tf1.get_variable(name, shape, tf.float32, initializer)


def find_stack(variable: tf.Variable | str) -> Stack | None:
    """Return the members of a stack, or of its optimizer state; None for other variables.

    `variable` is a variable of this graph, or its name.
    """
    if not _STACKS:  # No graph of this process has stacks.
        return None
    name = variable if isinstance(variable, str) else patterns.shard_name(variable)
    stacks_of_graph = _STACKS.get(graphs.outermost_graph(), {})
    if name in stacks_of_graph:
        return stacks_of_graph[name]
    # An optimizer names its state "<variable>/<slot>".
    owner, _, slot = name.rpartition("/")
    if owner not in stacks_of_graph:
        return None
    return Stack(
        tuple(f"{member}/{slot}" for member in stacks_of_graph[owner].names),
        stacks_of_graph[owner].axis,
    )


def list_members(variable: tf.Variable) -> dict[str, list[int]]:
    """Return {name: shape} of the members of a stack; for other variables, of the variable."""
    shape, stack = shards.whole_shape(variable), find_stack(variable)
    stack_axis = None if stack is None else stack.axis
    member_shape = [size for axis, size in enumerate(shape) if axis != stack_axis]
    return dict.fromkeys(name_members(variable), member_shape)


def name_members(variable: tf.Variable) -> tuple[str, ...]:
    """Return the names of the members of a stack; for other variables, the variable's name."""
    stack = find_stack(variable)
    return stack.names if stack else (patterns.variable_name(variable),)


def expand_names(names: Sequence[str]) -> list[str]:
    """Return the names, with a stack's name replaced by the names of its members."""
    pairs = [(name, find_stack(name)) for name in names]
    return [member for name, stack in pairs for member in (stack.names if stack else [name])]


def add_saver() -> tf.compat.v1.train.Saver | None:
    """Add a saver of the members to a graph that has stacks, and return it; else None.

    The saver is not built yet.
    """
    if not _STACKS.get(tf1.get_default_graph()):
        return None
    stacks_by_id = {id(variable): find_stack(variable) for variable in tf1.global_variables()}
    return stack_saver.add_stack_saver({key: stack for key, stack in stacks_by_id.items() if stack})


def draw_seeds(count: int) -> list[Seed]:
    """Draw the seeds of `count` random ops, as if these ops were created one by one."""
    with tf.init_scope():  # Enter the graph that initialises variables.
        return [tf1.get_seed(None) for _ in range(count)]


def start_uniform(seeds: Sequence[Seed], axis: int) -> Callable[..., tf.Tensor]:
    """Return an initialiser of a stack of kernels, each Glorot-uniform by a separate seed.

    Every kernel starts with exactly the values of a layer that is built alone. TensorFlow's random
    ops give the numbers of Philox with the first seed as key, starting at the second seed.
    """

    def initialize(shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
        kernel_shape = [size for at, size in enumerate(shape) if at != axis]
        # Glorot's limit, sqrt(6 / (inputs + outputs)), written as TensorFlow's initialiser computes
        # it.
        limit = math.sqrt(3.0 / max(1.0, sum(kernel_shape) / 2.0))
        lowest, highest = tf.constant(-limit, dtype), tf.constant(limit, dtype)

        def draw(pair: tf.Tensor) -> tf.Tensor:
            counter = tf.stack([tf.constant(0, tf.uint64), pair[1]])
            return tf.raw_ops.StatelessRandomUniformV2(
                shape=kernel_shape, key=pair[:1], counter=counter, alg=_PHILOX, dtype=dtype
            )

        if any(seed is None for pair in seeds for seed in pair):
            values = tf.random.uniform(shape, dtype=dtype)
        else:
            kernels = tf.map_fn(draw, tf.constant(seeds, tf.uint64), fn_output_signature=dtype)
            kernels = tf.ensure_shape(kernels, [len(seeds), *kernel_shape])
            order = list(range(1, len(shape)))
            values = tf.transpose(kernels, [*order[:axis], 0, *order[axis:]])
        return values * (highest - lowest) + lowest

    return initialize


_PHILOX = 1
_TASKS = ambient.Ambient("tasks", default=_Tasks())
_STACKS: weakref.WeakKeyDictionary[tf.Graph, dict[str, Stack]] = weakref.WeakKeyDictionary()
