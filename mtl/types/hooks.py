"""Protocols for your own `SessionRunHook`s in training.

The setting `Experiment.hooks` lists parts that build hooks, and not hooks, because a run may build
several graphs, and each graph needs its own hooks.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Protocol

from mtl.deferred import tf


class Steps(Protocol):
    """The scalars that a hook may fetch from a session call of one or several training steps.

    `steps[name]` is a float32 scalar, such as `steps["income/loss"]`.
    """

    @property
    def step(self) -> tf.Tensor:
        """The global step after the call, an int64 scalar."""

    @property
    def values(self) -> tf.Tensor:
        """The M scalars of the last step of the session call, float32 [M]."""

    @property
    def names(self) -> Sequence[str]:
        """The M names of the scalars, as in TensorBoard."""

    @abc.abstractmethod
    def __getitem__(self, name: str) -> tf.Tensor:
        """Return the scalar with this name; call this method only before the session begins.

        Each call of this method adds an op to the graph.
        """


class Hook(Protocol):
    """Builds a `SessionRunHook` for training, in the process that saves checkpoints.

    TensorFlow calls `after_run` after each session call. A hook must fetch tensors of `Steps`,
    because the tensors of the network are inside a loop of the graph and cannot be fetched.
    """

    @property
    def every_steps(self) -> int:
        """The hook's period in steps: a session call ends, and the hook runs, at each multiple."""
        return 1

    @abc.abstractmethod
    def __call__(self, steps: Steps) -> tf.compat.v1.train.SessionRunHook:
        """Build the hook for a graph, to which this method may add ops."""
