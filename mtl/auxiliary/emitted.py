"""Auxiliary losses that columns and networks emit: `mtl.step.emitted` says how."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from mtl import checks, types
from mtl.auxiliary import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class Emitted(base.Base):
    """What a part of the network has emitted under a name."""

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return the losses of rows, [B]."""
        checks.one_of(f"emitted loss {self.name!r}", self.name, activations.emitted)
        return activations.emitted[self.name]


def find_losses(parts: Any) -> list[Emitted]:
    """Return the losses that parts emit, and the parts that their settings hold."""
    weights: dict[str, Any] = {}
    for part in _walk(parts):
        for name, weight in getattr(part, "emitted_losses", {}).items():
            where, rule = f"the weight of the emitted loss {name!r}", "be the same in all parts"
            is_same = weights.setdefault(name, weight) == weight
            checks.require(is_same, where, rule, [weights[name], weight])
    return [Emitted(name=name, weight=weight) for name, weight in weights.items()]


def _walk(part: Any) -> Iterator[Any]:
    """Yield a part, and all parts that its settings hold."""
    if isinstance(part, (list, tuple)):
        for item in part:
            yield from _walk(item)
    elif isinstance(part, Mapping):
        yield from _walk(list(part.values()))
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        yield part
        yield from _walk([getattr(part, field.name) for field in dataclasses.fields(part)])
