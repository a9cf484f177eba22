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
        """True if each row's auxiliary loss depends on no other row of the batch."""
        return True
