"""Makes dataclasses whose annotations check the values of their settings.

@checks.dataclass
class Convolution:
    filters: checks.Count = 32                                  # 1, 2, ...
    sizes: Annotated[Sequence[checks.Count], checks.Filled("hold a size")] = (3,)
    padding: Annotated[str, checks.OneOf(["same", "valid"])] = "same"

Convolution(filters=0)     # UserError: Convolution.filters must be at least 1, got 0.

A check is a function (where, value) that raises a `UserError`, such as `checks.positive`, or an
instance of a class in `mtl.checks.rules`. The types int, float, str and bool, and lists and maps of
these types, are checked, too. A setting with the annotation `X | None` also allows None.
`__post_init__` runs after the checks of single settings, and checks only rules about several
settings.

This module replaces attrs and pydantic, which do not suit settings. Pydantic converts values: 3
would silently become 3.0 or True. attrs and pydantic would replace the errors of this project. This
module makes plain dataclasses, because `dataclasses.replace`, and parts that users write, need
plain dataclasses.
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
_KINDS = (rules.Has, rules.Is, rules.Map, rules.Part, types.FunctionType)
_MAPS = (dict, collections.abc.Mapping)
_TYPES = {
    bool: rules.Is(bool, "be True or False"),
    int: rules.Is(int, "be a whole number"),
    float: rules.Is((int, float), "be a number"),
    str: rules.Is(str, "be a text"),
}

# The description of each check that is a function; checks of `mtl.checks.rules` have `__str__`.
_TEXTS: dict[Check, str] = {
    values.positive: "above 0",
    values.bound: "above 0",
    values.rate: "in [0, 1)",
    values.unique: "each once",
}
_LIST_RULES = {
    int: "be a list of whole numbers",
    float: "be a list of numbers",
    str: "be a list of texts",
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def dataclass(cls: _Class) -> _Class:
    """Turn a class into a frozen, keyword-only dataclass that checks its settings."""
    return typing.cast(_Class, dataclasses.dataclass(frozen=True, kw_only=True)(_check_first(cls)))


def _check_first(cls: _Class) -> _Class:
    """Let `__post_init__` of a class begin with checks of the settings that the class declares."""
    # `cls.__post_init__` may belong to a base class, whose method is called through `super()`
    # below.
    post_init = vars(cls).get("__post_init__")

    def check(self: Any) -> None:
        name_place = getattr(self, "_where", None)
        for setting, check_value in _find_checks(cls).items():
            kind = type(self).__name__
            where = name_place(setting) if name_place else f"{kind}.{setting}"
            check_value(where, getattr(self, setting))
        base_init = getattr(super(cls, self), "__post_init__", None)
        follow = post_init.__get__(self) if post_init else base_init
        if follow is not None:
            follow()

    if post_init is not None:
        functools.update_wrapper(check, post_init)
    cls.__post_init__ = check  # type: ignore[attr-defined]
    return cls


@functools.cache
def _find_checks(cls: type) -> dict[str, Check]:
    """Return {setting: its check} of a class, without the settings of base classes."""
    checks_by_setting = {}
    for setting, annotation in read_annotations(cls).items():
        check = _combine_checks(annotation)
        if check is not None:
            checks_by_setting[setting] = check
    return checks_by_setting


def read_annotations(cls: type) -> dict[str, Any]:
    """Return {setting: its type} of a class, without the settings of base classes.

    Settings with types of TensorFlow are left out, because TensorFlow may not be imported yet.
    """
    scope = vars(sys.modules[cls.__module__])
    annotations = {}
    for setting, annotation in vars(cls).get("__annotations__", {}).items():
        if not isinstance(annotation, str):
            annotations[setting] = annotation
        # `from __future__ import annotations` leaves annotations as texts.
        elif not re.search(r"\bClassVar\b|\btf1?\.", annotation):
            annotations[setting] = eval(annotation, scope)
    return annotations


def _combine_checks(annotation: Any) -> Check | None:
    """Return one check for a type, or None if any value passes."""
    checks = list(_list_checks(annotation))
    if not checks:
        return None

    def check(where: str, value: Any) -> None:
        for part_check in checks:
            part_check(where, value)

    return check


def _list_checks(annotation: Any) -> Iterator[Check]:
    """Yield the checks of a type: first of the whole value, then of the items in it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _TYPES:
        yield _TYPES[annotation]
    elif origin is Annotated:
        # Check the type of a value first: by checks in `Annotated`, then by the annotated type
        # itself.
        kinds = [check for check in annotation.__metadata__ if isinstance(check, _KINDS)]
        yield from kinds
        yield from _list_checks(arguments[0])
        yield from (check for check in annotation.__metadata__ if check not in kinds)
    elif origin in (typing.Union, types.UnionType):
        yield from map(_unless_none, _list_union(arguments))
    # `_Each` accepts only lists and tuples, because a text is a sequence, too.
    elif origin in _LISTS and (item_check := _combine_checks(arguments[0])):
        kind = getattr(arguments[0], "__origin__", arguments[0])  # int of Annotated[int, ...]
        yield _Each(item_check, _LIST_RULES.get(kind, "be a list"))
    elif origin in _MAPS:
        key, value = map(_combine_checks, arguments)
        items = _Items(key, value, arguments[0] is str)
        if items.key or items.value:
            yield items


