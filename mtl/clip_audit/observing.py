"""An audit of the training steps of a model, as an extension of them."""

import contextlib
import dataclasses
from typing import Any

from mtl import types
from mtl.step import summaries


@dataclasses.dataclass(frozen=True)
class Observing:
    """Has a function observe each training step.

    Attributes:
      observe: adds UPDATE_OPS, which run before the weights move.
    """

    observe: types.Observe

    def __call__(
        self, model: Any, features: types.Tensors, labels: types.Tensors
    ) -> "ObservedStep":
        """Return the extension of the step that is being built."""
        return ObservedStep(self.observe, features, labels)


class ObservedStep(types.StepExtension):
    """Has a function look at the rows of a step, and at the weights of its tasks."""

    sees_gradients = True

    def __init__(self, observe: types.Observe, features: types.Tensors, labels: types.Tensors):
        self._observe, self._rows = observe, (features, labels)

    def around_update(self, found: Any, batch: Any) -> contextlib.AbstractContextManager[object]:
        """Observe the step before its update; summaries of a second pass are dropped."""
        with summaries.drop_summaries():
            self._observe(*self._rows, found.weights)
        return contextlib.nullcontext()
