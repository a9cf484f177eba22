"""Lets a function observe the training steps of a model, as a `StepExtension`."""

import contextlib
import dataclasses
from typing import Any

from mtl import types
from mtl.step import outlets


@dataclasses.dataclass(frozen=True)
class Observing:
    """Makes an extension for each training step, which calls a function.

    Attributes:
      observe: the function; it adds UPDATE_OPS, which run before the weights move.
    """

    observe: types.Observe

    def __call__(
        self, model: Any, features: types.Tensors, labels: types.Tensors
    ) -> "ObservedStep":
        """Return the extension of the step that is being built."""
        return ObservedStep(self.observe, features, labels)


class ObservedStep(types.StepExtension):
    """Calls a function with the rows of a step and the weights of its tasks."""

    # Pruning keeps its variables watched then, so that the observer's gradients reach them.
    sees_gradients = True

    def __init__(self, observe: types.Observe, features: types.Tensors, labels: types.Tensors):
        self._observe, self._rows = observe, (features, labels)

    def around_update(self, found: Any, batch: Any) -> contextlib.AbstractContextManager[object]:
        """Observe the step before its update, and drop the summaries of the second pass."""
        with outlets.drop_summaries():
            self._observe(*self._rows, found.weights)
        # The update depends on the UPDATE_OPS that the observer has added.
        return contextlib.nullcontext()
