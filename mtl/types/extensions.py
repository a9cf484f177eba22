"""What a feature does in the graph of a training step, from outside of it."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from mtl.types import values

Forward: TypeAlias = Callable[[values.Tensors, values.Tensors], Any]
"""Takes features and labels of a part of the batch, and returns its `whole_batch.ForwardPass`."""


class StepExtension:
    """Acts in one training step while that is being built; each member does nothing by default.

    A part of a model brings one by a property `step_extension`, a callable that takes the model,
    the features and the labels of the step and returns the extension. Parts that give the same
    callable share one extension. On several replicas each builds its own.

    Attributes:
      sees_gradients: whether it looks at gradients before the update does.
    """

    sees_gradients = False

    def enter(self) -> contextlib.AbstractContextManager[object]:
        """Return a context around all that is built of the step."""
        return contextlib.nullcontext()

    def wrap_forward(self, forward: Forward) -> Forward:
        """Return what builds the forward pass of a part of the batch; it may be called often."""
        return forward

    def around_network(self) -> contextlib.AbstractContextManager[Mapping[str, Any]]:
        """Return a context around columns, network and heads of a forward pass.

        It yields {name: tensors}, filled at its end, which are added up over the parts of the
        batch: see `whole_batch.WholeBatch.sum_watched`.
        """
        return contextlib.nullcontext({})

    def around_update(self, found: Any, batch: Any) -> contextlib.AbstractContextManager[object]:
        """Return a context around the update, whose UPDATE_OPS run before any weight moves.

        Args:
          found: a `balanced.Balanced`, with the gradients of the whole batch.
          batch: the parts of the batch, a `whole_batch.WholeBatch` of plain losses.
        """
        return contextlib.nullcontext()

    def after_update(self, moved: tf.Operation) -> tf.Operation:
        """Return the op of the step, from the op that moves the weights."""
        return moved


MakeExtension: TypeAlias = Callable[[Any, values.Tensors, values.Tensors], StepExtension]
"""Takes the model, features [B, ...] and labels [B, ...] of the step that is being built."""
