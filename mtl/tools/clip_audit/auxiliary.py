"""Measures the auxiliary losses of single rows, in the forward pass of a clip audit.

measured = auxiliary.Measured(model)
losses = measured.measure(activations, first)          # {name: [B]}
measured.left_out                                      # {name: why its values are missing}
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from mtl import types
from mtl.auxiliary import emitted, row_losses
from mtl.deferred import tf
from mtl.example_gradients import proof
from mtl.tools.clip_audit import twins

if TYPE_CHECKING:
    from mtl import model as model_lib
    from mtl.auxiliary import activations as activations_lib

_COMPARES = "it compares the rows of a batch with each other"
_DRAWS = "it compares passes with different dropout, and the audit uses no dropout"
_TRAINS = "its layer emits it only in training"


class Measured:
    """The auxiliary losses that have a value for each row, in a forward pass as in evaluation.

    Args:
      model: the model with the auxiliary losses.

    Attributes:
      left_out: {name of an auxiliary loss that cannot be measured for single rows: the reason};
        complete after the first call of `measure`.
    """

    def __init__(self, model: model_lib.MultiTaskModel):
        self.left_out: dict[str, str] = {}
        self._parts: list[types.AuxiliaryLoss] = []
        for part in model.built_losses:
            # A loss that compares rows, such as a contrastive loss, has no
            # gradient for a single row.
            if not types.read_member(part, types.AuxiliaryLoss, "are_rows_apart"):
                self.left_out[part.name] = _COMPARES
            elif types.read_member(part, types.AuxiliaryLoss, "needs_draws"):
                self.left_out[part.name] = _DRAWS
            else:
                self._parts.append(part)
        # The mean weights of the whole batch, which the first call of `measure` computes. Passes
        # over single rows also divide by the mean weights of the whole batch.
        self._means: dict[str, tf.Tensor] = {}

    def measure(self, activations: activations_lib.Activations, first: int) -> types.Tensors:
        """Compute the weighted auxiliary losses of rows, {name: [B]}.

        The weight of a row is divided by the mean weight of all rows, so the mean of the rows'
        weighted losses is the auxiliary loss that is trained. If a loss has several parts, they are
        added up. The first call of `measure` measures the whole batch. Later calls measure only
        some rows, and use the mean weights of the whole batch, which the first call has computed.

        Args:
          activations: the activations of a forward pass as in evaluation.
          first: the number of ops in the graph before the forward pass of the `activations`; see
            `twins.reuse_earlier`.
        """
        parts = []
        for part in self._parts:
            if isinstance(part, emitted.Emitted) and part.name not in activations.emitted:
                self.left_out[part.name] = _TRAINS
            else:
                parts.append(part)
        if not parts:
            return {}
        losses = row_losses.compute(parts, _reuse_activations(activations, first))
        return {name: self._weigh_rows(name, rows) for name, rows in losses.items()}

    def _weigh_rows(self, name: str, rows: row_losses.RowLosses) -> tf.Tensor:
        """Return the weighted losses of rows, [B], with the parts of a loss added up."""
        if name not in self._means:
            self._means[name] = tf.reduce_mean(rows.weights, 0)
        # `declare` says that each row belongs to one example, which `proof` cannot find out after a
        # mean over rows. Without `declare`, each example would need a backward pass.
        weights = proof.declare(tf.math.divide_no_nan(rows.weights, self._means[name]))
        weighted = weights * rows.losses
        # [B, parts] -> [B]
        return weighted if weighted.shape.rank == 1 else tf.reduce_sum(weighted, 1)


def _reuse_activations(
    activations: activations_lib.Activations, first: int
) -> activations_lib.Activations:
    """Replace tensors of activations by equal tensors that the training step computes already."""
    inputs, towers, shared = twins.reuse_earlier(
        first,
        # `tf.nest` would drop the attribute `shared` of `Towers`, so list it here; the code below
        # builds the `Towers` again.
        (dict(activations.inputs), dict(activations.towers), list(activations.towers.shared)),
    )
    return dataclasses.replace(activations, inputs=inputs, towers=types.Towers(towers, shared))
