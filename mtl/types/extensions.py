"""Extensions add optional features to the graph of a training step, or of a forward pass."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from mtl import checks
from mtl.deferred import tf
from mtl.types import values

Forward: TypeAlias = Callable[[values.Tensors, values.Tensors], Any]
"""A function of the features and labels of some rows that returns a `whole_batch.ForwardPass`."""


class Optional:
    """The base class of parts whose methods are optional; refuses a misspelt method.

    If misspelt methods were allowed, a method with a misspelt name would never be called.
    """

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        refuse_misspelt(cls)


def refuse_misspelt(part: type) -> None:
    """Fail if a public method of a class is named almost like a method of its base classes.

    Args:
      part: the class; only methods that it defines itself are checked.

    Raises:
      UserError: a method seems to be misspelt; the error names the similar method.
    """
    bases = [base for base in part.__mro__[1:] if base.__module__.startswith(_CALLERS)]
    known = set().union(*map(_list_public, bases))
    own = {name for name in _list_public(part) if callable(vars(part)[name])}
    # Names of one word, such as "save", resemble many names of other methods, so only names with
    # "_" are compared.
    missing = [name for name in known - own if "_" in name]
    for name in own - known:
        rule = "be a method of its base class, or begin with '_'"
        for similar in difflib.get_close_matches(name, missing, 1, _SIMILAR):
            fix = f"Did you mean {similar!r}?"
            checks.fail(f"a method of {part.__name__}", rule, name, fix)


def _list_public(part: type) -> list[str]:
    return [name for name in vars(part) if not name.startswith("_")]


_SIMILAR = 0.85  # Misspelt names, such as "see_updates", exceed this similarity.
_CALLERS = ("mtl.", "tensorflow")  # Packages that call methods by name.


class StepExtension(Optional):
    """Changes the graph of a training step; by default, each member changes nothing.

    A part of a model may have a property `step_extension`: a function that takes the model, the
    features and the labels of the step and returns the extension. Parts whose `step_extension` is
    the same function share one extension. Each replica builds separate extensions.

    Attributes:
      sees_gradients: True if the extension reads gradients before the update.
    """

    sees_gradients = False

    def enter(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which the graph of the whole step is built."""
        return contextlib.nullcontext()

    def wrap_forward(self, forward: Forward) -> Forward:
        """Wrap the function that builds a forward pass.

        Args:
          forward: builds the forward pass of some rows from their features and labels.

        Returns:
          A function like `forward`, with the same arguments and the same kind of result. A step may
          call the function several times, once for each slice of the batch.
        """
        return forward

    def around_network(self) -> contextlib.AbstractContextManager[Mapping[str, Any]]:
        """Return a context in which columns, network and heads of a forward pass are built.

        The context yields a dict, and fills it with {name: tensors} at the exit.
        `whole_batch.WholeBatch.sum_watched` sums the tensors of the dict over the slices of the
        batch.
        """
        return contextlib.nullcontext({})

    def around_update(self, found: Any, batch: Any) -> contextlib.AbstractContextManager[object]:
        """Return a context around the update; UPDATE_OPS added in it run before any weight changes.

        Args:
          found: a `balanced.Balanced`, with the gradients of the whole batch.
          batch: the slices of the batch, a `whole_batch.WholeBatch` with the losses before
            weighting.
        """
        return contextlib.nullcontext()

    def check_update(
        self,
        losses: values.Tensors,
        gradients: Sequence[values.Gradient],
        step: tf.Tensor,
        unless: tf.Tensor | bool,
    ) -> Sequence[tf.Operation]:
        """Return ops that fail, when run, if this step must not change any weight.

        Args:
          losses: {task: scalar}.
          gradients: the gradients before the update clips them.
          step: scalar, the global step, for error messages.
          unless: bool scalar; if True, the ops do not fail.
        """
        del losses, gradients, step, unless
        return ()

    def mask_gradients(
        self, gradients: Sequence[values.Connected], variables: Sequence[tf.Variable]
    ) -> Sequence[values.Connected]:
        """Zero the gradients of weights that must not change.

        The update masks gradients before it measures the global norm, and after each of
        `Update.transforms`.

        Args:
          gradients: N gradients, dense or sparse.
          variables: the N variables of the gradients.

        Returns:
          N gradients, with 0 for the entries that must not change.
        """
        del variables
        return gradients

    def see_update(
        self, gradients: Sequence[values.Connected], variables: Sequence[tf.Variable]
    ) -> None:
        """Read the gradients that the optimizer gets, before any variable changes.

        Args:
          gradients: N gradients, dense or sparse.
          variables: the N variables of the gradients.
        """

    def after_update(self, moved: tf.Operation) -> tf.Operation:
        """Add ops that run after the update.

        Args:
          moved: the op that updates the weights.

        Returns:
          The op that completes the step; it must run after `moved`.
        """
        return moved


ComputeLosses: TypeAlias = Callable[[values.Tensors, values.Tensors], values.Tensors]
"""A function of logits {task: [B, C]} and labels that returns the losses, {task: scalar}."""


class PassExtension(Optional):
    """Changes a forward pass of the model; by default, each member changes nothing.

    Each forward pass has separate extensions, so an extension may keep tensors between its calls. A
    forward pass calls the methods of an extension in the order in which this class defines them.

    Attributes:
      has_samples: False if the pass cannot compute the losses of every S-th row alone.
    """

    has_samples = True

    def around_network(self) -> contextlib.AbstractContextManager[Mapping[str, Any]]:
        """Return a context around columns, network and heads; see `StepExtension`."""
        return contextlib.nullcontext({})

    def change_inputs(self, encoded: values.Tensors) -> values.Tensors:
        """Return the inputs of the network.

        Args:
          encoded: the encoded columns, {column: [B, D] or [B, H, W, C]}.
        """
        return encoded

    def add_losses(self, activations: Any, encoded: values.Tensors) -> Mapping[str, Any]:
        """Compute losses in addition to the losses of the tasks.

        Args:
          activations: the outputs of the network, an `activations.Activations`.
          encoded: the encoded columns, as in `change_inputs`.

        Returns:
          {name: `row_losses.RowLosses`}.
        """
        del activations, encoded
        return {}

    def wrap_losses(self, compute: ComputeLosses) -> ComputeLosses:
        """Wrap the function that computes the losses of the tasks.

        Args:
          compute: the function of logits and labels.

        Returns:
          A function with the same arguments and the same kind of result.
        """
        return compute


MakeExtension: TypeAlias = Callable[[Any, values.Tensors, values.Tensors], StepExtension]
"""A function of model, features [B, ...] and labels [B, ...] that returns a step's extension."""
