"""What watches a training: a hook of tf.estimator, made for each graph.

A setting holds a part that makes hooks, and not a hook, because one part may train several times.
"""

import abc
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf


class Steps(Protocol):
    """What a session call gives: it runs one step, or several in a loop.

    `steps[name]` is the float32 scalar of a name, such as `steps["income/loss"]`.
    """

    @property
    def step(self) -> tf.Tensor:
        """The global step after the call, an int64 scalar."""

    @property
    def values(self) -> tf.Tensor:
        """What is watched of the last step of the call, float32 [M]."""

    @property
    def names(self) -> Sequence[str]:
        """The M names, those of the scalars in TensorBoard."""

    @abc.abstractmethod
    def __getitem__(self, name: str) -> tf.Tensor:
        """Add an op to the graph, so before the session begins."""


class Hook(Protocol):
    """Makes the `SessionRunHook` that watches a training, in the process that saves it.

    `after_run` comes after each session call. What a hook fetches is read from `Steps`: a tensor of
    the network lies in a loop, where no hook can fetch it.
    """

    @property
    def every_steps(self) -> int:
        """A session call ends at each multiple of this step, so that the hook sees it."""
        return 1

    @abc.abstractmethod
    def __call__(self, steps: Steps) -> tf.compat.v1.train.SessionRunHook:
        """Make the hook of a graph, which may still add ops."""
