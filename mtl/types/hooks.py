"""Hooks watch a training: hooks of tf.estimator, made for each graph.

A setting holds a part that makes hooks, not a hook, because the part may train several times.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Protocol

from mtl.deferred import tf


class Steps(Protocol):
    """Tensors of a session call, which runs one step, or several in a loop.

    `steps[name]` is a float32 scalar by its name, such as `steps["income/loss"]`.
    """

    @property
    def step(self) -> tf.Tensor:
        """The global step after the call, an int64 scalar."""

    @property
    def values(self) -> tf.Tensor:
        """The watched scalars of the last step of the call, float32 [M]."""

    @property
    def names(self) -> Sequence[str]:
        """The M names of the scalars, as in TensorBoard."""

    @abc.abstractmethod
    def __getitem__(self, name: str) -> tf.Tensor:
        """Return the scalar of a name; it adds an op, so call it before the session begins."""


class Hook(Protocol):
    """Makes a `SessionRunHook` that watches a training, in the process that saves checkpoints.

    `after_run` runs after each session call. A hook must fetch tensors of `Steps`: it cannot fetch
    tensors of the network, which lie in a loop.
    """

    @property
    def every_steps(self) -> int:
        """The hook's period in steps: a session call ends at each multiple, so the hook sees it."""
        return 1

    @abc.abstractmethod
    def __call__(self, steps: Steps) -> tf.compat.v1.train.SessionRunHook:
        """Make the hook of a graph; it may still add ops to the graph."""
