"""Auxiliary losses that columns and networks add by `mtl.step.outlets.add_loss`."""

from __future__ import annotations

import dataclasses
from typing import Any

from mtl import checks, types
from mtl.auxiliary import base
from mtl.deferred import tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Emitted(base.Base):
    """The sum of all losses that columns and networks have added under a name.

    Attributes:
      are_rows_apart: True if the loss of a row does not depend on other rows.
    """

    are_rows_apart: bool = True  # type: ignore[override]

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return the losses of rows, [B]."""
        checks.one_of(f"emitted loss {self.name!r}", self.name, activations.emitted)
        return activations.emitted[self.name]


def is_inferred(part: types.AuxiliaryLoss, emitted: types.Tensors) -> bool:
    """Return True if an auxiliary loss can be computed in evaluation mode.

    Args:
      part: the auxiliary loss, which must not need random draws.
      emitted: {name: losses of rows [B]} that columns and networks have added. An `Emitted` can be
        computed only if its name is one of the names in `emitted`.
    """
    draws = types.read_member(part, types.AuxiliaryLoss, "needs_draws")
    return not draws and (not isinstance(part, Emitted) or part.name in emitted)


def find_losses(parts: Any) -> list[Emitted]:
    """List the losses that objects of a model, such as networks, declare as `emitted_losses`.

    Args:
      parts: an object such as a network or a head, or several objects in lists and maps. Objects in
        the settings of an object are searched as well.

    Returns:
      One loss for each declared name. Parts that declare the same name share one loss, which is a
      sum.

    Raises:
      UserError: two parts declare different weights for the same name.
    """
    weights: dict[str, Any] = {}
    compared: set[str] = set()
    for part in types.walk_parts(parts):
        for name, weight in types.read_member(part, types.Emitting, "emitted_losses").items():
            where, rule = f"the weight of the emitted loss {name!r}", "be the same in all parts"
            is_same = weights.setdefault(name, weight) == weight
            checks.require(is_same, where, rule, [weights[name], weight])
            if not types.read_member(part, types.Emitting, "are_emitted_rows_apart"):
                compared.add(name)
    return [
        Emitted(name=name, weight=weight, are_rows_apart=name not in compared)
        for name, weight in weights.items()
    ]
