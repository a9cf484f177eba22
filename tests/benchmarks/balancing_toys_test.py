import numpy as np
import pytest

from benchmarks import balancing_toys as benchmark

AXIS = np.linspace(-2, 2, 41)
X, Y = np.meshgrid(AXIS, AXIS)


def test_contours_around_a_peak_are_closed():
    (line,) = benchmark.trace_contours(AXIS, X**2 + Y**2, 1.0)
    assert line[0] == line[-1] and len(line) > 40
    np.testing.assert_allclose(np.linalg.norm(line, axis=1), 1.0, atol=0.01)


def test_contours_end_at_the_edge():
    (line,) = benchmark.trace_contours(AXIS, X + 0.25, 0.0)
    np.testing.assert_allclose(np.array(line)[:, 0], -0.25, atol=1e-9)
    assert {line[0][1], line[-1][1]} == {-2.0, 2.0}
    assert benchmark.trace_contours(AXIS, X, 3.0) == []


@pytest.mark.medium
def test_a_picture_shows_each_method_with_its_starts():
    ways = {"equal": [[[-8.5, 7.5], [0.0, 1.0]]], "cagrad": [[[9.0, 9.0], [1.0, 1.0]]]}
    drawn = benchmark.plot("plain", ways)
    told = ("equal", "cagrad", "front", "from (-8.5, 7.5)", "from (9.0, 9.0)", "x", "y")
    assert all(f">{text}</text>" in drawn for text in told)
