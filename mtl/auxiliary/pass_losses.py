"""Adds auxiliary losses to the forward passes of a model.

extension = pass_losses.PassLosses(model, training=True)     # a `types.PassExtension`
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mtl import types
from mtl.auxiliary import activations as activations_lib
from mtl.auxiliary import emitted, row_losses
from mtl.deferred import tf
from mtl.step import outlets


class PassLosses(types.PassExtension):
    """Computes the auxiliary losses of a forward pass.

    Args:
      model: the `model.MultiTaskModel`.
      training: False for evaluation mode, in which losses that need random draws are 0.
    """

    def __init__(self, model: Any, training: bool):
        self._parts: list[types.AuxiliaryLoss] = list(model.built_losses)
        self._training = training
        self._is_mixed = training and model.mixing is not None
        self._emitted: types.Tensors = {}

    @contextlib.contextmanager
    def around_network(self) -> Iterator[Mapping[str, Any]]:
        """Collect the losses that columns and network emit."""
        with outlets.collect_losses() as self._emitted:
            yield {}

    def add_losses(
        self, activations: activations_lib.Activations, encoded: types.Tensors
    ) -> dict[str, row_losses.RowLosses]:
        """Compute each auxiliary loss of the pass; see `types.PassExtension`."""
        of_pass = dataclasses.replace(activations, emitted=self._emitted)
        if not self._training:
            return self._infer(of_pass)
        show = _show_mixed(of_pass, encoded) if self._is_mixed else None
        return row_losses.compute(self._parts, of_pass, show)

    def _infer(self, activations: types.Activations) -> dict[str, row_losses.RowLosses]:
        parts = [part for part in self._parts if emitted.is_inferred(part, self._emitted)]
        losses = row_losses.compute(parts, activations)
        nothing = row_losses.RowLosses(tf.zeros([1]), tf.zeros([1]))
        return {part.name: losses.get(part.name, nothing) for part in self._parts}


def _show_mixed(
    activations: activations_lib.Activations, encoded: types.Tensors
) -> Callable[[types.AuxiliaryLoss], types.Activations]:
    """Choose the activations that auxiliary losses read in a step that mixes rows.

    Args:
      activations: the activations of the mixed rows.
      encoded: the encoded columns before mixing, {column: [B, D] or [B, H, W, C]}.

    Returns:
      A function that returns the activations that a given auxiliary loss reads. All losses with
      `reads_features` share a second pass, over the rows before mixing. An auxiliary loss without
      `reads_features` reads the activations of the mixed rows, without features and labels.
    """

    @functools.cache
    def run_plain() -> types.Activations:
        return activations.run(encoded)

    def show(part: types.AuxiliaryLoss) -> types.Activations:
        if types.read_member(part, types.AuxiliaryLoss, "reads_features"):
            return run_plain()
        return activations_lib.withhold_rows(activations, part.name)

    return show
