"""From inputs to a tower for each task, and what mixes the rows of a batch before."""

import abc
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from mtl.types import emitting, values


class Mixture(NamedTuple):
    """Rows of a batch, each mixed with a partner.

    Attributes:
      inputs: {column: [B, ...]}, mixed where a column takes part and the row's own elsewhere.
      partners: [B] int32, a permutation: the partner of each row.
      share: scalar in [0, 1], which of each row is its own; that of its partner is 1 - share.
    """

    inputs: values.Tensors
    partners: tf.Tensor
    share: tf.Tensor


class Mixing(Protocol):
    """Mixes the rows of a batch in training, between columns and network.

    The loss of a task becomes `share loss(labels) + (1 - share) loss(labels of the partners)`. As
    partners are a permutation, both losses have the same sum of weights below them.
    """

    @abc.abstractmethod
    def __call__(self, inputs: values.Tensors) -> Mixture:
        """Draw partners and mix, {column: [B, D] or [B, H, W, C]} -> the mixture."""

    @property
    def is_even(self) -> bool:
        """Whether all of a row is mixed by the share, and no part of it is the partner's alone."""
        return True


class Towers(dict[str, tf.Tensor]):
    """{task: [B, H]}, with the outputs that tasks share and all of them are made of.

    A task whose label is a map gets a map, [B, H, W, C].

    Attributes:
      shared: tensors [B, ...] that separate what tasks share from what each has of its own; a
        network takes them from `precision.share_output`, which have 32 bits.
    """

    def __init__(self, towers: values.Tensors, shared: Sequence[tf.Tensor] = ()):
        super().__init__(towers)
        self.shared = tuple(shared)


class Network(emitting.Emitting, Protocol):
    """The shared network; its variables live in `network`.

    It asks `get_variable` for them in the type of its inputs, which need not be float32.
    """

    @abc.abstractmethod
    def __call__(self, inputs: values.Tensors, tasks: Sequence[str], training: bool) -> Towers:
        """Run the network, {column: [B, D] or [B, H, W, C]} -> {task: [B, H]}."""

    @property
    def starts_from_run(self) -> bool:
        """Whether a new run of it makes no sense without a warm start."""
        return False

    def hold(self, freezing: Any) -> Any:
        """Return the `Freezing` of a run, with what this network needs to stay as it is."""
        return freezing

    def check_start(self, names: Collection[str], read: Callable[[str], Any]) -> None:
        """Fail unless a run can go on from a warm start.

        Args:
          names: of all variables of the run.
          read: name -> the saved value that a variable starts from; None if it starts as without a
            warm start.
        """
        del names, read
