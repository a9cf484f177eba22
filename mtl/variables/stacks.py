"""Stacks: one variable of the graph has the weights of many equal tasks.

with stacks.stack_tasks(when=True): ...           # networks and heads may build stacks
with stacks.separate_tasks(when=True): ...        # separate ops for each task
stacks.create(["head/a", "head/b"], "logits/bias", [2, 1], axis=0, initializer=zeros)
stacks.list_members(variable)                    # {"head/a/logits/bias": [1], "head/b/...": [1]}

A model with a thousand tasks has thousands of small variables. Each variable has about forty ops,
which initialise, save, restore and update it; a stack has these ops only once for all its members,
the variables of the single tasks. In the graph, a stack has the name of its first member. A
checkpoint has all members (`tf_internals.stack_saver`), so a graph with stacks can continue the run
of a graph without stacks. Code that chooses variables by name sees only the first member, so
`MultiTaskModel.stacks_tasks` allows stacks only in a model without such code.
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
"""The least number of equal tasks for stacks; for fewer tasks, stacks save no time."""

Seed = tuple[int | None, int | None]
"""The two seeds of a random op; both are None if the graph has no seed."""


class _Tasks(NamedTuple):
    """Flags for how networks and heads build tasks with the same layers and settings."""

    may_stack: bool = False
    are_separate: bool = False


class Stack(NamedTuple):
    """The names of a stack's members, and the axis along which the members are stacked.

    Attributes:
      names: the names of the members, in order. In the graph, the name of the stack is the name of
        its first member.
      axis: the axis of the stack, at least 0; members do not have this axis.
    """

    names: tuple[str, ...]
    axis: int


def stack_tasks(when: bool) -> contextlib.AbstractContextManager[object]:
    """If `when` is True, let parts within the context store many tasks' variables as one stack."""
    return _TASKS.set(_TASKS.get()._replace(may_stack=when))


def are_stacked(count: int) -> bool:
    """Return True if the variables of `count` equal tasks should be stored as one variable."""
    return _TASKS.get().may_stack and count >= FROM


def separate_tasks(when: bool) -> contextlib.AbstractContextManager[object]:
    """Let networks within the context build separate ops for each task.

    In a batched product over all tasks, the gradient of one task's loss by another task's variables
    is 0 and not None, so surgery would treat the variables of one task as variables that tasks
    share.

    Args:
      when: False lets networks build batched products.
    """
    return _TASKS.set(_TASKS.get()._replace(are_separate=when))


def are_separate() -> bool:
    """Return True if networks must build separate ops for each task."""
    return _TASKS.get().are_separate


def create(
    scopes: Sequence[str],
    name: str,
    shape: Sequence[int],
    axis: int,
    initializer: Callable[..., tf.Tensor],
) -> tf.Variable:
    """Create a float32 stack for the variables `<scope>/<name>` of T scopes.

    Args:
      scopes: T scopes, relative to the open variable scope.
      name: the name that every member has in its scope, such as "logits/bias".
      shape: the shape of the stack, with the T members along `axis`.
      axis: the axis along which the members are stacked.
      initializer: a function that creates the initial values of the stack.
    """
    outer_scope = tf1.get_variable_scope().name
    names = tuple("/".join(filter(None, (outer_scope, scope, name))) for scope in scopes)
    stacks_of_graph = _STACKS.setdefault(graphs.outermost_graph(), {})
    stacks_of_graph[names[0]] = Stack(names, axis)
    with tf1.variable_scope(scopes[0]):
        return tf1.get_variable(name, shape, tf.float32, initializer)


def find_stack(variable: tf.Variable | str) -> Stack | None:
    """Return the stack of a variable, or of its optimizer state; None if it is not a stack.

    Args:
      variable: a variable of this graph, or its name.
    """
    if not _STACKS:  # No graph of this process has stacks.
        return None
    name = variable if isinstance(variable, str) else patterns.shard_name(variable)
    stacks_of_graph = _STACKS.get(graphs.outermost_graph(), {})
    if name in stacks_of_graph:
        return stacks_of_graph[name]
    # The name of optimizer state is "<variable>/<slot>".
    owner, _, slot = name.rpartition("/")
    if owner not in stacks_of_graph:
        return None
    return Stack(
        tuple(f"{member}/{slot}" for member in stacks_of_graph[owner].names),
        stacks_of_graph[owner].axis,
    )


def list_members(variable: tf.Variable) -> dict[str, list[int]]:
    """List the members of a stack.

    Args:
      variable: a stack, the optimizer state of a stack, or another variable.

    Returns:
      {name: shape} of the members; {name: shape} of the variable itself if it is not a stack.
      Shards have the name and the shape of their table.
    """
    shape, stack = shards.whole_shape(variable), find_stack(variable)
    stack_axis = None if stack is None else stack.axis
    member_shape = [size for axis, size in enumerate(shape) if axis != stack_axis]
    return dict.fromkeys(name_members(variable), member_shape)


def name_members(variable: tf.Variable) -> tuple[str, ...]:
    """Return the names of the members of a stack; for another variable, its name."""
    stack = find_stack(variable)
    return stack.names if stack else (patterns.variable_name(variable),)


def expand_names(names: Sequence[str]) -> list[str]:
    """Replace the names of stacks in a list by the names of their members.

    Args:
      names: names of variables of this graph; names of other variables stay in their places.
    """
    pairs = [(name, find_stack(name)) for name in names]
    return [member for name, stack in pairs for member in (stack.names if stack else [name])]


def add_saver() -> tf.compat.v1.train.Saver | None:
    """Add and return a saver that saves the members of stacks; None if the graph has no stacks.

    The returned saver has no ops until its method `build` is called.
    """
    if not _STACKS.get(tf1.get_default_graph()):
        return None
    stacks_by_id = {id(variable): find_stack(variable) for variable in tf1.global_variables()}
    return stack_saver.add_stack_saver({key: stack for key, stack in stacks_by_id.items() if stack})


def draw_seeds(count: int) -> list[Seed]:
    """Draw the seeds that some random ops would get if they were created one by one.

    Args:
      count: the number of random ops.

    Returns:
      `count` pairs of seeds. If the graph has no seed, both seeds of each pair are None.
    """
    with tf.init_scope():  # Enter the graph of the initialisers.
        return [tf1.get_seed(None) for _ in range(count)]


def start_uniform(seeds: Sequence[Seed], axis: int) -> Callable[..., tf.Tensor]:
    """Return an initialiser of stacked kernels: Glorot-uniform, with a seed for each kernel.

    Every kernel gets exactly the initial values that it would get in a separate layer. To compute
    the initial values of a kernel, the initialiser calls the generator Philox as TensorFlow's
    random ops do: the first seed is the key, and the second seed the counter.

    Args:
      seeds: T seeds of `draw_seeds`. If a seed is None, all kernels get values without a seed.
      axis: the axis of the stack along which the T kernels are stacked.

    Returns:
      A function from the shape and the type of the stack to the initial values.
    """

    def initialize(shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
        kernel_shape = [size for at, size in enumerate(shape) if at != axis]
        # Glorot's limit, sqrt(6 / (inputs + outputs)), with the order of operations of TensorFlow's
        # initialiser.
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
