"""Computes the gradient of every task, and the inner products and sums that surgery needs.

leaf = task_gradients.Leaf.from_gradients([gradient of task 0, gradient of task 1, None])
gramian = task_gradients.compute_gramian([leaf], num_tasks=3)      # inner products, [T, T] float64
update = leaf.combine(weights)                           # sum_t weights[t] gradient[t]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from mtl import checks, types
from mtl.balancing import factors, short_gradients, stacked_passes
from mtl.deferred import tf, tf1
from mtl.step import gradients as gradients_lib
from mtl.step import replicas, whole_batch
from mtl.variables import patterns

Indexed = dict[int, types.Gradient]
Columns = Sequence[Sequence[types.Gradient]]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The gradients of several tasks by one variable, or by one tensor of the representation.

    For an embedding table, a `Leaf` has gradients only of the rows that some task has looked up, in
    the same order for all tasks. Because rows without a gradient are left out, no tensor of a
    `Leaf` is as large as the embedding table.

    Attributes:
      tasks: the indices of the S tasks whose losses depend on the variable or tensor.
      rows: the gradients of the S tasks, [S, ...]; for a table, the gradients of its U looked-up
        rows, [S, U, ...].
      ids: the numbers of the U table rows that some task has looked up, [U]; None for a dense
        gradient.
      shape: the shape of the table; None for a dense gradient.
    """

    tasks: tuple[int, ...]
    rows: tf.Tensor
    ids: tf.Tensor | None = None
    shape: tf.Tensor | None = None

    @classmethod
    def from_gradients(cls, gradients: Sequence[types.Gradient]) -> Leaf | factors.Factors:
        """Stack the tasks' gradients by one variable or tensor, for the same rows of a table.

        Args:
          gradients: the gradients of T tasks, dense or sparse; None for a task whose loss does not
            depend on the variable. At least one gradient must not be None.

        Returns:
          A `Leaf` of the gradients; or `Factors`, which has the same methods and is cheaper for
          some matrices.
        """
        tasks = tuple(task for task, value in enumerate(gradients) if value is not None)
        values = [value for value in gradients if value is not None]
        if all(isinstance(value, tf.IndexedSlices) for value in values):
            ids, rows = _align_rows(values)
            return cls(tasks, rows, ids, values[0].dense_shape)
        # If one task looks up rows and another task reads the whole table, all gradients become
        # dense.
        dense = [tf.convert_to_tensor(value) for value in values]
        return factors.Factors.from_gradients(tasks, dense) or cls(tasks, tf.stack(dense))

    def multiply_pairs(self) -> tf.Tensor:
        """Compute the inner products of all pairs of tasks, [S, S] float64.

        In float64, products of float32 numbers are exact and cannot overflow.
        """
        flat = tf.cast(tf.reshape(self.rows, [len(self.tasks), -1]), tf.float64)
        return tf.linalg.matmul(flat, flat, transpose_b=True)

    def combine(self, weights: tf.Tensor) -> tf.Tensor | tf.IndexedSlices:
        """Compute the sum of the tasks' gradients, each multiplied by the weight of its task.

        Args:
          weights: [T], the weights of all tasks, of which the leaf uses the weights of its S tasks.

        Returns:
          A gradient: dense, or IndexedSlices for a table.
        """
        leaf_weights = tf.cast(tf.gather(weights, self.tasks), self.rows.dtype)
        flat = tf.reshape(self.rows, [len(self.tasks), -1])
        total = tf.linalg.matvec(flat, leaf_weights, transpose_a=True)
        return self.to_gradient(tf.reshape(total, tf.shape(self.rows)[1:]))

    def to_gradient(self, values: tf.Tensor) -> tf.Tensor | tf.IndexedSlices:
        """Return values in the form of these gradients: dense, or IndexedSlices for a table.

        Args:
          values: a tensor [...] in the shape of one task's gradient; for a table, a tensor [U, ...]
            with one row for each of the `ids`.
        """
        values = tf.ensure_shape(values, self.rows.shape[1:])
        return values if self.ids is None else tf.IndexedSlices(values, self.ids, self.shape)


def _align_rows(slices: Sequence[tf.IndexedSlices]) -> tuple[tf.Tensor, tf.Tensor]:
    """Align S sparse gradients of a table; return the row numbers [U] and the rows [S, U, ...]."""
    indices = [part.indices for part in slices]
    if len(set(map(_find_origin, indices))) == 1:
        ids, slot = tf.unique(indices[0])
        slots = [slot] * len(slices)
    else:
        ids, all_slots = tf.unique(tf.concat(indices, 0))
        slots = tf.split(all_slots, list(map(tf.size, indices)))
    sums = [
        tf.math.unsorted_segment_sum(part.values, task_slot, tf.size(ids))
        for part, task_slot in zip(slices, slots, strict=True)
    ]
    return ids, tf.stack(sums)


