import math

import pytest

from mtl.spec import literals


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1), (True, 1), (1.0, 1), (-0.0, 0), (10**400, 10**400), (1e300, int(1e300))]
    + [(value, None) for value in (1.5, math.nan, math.inf, "1", None, b"1", [1])],
)
def test_whole(value, expected):
    assert literals.whole(value) == expected
