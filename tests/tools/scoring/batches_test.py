"""Work on several items at a time keeps their order, and reads no further ahead than it must."""

import threading

import pytest

from mtl import checks
from mtl.tools.scoring import batches


def test_results_come_in_order_and_behind_them_what_ended_the_items():
    drawn, found, pairs = [], [], threading.Barrier(2)

    def items():
        for number in range(20):
            drawn.append(number)
            yield number
        raise checks.UserError("the file ends early")

    def work(number):
        pairs.wait(timeout=60)  # Passes only where two are worked on at a time.
        return number

    with pytest.raises(checks.UserError, match="the file ends early"):
        for number in batches.in_order(items(), work, concurrency=2):
            assert len(drawn) <= len(found) + 4
            found.append(number)
    assert found == drawn == list(range(20))


def test_an_error_of_the_work_comes_where_its_result_would():
    found = []
    with pytest.raises(ZeroDivisionError):
        for result in batches.in_order([1, 2, 0, 3], lambda number: 6 // number, concurrency=2):
            found.append(result)
    assert found == [6, 3]
