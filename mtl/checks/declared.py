"""Settings whose annotation says which values they take.

@checks.dataclass
class Convolution:
    filters: checks.Count = 32                                  # 1, 2, ...
    sizes: Annotated[Sequence[checks.Count], checks.Filled("hold a size")] = (3,)
    padding: Annotated[str, checks.OneOf(["same", "valid"])] = "same"

Convolution(filters=0)     # UserError: Convolution.filters must be at least 1, got 0.

A check is a function (where, value) that raises a `UserError`, such as `checks.positive`, or an
instance of a class in `mtl.checks.rules`. The types int, float, str and bool, and lists and maps of
them, are checks, too. `X | None` also allows None. `__post_init__` runs after these checks and
holds only rules about several settings.

We weighed attrs and pydantic. Pydantic converts values: 3 would silently become 3.0 or True. Both
would replace our errors. Users' parts and `dataclasses.replace` need plain dataclasses.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from typing_extensions import dataclass_transform

from mtl.checks import rules, values
from mtl.checks.rules import Check

_Class = TypeVar("_Class", bound=type)
_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Collection)
_WORDED = (rules.Has, rules.Is, rules.Map, rules.Part, types.FunctionType)
_MAPS = (dict, collections.abc.Mapping)
_TYPES = {
    bool: rules.Is(bool, "be True or False"),
    int: rules.Is(int, "be a whole number"),
    float: rules.Is((int, float), "be a number"),
    str: rules.Is(str, "be a text"),
}

# Functions have no text of their own; instances of `rules` have `__str__`.
_TOLD: dict[Check, str] = {
    values.positive: "above 0",
    values.bound: "above 0",
    values.rate: "in [0, 1)",
    values.unique: "each once",
}
_LISTED = {
    int: "be a list of whole numbers",
    float: "be a list of numbers",
    str: "be a list of texts",
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def dataclass(cls: _Class) -> _Class:
    """Make a class a frozen dataclass, keyword-only, that checks its settings as they declare."""
    return typing.cast(_Class, dataclasses.dataclass(frozen=True, kw_only=True)(_check_first(cls)))


def _check_first(cls: _Class) -> _Class:
    """Let `__post_init__` of a class begin with the checks that its own settings declare."""
    # Not `cls.__post_init__`: a base's method runs as `super()`, with the checks of the base.
    own = vars(cls).get("__post_init__")

    def check(self: Any) -> None:
        name_place = getattr(self, "_where", None)
        for setting, checked in _find_checks(cls).items():
            kind = type(self).__name__
            where = name_place(setting) if name_place else f"{kind}.{setting}"
            checked(where, getattr(self, setting))
        follow = own.__get__(self) if own else getattr(super(cls, self), "__post_init__", None)
        if follow is not None:
            follow()

    if own is not None:
        functools.update_wrapper(check, own)
    cls.__post_init__ = check  # type: ignore[attr-defined]
    return cls


@functools.cache
def _find_checks(cls: type) -> dict[str, Check]:
    """Return {setting: its check} of a class, without those of its bases."""
    found = {}
    for setting, annotation in read_annotations(cls).items():
        checked = _combine_checks(annotation)
        if checked is not None:
            found[setting] = checked
    return found


def read_annotations(cls: type) -> dict[str, Any]:
    """Return {setting: its type} of a class, without the settings of its bases.

    Types of TensorFlow are left out: it need not be imported yet.
    """
    scope = vars(sys.modules[cls.__module__])
    found = {}
    for setting, annotation in vars(cls).get("__annotations__", {}).items():
        if not isinstance(annotation, str):
            found[setting] = annotation
        # `from __future__ import annotations` leaves annotations as texts.
        elif not re.search(r"\bClassVar\b|\btf1?\.", annotation):
            found[setting] = eval(annotation, scope)
    return found


def _combine_checks(annotation: Any) -> Check | None:
    """Return one check for a type, or None where any value passes."""
    listed = list(_list_checks(annotation))
    if not listed:
        return None

    def check(where: str, value: Any) -> None:
        for each in listed:
            each(where, value)

    return check


def _list_checks(annotation: Any) -> Iterator[Check]:
    """Yield the checks of a type, from its whole values to their parts."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _TYPES:
        yield _TYPES[annotation]
    elif origin is Annotated:
        # What a value is comes first: as the annotation words it, or else as its type does.
        worded = [one for one in annotation.__metadata__ if isinstance(one, _WORDED)]
        yield from worded
        yield from _list_checks(arguments[0])
        yield from (one for one in annotation.__metadata__ if one not in worded)
    elif origin in (typing.Union, types.UnionType):
        yield from map(_unless_none, _list_union(arguments))
    # A text is a sequence, too: `_Each` accepts lists and tuples alone.
    elif origin in _LISTS and (each := _combine_checks(arguments[0])):
        kind = getattr(arguments[0], "__origin__", arguments[0])  # int of Annotated[int, ...]
        yield _Each(each, _LISTED.get(kind, "be a list"))
    elif origin in _MAPS:
        key, value = map(_combine_checks, arguments)
        checked = _Items(key, value, arguments[0] is str)
        if checked.key or checked.value:
            yield checked


