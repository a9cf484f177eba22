"""Networks build a tower for each task; mixing mixes the rows of a batch before them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

from mtl.deferred import tf
from mtl.types import emitting, values


class Mixture(NamedTuple):
    """Rows of a batch, each mixed with a partner.

    Attributes:
      inputs: {column: [B, ...]}; columns that do not take part keep the values of the row.
      partners: [B] int32, a permutation: the partner of each row.
      share: scalar in [0, 1], the share of the row itself; its partner has the share 1 - share.
    """

    inputs: values.Tensors
    partners: tf.Tensor
    share: tf.Tensor


class Mixing(Protocol):
    """Mixes the rows of a batch in training, between columns and network.

    The loss of a task becomes `share loss(labels) + (1 - share) loss(labels of the partners)`. Both
    losses are divided by the same sum of weights, because partners are a permutation.
    """

    @abc.abstractmethod
    def __call__(self, inputs: values.Tensors) -> Mixture:
        """Draw a partner for each row, and mix.

        Args:
          inputs: the encoded columns, {column: [B, D] or [B, H, W, C]}.

        Returns:
          The mixture.
        """

    @property
    def is_even(self) -> bool:
        """True if the share mixes all values; False if some values come only from the partner."""
        return True


class Towers(dict[str, "tf.Tensor"]):
    """{task: [B, H]}, with the shared outputs from which all towers are computed.

    A task whose label is a map gets a map, [B, H, W, C].

    Attributes:
      shared: tensors [B, ...] that separate the shared part of the network from the part of each
        task; a network gets them, with 32 bits, from `precision.share_output`.
    """

    def __init__(self, towers: values.Tensors, shared: Sequence[tf.Tensor] = ()):
        super().__init__(towers)
        self.shared = tuple(shared)


class Network(emitting.Emitting, Protocol):
    """The shared network; its variables live in `network`.

    It must create them by `get_variable` in the type of its inputs, which may not be float32.
    """

    @abc.abstractmethod
    def __call__(self, inputs: values.Tensors, tasks: Sequence[str], training: bool) -> Towers:
        """Build the network, or build it again with the same variables.

        Args:
          inputs: the encoded columns, {column: [B, D] or [B, H, W, C]}, sorted by name.
          tasks: the names of the tasks that get a tower.
          training: True in a training step: dropout is on, and batch norm uses the moments of the
            batch.

        Returns:
          {task: [B, H]}, or {task: [B, H, W, C]} for labels that are maps, as `Towers`.
        """

    @property
    def starts_from_run(self) -> bool:
        """True if a new run needs a warm start."""
        return False

    def hold(self, freezing: Any) -> Any:
        """Return the `Freezing` of a run, which also freezes all that this network needs frozen."""
        return freezing

    def check_start(self, names: Collection[str], read: Callable[[str], Any]) -> None:
        """Fail unless a run can start from a warm start.

        Args:
          names: the names of all variables of the run.
          read: name -> the saved value from which a variable starts; None without a saved value.
        """
        del names, read
