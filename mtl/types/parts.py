"""Helpers for any part: read its members, find the parts in it, count the rows of its batch."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from mtl import checks
from mtl.deferred import tf
from mtl.types import values


def read_member(part: object, protocol: type, name: str) -> Any:
    """Return a member of a part, or its default if the part lacks it.

    Args:
      part: any part; its class need not derive from the protocol.
      protocol: the protocol that declares the member, such as `Head`.
      name: the name of the member.

    Returns:
      A value for a property, and a bound method for a method.
    """
    if hasattr(part, name):
        return getattr(part, name)
    return inspect.getattr_static(protocol, name).__get__(part, type(part))


class EntrywisePart(Protocol):
    """A part under which equal tasks may share variables; see `mtl.variables.stacks`."""

    @property
    def is_entrywise(self) -> bool:
        """True if the part ignores the names of variables, and treats them entry by entry.

        Return False for subclasses of your class, because they may do anything.
        """
        return False


def are_entrywise(parts: Iterable[object]) -> bool:
    """Return True if all parts are entrywise."""
    return all(read_member(part, EntrywisePart, "is_entrywise") for part in parts)


def walk_parts(part: Any) -> Iterator[Any]:
    """Yield a part, or the parts of a list or map, and all parts that their settings hold."""
    if isinstance(part, Mapping):
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        for item in part:
            if type(item) not in _PLAIN:  # There may be millions, such as counts of items.
                yield from walk_parts(item)
    elif checks.is_part(part):
        yield part
        for field in dataclasses.fields(part):
            yield from walk_parts(getattr(part, field.name, None))


def check_parts(parts: object, member: str, owner: object) -> None:
    """Let each part check that it suits its owner, if it has such a member.

    Args:
      parts: a part, or a list or map of parts; parts in their settings are checked, too.
      member: the method to call: "check_model" takes the model, and "check_experiment" takes the
        experiment. It raises a UserError if the part does not suit another part.
      owner: the model or the experiment.
    """
    for part in walk_parts(parts):
        check = getattr(part, member, None)
        if check is not None:
            check(owner)


def count_rows(fields: values.Tensors) -> tf.Tensor:
    """Count the rows of a batch, {field: [B, ...]} -> B, an int32 scalar; needs a field."""
    first = next(iter(fields.values()))
    is_list = isinstance(first, tf.RaggedTensor)
    return tf.cast(first.nrows(), tf.int32) if is_list else tf.shape(first)[0]


_PLAIN = frozenset({bool, bytes, float, int, str, type(None)})
