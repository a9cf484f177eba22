"""Every setting of every part gets wrong values: a one-line error, or a value of its type.

The cases are the random values that each setting gets after the listed ones.
"""

import collections.abc
import dataclasses
import functools
import math
import random
import re
import types
import typing

import pytest
import tensorflow as tf

from launch import parts
from mtl import checks, heads
from mtl.data import csv
from mtl.heads import softmax
from mtl.optimization import optimizers
from tests.conformance import settings
from tests.fuzz import cases

_NUMBERS = [-1, 0, 1.5, 2**31, 2**63, 2**70, 10**400, 1e300, math.nan, math.inf, True, False]
_TEXTS = ["", "x", "a\0b", "a\nb", "x" * 100_000, b"x"]
_OBJECTS = [optimizers.SGD(learning_rate=0.1), heads.Binary(name="o"), dict, object(), len]
_ATOMS = [None, *_NUMBERS, *_TEXTS, *_OBJECTS]
_VALUES = [
    *_ATOMS,
    *([atom] for atom in _ATOMS),
    *({"x": atom} for atom in _ATOMS),
    *([], {}, (), {1: 2}, {None: None}, ("x",), ["x", "x"], [[]], [{}], {"x": []}, {"x": {}}),
]


def _random_value(draw, depth=3):
    kind = draw.choice(["atom", "list", "map"]) if depth else "atom"
    if kind == "atom":
        return draw.choice(_ATOMS)
    items = [_random_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    keys = draw.choices(["x", "y", "", 1, None, "a\0b"], k=len(items))
    return items if kind == "list" else dict(zip(keys, items, strict=True))


def _fits(annotation, value):
    """Return True if a value has the declared type of the setting, and TensorFlow can hold it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is typing.Any:
        return True
    if origin in (typing.Union, types.UnionType):
        # A category may be True as well, which counts as 1.
        is_truth = isinstance(value, bool) and arguments == (str, int, float)
        return is_truth or any(_fits(argument, value) for argument in arguments)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in (collections.abc.Sequence, tuple):
        is_list = isinstance(value, (list, tuple))
        return is_list and all(_fits(arguments[0], item) for item in value)
    if origin is collections.abc.Mapping:
        is_map = isinstance(value, collections.abc.Mapping)
        return is_map and all(_fits_pair(arguments, item) for item in value.items())
    if annotation in (int, float):
        is_number = isinstance(value, (int, annotation)) and not isinstance(value, bool)
        in_range = -(2**63) <= value < 2**63 if isinstance(value, int) and is_number else True
        return is_number and in_range and not math.isnan(value) and value != 1e300
    if annotation is str:
        return isinstance(value, str) and "\0" not in value
    if getattr(annotation, "_is_protocol", False):
        required = getattr(annotation, "__abstractmethods__", ())
        names = [name for name in vars(annotation) if name in required and name[0] != "_"]
        is_callable = callable(value) or "__call__" not in vars(annotation)
        is_built = not isinstance(value, type)
        return is_callable and is_built and all(hasattr(value, name) for name in names[:1])
    return isinstance(value, annotation)


def _fits_pair(annotations, pair):
    return all(map(_fits, annotations, pair))


@functools.cache
def _kinds():
    return tuple(parts.find_parts())


def _name(kind):
    return f"{kind.__module__}.{kind.__name__}"


def test_finds_the_parts():
    assert len(_kinds()) > 110 and csv.Csv in _kinds() and softmax.CrossEntropy in _kinds()


@pytest.mark.medium
@pytest.mark.parametrize("kind", _kinds(), ids=_name)
def test_a_setting_is_of_its_type_or_refused_in_one_line(kind):
    right = settings.required(kind)
    hints = typing.get_type_hints(kind, localns={"tf": tf})
    kind(**right)
    for field in dataclasses.fields(kind):
        draws = (random.Random(f"{_name(kind)}.{field.name} {n}") for n in cases.numbers(3))
        for value in [*_VALUES, *map(_random_value, draws)] if field.init else []:
            setting = f"{_name(kind)}.{field.name} = {value!r:.200}"
            try:
                kind(**right | {field.name: value})
            except checks.UserError as error:
                cases.refused(error)
            except Exception as error:
                pytest.fail(f"{setting}: {type(error).__name__}: {error}")
            else:
                assert _fits(hints[field.name], value), setting


def _find_edges():
    """(part, setting, a value just out of the range that the setting declares)."""
    for kind in _kinds():
        for setting, told in checks.describe_settings(kind).items():
            base, *ranges = re.split(r", (?=at |above |in |or )", told)
            for each in ranges if base in ("int", "float") else []:
                for value in _leave(each, 1 if base == "int" else 1e-3):
                    yield kind, setting, value


def _leave(told, step):
    """The values next to a range, but not in it, such as 0 for "at least 1"."""
    word, _, limits = told.replace("at ", "").partition(" ")
    if word == "in":
        least, most = map(float, limits[1:-1].split(","))
        yield least if limits[0] == "(" else least - step
        yield most if limits[-1] == ")" else most + step
    elif word != "or":
        limit = float(limits.replace(",", ""))
        yield type(step)(limit + {"least": -step, "above": 0, "most": step}[word])


def test_a_value_just_out_of_a_declared_range_is_refused_by_name():
    edges = list(_find_edges())
    assert len(edges) > 250
    for kind, setting, value in edges:
        if setting in {field.name for field in dataclasses.fields(kind) if field.init}:
            with pytest.raises(checks.UserError, match=rf"\b{setting}\b.* must "):
                kind(**settings.required(kind) | {setting: value})
