"""The sides that are timed beside each other move a table alike."""

import numpy as np

from benchmarks import table_updates


def test_both_adams_move_all_rows_alike_and_the_lazy_one_those_of_the_batch():
    tables = {}
    for name, make in table_updates.SIDES.items():
        side = table_updates.Side(make, 1000)
        first = side.read_table()
        side(1)
        seen = np.any(side.read_table() != first, axis=1)
        side(4)
        tables[name] = side.read_table()
        moved = np.any(tables[name] != first, axis=1)
        # Draws of 256 rows of 1,000 meet about 226 of them in a step, and 723 in five.
        assert 200 < seen.sum() < 250 < moved.sum() < 750, name
    ours, plain, lazy = tables.values()
    np.testing.assert_allclose(ours, plain, rtol=0, atol=2e-7)
    assert np.abs(lazy - plain).max() > 1e-3
