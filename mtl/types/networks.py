"""Protocols of networks, which build a tower for each task, and of mixing, such as mixup."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

from mtl import checks
from mtl.deferred import tf
from mtl.types import emitting, values


class Mixture(NamedTuple):
    """Rows of a batch, each mixed with a partner row.

    Attributes:
      inputs: the inputs of the network, {column: [B, ...]}; in columns that are not mixed, each row
        keeps its own values.
      partners: [B] int32, the index of each row's partner; a permutation.
      share: scalar in [0, 1], the share of the row itself; its partner has the share 1 - share.
    """

    inputs: values.Tensors
    partners: tf.Tensor
    share: tf.Tensor


class Mixing(Protocol):
    """Mixes the encoded rows of a training batch before the network, as in mixup.

    Each row is mixed with a partner, a row of the same batch. The loss of a task becomes `share
    loss(labels) + (1 - share) loss(labels of the partners)`. The losses for the labels of the rows
    and of the partners are divided by the same sum of label weights, because the partners are a
    permutation of the rows.
    """

    @abc.abstractmethod
    def __call__(self, inputs: values.Tensors) -> Mixture:
        """Draw a partner for each row, and mix the rows.

        Args:
          inputs: the encoded columns, {column: [B, D] or [B, H, W, C]}.

        Returns:
          The mixture.
        """

    @property
    def is_even(self) -> bool:
        """True if a mixed value is a mean of two rows; False if some values come from one row."""
        return True


class Towers(dict[str, "tf.Tensor"]):
    """The network's outputs: {task: tower [B, H]}, and the outputs of the layers that tasks share.

    If the label of a task is a map, its tower is also a map, [B, H, W, C].

    Attributes:
      shared: the outputs [B, ...] of the shared layers; `precision.share_output` returns them in
        float32.
    """

    def __init__(self, towers: values.Tensors, shared: Sequence[tf.Tensor] = ()):
        super().__init__(towers)
        is_list = not isinstance(shared, tf.Tensor)
        checks.require(is_list, "types.Towers: shared", "be a list of tensors", shared)
        self.shared = tuple(shared)


class Network(emitting.Emitting, Protocol):
    """Builds a tower for each task; its variables are in the scope `network`.

    A network must create its variables by `get_variable`, in the type of its inputs, which may
    differ from float32.
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
          The towers, {task: [B, H]}, as `Towers`; if the label of a task is a map, its tower is
          [B, H, W, C].
        """

    @property
    def starts_from_run(self) -> bool:
        """True if a new run of this network must start from the weights of an earlier run."""
        return False

    @property
    def ordered_variables(self) -> str:
        """A pattern of the variables that depend on the places of the tasks, not only on names.

        Checkpoints and warm starts with these variables need the tasks in the same order; "" if
        there are no such variables.
        """
        return ""

    def hold(self, freezing: Any) -> Any:
        """Add the variables that this network freezes to the `Freezing` of a run.

        Args:
          freezing: the setting `MultiTaskModel.freezing`, a `freezing.Freezing`.

        Returns:
          A `freezing.Freezing`; by default, `freezing` itself.
        """
        return freezing

    def check_start(self, names: Collection[str], read: Callable[[str], Any]) -> None:
        """Fail if a warm start does not suit the network.

        Args:
          names: the names of all variables of the run.
          read: maps the name of a variable to its saved initial value, or to None.
        """
        del names, read
