"""The ways to find tokens that are timed beside each other find the same."""

import numpy as np
import pytest

from benchmarks import features, lookups


@pytest.mark.medium
def test_all_ways_give_the_same_places():
    given = features.draw_fields(2, 1)
    for name, find in list(lookups.WAYS.items())[1:]:
        side = lookups.Side(find, 2)
        for tokens, places in zip(given.values(), side.session.run(side.places), strict=True):
            np.testing.assert_array_equal(places, tokens.astype(np.int64), err_msg=name)
