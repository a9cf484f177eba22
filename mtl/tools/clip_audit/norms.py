"""Measures gradient norms of single examples, and inner products with the gradient of the batch.

result = norms.measure(losses_of, batch, weigh)
result.squares["network/hidden_0/kernel"]      # [B]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mtl import types
from mtl.deferred import tf, tf1
from mtl.example_gradients import ghost, gradient_forms
from mtl.step import gradients as gradients_lib
from mtl.tools.clip_audit import brute_force
from mtl.variables import patterns


class Norms(NamedTuple):
    """Gradient norms of B examples; `g_i` is the gradient of the weighted total loss of example i.

    Squared norms and inner products are float64, and they are finite if the gradients are finite.

    Attributes:
      losses: {task: the losses, [B]}.
      squares: {variable: its part of the squared norm |g_i|^2, [B]}.
      task_squares: {task: the squared norm of the gradient of the task's loss alone, [B]}.
      products: the inner products `<g_i, sum_j g_j>`, [B].
      unknown: the variables whose norms needed a backward pass for each example.
    """

    losses: types.Tensors
    squares: dict[str, tf.Tensor]
    task_squares: dict[str, tf.Tensor]
    products: tf.Tensor
    unknown: Sequence[str]


def measure(
    losses_of: brute_force.Losses,
    batch: Any,
    weigh: Callable[[types.Tensors], types.Tensors],
    by_row: bool = False,
) -> Norms:
    """Return the norms of the examples' gradients with respect to the trainable variables.

    Args:
      losses_of: a function that builds the forward pass, and reuses existing variables; the loss of
        an example must not depend on other examples.
      batch: tensors of B rows, in any nesting of dictionaries and sequences.
      weigh: maps {task: losses [B]} to {task: the weight of the task, a scalar}.
      by_row: True to use a backward pass for each example, for all variables.
    """
    tensors = tf.nest.flatten(batch, expand_composites=True)
    inputs = [tf.identity(tensor) for tensor in tensors]
    losses = losses_of(tf.nest.pack_sequence_as(batch, inputs, expand_composites=True))
    variables = tf1.trainable_variables()
    covered = [] if by_row else variables
    batch_size = tf.size(next(iter(losses.values())))
    gradients = ghost.Gradients(
        list(losses.values()), batch, covered, batch_size, _find_rows(batch)
    )
    # Weights may depend on the losses, but the update treats them as constants.
    weights = {task: tf.stop_gradient(weight) for task, weight in weigh(losses).items()}
    measured = _measure_ghosts(gradients, losses, weights)
    # The variables in `slow_variables` need a backward pass for each of the B examples.
    slow_variables = [
        v for v in variables if by_row or patterns.variable_name(v) in gradients.unknown
    ]
    if slow_variables:
        _add_rows(
            measured, brute_force.norms(losses_of, batch, slow_variables, weights), slow_variables
        )
    # If no trainable variable affects a task, the task has no squares, and `add_n`, which needs at
    # least one summand, gets these zeros.
    zeros = tf.zeros([batch_size], tf.float64)
    return Norms(
        losses=losses,
        squares=measured["squares"],
        task_squares={task: measured["tasks"].get(task, zeros) for task in losses},
        products=tf.add_n([*measured["products"].values(), zeros]),
        unknown=[patterns.variable_name(variable) for variable in slow_variables],
    )


def _find_rows(batch: Any) -> int | None:
    """Return the number of rows of a batch; None if no tensor has a static number of rows."""
    sizes = (tensor.shape[0] for tensor in tf.nest.flatten(batch))
    return next((size for size in sizes if size is not None), None)


def _measure_ghosts(
    gradients: ghost.Gradients, losses: types.Tensors, weights: types.Tensors
) -> dict[str, dict[str, tf.Tensor]]:
    """Measure squared norms by variable and by task, and inner products by variable."""
    back = {task: gradients.cotangents(loss) for task, loss in losses.items()}
    of_tasks = {task: gradients.by_variable(uses) for task, uses in back.items()}
    # Leave out tasks whose losses depend on no trainable variable.
    of_tasks = {task: parts for task, parts in of_tasks.items() if parts}
    if not of_tasks:
        return {"squares": {}, "products": {}, "tasks": {}}
    if len(losses) == 1:  # The gradient of the total is a multiple of the only task's gradient.
        ((task, whole),) = of_tasks.items()
        factor = tf.square(tf.cast(weights[task], tf.float64))
    else:
        # Backward passes are linear, so the cotangents of the weighted sum of the losses follow
        # without another pass.
        whole, factor = gradients.by_variable(_weigh_cotangents(back, weights)), 1.0
        whole |= _sum_gradients(of_tasks, weights)
    names: dict[str, Iterable[str]] = {"squares": whole, "products": whole, "tasks": of_tasks}
    keys = {kind: dict.fromkeys(of) for kind, of in names.items()}

    def stack_values(dtype: tf.DType) -> tf.Tensor:
        """Return all squared norms and inner products as one tensor, in the order of `keys`."""
        squares = {task: _square_norms(parts, dtype) for task, parts in of_tasks.items()}
        of_whole = squares[task] if len(losses) == 1 else _square_norms(whole, dtype)
        casts = {name: gradient_forms.cast_gradients(part, dtype) for name, part in whole.items()}
        values = {
            "squares": of_whole,
            "products": {name: part.products(part.total()) for name, part in casts.items()},
            "tasks": {task: tf.add_n(list(parts.values())) for task, parts in squares.items()},
        }
        return tf.stack(tf.nest.flatten(values))

    # Stack all values in one tensor, so that a single test shows whether a value overflowed.
    flat = tf.unstack(gradients_lib.retry_in_float64(stack_values), len(tf.nest.flatten(keys)))
    measured = tf.nest.pack_sequence_as(keys, flat)
    for kind in ("squares", "products"):
        measured[kind] = {name: factor * part for name, part in measured[kind].items()}
    return measured


def _square_norms(
    parts: Mapping[str, gradient_forms.ExampleGradients], dtype: tf.DType
) -> dict[str, tf.Tensor]:
    return {
        name: gradient_forms.cast_gradients(part, dtype).squared_norms()
        for name, part in parts.items()
    }


def _sum_gradients(
    of_tasks: Mapping[str, Mapping[str, gradient_forms.ExampleGradients]], weights: types.Tensors
) -> dict[str, gradient_forms.Plain]:
    """Return gradients of the weighted total loss, for variables whose task gradients exist.

    Adding up existing gradients costs less than building new gradients.
    """
    parts_by_name: dict[str, list[tuple[tf.Tensor, gradient_forms.ExampleGradients]]] = {}
    for task, gradients in of_tasks.items():
        for name, part in gradients.items():
            parts_by_name.setdefault(name, []).append((weights[task], part))
    plain = {
        name: [(weight, part) for weight, part in parts if isinstance(part, gradient_forms.Plain)]
        for name, parts in parts_by_name.items()
    }
    return {
        name: gradient_forms.weighted_sum(parts)
        for name, parts in plain.items()
        # If the gradients of the tasks differ in form, for example by an outer product, the sum is
        # built from cotangents.
        if len(parts) == len(parts_by_name[name])
    }


def _weigh_cotangents(
    back: dict[str, dict[str, tf.Tensor | None]], weights: types.Tensors
) -> dict[str, tf.Tensor | None]:
    """Return the cotangents of the weighted total loss, from the cotangents of the losses."""
    total: dict[str, tf.Tensor | None] = {}
    for task, cotangents in back.items():
        for use, cotangent in cotangents.items():
            total.setdefault(use, None)
            if cotangent is not None:
                share = weights[task] * tf.convert_to_tensor(cotangent)
                total[use] = share if total[use] is None else total[use] + share
    return total


def _add_rows(
    measured: dict[str, dict[str, tf.Tensor]],
    by_row: tuple[dict[str, tf.Tensor], tf.Tensor],
    variables: Sequence[tf.Variable],
) -> None:
    """Add to `measured` the values that need a backward pass for each example."""
    squares, products = by_row
    for index, variable in enumerate(variables):
        name = patterns.variable_name(variable)
        measured["squares"][name] = squares[""][:, index]
        measured["products"][name] = products[:, index]
    for task in squares.keys() - {""}:
        total = tf.reduce_sum(squares[task], axis=1)
        measured["tasks"][task] = measured["tasks"].get(task, 0.0) + total
