"""The protocol of columns and networks that add auxiliary losses to training."""

from collections.abc import Mapping
from typing import Protocol

from mtl.types import training


class Emitting(Protocol):
    """A column or network that may pass auxiliary losses to `mtl.step.outlets` in training."""

    @property
    def emitted_losses(self) -> Mapping[str, float | training.Schedule]:
        """The auxiliary losses that the part passes to `mtl.step.outlets`, {name: weight}."""
        return {}

    @property
    def are_emitted_rows_apart(self) -> bool:
        """True if the auxiliary loss of each row does not depend on other rows of the batch."""
        return True
