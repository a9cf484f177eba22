"""Lists the items that a run shows in TensorBoard, and the steps at which an item is due.

board = board_lib.Board(settings, summary_steps=100)
board.due_items                       # {Due(every=100): ["weights"]}
"""

from __future__ import annotations

import functools

from mtl.deferred import tf
from mtl.tools.tensorboard import due as due_lib
from mtl.tools.tensorboard import settings as settings_lib


class Board:
    """The TensorBoard items of a training.

    Args:
      settings: the settings of `TensorBoard`, which switch its items on.
      summary_steps: the number of steps between two summaries of the run.

    Attributes:
      graph: the graph of the forward pass; None before the graph is built, or if the graph is not
        shown.
    """

    def __init__(self, settings: settings_lib.Items, summary_steps: int):
        self.settings, self._every = settings, summary_steps
        self.graph: tf.compat.v1.GraphDef | None = None

    @functools.cached_property
    def due_items(self) -> dict[due_lib.Due, list[str]]:
        """{training steps: the names of the TensorBoard items that are computed at these steps}."""
        items: dict[due_lib.Due, list[str]] = {}
        for name in self.settings.list_on(settings_lib.OF_STEPS):
            items.setdefault(self.settings.due_of(name, self._every), []).append(name)
        return items

    @property
    def due_every(self) -> tuple[int, ...]:
        """Numbers of steps; a session call has to end at every multiple of each of the numbers."""
        # The items that evaluations write do not limit session calls, because evaluations run
        # between session calls.
        return tuple(sorted({due.every for due in self.due_items if due.every}))

    @property
    def due_at(self) -> tuple[int, ...]:
        """Single steps at which a session call has to end."""
        return tuple(sorted({step for due in self.due_items for step in due.at}))

    def list_due(self, step: int) -> list[str]:
        """Return the names of the items of evaluations that are due at a step."""
        on = self.settings.list_on(settings_lib.OF_EVALUATIONS)
        # True means every evaluation, so it counts as a period of one step.
        return [name for name in on if self.settings.due_of(name, 1).includes(step)]