def _find_origin(indices: tf.Tensor) -> str | tuple:
    """Return a key that is equal for two tensors of indices if their flattened values are equal.

    Tasks that share a lookup in a table have equal keys, so the unique ids of the lookup are
    computed only once.
    """
    if indices.op.type in ("Reshape", "Identity"):
        return _find_origin(indices.op.inputs[0])
    if indices.op.type == "ConcatV2" and _is_first_axis(indices.op.inputs[-1]):
        return tuple(_find_origin(part) for part in indices.op.inputs[:-1])
    return indices.name


def _is_first_axis(axis: tf.Tensor) -> bool:
    """Return True if the tensor `axis` is the constant 0, the first axis.

    If tensors are concatenated along the first axis, the flat result has their flat values one
    after another. A concatenation along an axis other than the first mixes the values of the
    tensors.
    """
    return tf.get_static_value(axis) == 0


def compute_gramian(leaves: Sequence[Leaf], num_tasks: int) -> tf.Tensor:
    """Sum the inner products of the tasks' gradients over all variables or tensors.

    Args:
      leaves: leaves that each have the gradients of some tasks by one variable or tensor.
      num_tasks: T, the number of all tasks.

    Returns:
      The inner products, float64 [T, T]; 0 for tasks without a gradient.
    """
    total = tf.zeros([num_tasks, num_tasks], tf.float64)
    for leaf in leaves:
        owner_matrix = tf.one_hot(leaf.tasks, num_tasks, dtype=tf.float64)  # [S, T]
        total += tf.linalg.matmul(
            owner_matrix, leaf.multiply_pairs() @ owner_matrix, transpose_a=True
        )
    return total


