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
    "2024-05-31T10:00:01.25+02:00": 20240531080001,
    "2024-12-31T20:00-05:30": 20250101013000,
    "2024-03-01 01:00:00 +0200": 20240229230000,
    "2024-05-31T10+02:00[Europe/Berlin]": 20240531080000,
    "2023-02-30 10:00+01": 20230302090000,
    "2024-05-31T10:00 CEST": 20240531100000,
    "2024-05-31 10:00-12:00 lunch": 20240531100000,
    "2024-05-31 12:15-12:45": 20240531121500,  # No offset, but a range.
    "2024-05-31 10-05": 20240531100000,
    "2024-05-31 10:00+25:00": 20240531100000,
    "2024-05-31T10:00Z": 20240531100000,
    "2024-05-31T103015": 20240531103015,
    "2024-05-31 some day": 20240531000000,
}
UNKNOWN = ["", "31.05.2024", "5/31/24", "2024-13-01", "2024-01-32", "2024-05-31x", "20240531"]


@pytest.mark.parametrize("text", [*KNOWN, *UNKNOWN])
def test_a_time_is_the_number_of_its_digits(text):
    np.testing.assert_equal(times.read_time(text), KNOWN.get(text, math.nan))


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ("", [*KNOWN, *UNKNOWN]),
        ("%d.%m.%Y %H:%M %z", ["1.3.2024 01:00 +0200", "1.3.2024 01:00 Z", "1.3.2024 01:00"]),
        ("%d %b %Y", ["1 May 2024", "1 Mai 2024"]),
    ],
)
def test_a_graph_reads_what_python_reads(form, texts):
    parsed_form = times.read_form("a form", form)
    found = field_splits._to_digits(tf.constant(texts), parsed_form).numpy()
    np.testing.assert_array_equal(found, [times.read_time(text, parsed_form) for text in texts])


def test_a_time_that_is_written_is_read_again():
    assert times.write_time(times.read_time("2024-5-31T10:00-05:00")) == "2024-05-31 15:00:00"
    assert times.write_time(math.nan) == ""
