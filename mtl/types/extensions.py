"""Extensions add a feature to the graph of a training step, from outside of its code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from mtl.deferred import tf
from mtl.types import values

Forward: TypeAlias = Callable[[values.Tensors, values.Tensors], Any]
"""Takes features and labels of a part of the batch; returns its `whole_batch.ForwardPass`."""


class StepExtension:
    """Acts on a training step while it is built; each member does nothing by default.

    A part of a model may have a property `step_extension`: a function that takes the model, the
    features and the labels of the step and returns the extension. Parts with the same function
    share an extension. Each replica builds its own extensions.

    Attributes:
      sees_gradients: True if it reads gradients before the update.
    """

    sees_gradients = False

    def enter(self) -> contextlib.AbstractContextManager[object]:
        """Return a context around the building of the whole step."""
        return contextlib.nullcontext()

    def wrap_forward(self, forward: Forward) -> Forward:
        """Return a function that builds the forward pass of a part; it may run several times."""
        return forward

    def around_network(self) -> contextlib.AbstractContextManager[Mapping[str, Any]]:
        """Return a context around columns, network and heads of a forward pass.

        It yields {name: tensors}, and fills it at its end. The tensors are summed over the parts of
        the batch: see `whole_batch.WholeBatch.sum_watched`.
        """
        return contextlib.nullcontext({})

    def around_update(self, found: Any, batch: Any) -> contextlib.AbstractContextManager[object]:
        """Return a context around the update, whose UPDATE_OPS run before any weight moves.

        Args:
          found: a `balanced.Balanced`, with the gradients of the whole batch.
          batch: the parts of the batch, a `whole_batch.WholeBatch` of plain losses.
        """
        return contextlib.nullcontext()

    def check_update(
        self,
        losses: values.Tensors,
        gradients: Sequence[values.Gradient],
        step: tf.Tensor,
        unless: tf.Tensor | bool,
    ) -> Sequence[tf.Operation]:
        """Return ops that fail when run if the step must not move any weight.

        Args:
          losses: {task: scalar}.
          gradients: the gradients before the update clips them.
          step: scalar, the global step, for a message.
          unless: bool scalar; True lets the step through.
        """
        del losses, gradients, step, unless
        return ()

    def mask_gradients(
        self, gradients: Sequence[values.Connected], variables: Sequence[tf.Variable]
    ) -> Sequence[values.Connected]:
        """Return N gradients, with 0 for the entries of N variables that do not move.

        It runs before the global norm is taken, and after each of `Update.transforms`.
        """
        del variables
        return gradients

    def see_update(
        self, gradients: Sequence[values.Connected], variables: Sequence[tf.Variable]
    ) -> None:
        """See N gradients as the optimizer gets them, before any of N variables moves."""

    def after_update(self, moved: tf.Operation) -> tf.Operation:
        """Add ops behind the update.

        Args:
          moved: the op that moves the weights.

        Returns:
          The op of the step; it must depend on `moved`.
        """
        return moved


MakeExtension: TypeAlias = Callable[[Any, values.Tensors, values.Tensors], StepExtension]
"""Takes the model, features [B, ...] and labels [B, ...] of the step; returns its extension."""