@dataclasses.dataclass(frozen=True)
class TaskGradients:
    """The gradients of every task, and the variables that tasks share.

    Attributes:
      losses: the losses of T tasks.
      variables: N variables.
      representation: the outputs of the network that tasks share; empty if gradients are taken by
        variables.
      at_representation: for each tensor of the representation, the gradients of T tasks; None for a
        task whose loss does not depend on the tensor.
      at_variables: for each of N variables, the gradients of T tasks, without the paths from losses
        to variables that lead through the representation.
      shared: the indices of the variables on which the losses of several tasks depend.
      samples: a function from a number S to the losses of S samples of the batch's rows; None if
        the rows cannot be sampled.
    """

    losses: Sequence[tf.Tensor]
    variables: Sequence[tf.Variable]
    representation: Sequence[tf.Tensor]
    at_representation: Columns
    at_variables: Columns
    shared: Sequence[int]
    samples: types.Samples | None = None

    @classmethod
    def from_losses(
        cls,
        losses: Sequence[tf.Tensor],
        variables: Sequence[tf.Variable],
        representation: Sequence[tf.Tensor] = (),
    ) -> TaskGradients:
        """Build a backward pass for each task; TensorFlow runs only the ops whose results are used.

        Args:
          losses: T scalars.
          variables: N variables.
          representation: outputs of the network that tasks share, at which backward passes end;
            empty for backward passes to the variables.
        """
        at = differentiate_tasks(losses, [*representation, *variables], representation)
        split = len(representation)
        # The list `below` holds the gradients of the representation by the variables. The code
        # checks only which entries are None; no step computes their values.
        below = [None] * len(variables)
        if representation:
            below = tf.gradients(list(representation), list(variables))
        # All variables that affect the representation are shared, even if a task also depends on
        # them by another path.
        shared = [
            n
            for n, gradients in enumerate(at[split:])
            if below[n] is not None or sum(value is not None for value in gradients) > 1
        ]
        return cls(losses, variables, representation, at[:split], at[split:], shared)

    def own_gradient(self, index: int) -> types.Gradient:
        """Return the gradient by a variable that only one task uses; None if no task uses it."""
        return next((value for value in self.at_variables[index] if value is not None), None)

    def select_shared(self, where: str, chosen: Iterable[str]) -> list[int]:
        """Return the indices of the shared variables that match any of the patterns.

        Raises:
          UserError: a pattern matches no shared variable.
        """
        shared = [self.variables[n] for n in self.shared]
        rule = "match a variable that trains for several tasks"
        groups = [patterns.select_variables(where, pattern, shared, rule) for pattern in chosen]
        names = {patterns.variable_name(variable) for variables in groups for variable in variables}
        return [n for n in self.shared if patterns.variable_name(self.variables[n]) in names]

    def list_uncompared(self, compared: Sequence[int] = ()) -> list[int]:
        """Return the numbers of the tasks that train shared variables, but are not compared.

        An uncompared task is, for example, a loss with a separate forward pass. The representation
        of the first pass does not affect the loss, so the loss has no gradient by the
        representation, and would get the weight 0.

        Args:
          compared: the indices of the variables by which gradients are taken; not used if there is
            a representation.
        """
        columns = self.at_representation or [self.at_variables[n] for n in compared]
        shared = [self.at_variables[n] for n in self.shared]
        return [
            task
            for task in range(len(self.losses))
            if any(column[task] is not None for column in shared)
            and all(column[task] is None for column in columns)
        ]

    def list_leaves(self, compared: Sequence[int] = ()) -> list[Leaf]:
        """Return a `Leaf` of gradients for each tensor of the representation, or each variable.

        Args:
          compared: the indices of the variables by which gradients are taken; not used if there is
            a representation.

        Raises:
          UserError: a tensor of the representation affects no loss.
        """
        if self.representation:
            return self._at_representation
        passes = stacked_passes.StackedPasses([self.at_variables[n] for n in compared])
        return build_leaves([passes.build(place) for place in range(len(compared))])

    def multiply(self, compared: Sequence[int]) -> tuple[tf.Tensor, dict[int, Leaf]]:
        """Compute inner products of gradients by some variables; return them and built gradients.

        For a variable whose gradients are not built, the weighted sum of the tasks' gradients needs
        a backward pass of the weighted losses.

        Args:
          compared: the indices of the variables by which gradients are taken.

        Returns:
          The inner products, float64 [T, T], and {index of a variable: leaf}, for the variables
          whose gradients were built.
        """
        columns = [self.at_variables[n] for n in compared]
        # If a gradient is not built, the pass of the weighted losses takes two more matrix
        # products, for the gradients by the layer's input and by its weight.
        gramian, leaves = multiply_columns(columns, len(self.losses), products_elsewhere=2)
        return gramian, {compared[place]: leaf for place, leaf in leaves.items()}

    @replicas.once
    def _at_representation(self) -> list[Leaf]:
        for place, column in zip(self.representation, self.at_representation, strict=True):
            is_reached = any(gradient is not None for gradient in column)
            checks.require(is_reached, "Towers.shared", "affect a loss", place.name)
        return build_leaves(self.at_representation)

    def differentiate_anew(self, compared: Sequence[int]) -> Columns:
        """Build the gradients again in the current graph, such as in a branch that rarely runs.

        Args:
          compared: the indices of the variables by which gradients are taken; not used if there is
            a representation.

        Returns:
          For each tensor of the representation or, without a representation, for each of the
          variables, a column of T gradients; None if a loss does not depend on the tensor or
          variable.
        """
        places = self.representation or [self.variables[n] for n in compared]
        return differentiate_tasks(self.losses, places, self.representation)

    def differentiate_weighted(self, weights: tf.Tensor, chosen: Sequence[int], stop=()) -> Indexed:
        """Differentiate `sum_t weights[t] loss[t]` by some variables, in one backward pass.

        Args:
          weights: the weights of the T losses, float64 [T], treated as constants.
          chosen: the indices of variables.
          stop: tensors at which backward passes end, the `stop_gradients` of `tf.gradients`.

        Returns:
          {index: gradient}.
        """
        # The weights depend on gradients. Without `stop_gradient`, TensorFlow would compute second
        # derivatives.
        weights = tf.stop_gradient(weights)
        total = tf.add_n(
            [loss * tf.cast(weights[t], loss.dtype) for t, loss in enumerate(self.losses)]
        )
        variables = [self.variables[n] for n in chosen]
        gradients = tf.gradients(total, variables, stop_gradients=list(stop)) if variables else []
        return dict(zip(chosen, gradients, strict=True))

    def continue_below(
        self, combined: Sequence[types.Gradient], weights: tf.Tensor
    ) -> list[types.Gradient]:
        """Compute the gradients of all N variables, given combined gradients of the representation.

        One backward pass carries the combined gradients to the variables that affect the
        representation. Paths from the losses to shared variables that bypass the representation add
        gradients of the weighted losses.

        Args:
          combined: for each tensor of the representation, the combination of the tasks' gradients
            by this tensor.
          weights: the weights of the T losses, float64 [T], for the paths from losses to shared
            variables that do not lead through the representation.

        Returns:
          The gradients by the N variables; None for a variable that affects no loss.
        """
        variables = [self.variables[n] for n in self.shared]
        below = tf.gradients(list(self.representation), variables, grad_ys=list(combined))
        # The backward pass of the weighted losses stops at the representation, because `below` has
        # the gradients that go through the representation.
        beside = self.differentiate_weighted(weights, self.shared, self.representation).items()
        sums = {
            n: gradients_lib.add_gradients(part, second)
            for (n, part), second in zip(beside, below, strict=True)
        }
        return self.complete(sums)

    def complete(self, of_shared: Indexed) -> list[types.Gradient]:
        """Return the gradients by all variables, from the given gradients by the shared variables.

        Args:
          of_shared: {index of a variable: gradient}, for all variables that several tasks share.

        Returns:
          The gradients by the N variables; None for a variable that affects no loss.
        """
        everything = range(len(self.variables))
        return [of_shared[n] if n in of_shared else self.own_gradient(n) for n in everything]


