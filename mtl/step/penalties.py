"""Computes terms of REGULARIZATION_LOSSES that depend on rows, if a batch is divided into parts.

penalties.add_of_means(compute, means)      # in a network: the term compute(means)

A term of REGULARIZATION_LOSSES must be a scalar that depends only on weights, or a mean over the
rows of a forward pass. To add a term that is a function of means over the rows, such as a variance,
call `add_of_means` with the means that the function reads. With `add_of_means`, every term of
REGULARIZATION_LOSSES is computed from all rows of the batch, even if slices or replicas divide the
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mtl.deferred import tf, tf1
from mtl.tf_internals import graphs


class Penalty(NamedTuple):
    """A term of the loss that depends on the rows of one part of the batch.

    Attributes:
      means: float tensors in any nesting, each a mean over the rows of one part of the batch.
      compute: a function from means over the whole batch to the term; None if the term is the mean
        itself.
    """

    means: Any
    compute: Callable[[Any], tf.Tensor] | None = None


def add_of_means(compute: Callable[[Any], tf.Tensor], means: Any) -> None:
    """Add a term that is a function of means over rows to REGULARIZATION_LOSSES.

    Args:
      compute: a function from tensors, nested as `means`, to a float32 scalar.
      means: float tensors in any nesting, each a mean over the rows of the forward pass.
    """
    value = compute(means)
    tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, value)
    tf1.get_collection_ref(_OF_MEANS).append((value, Penalty(means, compute)))


def take(before: int = 0, rows: Any = None) -> list[Penalty]:
    """Remove the terms that depend on given rows from REGULARIZATION_LOSSES, and return them.

    Terms that depend only on weights stay in REGULARIZATION_LOSSES.

    Args:
      before: the number of terms in REGULARIZATION_LOSSES before the forward pass of the rows was
        built; these terms stay.
      rows: the tensors that hold the rows, in any nesting; None removes all terms after the first
        `before` ones.
    """
    terms = tf1.get_collection_ref(tf1.GraphKeys.REGULARIZATION_LOSSES)
    penalties = {id(value): penalty for value, penalty in tf1.get_collection_ref(_OF_MEANS)}
    # A term may be an object that computes its value when it is converted to a tensor: see
    # `_is_tensor`. The replica that added the term as an object converts this object to a tensor.
    # If another replica converted the object, the tensor would depend on the variables of the other
    # replica.
    terms[before:] = map(tf.convert_to_tensor, terms[before:])
    row_terms = [term for term in terms[before:] if rows is None or graphs.depends_on(term, rows)]
    ids = set(map(id, row_terms))
    # Terms are compared by id, since `==` between tensors builds an op.
    terms[before:] = [term for term in terms[before:] if id(term) not in ids]
    return [penalties.get(id(term), Penalty(term)) for term in row_terms]


def change_terms(before: int, change: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """Replace terms of REGULARIZATION_LOSSES.

    Args:
      before: the number of terms that stay: all terms from this index on are replaced.
      change: a function from a term, or from a mean that a term of `add_of_means` reads, to the
        tensor that replaces it.
    """
    terms = tf1.get_collection_ref(tf1.GraphKeys.REGULARIZATION_LOSSES)
    of_means = tf1.get_collection_ref(_OF_MEANS)
    penalties = {id(value): penalty for value, penalty in of_means}
    for index in range(before, len(terms)):
        penalty = penalties.get(id(terms[index]))
        if penalty is None or penalty.compute is None:
            if _is_tensor(terms[index]):
                terms[index] = change(terms[index])
            continue
        means = tf.nest.map_structure(change, penalty.means)
        terms[index] = penalty.compute(means)
        of_means.append((terms[index], Penalty(means, penalty.compute)))


def _is_tensor(term: Any) -> bool:
    # The regulariser of `get_variable` may add an object in place of a tensor. Such an object in
    # place of a tensor computes its value when it is used, and the value depends only on the
    # regularised variable.
    return isinstance(term, tf.Tensor)


def share_terms(
    terms: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
) -> tuple[list[tf.Tensor], list[tf.Variable]]:
    """Return the penalty terms and the variables of the first replica of this process.

    All replicas build one graph. Only the first replica has some of the penalty terms, because it
    creates the variables together with their regularisers. Each replica has a copy of each
    variable; all copies are equal, and so are the gradients of the penalty terms on all replicas.

    Args:
      terms: the penalty terms of all replicas, a scalar each.
      variables: N variables.

    Returns:
      The penalty terms that depend on the first replica's copies of the N variables, and these
      copies.
    """
    strategy = tf.distribute.get_strategy()
    firsts = [strategy.experimental_local_results(variable)[0] for variable in variables]
    handles = [variable.handle for variable in firsts]
    return [term for term in terms if graphs.depends_on(term, handles)], firsts


# TensorFlow saves only collections with string keys. The key of this collection is a tuple, so
# saved graphs do not have the collection.
_OF_MEANS = ("penalties of means",)