def _list_union(kinds: Iterable[Any]) -> Iterator[Check]:
    """Yield the checks of `X | None`; of several types, no check could tell which one is meant."""
    some = [kind for kind in kinds if kind is not type(None)]
    if len(some) == 1 and len(some) < len(tuple(kinds)):
        yield from _list_checks(some[0])


def _unless_none(check: Check) -> Check:
    return lambda where, value: None if value is None else check(where, value)


@dataclasses.dataclass(frozen=True, eq=False)
class _Each:
    check: Check
    rule: str

    def __call__(self, where: str, value: Any) -> None:
        values.is_a(where, value, (list, tuple), self.rule)
        for each in value:
            self.check(where, each)


@dataclasses.dataclass(frozen=True, eq=False)
class _Items:
    key: Check | None
    value: Check | None
    has_texts: bool

    def __call__(self, where: str, value: Any) -> None:
        if self.has_texts:
            values.mapping(where, value, "be a map from texts")
        else:
            values.is_a(where, value, Mapping, "be a map")
        for key, each in value.items():
            if self.key:
                self.key(where, key)
            if self.value:
                self.value(f"{where}[{key!r}]", each)


def takes_class(cls: type, setting: str) -> bool:
    """Return True if a setting of a part takes a class, which the part itself calls."""
    annotations = (vars(base).get("__annotations__", {}).get(setting) for base in cls.__mro__)
    # As texts: the annotations of a user's class may name what only a type checker imports.
    return any(f"{rules.PartClass.__name__}(" in str(annotation) for annotation in annotations)


def describe_settings(cls: type) -> dict[str, str]:
    """Return {setting: its type, and which values it takes} of a part, such as `int, at least 1`.

    A setting is left out if its annotation says all.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for setting, annotation in read_annotations(base).items():
            # A subclass that declares a setting anew replaces its place and its text.
            found.pop(setting, None)
            told = _describe_type(annotation)
            if told is not None:
                found[setting] = told
    return found


def _describe_type(annotation: Any) -> str | None:
    """Return the text of a type and of its checks, or None if it has no check."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    inner = [_describe_type(argument) for argument in arguments]
    if origin is Annotated:
        told = [_TOLD.get(check) or str(check) for check in annotation.__metadata__]
        # Others say nothing that a reader needs: an object's address, or the fields of a check.
        told = [text for text in told if text and not re.match(r"\w+\(|<", text)]
        return ", ".join([inner[0] or _name_type(arguments[0]), *told])
    if not any(inner):
        return None
    named = [told or _name_type(kind) for told, kind in zip(inner, arguments, strict=True)]
    if origin in (typing.Union, types.UnionType):
        is_long = any(", " in one for one in named)
        return (", or " if is_long else " | ").join(named)
    return f"{annotation.__origin__.__name__}[{', '.join(named)}]"


def _name_type(kind: Any) -> str:
    if kind is type(None):
        return "None"
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " | ".join(map(_name_type, typing.get_args(kind)))
    return re.sub(r"(?:\w+\.)+(?=\w)", "", inspect.formatannotation(kind))
