import collections
import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from mtl.checkpoints import settings


@dataclasses.dataclass(frozen=True)
class _Part:
    size: Any
    inner: Any = None
    hidden: int = dataclasses.field(default=0, repr=False)


class _Plain:
    pass


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        ({"x": {"b": [1], "a": 2}}, collections.OrderedDict(x={"a": 2, "b": (1,)})),
        ([1, 2], (1, 2)),
        (1, 1.0),
        (0, -0.0),
        (2**70, 2.0**70),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.str_("a"), "a"),
        ({3, 1, 2}, frozenset([2, 3, 1])),
        (math.nan, float("nan")),
        (_Part({"b": 1, "a": [2]}), _Part({"a": (2.0,), "b": 1})),
        (_Part(1, hidden=1), _Part(1, hidden=2)),
        (_Plain(), _Plain()),
        (np.arange(5000), np.arange(10000)[:5000]),
        (np.array(["a", "b"], object), np.array(["a", "b"], object)),
        (np.arange(6).reshape(2, 3).T, np.array([[0, 3], [1, 4], [2, 5]])),
        (_Part(np.arange(3)), _Part(np.arange(6)[:3])),
    ],
)
def test_settings_that_mean_the_same_are_the_same_text(one, other):
    assert settings.canonical_text(one) == settings.canonical_text(other)
    assert settings.compute_digest(one) == settings.compute_digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [2, 1]),
        (1, True),
        (0, False),
        (0, None),
        (1, "1"),
        ("a", b"a"),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {1: "a"}),
        ({"a": 1}, [("a", 1)]),
        ({}, []),
        (set(), {}),
        ([["a"], "b"], [["a", "b"]]),
        (["a', 'b"], ["a", "b"]),
        (0.1, np.float32(0.1)),
        (math.inf, -math.inf),
        (2**53 + 1, 2.0**53),
        (_Part(1), _Part(2)),
        (_Part(1, _Part(2)), _Part(1)),
        (_Part("at 0x1"), _Part("at 0x2")),
        (_Plain(), object()),
        (np.zeros(5000), np.where(np.arange(5000) == 2500, 1.0, 0)),
        (np.zeros(4), np.zeros([2, 2])),
        (_Part(np.zeros(4)), _Part(np.ones(4))),
        (np.zeros(2), np.zeros(2, np.float32)),
    ],
)
def test_settings_that_mean_something_else_are_another_text(one, other):
    assert settings.canonical_text(one) != settings.canonical_text(other)
    assert settings.compute_digest(one) != settings.compute_digest(other)


def test_an_earlier_digest_is_that_of_what_repr_shows():
    assert settings.digest_of_repr({"b": 1, "a": 2}) != settings.digest_of_repr({"a": 2, "b": 1})
    assert settings.digest_of_repr(_Plain()) == settings.digest_of_repr(_Plain())
    assert settings.digest_of_repr((1, "a")) == "1c8dfebc"
