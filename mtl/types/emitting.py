"""Columns and networks may emit auxiliary losses while they are built."""

from collections.abc import Mapping
from typing import Protocol

from mtl.types import training


class Emitting(Protocol):
    """A part that may hand auxiliary losses to `mtl.step.outlets` in a training step."""

    @property
    def emitted_losses(self) -> Mapping[str, float | training.Schedule]:
        """The auxiliary losses that the part emits to `mtl.step.outlets`, {name: weight}."""
        return {}

    @property
    def are_emitted_rows_apart(self) -> bool:
        """True if the emitted loss of a row depends only on that row."""
        return True
