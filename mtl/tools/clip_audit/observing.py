"""Lets a function observe the training steps of a model, through a `StepExtension`."""

import contextlib
import dataclasses
from typing import Any

from mtl import types
from mtl.step import outlets


@dataclasses.dataclass(frozen=True)
class Observing:
    """Makes an extension of a training step, which calls a function that observes the step.

    Attributes:
      observe: the function; it adds ops to UPDATE_OPS, which run before the weights change.
    """

    observe: types.Observe

    def __call__(
        self, model: Any, features: types.Tensors, labels: types.Tensors
    ) -> "ObservedStep":
        """Return the extension of a training step; called while the graph of the step is built."""
        return ObservedStep(self.observe, features, labels)


class ObservedStep(types.StepExtension):
    """Calls a function with the rows of a training step and the weights of its tasks."""

    # With this flag, pruning masks its variables, so that the observer gets masked gradients.
    sees_gradients = True

    def __init__(self, observe: types.Observe, features: types.Tensors, labels: types.Tensors):
        self._observe, self._rows = observe, (features, labels)

    def around_update(self, found: Any, batch: Any) -> contextlib.AbstractContextManager[object]:
        """Observe the step before its update, and drop the summaries that the observer adds."""
        with outlets.drop_summaries():
            self._observe(*self._rows, found.weights)
        # Nothing has to happen around the update: it depends on the UPDATE_OPS of the observer.
        return contextlib.nullcontext()
