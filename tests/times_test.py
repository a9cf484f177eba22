"""Times as texts, in Python and in a graph."""

import math

import numpy as np
import pytest
import tensorflow as tf

from mtl import times
from mtl.data import field_splits

KNOWN = {
    "2024-05-31": 20240531000000,
    "2024-5-31": 20240531000000,
    " 2024/5/1 ": 20240501000000,
    "2024-05-31T": 20240531000000,
    "2024-05-31 9:05": 20240531090500,
    "2024-05-31 12:00": 20240531120000,
    "2024-05-31 12:00:07 AM": 20240531000007,
    "2024-05-31 12:30 pm": 20240531123000,
    "2024-05-31 1:02PM": 20240531130200,
    "2024-05-31 11:59 p.m.": 20240531235900,
    "2024-05-31 13:30 PM": 20240531133000,
    "2024-05-31T10:00:01.25+02:00": 20240531100001,
    "2024-05-31T10:00-05:00": 20240531100000,
    "2024-05-31T10:00Z": 20240531100000,
    "2024-05-31T103015": 20240531103015,
    "2024-05-31 some day": 20240531000000,
}
UNKNOWN = ["", "31.05.2024", "5/31/24", "2024-13-01", "2024-01-32", "2024-05-31x", "20240531"]


@pytest.mark.parametrize("text", [*KNOWN, *UNKNOWN])
def test_a_time_is_the_number_of_its_digits(text):
    np.testing.assert_equal(times.read_time(text), KNOWN.get(text, math.nan))


def test_a_graph_reads_what_python_reads():
    texts = [*KNOWN, *UNKNOWN]
    found = field_splits._to_digits(tf.constant(texts), times.ISO).numpy()
    np.testing.assert_array_equal(found, [times.read_time(text) for text in texts])