@dataclasses.dataclass(frozen=True)
class BatchGradients:
    """The gradients of every task, over all parts of a batch.

    Attributes:
      batch: the batch, divided into parts.
      variables: N variables.
      representation: a function that chooses, from the shared outputs of a part, the tensors at
        which the backward passes of single tasks end.
    """

    batch: whole_batch.WholeBatch
    variables: Sequence[tf.Variable]
    representation: Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]]

    @replicas.once
    def first(self) -> TaskGradients:
        """Return the tasks' gradients in the first part of the batch."""
        return self._differentiate_losses(self.batch.first)

    def sum(self, function: Callable[[TaskGradients], Any], update: bool = False) -> Any:
        """Sum a function of the tasks' gradients over all parts; see `WholeBatch.sum`.

        Args:
          function: a function from the tasks' gradients of a part to tensors, IndexedSlices and
            None, in any nesting.
          update: True if this sum also runs the UPDATE_OPS of the batch's slices.
        """

        def of_part(forward: whole_batch.ForwardPass) -> Any:
            # The loop over slices of the batch builds new ops, so the gradients of a slice must be
            # built again within the loop.
            return function(
                self.first if forward is self.batch.first else self._differentiate_losses(forward)
            )

        return self.batch.sum(of_part, update)

    def _differentiate_losses(self, forward: whole_batch.ForwardPass) -> TaskGradients:
        representation = self.representation(forward.shared)
        tasks = TaskGradients.from_losses(
            list(forward.losses.values()), self.variables, representation
        )
        return dataclasses.replace(tasks, samples=forward.samples)

    def sum_gradients(self) -> TaskGradients:
        """Return the tasks' gradients by the variables, summed over the whole batch."""
        at_variables = self.sum(lambda tasks: tasks.at_variables, update=True)
        return dataclasses.replace(self.first, at_variables=at_variables)

    def complete(
        self,
        tasks: TaskGradients,
        compared: Sequence[int],
        combined: Sequence[types.Gradient],
        weights: tf.Tensor,
    ) -> list[types.Gradient]:
        """Return combined gradients; variables without one get gradients of the weighted losses.

        Args:
          tasks: the tasks' gradients over the whole batch, a result of `sum_gradients`.
          compared: the indices of the variables with a combined gradient.
          combined: the combined gradients by these variables, in the order of `compared`.
          weights: the weights of the T losses, float64 [T]; other shared variables get the
            gradients of the losses with these weights.
        """
        rest = [n for n in tasks.shared if n not in compared]
        rest_gradients = (
            self.sum(lambda tasks: tasks.differentiate_weighted(weights, rest)) if rest else {}
        )
        return tasks.complete({**rest_gradients, **dict(zip(compared, combined, strict=True))})

    def rare_gramian(
        self,
        where: str,
        every_steps: int,
        compared: Sequence[int],
        deciding: Callable[[TaskGradients], TaskGradients] = lambda tasks: tasks,
        is_due: tf.Tensor | None = None,
    ) -> Callable[[], tf.Tensor]:
        """Return a function that builds inner products of gradients in a rarely run branch.

        Args:
          where: the class with the setting `every_steps`, for error messages.
          every_steps: the number of steps from one run of the branch to the next; 1 if the returned
            function is called outside of a branch.
          compared: the indices of the variables whose gradients are compared.
          deciding: a function that replaces the losses of a part of the batch by the losses that
            determine the weights.
          is_due: a bool scalar, True in the steps that run the branch; by default the global steps
            that are multiples of `every_steps`.

        Raises:
          UserError: gradients are compared on the parameters, and replicas would have to
            communicate in a branch.
        """
        count = len(deciding(self.first).losses)
        needs_no_branch = self.batch.ignores_replicas or replicas.count() == 1 or every_steps == 1

        def differentiate_part(tasks: TaskGradients) -> Columns:
            # A tensor from outside of a `tf.cond` is computed at every step, so gradients are built
            # inside.
            return deciding(tasks).differentiate_anew(compared)

        if not self.first.representation:
            rule = "be 1 if replicas decide together"
            fix = f'Or set {where}.on = "representation", which exchanges less data.'
            checks.require(needs_no_branch, f"{where}.every_steps", rule, every_steps, fix)
            return lambda: multiply_columns(self.sum(differentiate_part), count)[0]
        if needs_no_branch:
            return lambda: self.sum(
                lambda tasks: multiply_columns(differentiate_part(tasks), count)[0]
            )
        # Each replica computes its products only in due steps, but the sum over replicas runs in
        # every step.
        one_replica = dataclasses.replace(self, batch=self.batch.without_replicas())
        products, zeros = (
            one_replica.rare_gramian(where, every_steps, compared, deciding),
            [count, count],
        )
        if is_due is None:
            is_due = tf.equal(tf1.train.get_global_step().read_value() % every_steps, 0)
        everywhere = replicas.sum_over_replicas(
            tf.cond(is_due, products, lambda: tf.zeros(zeros, tf.float64))
        )
        return lambda: everywhere


