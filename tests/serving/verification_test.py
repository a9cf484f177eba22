"""The difference between two outputs, also with NaN and infinity; a NaN never passes by chance."""

import numpy as np
import pytest

from mtl.serving import verification

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("value", "wanted", "off"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([INF, -INF, NAN, 0.0], [INF, -INF, NAN, -0.0], 0),
        ([1000.001], [1000.0], 1e-6),
        ([1e-6], [0.0], 1e-6),
        ([], [], 0),
        (["a", "b"], ["a", "b"], 0),
        ([1, 2], [1, 2], 0),
    ],
)
def test_what_passes(value, wanted, off):
    found = verification.require_close("output", np.array(value), np.array(wanted))
    assert found == pytest.approx(off, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "wanted", "off"),
    [
        ([0.0, NAN], [0.0, 1.0], "inf"),
        ([0.0, 1.0], [0.0, NAN], "inf"),
        ([0.0, INF], [0.0, -INF], "inf"),
        ([0.0, INF], [0.0, 3e38], "inf"),
        ([0.0, 3e38], [0.0, INF], "inf"),
        ([NAN, INF], [INF, NAN], "inf"),
        ([0.0, 0.5], [0.0, 0.25], "0.25"),
        ([0, 1], [0, 2], "1"),
        (["a", "b"], ["a", "c"], "1"),
    ],
)
def test_what_is_refused(value, wanted, off):
    message = f"^output is off by {off}, but at most 1e-05 is"
    with pytest.raises(verification.RefusedError, match=message):
        verification.require_close("output", np.array(value), np.array(wanted))


def test_another_shape_is_refused():
    with pytest.raises(verification.RefusedError, match=r"has shape \(2, 1\) in place of \(2,\)"):
        verification.require_close("output", np.zeros([2, 1]), np.zeros([2]))
