"""Reads attributes of parts of a model, such as heads, and lists the parts of other parts."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from mtl import checks
from mtl.deferred import tf
from mtl.types import values


def read_member(part: object, protocol: type, name: str) -> Any:
    """Return a member of a part, or the protocol's default if the part lacks the member.

    Args:
      part: any part; its class need not derive from the protocol.
      protocol: the protocol that declares the member, such as `Head`.
      name: the name of the member, a method or a property.

    Returns:
      The value of a property, or a bound method.
    """
    if hasattr(part, name):
        return getattr(part, name)
    return inspect.getattr_static(protocol, name).__get__(part, type(part))


class EntrywisePart(Protocol):
    """A part that works if the variables of equal tasks are stored as one: `variables.stacks`."""

    @property
    def is_entrywise(self) -> bool:
        """True if the part ignores names of variables, and computes each entry independently.

        If your own class overrides `is_entrywise`, return False for subclasses, because a subclass
        may use names of variables, or compute an entry from several entries.
        """
        return False


def are_entrywise(parts: Iterable[object]) -> bool:
    """Return True if `EntrywisePart.is_entrywise` is True for all parts.

    Args:
      parts: any parts; a part without the property `is_entrywise` counts as False.
    """
    return all(read_member(part, EntrywisePart, "is_entrywise") for part in parts)


def walk_parts(part: Any) -> Iterator[Any]:
    """Yield an object of a model, such as a network, and all such objects in its settings.

    Args:
      part: a part, or a list, tuple or map of parts. Values that are not parts, such as numbers,
        are skipped.

    Yields:
      All parts, each before the parts in its settings; a part that occurs twice is yielded twice.
    """
    if isinstance(part, Mapping):
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        for item in part:
            if type(item) not in _PLAIN:  # For speed: lists may hold millions of numbers.
                yield from walk_parts(item)
    elif checks.is_part(part):
        yield part
        for field in dataclasses.fields(part):
            yield from walk_parts(getattr(part, field.name, None))


def check_parts(parts: object, member: str, owner: object) -> None:
    """Call a check, such as `check_model`, of each part that defines this check.

    Args:
      parts: a part, or a list or map of parts; parts nested in settings are checked, too.
      member: the method to call: "check_model" takes the model, and "check_experiment" takes the
        experiment. The method must raise a UserError if the object that defines it does not suit
        the rest of the model or experiment.
      owner: the argument of the method, the model or the experiment.
    """
    for part in walk_parts(parts):
        check = getattr(part, member, None)
        if check is not None:
            check(owner)


def count_rows(fields: values.Tensors) -> tf.Tensor:
    """Count the rows of a batch.

    Args:
      fields: {field: [B, ...]}, at least one field; a field may be ragged.

    Returns:
      The number of rows B, an int32 scalar.
    """
    first = next(iter(fields.values()))
    is_list = isinstance(first, tf.RaggedTensor)
    return tf.cast(first.nrows(), tf.int32) if is_list else tf.shape(first)[0]


_PLAIN = frozenset({bool, bytes, float, int, str, type(None)})