def build_leaves(columns: Columns) -> list[Leaf]:
    """Stack the tasks' gradients by each of several variables or tensors in a `Leaf`.

    Args:
      columns: for each of N variables or tensors, the gradients of T tasks; None for a task without
        a gradient. For each variable or tensor, at least one task must have a gradient.

    Returns:
      N leaves.
    """
    # `Factors` has the methods of `Leaf`.
    return cast(list[Leaf], [Leaf.from_gradients(column) for column in columns])


def shorten_gradients(
    gradients: Sequence[types.Gradient], products_elsewhere: int = 0
) -> list[Leaf] | None:
    """Replace the gradients of T tasks by shorter matrices with the same inner products.

    Args:
      gradients: the gradients of T tasks by one variable; None for a task without a gradient.
      products_elsewhere: the number of further matrix products, each as costly as one gradient,
        that the caller needs later if the gradients are not built.

    Returns:
      `Leaf` objects whose inner products add up to the inner products of the gradients; None if a
      gradient is sparse or not a single matrix product, or if the shorter matrices cost more than
      the gradients.
    """
    dense = {task: value for task, value in enumerate(gradients) if isinstance(value, tf.Tensor)}
    if len(dense) < sum(value is not None for value in gradients):
        return None
    blocks = short_gradients.shorten_gradients(list(dense.values()), products_elsewhere)
    return None if blocks is None else [Leaf(tuple(dense), rows) for rows in blocks]


def multiply_columns(
    columns: Columns, num_tasks: int, products_elsewhere: int = 0
) -> tuple[tf.Tensor, dict[int, Leaf]]:
    """Add up the inner products of T tasks' gradients by N variables; build only some gradients.

    Args:
      columns: for each of N variables or tensors, the gradients of T tasks.
      num_tasks: T, the number of all tasks.
      products_elsewhere: the number of further matrix products, each as costly as one gradient,
        that the caller needs later for each gradient that is not built.

    Returns:
      The inner products, float64 [T, T], and {index in `columns`: `Leaf`} of the gradients that
      were built.
    """
    passes = stacked_passes.StackedPasses(columns)
    total, built_leaves = tf.zeros([num_tasks, num_tasks], tf.float64), {}
    for place in reversed(range(len(columns))):
        # The backward pass waits for the inner products of a layer before it continues. So only one
        # layer's incoming gradients are in memory.
        with tf.control_dependencies([total]):
            column = passes.build(place)
        leaves = shorten_gradients(column, products_elsewhere)
        if leaves is None:
            leaves = build_leaves([column])
            built_leaves[place] = leaves[0]
        total += compute_gramian(leaves, num_tasks)
    return total, built_leaves


def differentiate_tasks(
    losses: Sequence[tf.Tensor], places: Sequence, stop: Sequence[tf.Tensor] = ()
) -> Columns:
    """Differentiate each of several losses.

    Args:
      losses: T scalars.
      places: N variables or tensors.
      stop: tensors at which backward passes end, the `stop_gradients` of `tf.gradients`.

    Returns:
      For each of the N variables or tensors, the gradients of the T losses; None if a loss does not
      depend on the variable or tensor.
    """
    rows = [tf.gradients(loss, list(places), stop_gradients=list(stop)) for loss in losses]
    return list(zip(*rows, strict=True))