def _list_union(kinds: Iterable[Any]) -> Iterator[Check]:
    """Yield the checks of X for the type `X | None`; yield nothing for a union of several types."""
    types_but_none = [kind for kind in kinds if kind is not type(None)]
    if len(types_but_none) == 1 and len(types_but_none) < len(tuple(kinds)):
        yield from _list_checks(types_but_none[0])


def _unless_none(check: Check) -> Check:
    return lambda where, value: None if value is None else check(where, value)


@dataclasses.dataclass(frozen=True, eq=False)
class _Each:
    check: Check
    rule: str

    def __call__(self, where: str, value: Any) -> None:
        values.is_a(where, value, (list, tuple), self.rule)
        for item in value:
            self.check(where, item)


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
        for key, item in value.items():
            if self.key:
                self.key(where, key)
            if self.value:
                self.value(f"{where}[{key!r}]", item)


def takes_class(cls: type, setting: str) -> bool:
    """Return True if a setting takes a class, whose instances the part builds itself.

    Args:
      cls: the class of the part.
      setting: the name of a setting, which a base class may declare.
    """
    annotations = (vars(base).get("__annotations__", {}).get(setting) for base in cls.__mro__)
    # Search the annotations as texts: some names in them may be imported only for type checkers.
    return any(f"{rules.PartClass.__name__}(" in str(annotation) for annotation in annotations)


def describe_settings(cls: type) -> dict[str, str]:
    """Return {setting: its type and allowed values} of a part, such as `int, at least 1`.

    Settings without a check are left out, because their annotation describes them completely.
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for setting, annotation in read_annotations(base).items():
            # If a subclass declares the setting again, the later declaration counts.
            texts.pop(setting, None)
            text = _describe_type(annotation)
            if text is not None:
                texts[setting] = text
    return texts


def _describe_type(annotation: Any) -> str | None:
    """Return the text of a type and of its checks, or None if it has no check."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    inner = [_describe_type(argument) for argument in arguments]
    if origin is Annotated:
        texts = [_TEXTS.get(check) or str(check) for check in annotation.__metadata__]
        # Leave out a default repr of Python, which shows an object's address or the fields of a
        # check.
        texts = [text for text in texts if text and not re.match(r"\w+\(|<", text)]
        return ", ".join([inner[0] or _name_type(arguments[0]), *texts])
    if not any(inner):
        return None
    names = [text or _name_type(kind) for text, kind in zip(inner, arguments, strict=True)]
    if origin in (typing.Union, types.UnionType):
        is_long = any(", " in name for name in names)
        return (", or " if is_long else " | ").join(names)
    return f"{annotation.__origin__.__name__}[{', '.join(names)}]"


def _name_type(kind: Any) -> str:
    if kind is type(None):
        return "None"
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " | ".join(map(_name_type, typing.get_args(kind)))
    return re.sub(r"(?:\w+\.)+(?=\w)", "", inspect.formatannotation(kind))
